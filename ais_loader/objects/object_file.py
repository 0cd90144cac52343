"""Object file: one object, or one member of an archive, as a read-only, seekable binary file, or as a plain stream.

Both read ranges, as batches, of the version that was opened. After a broken connection, a node restart or the move of
the object to another node, they retry from the last byte received, for the client's `retry_s`. If the object is
replaced or deleted in the meantime, reading ends with ObjectNotFound, never with a mix of two versions.

The bytes of a small object come with the answer to opening it, or, in an embedded store, directly from the file of the
version that was looked up.

Bytes are kept as views of what was received. `read` copies each byte once. `readinto` copies it once, directly into the
caller's buffer.

A read-ahead keeps a few batches of ranges in flight, up to a distance. The distance grows while the reader moves
straight on, as in a kernel's read-ahead, from little more than was requested up to a limit in bytes. A reader that
jumps begins with a small distance again. A reader that has reached the limit, or requests that much, gets the rest of
the object in one long batch, bounded by the same limit. Every range is of the version with which the reader began, and
each arrives in a frame of its own, so that chunks are views of the received data.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from ais_loader.errors import InvalidRequest, NodeUnavailable, Overloaded
from ais_loader.objects.opened_batch import opened_batch, opened_long_batch
from ais_loader.objects.pinned import opened
from ais_loader.transport.base import Transport
from ais_loader.values.entry import Entry, Item, ObjectInfo
from ais_loader.values.requests import BatchOptions

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ais_loader.values.batch import Batch


READ_AHEAD_BYTES = 16 << 20
KEPT_BYTES = 2 << 20
"""The amount of read data to keep, for readers that go back a little, such as to a header or to a table at the end."""
_PEEKED_BYTES = 8 << 10


class ObjectFile(io.BufferedIOBase):
    """A read-only, buffered, seekable file, for tarfile, zipfile, soundfile, PIL, pyarrow, torch.load and anything else
    that takes a binary file. It is thread-safe to the same extent as Python's own files: each call by itself.

    Reading raises the errors of a batch: ObjectNotFound if the version that was opened is gone, NodeUnavailable,
    SilenceTimeout, and CorruptObject. After an error the position is unchanged, and you can read again.

    `info` describes the version being read. For a member, it describes the archive, but with the member's size.
    """

    mode = "rb"

    def __init__(
        self,
        transport: Transport,
        info: ObjectInfo,
        *,
        timeout_s: float = 30.0,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        verify: bool = True,
        member: str | None = None,
        content: Callable[[], Buffer] | None = None,
    ) -> None:
        if read_ahead_bytes < 0:
            raise InvalidRequest(f"read_ahead_bytes={read_ahead_bytes}: need 0 (no read-ahead) or more")
        self.info = info
        self._member = member
        self._ahead = ReadAhead(
            transport, info, timeout_s=timeout_s, limit_bytes=read_ahead_bytes, verify=verify, member=member
        )
        self._lock = threading.RLock()
        self._position = 0
        self._content = content
        """Returns all of a small object, or nothing if it has to be read like others; None after it was called."""
        self._kept: deque[tuple[int, memoryview]] = deque()
        self._kept_bytes = 0
        self._start, self._current = 0, memoryview(b"")
        """The chunk that was read last, and where it begins."""

    @property
    def name(self) -> str:
        """URL of what is read."""
        return f"ais://{self.info.bucket}/{self.info.name}" + ("" if self._member is None else f"/{self._member}")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._require_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with self._lock:
            self._require_open()
            base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.info.size_bytes}.get(whence)
            if base is None:
                raise ValueError(f"whence={whence}: need io.SEEK_SET, io.SEEK_CUR or io.SEEK_END")
            if base + offset < 0:
                raise ValueError(f"seek to {base + offset}, before the beginning")
            self._position = base + offset
            return self._position

    def size(self) -> int:
        """Return the size in bytes."""
        return self.info.size_bytes

    def peek(self, size: int = 0, /) -> bytes:
        """Return bytes from the position on without moving it: at least one, unless at the end."""
        with self._lock:
            self._require_open()
            if self._position >= self.info.size_bytes:
                return b""
            return bytes(self._chunk(max(size, 1))[:_PEEKED_BYTES])

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes, and fewer only at the end of the object. Raises the errors of a batch."""
        with self._lock:
            if self._content is not None:
                self._begin()
            at = self._position - self._start
            left = max(0, self.info.size_bytes - self._position)
            size = left if size is None or size < 0 else min(size, left)
            if at >= 0 and 0 < size <= len(self._current) - at:  # true for most reads
                self._position += size
                return bytes(self._current[at : at + size])
            self._require_open()
            return b"".join(self._parts(size))

    def read1(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes, from at most one chunk."""
        return bytes(self.view1(CHUNK_BYTES if size < 0 else size))

    def view1(self, size: int) -> memoryview:
        """Return up to `size` bytes as a view of what was received, without any copy; none at the end."""
        with self._lock:
            self._require_open()
            left = min(size, max(0, self.info.size_bytes - self._position))
            return self._take(left) if left else memoryview(b"")

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer, and return the number of bytes read, which is smaller only at the end of the object."""
        with self._lock, memoryview(buffer) as whole, whole.cast("B") as view:
            self._require_open()
            length = max(0, min(len(view), self.info.size_bytes - self._position))
            filled = 0
            for part in self._parts(length):
                view[filled : filled + len(part)] = part
                filled += len(part)
            return filled

    def readinto1(self, buffer: Buffer, /) -> int:
        """The same as `readinto`."""
        return self.readinto(buffer)

    def _parts(self, length: int) -> Iterator[memoryview]:
        """Yield this many bytes from the position on. If not all of them arrive, the position is restored."""
        began, stop = self._position, self._position + length
        try:
            while self._position < stop:
                yield self._take(stop - self._position)
        except BaseException:
            self._position = began
            raise

    def _take(self, most: int) -> memoryview:
        """Return one to `most` bytes from the position on, and move the position behind them."""
        part = self._chunk(most)[:most]
        self._position += len(part)
        return part

    def _begin(self) -> None:
        """Keep the object as the chunk that was read last, if its bytes are at hand."""
        content, self._content = self._content, None
        chunk = memoryview(b"" if content is None else content())
        if len(chunk):
            self._start, self._current = 0, chunk
            self._keep(0, chunk)

    def _chunk(self, wanted_bytes: int) -> memoryview:
        """Return at least one byte, beginning at the position, which is not the end."""
        self._start, self._current = self._found(wanted_bytes)
        return self._current[self._position - self._start :]

    def _found(self, wanted_bytes: int) -> tuple[int, memoryview]:
        """Return the chunk that contains the position, and where it begins."""
        position = self._position
        if self._content is not None:
            self._begin()
        for start, chunk in reversed(self._kept):
            if start <= position < start + len(chunk):
                return start, chunk
        if not self._ahead.position <= position <= self._ahead.planned:
            self._ahead.jump(position)
        while True:
            start, chunk = self._ahead.position, self._ahead.next(wanted_bytes)
            self._keep(start, chunk)
            if position < start + len(chunk):
                return start, chunk

    def _keep(self, start: int, chunk: memoryview) -> None:
        self._kept.append((start, chunk))
        self._kept_bytes += len(chunk)
        while len(self._kept) > 1 and self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def close(self) -> None:
        if not self.closed:
            if (ahead := getattr(self, "_ahead", None)) is not None:  # otherwise it was never opened
                ahead.close()
                self._content = None
                self._kept = deque()
                self._current = memoryview(b"")
            super().close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self._position:,} of {self.info.size_bytes:,} bytes>"


class ObjectReader(ObjectFile):
    """A plain, forward-only stream of an object. `chunks()` yields views, without any copy."""

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        raise io.UnsupportedOperation("seek")

    def chunks(self) -> Iterator[memoryview]:
        """Yield the rest of the object as views of at most 4 MiB. Raises the errors of a batch."""
        while part := self.view1(self.info.size_bytes):
            yield part

    def _chunk(self, wanted_bytes: int) -> memoryview:
        return super()._chunk(self.info.size_bytes - self._position)  # a forward-only reader needs all of the rest


def opened_reader(
    transport: Transport,
    bucket: str,
    name: str,
    *,
    version: str | None,
    timeout_s: float,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
    verify: bool = True,
) -> ObjectReader:
    """See `Bucket.reader`."""
    found = opened(transport, bucket, name, version, timeout_s)
    return ObjectReader(
        transport,
        found.info,
        timeout_s=timeout_s,
        read_ahead_bytes=read_ahead_bytes,
        verify=verify,
        content=found.content,
    )


IN_MEMORY_BYTES = 16 << 20


def spooled(items: Iterable[Item]) -> IO[bytes]:
    """Collect all of one item, in memory or in a temporary file. Raises the errors of the items."""
    file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - the caller closes it
    try:
        for item in items:
            file.write(item.data)
        file.seek(0, io.SEEK_SET)
    except BaseException:
        file.close()
        raise
    return file


CHUNK_BYTES = 2 << 20
"""A range is at most what one frame carries, and ends at a multiple of this size, so that no block is verified twice. A
frame costs its sender and its receiver about the same Python time whatever its size: with frames of 1 MiB a node uses
0.58 s of CPU time per GB, with these 0.51 s, with 4 MiB 0.43 s. But a broken connection loses the frame in flight."""
LONG_CHUNK_BYTES = 4 << 20
"""Range size of a long batch, which is not retried when its connection breaks: the rest is requested in ordinary
ranges."""
LONG_FROM_BYTES = 8 << 20
"""Minimum size of a long batch, which costs more to begin."""
LONG_BYTES = 4 << 30
LONG_AGAIN_BYTES = 64 << 20
"""Bytes to be read in ordinary ranges after a long batch that broke."""
BLOCK_BYTES = 256 << 10
"""Objects have a checksum for each of these. A node verifies ranges of whole blocks without reading any block twice."""
FIRST_BYTES = 128 << 10
"""Distance after a jump, even if the reader requests less."""


def chunk_spans(start: int, stop: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of the ranges that cover the bytes from `start` to `stop`."""
    while start < stop:
        end = min(stop, start - start % chunk_bytes + chunk_bytes)
        yield start, end - start
        start = end


@dataclass(slots=True)
class Ramp:
    """Distance of the read-ahead from the reader, in bytes; a pure rule."""

    limit_bytes: int
    ahead_bytes: int = FIRST_BYTES

    def is_straight(self, wanted_bytes: int) -> bool:
        """Whether the distance has reached its limit."""
        return max(self.ahead_bytes, wanted_bytes) >= max(self.limit_bytes, FIRST_BYTES)

    def request_until(self, position: int, planned: int, wanted_bytes: int, size_bytes: int) -> int:
        """Return the position up to which to request now. The reader is at `position`, and everything up to `planned`
        has been requested. A result of `planned` requests nothing."""
        most = max(self.limit_bytes, FIRST_BYTES)
        target = min(most, max(self.ahead_bytes, wanted_bytes))
        if planned >= size_bytes or (planned > position and planned - position > target // 2):
            return planned
        self.ahead_bytes = min(most, 2 * target)
        until = position + target
        if target >= BLOCK_BYTES and until < size_bytes:
            until -= until % BLOCK_BYTES
        return max(planned, min(size_bytes, until))


class ReadAhead:
    """The chunks of an object in order, from a position on. Belongs to one thread at a time. `close` it, or `jump`."""

    def __init__(
        self,
        transport: Transport,
        info: ObjectInfo,
        *,
        timeout_s: float,
        limit_bytes: int,
        verify: bool,
        member: str | None = None,
    ) -> None:
        """Args:

        info: the object; for a member, the archive's info with the member's size.
        limit_bytes: most bytes that may have been requested but not read.
        """
        self._transport = transport
        self._info = info
        self._member = member
        self._options = BatchOptions(timeout_s=timeout_s, verify_ranges=verify)
        self._limit_bytes = limit_bytes
        self._pending: deque[tuple[Batch, bool]] = deque()
        """Batches in flight, each with whether it is a long one."""
        self._long_from = 0
        """Position before which no long batch is requested."""
        self.position = self._planned = 0
        self._ramp = Ramp(limit_bytes)

    def jump(self, position: int) -> None:
        """Continue at this position; batches in flight for another position are abandoned."""
        self.close()
        self.position = self._planned = position
        self._ramp = Ramp(self._limit_bytes)

    @property
    def planned(self) -> int:
        """Everything from `position` up to here is in flight."""
        return min(self._planned, self.position + max(self._limit_bytes, FIRST_BYTES))

    def next(self, wanted_bytes: int) -> memoryview:
        """Return the bytes at `position`: at least one, at most LONG_CHUNK_BYTES. Must not be called at the end.

        Raises the errors of a batch. If called again, it requests what did not arrive.
        """
        try:
            item = self._next_item(wanted_bytes)
        except BaseException:
            self.jump(self.position)
            raise
        self.position += len(item.data)
        return item.data

    def _next_item(self, wanted_bytes: int) -> Item:
        while True:
            self._request(wanted_bytes)
            batch, is_long = self._pending[0]
            try:
                item = next(batch, None)
            except (NodeUnavailable, Overloaded):
                if not is_long:
                    raise
                self._long_from = self.position + LONG_AGAIN_BYTES
                self.jump(self.position)
                continue
            if item is not None:
                return item
            self._pending.popleft()

    def _request(self, wanted_bytes: int) -> None:
        """Request what should be in flight and is not yet."""
        straight = self._ramp.is_straight(wanted_bytes)
        until = self._ramp.request_until(self.position, self._planned, wanted_bytes, self._info.size_bytes)
        if until > self._planned and not (straight and self._request_long()):
            batch = opened_batch(self._transport, self._entries(until, CHUNK_BYTES), options=self._options)
            self._pending.append((batch, False))
            self._planned = until

    def _request_long(self) -> bool:
        """Request the rest as a long batch, if that is possible and worthwhile."""
        until = min(self._info.size_bytes, self._planned + LONG_BYTES)
        if self._planned < self._long_from or min(until - self._planned, self._limit_bytes) < LONG_FROM_BYTES:
            return False
        entries = self._entries(until, LONG_CHUNK_BYTES)
        batch = opened_long_batch(self._transport, entries, self._options, window_bytes=self._limit_bytes)
        if batch is None:
            return False
        self._pending.append((batch, True))
        self._planned = until
        return True

    def _entries(self, until: int, chunk_bytes: int) -> list[Entry]:
        info = self._info
        return [
            Entry(info.bucket, info.name, self._member, start, length, info.version)
            for start, length in chunk_spans(self._planned, until, chunk_bytes)
        ]

    def close(self) -> None:
        """Abandon the batches in flight. May be called again."""
        while self._pending:
            self._pending.popleft()[0]._drop()
