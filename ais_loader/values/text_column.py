"""Text column: many strings in two flat buffers, in memory or mapped from a file."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ais_loader.errors import StoreFormatError

_PART_BYTES = 1 << 20


class TextColumn(NamedTuple):
    """Immutable column of n strings, in UTF-8."""

    buffer: bytes | mmap.mmap
    """Has the strings one after another, from `first` on."""
    stops: npt.NDArray[np.int64]
    """Shape (n,): where each string ends, in bytes after `first`."""
    first: int = 0

    @classmethod
    def of(cls, encoded: Sequence[bytes]) -> TextColumn:
        return cls(b"".join(encoded), np.fromiter(map(len, encoded), np.int64, len(encoded)).cumsum())

    @classmethod
    def of_parts(cls, lengths: Sequence[npt.NDArray[np.integer[Any]]], parts: Sequence[bytes]) -> TextColumn:
        """Return a column of the strings in `parts`, one after another, with these lengths in bytes."""
        return cls(b"".join(parts), np.concatenate([np.zeros(0, np.int64), *lengths]).cumsum(dtype=np.int64))

    @property
    def size_bytes(self) -> int:
        self._require_whole()
        return self.stops.item(-1) if len(self.stops) else 0

    def parts(self) -> Iterator[memoryview]:
        """Iterate over the bytes of all stops, and then of all strings. Raises StoreFormatError for a cut file."""
        strings = memoryview(self.buffer)[self.first : self.first + self.size_bytes]
        for data in (self.stops.astype("<i8", copy=False).view(np.uint8).data, strings):
            for start in range(0, len(data), _PART_BYTES):
                self._require_whole()
                yield data[start : start + _PART_BYTES]

    def _require_whole(self) -> None:
        """Check that the file has all that is mapped: the kernel ends a process that reads what a file has lost."""
        if isinstance(self.buffer, mmap.mmap) and self.buffer.size() < len(self.buffer):
            raise StoreFormatError(
                f"the file of an open table was cut to {self.buffer.size():,} bytes of {len(self.buffer):,}; save the "
                "table again: that makes a new file, and open tables keep theirs"
            )

    def at(self, indices: Iterable[int]) -> list[str]:
        """Return the strings at these indices, 0 <= index < n. Raises StoreFormatError for a damaged file."""
        self._require_whole()
        buffer, stops, first = self.buffer, self.stops, self.first
        end = len(buffer) - first
        found = []
        for at in indices:
            start, stop = stops.item(at - 1) if at else 0, stops.item(at)
            if not 0 <= start <= stop <= end:
                raise StoreFormatError(f"entry {at:,} is damaged: it would be at {start:,} to {stop:,} of {end:,}")
            try:
                found.append(buffer[first + start : first + stop].decode())
            except UnicodeDecodeError as error:
                raise StoreFormatError(f"entry {at:,} is damaged: {error}") from error
        return found
