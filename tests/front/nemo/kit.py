"""Manifests and shards of the committed recordings, and what NeMo's loader is configured with."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ais_loader import Bucket
from tests.data import Utterance

BUCKET = "speech"
LANGUAGES = ("en", "es")
SHARDS = 2
RATE_HZ = 8000
"""Of the recordings."""


@dataclass(frozen=True)
class Speech:
    """What the shared bucket holds."""

    bucket: Bucket
    spoken: list[Utterance]

    @property
    def plain(self) -> str:
        return f"ais://{self.bucket.name}/plain.json"

    @property
    def tarred(self) -> dict[str, str]:
        return tarred(self.bucket, "asr", SHARDS)


def member(one: Utterance) -> str:
    """Its name in a shard: without folders, as NeMo's own converter makes them."""
    return f"{one.lang}_{PurePosixPath(one.name).name}"


def line(one: Utterance, audio: str, **fields: Any) -> dict[str, Any]:
    """A line of a manifest; a field that is None is left out."""
    whole = {
        "audio_filepath": audio,
        "duration": one.duration_s,
        "sampling_rate": one.sampling_rate_hz,
        "text": one.text,
        "lang": one.lang,
        "source_lang": one.lang,
        "target_lang": one.lang,
    }
    return {key: value for key, value in (whole | fields).items() if value is not None}


def plain_lines(spoken: Iterable[Utterance], bucket: str = BUCKET) -> list[dict[str, Any]]:
    return [line(one, f"ais://{bucket}/flac/{one.name}") for one in spoken]


def put_lines(bucket: Bucket, name: str, lines: Iterable[dict[str, Any]]) -> str:
    """Write a manifest as an object; its URL."""
    bucket.put(name, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines).encode())
    return f"ais://{bucket.name}/{name}"


def tar_of(files: Iterable[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def put_shards(bucket: Bucket, folder: str, shards: Sequence[Sequence[Utterance]], **fields: Any) -> None:
    """manifest_N.json and audio_N.tar in `folder`; `fields` replace those of each line."""
    for number, shard in enumerate(shards):
        data = tar_of((member(one), one.path.read_bytes()) for one in shard)
        bucket.put(f"{folder}/audio_{number}.tar", data)
        put_lines(bucket, f"{folder}/manifest_{number}.json", [line(one, member(one), **fields) for one in shard])


def tarred(bucket: Bucket, folder: str, shards: int) -> dict[str, str]:
    """Both paths, as NeMo's configuration has them."""
    numbers = f"_OP_0..{shards - 1}_CL_"
    return {
        "manifest_filepath": f"ais://{bucket.name}/{folder}/manifest_{numbers}.json",
        "tarred_audio_filepaths": f"ais://{bucket.name}/{folder}/audio_{numbers}.tar",
    }


def loader_config(**options: Any) -> dict[str, Any]:
    """NeMo's `train_ds`, replayable, one pass, in this process."""
    return {
        "use_lhotse": True,
        "sample_rate": RATE_HZ,
        "batch_size": 8,
        "num_workers": 0,
        "shuffle": False,
        "shard_seed": 0,
        "seed": 0,
        "force_finite": True,
        "concurrent_bucketing": False,
        "cuda_expandable_segments": False,
        **options,
    }


def sources(cut: Any) -> list[Any]:
    """Of all its audible tracks; NeMo's batches pad cuts, and a padded one is mixed of several."""
    cuts = [track.cut for track in getattr(cut, "tracks", [])] or [cut]
    return [source for one in cuts if getattr(one, "recording", None) for source in one.recording.sources]
