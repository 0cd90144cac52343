"""Byte source of a shard: anything with a size and positioned reads.

A shard is one immutable file, or a range of one. There is no seek position, so any number of readers share one source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ais_loader.errors import ArchiveDamaged, CorruptObject, RangeError
from ais_loader.wire.sparse_file import SparseFile
from storage_node.store.checksum import crc32c
from storage_node.store.format import BLOCK_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHUNK_BYTES = 1 << 20


class ByteSource(Protocol):
    @property
    def size_bytes(self) -> int: ...

    def pread(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, only at the end of the source."""
        ...


class FdSource:
    """Shard in an open file, from byte `start`. The caller owns the descriptor and keeps it open meanwhile."""

    def __init__(self, fd: int, size_bytes: int | None = None, start: int = 0) -> None:
        self.fd, self._start = fd, start
        self.size_bytes = os.fstat(fd).st_size - start if size_bytes is None else size_bytes

    def pread(self, length: int, offset: int) -> bytes:
        length = min(length, self.size_bytes - offset)
        return os.pread(self.fd, length, self._start + offset) if length > 0 else b""


class CheckedSource:
    """Shard in an object's own file. Each block is compared with its stored checksum before it is returned.

    It reads whole blocks. A whole member has a checksum of its own, which is cheaper to verify, so this class serves
    reads of parts of members.
    """

    def __init__(self, fd: int, size_bytes: int, checksums: Sequence[int], damaged: Callable[[], None]) -> None:
        """`checksums` are those of all blocks. `damaged` is called on a mismatch."""
        self._fd, self.size_bytes = fd, size_bytes
        self._checksums = checksums
        self._damaged = damaged
        self._last = -1, b""
        """Number and bytes of the block read last. Libraries read on in small steps."""

    def pread(self, length: int, offset: int) -> bytes:
        """Raises CorruptObject."""
        stop = min(offset + length, self.size_bytes)
        if offset >= stop:
            return b""
        first, last = offset // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        blocks[-1] = blocks[-1][: stop - last * BLOCK_BYTES]
        blocks[0] = blocks[0][offset - first * BLOCK_BYTES :]
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _block(self, number: int) -> bytes:
        known, data = self._last
        if known == number:
            return data
        begin = number * BLOCK_BYTES
        size_bytes = min(BLOCK_BYTES, self.size_bytes - begin)
        data = os.pread(self._fd, size_bytes, begin)
        if len(data) != size_bytes or crc32c(data) != self._checksums[number]:
            self._damaged()
            raise CorruptObject(f"bytes {begin:,} to {begin + size_bytes:,} do not match their stored checksum")
        self._last = number, data
        return data


def read_exactly(source: ByteSource, length: int, offset: int) -> bytes:
    """Read exactly `length` bytes. Raises ArchiveDamaged if the source ends earlier."""
    data = source.pread(length, offset)
    if len(data) == length:
        return data
    parts, got = [data], len(data)
    while data and got < length:
        data = source.pread(length - got, offset + got)
        parts.append(data)
        got += len(data)
    if got < length:
        raise ArchiveDamaged(f"byte {offset + got}: the shard ends here; {length - got} bytes more were expected")
    return b"".join(parts)


def chunks_of(source: ByteSource, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Iterate over the bytes from `start` to `stop` or the end, in chunks of CHUNK_BYTES."""
    stop = source.size_bytes if stop is None else stop
    while start < stop:
        data = read_exactly(source, min(CHUNK_BYTES, stop - start), start)
        yield data
        start += len(data)


def range_within(size_bytes: int, start: int, length: int | None) -> tuple[int, int]:
    """Return start and stop of a range within `size_bytes`. Raises RangeError; a range is never silently shortened."""
    stop = size_bytes if length is None else start + length
    if start < 0 or start > size_bytes or (length is not None and length < 0) or stop > size_bytes:
        raise RangeError(f"bytes {start} to {stop} of a member of {size_bytes} bytes")
    return start, stop


class ArchiveFile(SparseFile):
    """Binary file over a source, for libraries that require one."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source.size_bytes, [])
        self._source = source

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._source.pread(len(view), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
