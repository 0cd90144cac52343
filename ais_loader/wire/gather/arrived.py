"""Reassembly buffer: whole entries that have arrived and not gone out yet, and frames made of runs of them.

Entries of several incoming frames are gathered into frames of about `target_bytes`, since a frame per entry would cost
more than copying its bytes does; what is contiguous in one incoming frame already is passed on as a view of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.wire.frame import U8, Frame
from ais_loader.wire.gather.frame_edit import Mask

I64: TypeAlias = npt.NDArray[np.int64]

MAX_ENTRIES_PER_FRAME = 4096


@dataclass(slots=True)
class _Held:
    """A payload of which some entries have not been taken out yet."""

    payload: memoryview
    entries_left: int


class Arrived:
    """Of one batch of n entries, by their positions."""

    def __init__(self, n: int) -> None:
        self.kind: U8 = np.zeros(n, np.uint8)
        self.size: I64 = np.zeros(n, np.int64)
        self._start: I64 = np.zeros(n, np.int64)
        self._source: I64 = np.zeros(n, np.int64)  # number of the payload that has the entry
        self._held: dict[int, _Held] = {}
        self._sources = 0

    def put(self, positions: I64, frame: Frame) -> None:
        """Entry k of the frame is the one at positions[k]."""
        size = frame.size.astype(np.int64)
        self.kind[positions] = frame.checksum_kind
        self.size[positions] = size
        self._start[positions] = size.cumsum() - size
        self._source[positions] = self._sources
        self._held[self._sources] = _Held(frame.payload, len(positions))
        self._sources += 1

    def run_stop(self, first: int, ready: Mask, target_bytes: int) -> int:
        """The end of the run, from `first` on, that goes out as one frame; ready[k] says whether first + k may."""
        count = len(ready) if ready.all() else int(ready.argmin())
        if count <= 1:
            return first + count
        ends = self.size[first : first + count].cumsum()
        # The frame ends with the entry that fills it, or before one that fills a frame by itself.
        count = min(count, int(np.searchsorted(ends, target_bytes, side="left")) + 1)
        large = np.flatnonzero(self.size[first + 1 : first + count] > target_bytes)
        if len(large):
            count = 1 + int(large[0])
        # What one incoming frame has of it is passed on without a copy, where that makes a frame worth its price.
        begins = self._slices(first, first + count)
        if len(begins) > 1 and int(ends[begins[1] - 1]) * 2 >= target_bytes:
            count = int(begins[1])
        return first + count

    def _slices(self, first: int, stop: int) -> I64:
        """Where, counted from `first`, slices begin: neighbours in one payload are one slice of it."""
        source, start = self._source[first:stop], self._start[first:stop]
        begins: Mask = np.ones(stop - first, np.bool_)
        begins[1:] = (source[1:] != source[:-1]) | (start[1:] != start[:-1] + self.size[first : stop - 1])
        return np.flatnonzero(begins)

    def take(self, first: int, stop: int) -> memoryview:
        """The bytes of a run, which are held no longer."""
        size, start, source = self.size[first:stop], self._start[first:stop], self._source[first:stop]
        begins = self._slices(first, stop)
        closes = np.append(begins[1:], len(size)) - 1
        slices = [
            self._held[number].payload[begin:end]
            for number, begin, end in zip(
                source[begins].tolist(), start[begins].tolist(), (start + size)[closes].tolist(), strict=True
            )
        ]
        payload = slices[0] if len(slices) == 1 else memoryview(b"".join(slices))
        oldest = int(source.min())
        for number, count in enumerate(np.bincount(source - oldest).tolist(), oldest):
            if count:
                self._held[number].entries_left -= count
                if not self._held[number].entries_left:
                    del self._held[number]
        return payload
