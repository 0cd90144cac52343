"""Cuts over objects of a store, with every kind of data that Lhotse's manifests name; and a client that counts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import lilcom
import numpy as np
import PIL.Image
import soundfile
from lhotse import AudioSource, CutSet, Features, MonoCut, Recording
from lhotse.array import Array, TemporalArray
from lhotse.image import Image

from ais_loader import Bucket, Client, Entry
from ais_loader.integrations.lhotse import AISBatchLoader

RATE = 16_000


def samples(seconds: float, seed: int = 0, channels: int = 1) -> np.ndarray:
    """Noise that 16 bits hold exactly, shape (n,), or (n, channels)."""
    shape = (round(seconds * RATE), channels) if channels > 1 else (round(seconds * RATE),)
    return (np.random.default_rng(seed).integers(-8000, 8000, shape) / 32768).astype(np.float32)


def encoded(audio: np.ndarray, form: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, audio, RATE, format=form, subtype=subtype)
    return file.getvalue()


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def png(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(array).save(file, format="PNG")
    return file.getvalue()


def recording(name: str, *urls: str, seconds: float = 1.0, kind: str = "url") -> Recording:
    """One channel for each source."""
    sources = [AudioSource(kind, [channel], url) for channel, url in enumerate(urls)]
    return Recording(name, sources, RATE, round(seconds * RATE), seconds)


def cut(name: str, *urls: str, seconds: float = 1.0, start: float = 0.0, of_seconds: float = 0.0) -> MonoCut:
    whole = recording(name, *urls, seconds=of_seconds or seconds)
    return MonoCut(name, start=start, duration=seconds, channel=0, recording=whole)


def features(path: str, key: str, frames: int, kind: str = "numpy_files", bins: int = 4) -> Features:
    return Features(
        type="fbank",
        num_frames=frames,
        num_features=bins,
        frame_shift=0.01,
        sampling_rate=RATE,
        start=0.0,
        duration=frames / 100,
        storage_type=kind,
        storage_path=path,
        storage_key=key,
        recording_id="r",
        channels=0,
    )


def array(path: str, key: str, shape: Sequence[int], kind: str = "numpy_files") -> Array:
    return Array(kind, path, key, list(shape))


def temporal(
    path: str, key: str, shape: Sequence[int], kind: str = "numpy_files", shift: float = 0.01
) -> TemporalArray:
    return TemporalArray(array(path, key, shape, kind), temporal_dim=0, frame_shift=shift, start=0.0)


def image(path: str, key: str, width: int, height: int, kind: str = "pillow_files") -> Image:
    return Image(storage_type=kind, storage_path=path, storage_key=key, width=width, height=height)


def lilcom_bytes(values: np.ndarray) -> bytes:
    return bytes(lilcom.compress(values.copy(), tick_power=-8))


def put_audio(bucket: Bucket, count: int, *, prefix: str = "a", seconds: float = 1.0) -> list[MonoCut]:
    """Recordings `prefix/0.wav` and so on, each a noise of its own, and a cut of each."""
    bucket.put_many((f"{prefix}/{at}.wav", encoded(samples(seconds, at))) for at in range(count))
    return [cut(f"{prefix}-{at}", f"ais://{bucket.name}/{prefix}/{at}.wav", seconds=seconds) for at in range(count)]


class Counted:
    """Of a client: which entries were asked for, request by request."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.requests: list[list[Entry]] = []

    def get_batch(self, entries: Sequence[Entry], **options: Any) -> Any:
        self.requests.append(list(entries))
        return self._client.get_batch(entries, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class CountedLoader(AISBatchLoader):
    """`requests` has the entries of each request."""

    def __init__(self, client: Client, **options: Any) -> None:
        super().__init__(**options)
        self.counted = Counted(client)

    @property
    def client(self) -> Any:
        return self.counted

    @property
    def requests(self) -> list[list[Entry]]:
        return self.counted.requests


def eager(*cuts: Any) -> CutSet:
    return CutSet.from_cuts(cuts)
