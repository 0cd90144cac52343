"""Media indexes: where the packets of audio and video are in their objects, and when each is shown.

An index is kept as that of lines is (`wire/line_index.py`): an archive of numpy arrays, with the other fields as JSON.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.objects.range_table import pin_of
from ais_loader.values.entry import ObjectInfo

MediaIndex: TypeAlias = "dict[str, Track]"
"""The first video and the first audio track of an object, by the names "video" and "audio"."""
_FORMAT = 1

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Track:
    """A track of audio or video. Its n packets are in the order of decoding."""

    codec: str
    tag: str
    """The four characters that a container names its codec with."""
    width: int
    """0 for audio, as `height`."""
    height: int
    rate_hz: int
    """0 for video, as `samples`."""
    layout: str
    samples: int
    """The number of samples in each channel, from the origin on."""
    unit: tuple[int, int]
    """Seconds of a tick, as a fraction."""
    origin: tuple[int, int]
    """When the first track of the file begins, in seconds, as a fraction. Times are counted from here."""
    end: int
    """When the last packet ends, in ticks."""
    stream: int
    """The number of the track in its file."""
    extradata: npt.NDArray[np.uint8]
    """Configuration of the decoder."""
    head: npt.NDArray[np.uint8]
    """The first bytes of a file that divides packets, and so has to be read by its container's own reader."""
    starts: Numbers
    """Where each packet begins, in bytes, shape (n,), as all that follow."""
    sizes: Numbers
    ticks: Numbers
    """When each packet is shown."""
    flags: Numbers
    """1 if decoding can begin here, plus 2 if it is not shown."""

    @cached_property
    def shown(self) -> Numbers:
        """The packets that are shown, in this order."""
        order = np.argsort(self.ticks, kind="stable")
        return order[self.flags[order] < 2]

    @cached_property
    def times_s(self) -> npt.NDArray[np.float64]:
        """When each frame is shown."""
        return np.asarray(self.seconds(self.ticks[self.shown]))

    @property
    def end_s(self) -> float:
        return self.samples / self.rate_hz if self.rate_hz else float(self.seconds(np.int64(self.end)))

    def seconds(self, ticks: Any) -> Any:
        """Convert ticks to seconds from the origin, each to the float that is nearest."""
        unit, origin = Fraction(*self.unit), Fraction(*self.origin)
        scale = unit.denominator * origin.denominator
        return (ticks * (unit.numerator * origin.denominator) - origin.numerator * unit.denominator) / scale


_ARRAYS = ("extradata", "head", "starts", "sizes", "ticks", "flags")


def encode_tracks(info: ObjectInfo, index: MediaIndex) -> bytes:
    """Encode the index of this version of an object."""
    scalars = [field.name for field in fields(Track) if field.name not in _ARRAYS]
    about = {kind: {name: getattr(track, name) for name in scalars} for kind, track in index.items()}
    text = json.dumps({"format": _FORMAT, "version": pin_of(info), "size_bytes": info.size_bytes, "tracks": about})
    arrays = {f"{kind}.{name}": getattr(track, name) for kind, track in index.items() for name in _ARRAYS}
    file = io.BytesIO()
    np.savez_compressed(file, about=np.frombuffer(text.encode(), np.uint8), **arrays)
    return file.getvalue()


def decode_tracks(data: bytes | memoryview, info: ObjectInfo) -> MediaIndex | None:
    """Decode an index. None if it is another kind's, or that of another version."""
    try:
        arrays = np.load(io.BytesIO(data), allow_pickle=False)
        about = json.loads(arrays["about"].tobytes())
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError):
        return None
    if (about["format"], about["version"], about["size_bytes"]) != (_FORMAT, pin_of(info), info.size_bytes):
        return None
    return {
        kind: Track(**values, **{name: arrays[f"{kind}.{name}"] for name in _ARRAYS})
        for kind, values in about["tracks"].items()
    }
