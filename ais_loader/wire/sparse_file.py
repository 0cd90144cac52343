"""Sparse file: bytes that are there, as a file for libraries that require one."""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterable
from typing import Any


class SparseFile(io.RawIOBase):
    """A seekable file of `size_bytes`, of which the parts at these offsets can be read.

    Reading any other byte raises io.UnsupportedOperation, an OSError, which names it.
    """

    def __init__(self, size_bytes: int, parts: Iterable[tuple[int, bytes | bytearray | memoryview]]) -> None:
        self._size = size_bytes
        self._parts = sorted(((start, memoryview(data)) for start, data in parts), key=lambda part: part[0])
        self._starts = [start for start, _ in self._parts]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, target: Any) -> int:
        done, wanted = 0, max(0, min(len(target), self._size - self._at))
        while done < wanted:
            number = bisect.bisect_right(self._starts, self._at) - 1
            start, data = self._parts[number] if number >= 0 else (0, memoryview(b""))
            found = data[self._at - start : self._at - start + wanted - done]
            if not found:
                raise io.UnsupportedOperation(f"byte {self._at:,} of {self._size:,} of the file was not requested")
            target[done : done + len(found)] = found
            done += len(found)
            self._at += len(found)
        return done
