"""Sparse source: the parts of an archive that have been read, as a byte source for the parsers of stored archives."""

from __future__ import annotations

from bisect import bisect_right, insort

from ais_loader.errors import LoaderError


class MissingBytes(LoaderError):
    """Bytes that have not been read: `length` bytes from `start` at least."""

    def __init__(self, start: int, length: int) -> None:
        super().__init__(f"bytes {start:,} to {start + length:,} have not been read")
        self.start, self.length = start, length


class SparseSource:
    """Parts of `size_bytes`. Belongs to one thread at a time."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._starts: list[int] = []
        self._parts: dict[int, memoryview] = {}

    def add(self, start: int, data: bytes | memoryview) -> None:
        """Add what has been read from byte `start` on."""
        at, stop, view = start, min(start + len(data), self.size_bytes), memoryview(data)
        while (at := self.known_from(at)) < stop:
            end = min(stop, self.next_known(at))
            insort(self._starts, at)
            self._parts[at] = view[at - start : end - start]
            at = end

    def drop_before(self, offset: int) -> None:
        """Forget the parts that end before this byte."""
        while self._starts and self._starts[0] + len(self._parts[self._starts[0]]) <= offset:
            del self._parts[self._starts.pop(0)]

    def known_from(self, offset: int) -> int:
        """Return the first byte from `offset` on that has not been read."""
        while offset < self.size_bytes and (found := self._part_at(offset)) is not None:
            offset = found + len(self._parts[found])
        return offset

    def next_known(self, offset: int) -> int:
        """Return the first byte from `offset` on that has been read; the size if there is none."""
        if self._part_at(offset) is not None:
            return offset
        at = bisect_right(self._starts, offset)
        return self._starts[at] if at < len(self._starts) else self.size_bytes

    def pread(self, length: int, offset: int) -> bytes:
        """Return bytes like any source. Raises MissingBytes."""
        stop = min(offset + length, self.size_bytes)
        pieces: list[bytes] = []
        while offset < stop:
            found = self._part_at(offset)
            if found is None:
                raise MissingBytes(offset, stop - offset)
            piece = bytes(self._parts[found][offset - found : stop - found])
            pieces.append(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _part_at(self, offset: int) -> int | None:
        """Return the start of the part that has this byte."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._starts[at] + len(self._parts[self._starts[at]]):
            return None
        return self._starts[at]
