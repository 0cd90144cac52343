"""Lhotse as it is released, with the `aistore` SDK: AISBatchLoader and AIStoreIOBackend, over real speech."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

from checks import bucket_name, check, end, endpoint, equal

os.environ["AIS_ENDPOINT"] = endpoint()

import numpy as np
from aistore.sdk import Client
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.ais.batch_loader import AISBatchLoader, AISBatchLoaderError
from lhotse.audio import AudioSource
from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset
from lhotse.dataset.input_strategies import AudioSamples
from lhotse.serialization import AIStoreIOBackend, load_jsonl, open_best
from torch.utils.data import DataLoader

SPEECH = Path(__file__).resolve().parents[2] / "data" / "speech"
FILES = sorted(SPEECH.glob("en/*.flac"))[:24]
client = Client(endpoint())
name = bucket_name()
bucket = client.bucket(name).create()
local = [Recording.from_file(path) for path in FILES]
for path in FILES:
    bucket.object(f"en/{path.name}").get_writer().put_content(path.read_bytes())
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w") as archive:
    for path in FILES:
        archive.add(path, path.name)
bucket.object("shards/s.tar").get_writer().put_content(packed.getvalue())


def cuts(place: str) -> CutSet:
    """Return a cut of each file, whose data are below `place` in the bucket."""
    made = []
    for path, recording in zip(FILES, local, strict=True):
        remote = Recording(
            id=recording.id,
            sources=[AudioSource(type="url", channels=[0], source=f"ais://{name}/{place}/{path.name}")],
            sampling_rate=recording.sampling_rate,
            num_samples=recording.num_samples,
            duration=recording.duration,
        )
        text = SupervisionSegment(path.stem, recording.id, 0, recording.duration, text=path.stem)
        made.append(MonoCut(path.stem, 0, recording.duration, 0, [text], recording=remote))
    return CutSet.from_cuts(made)


def same(loaded: CutSet) -> None:
    """Compare the audio of cuts with that of the files."""
    equal(len(loaded), len(local))
    for cut, recording in zip(loaded, local, strict=True):
        equal(cut.recording.sources[0].type, "memory")
        equal(np.array_equal(cut.load_audio(), recording.load_audio()), True)


with check("a batch of objects"):
    same(AISBatchLoader()(cuts("en")))
with check("a batch of members"):
    same(AISBatchLoader()(cuts("shards/s.tar")))
with check("parts of recordings"):
    windows = CutSet.from_cuts(cut.truncate(offset=0.5, duration=0.75).with_id(cut.id) for cut in cuts("en"))
    for cut, recording in zip(AISBatchLoader()(windows), local, strict=True):
        equal(np.array_equal(cut.load_audio(), recording.load_audio(offset=0.5, duration=0.75)), True)
with check("audio of a batch as a tensor"):
    chosen = cuts("en").subset(first=8)
    audio, lengths = AudioSamples(use_batch_loader=True)(chosen)
    for row, length, recording in zip(audio, lengths, local, strict=False):
        equal(np.array_equal(row[:length].numpy(), recording.load_audio()[0]), True)
with check("training batches in worker processes"):
    sampler = DynamicBucketingSampler(cuts("shards/s.tar"), max_duration=20, num_buckets=2, shuffle=True, seed=1)
    dataset = K2SpeechRecognitionDataset(input_strategy=AudioSamples(use_batch_loader=True))
    texts = []
    for batch in DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2):
        texts += batch["supervisions"]["text"]
    equal(sorted(texts), sorted(path.stem for path in FILES))
with check("a missing object is an error"):
    broken = cuts("en")
    bucket.object(f"en/{FILES[3].name}").delete()
    try:
        AISBatchLoader()(broken)
    except (AttributeError, AISBatchLoaderError):  # the former as long as Lhotse looks for the field `bck`
        pass
    else:
        raise AssertionError("nobody noticed")
    bucket.object(f"en/{FILES[3].name}").get_writer().put_content(FILES[3].read_bytes())
with check("a missing bucket is an error"):
    bad = cuts("en")
    for cut in bad:
        cut.recording.sources[0].source = cut.recording.sources[0].source.replace(name, f"{name}-none")
    try:
        AISBatchLoader()(bad)
    except AISBatchLoaderError:
        pass
    else:
        raise AssertionError("nobody noticed")
with check("AIStoreIOBackend reads"):
    with AIStoreIOBackend().open(f"ais://{name}/en/{FILES[0].name}", "rb") as file:
        equal(file.read(), FILES[0].read_bytes())
    same_audio = cuts("en")[0].load_audio()
    equal(np.array_equal(same_audio, local[0].load_audio()), True)
with check("AIStoreIOBackend writes"):
    rows = [cut.to_dict() for cut in cuts("en")]
    manifest = f"ais://{name}/manifests/cuts.jsonl"
    with open_best(manifest, "w") as file:
        for cut in cuts("en"):
            file.write((json.dumps(cut.to_dict()) + "\n").encode())
    equal(list(load_jsonl(manifest)), rows)
    same(AISBatchLoader()(CutSet.from_dicts(load_jsonl(manifest))))
with check("deletes"):
    bucket.delete()
end()
