"""Read-ahead of one object: its bytes from a position on, with a few batches of ranges in flight.

The distance grows while the reader moves straight on, as in a kernel's read-ahead, from little more than was requested
up to a limit in bytes. A reader that jumps begins with a small distance again. A reader that has reached the limit, or
requests that much, gets the rest of the object in one long batch, bounded by the same limit. Every range is of the
version with which the reader began, and each arrives in a frame of its own, so that chunks are views of the received
data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ais_loader.errors import NodeUnavailable, Overloaded
from ais_loader.objects.opened_batch import opened_batch, opened_long_batch
from ais_loader.transport.base import Transport
from ais_loader.values.entry import Entry, Item, ObjectInfo
from ais_loader.values.requests import BatchOptions

if TYPE_CHECKING:
    from ais_loader.values.batch import Batch

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
