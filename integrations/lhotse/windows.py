"""Windows of recordings and arrays in memory. Inside the window, they behave like the whole."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from lhotse.array import TemporalArray
from lhotse.audio.recording import Recording
from lhotse.audio.source import AudioSource
from lhotse.features.base import Features
from lhotse.features.io import FeaturesReader, register_reader
from lhotse.utils import compute_num_samples

from .failures import FetchFailed

_HINT = "AISBatchLoader(windows=False) fetches recordings and arrays whole"


@dataclass
class WindowSource(AudioSource):  # type: ignore[misc]  # Lhotse is not type-checked here
    """A WAV file in memory with the frames of another one, from `first_frame` on."""

    first_frame: int = 0
    frames: int = 0
    sampling_rate: int = 0
    to_end: bool = False
    """Whether the other file ends here. What is beyond is then missing there too."""

    def load_audio(
        self, offset: float = 0.0, duration: float | None = None, force_opus_sampling_rate: int | None = None
    ) -> Any:
        start = compute_num_samples(offset, self.sampling_rate)
        count = None if duration is None else compute_num_samples(duration, self.sampling_rate)
        last = self.first_frame + self.frames
        if start < self.first_frame or (not self.to_end and (count is None or start + count > last)):
            raise FetchFailed(
                f"frames {start:,} to {'the end' if count is None else f'{start + count:,}'} are wanted of a recording "
                f"of which {self.first_frame:,} to {last:,}, the cut's, were fetched; {_HINT}"
            )
        # Whole frames, so that rounding is the same as in the whole file.
        return super().load_audio(
            (start - self.first_frame) / self.sampling_rate, duration, force_opus_sampling_rate=force_opus_sampling_rate
        )


@register_reader
class WindowReader(FeaturesReader):  # type: ignore[misc]
    """The reader of .npy files in memory that have some rows of another one. The storage path says which."""

    name = "memory_npy_rows"

    def __init__(self, storage_path: str, *args: object, **kwargs: object) -> None:
        self._first, self._stop, self._rows = map(int, storage_path.split())

    @staticmethod
    def path(first: int, stop: int, rows: int) -> str:
        """Return the storage path. `stop` is exclusive. The whole array has `rows` rows."""
        return f"{first} {stop} {rows}"

    def read(self, key: bytes, left_offset_frames: int = 0, right_offset_frames: int | None = None) -> Any:
        first, stop, _ = slice(left_offset_frames, right_offset_frames).indices(self._rows)
        if first < self._first or stop > self._stop:
            raise FetchFailed(
                f"rows {first:,} to {stop:,} are wanted of an array of which {self._first:,} to {self._stop:,}, the "
                f"cut's, were fetched; {_HINT}"
            )
        return np.load(io.BytesIO(key), allow_pickle=False)[first - self._first : stop - self._first]


class _Requested(Exception):
    """Ends a load at the point where it would read bytes."""


@dataclass
class _RequestSource(AudioSource):  # type: ignore[misc]
    requested: tuple[float, float | None] | None = None

    def load_audio(self, offset: float = 0.0, duration: float | None = None, **kwargs: object) -> Any:
        self.requested = offset, duration
        raise _Requested("")


@register_reader
class _RequestReader(FeaturesReader):  # type: ignore[misc]
    name = "memory_asked"

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def read(self, key: list[Any], left_offset_frames: int = 0, right_offset_frames: int | None = None) -> Any:
        key.append((left_offset_frames, right_offset_frames))
        raise _Requested("")


def requested_seconds(recording: Recording, start: float, duration: float) -> tuple[float, float | None] | None:
    """Return the offset and duration that Lhotse, whose transforms stretch them, reads of each source for a cut."""
    source = _RequestSource("memory", recording.channel_ids, b"")
    whole = shallow(recording)
    whole.sources = [source]
    try:
        whole.load_audio(offset=start, duration=duration)
    except Exception:  # noqa: BLE001 - _Requested, or an error that loading the cut raises too
        return source.requested
    return None


def requested_rows(manifest: Features | TemporalArray, start: float, duration: float) -> tuple[int, int | None] | None:
    """Return the first row and the stop that are read for a cut."""
    probe = shallow(manifest)
    inner = probe
    if isinstance(manifest, TemporalArray):
        inner = probe.array = shallow(manifest.array)
    requested: list[tuple[int, int | None]] = []
    inner.storage_type, inner.storage_key = _RequestReader.name, requested
    try:
        probe.load(start=start, duration=duration)
    except Exception:  # noqa: BLE001 - as above
        return requested[0] if requested else None
    return None


def shallow(value: Any) -> Any:
    """Return a copy that shares all fields."""
    copy = object.__new__(type(value))
    copy.__dict__.update(value.__dict__)
    return copy
