"""Reassembly buffer: whole entries that have arrived and were not delivered yet, and runs of them.

A run is delivered as one frame, whichever frames its entries came in. Entries are passed on as views, not copied.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.wire.frame import U8, Frame
from ais_loader.wire.gather.frame_edit import Mask

I64: TypeAlias = npt.NDArray[np.int64]

MAX_ENTRIES_PER_FRAME = 4096
_CONSUMED = memoryview(b"")


class Arrived:
    """The entries of one batch of n, by their positions."""

    def __init__(self, n: int) -> None:
        self.kind: U8 = np.zeros(n, np.uint8)
        self.size: I64 = np.zeros(n, np.int64)
        self._bytes = [_CONSUMED] * n

    def put(self, positions: I64, frame: Frame) -> None:
        """Store the entries of a frame; entry k of the frame is the one at positions[k]."""
        self.kind[positions] = frame.checksum_kind
        self.size[positions] = frame.size
        for position, data in zip(positions.tolist(), frame.entries(), strict=True):
            self._bytes[position] = data

    def run_stop(self, first: int, ready: Mask, most_bytes: int) -> int:
        """Return the end of the run from `first` that is delivered as one frame; ready[k] tells whether first + k may
        be."""
        count = len(ready) if ready.all() else int(ready.argmin())
        if count <= 1:
            return first + count
        ends = self.size[first : first + count].cumsum()
        return first + max(1, int(np.searchsorted(ends, most_bytes, side="right")))

    def take(self, first: int, stop: int) -> memoryview | list[memoryview]:
        """Return the bytes of a run in the form that a frame has, and release them."""
        content = self._bytes[first:stop]
        self._bytes[first:stop] = [_CONSUMED] * len(content)
        return content[0] if len(content) == 1 else content
