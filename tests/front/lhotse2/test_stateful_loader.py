"""torchdata's StatefulDataLoader over indexed manifests and shards in the store, with our loader in its workers: it
goes on where it was, and reads no more for a later place than for an earlier one."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Recording, serialization
from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler
from lhotse.dataset.dataloading import make_worker_init_fn
from lhotse.dataset.iterable_dataset import IterableDatasetWrapper
from lhotse.indexing import IndexedJsonlReader, create_jsonl_index
from lhotse.shar import SharWriter
from lhotse.shar.readers.indexed import LazyIndexedSharIterator
from torchdata.stateful_dataloader import StatefulDataLoader

import ais_loader
from ais_loader.integrations.lhotse import AISBatchLoader, install
from ais_loader.testing import NodeProcess, throwaway_folder

RATE = 8000
COUNT = 240
BATCH = 8


def sound(number: int) -> np.ndarray:
    return (np.random.default_rng(number).integers(-9000, 9000, 400 + number) / 32768).astype(np.float32)


def recording(number: int) -> Recording:
    packed = io.BytesIO()
    soundfile.write(packed, sound(number), RATE, format="WAV", subtype="PCM_16")
    return Recording.from_bytes(packed.getvalue(), f"{number:03d}")


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node:
        yield node


@pytest.fixture(autouse=True)
def installed(node: NodeProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("AIS_LOADER_URL", node.url)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where Lhotse keeps indexes
    default = serialization.get_default_io_backend()
    backends = list(default.backends)
    install()
    yield
    default.backends = backends


@pytest.fixture(scope="module")
def filled(node: NodeProcess) -> None:
    """Recordings as objects, with a manifest of them, and the same as shards of Shar."""
    with pytest.MonkeyPatch.context() as patched, ais_loader.connect(node.url) as client:
        patched.setenv("AIS_LOADER_URL", node.url)
        install()
        whole = [recording(number) for number in range(COUNT)]
        bucket = client.create_bucket("b")
        bucket.put_many((f"{one.id}.wav", one.sources[0].source) for one in whole)
        options = {"shard_size": 100, "compress_jsonl": False, "create_index": False}
        with SharWriter("ais://b/shar", fields={"recording": "wav"}, **options) as writer:
            for one in whole:
                writer.write(one.to_cut())
        for one in whole:
            one.sources[0].type, one.sources[0].source = "url", f"ais://b/{one.id}.wav"
        CutSet.from_cuts(one.to_cut() for one in whole).to_file("ais://b/cuts.jsonl")
        create_jsonl_index("ais://b/cuts.jsonl")


FIELDS = {
    name: [f"ais://b/shar/{name}.{shard:06d}.{kind}" for shard in range(3)]
    for name, kind in (("cuts", "jsonl"), ("recording", "tar"))
}
SOURCES: dict[str, Callable[[], CutSet]] = {
    "manifest": lambda: CutSet.from_file("ais://b/cuts.jsonl", indexed=True),
    "shards": lambda: CutSet.from_shar(fields=FIELDS, indexed=True),
    "pointers": lambda: CutSet(LazyIndexedSharIterator(fields=FIELDS, lazy=True)),
}

lines_read = 0
"""Of manifests, in this process."""


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    global lines_read
    lines_read = 0
    line_of = IndexedJsonlReader.__getitem__

    def counting(reader: IndexedJsonlReader, number: int) -> Any:
        global lines_read
        lines_read += 1
        return line_of(reader, number)

    monkeypatch.setattr(IndexedJsonlReader, "__getitem__", counting)  # forked workers have it too


class Loaded:
    """Sounds by id, as our loader fetches them in the worker; and how many lines have been read there."""

    def __init__(self) -> None:
        self._loader = AISBatchLoader()

    def __getitem__(self, cuts: CutSet) -> tuple[dict[str, np.ndarray], int]:
        return {cut.id: cut.load_audio()[0] for cut in self._loader(cuts)}, lines_read


def data_loader(source: str, workers: int, *, bucketing: bool = False) -> StatefulDataLoader:
    cuts = SOURCES[source]()
    if bucketing:
        sampler: Any = DynamicBucketingSampler(
            cuts, max_cuts=BATCH, num_buckets=2, buffer_size=32, shuffle=True, seed=1
        )
    else:
        sampler = DynamicCutSampler(cuts, max_cuts=BATCH)
    wrapper = IterableDatasetWrapper(Loaded(), sampler)
    seeded = make_worker_init_fn(rank=0, world_size=1, seed=1)
    return StatefulDataLoader(wrapper, batch_size=None, num_workers=workers, worker_init_fn=seeded if workers else None)


def checked_ids(batch: tuple[dict[str, np.ndarray], int]) -> list[str]:
    for name, samples in batch[0].items():
        np.testing.assert_array_equal(samples, sound(int(name)))
    return list(batch[0])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_at_any_place_and_reads_no_more_for_a_later_one(filled: None, source: str, workers: int) -> None:
    whole = data_loader(source, workers)
    expected, states = [], {}
    for number, batch in enumerate(whole, 1):
        expected.append(checked_ids(batch))
        if number in (4, 24):
            states[number] = pickle.loads(pickle.dumps(whole.state_dict()))
    assert sorted(name for batch in expected for name in batch) == [f"{number:03d}" for number in range(COUNT)]
    read = {}
    for place, state in states.items():
        global lines_read
        lines_read = 0
        resumed = data_loader(source, workers)
        resumed.load_state_dict(state)
        found = []
        for batch in resumed:
            read.setdefault(place, batch[1])
            found.append(checked_ids(batch))
        assert found == expected[place:]
    assert read[24] <= read[4] <= 3 * BATCH, "lines that were read before the first batch"


def test_shuffled_buckets_go_on_where_they_were(filled: None) -> None:
    whole = data_loader("pointers", 2, bucketing=True)
    expected, state = [], None
    for number, batch in enumerate(whole, 1):
        expected.append(checked_ids(batch))
        if number == 11:
            state = pickle.loads(pickle.dumps(whole.state_dict()))
    resumed = data_loader("pointers", 2, bucketing=True)
    resumed.load_state_dict(state)
    assert [checked_ids(batch) for batch in resumed] == expected[11:]
