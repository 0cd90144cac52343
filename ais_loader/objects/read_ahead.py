"""Read-ahead of one object: its bytes from some place on, a few batches of ranges in flight before they are wanted.

How far ahead grows while the reader goes straight on, as a kernel's read-ahead does, from little more than was wanted
to a limit in bytes; a reader that jumps begins with little again. One that has reached the limit, or wants so much, is
given the rest of the object in one long batch, which the same limit holds back. Every range is of the version that the
reader began with, and each arrives in a frame of its own, so that chunks are views of what came from the wire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ais_loader.errors import NodeUnavailable, Overloaded
from ais_loader.values.entry import Entry, Item, ObjectInfo

if TYPE_CHECKING:
    from ais_loader.objects.client import Client
    from ais_loader.values.batch import Batch

CHUNK_BYTES = 2 << 20
"""A range is at most what one frame carries, and ends at a multiple of it, so that no block is checked twice. A frame
costs its sender and its receiver about as much Python whatever its size: of 1 MiB ones a node spends 0.58 s of CPU time
on a GB, of these 0.51 s, of 4 MiB 0.43 s; but a connection that breaks loses the frame that is on its way."""
LONG_CHUNK_BYTES = 4 << 20
"""A range of a long batch, which is not asked for again when its connection breaks: the rest is in ordinary ones."""
LONG_FROM_BYTES = 8 << 20
"""Of a long batch: it costs more to begin."""
LONG_BYTES = 4 << 30
LONG_AGAIN_BYTES = 64 << 20
"""As many have to come otherwise after one that broke."""
BLOCK_BYTES = 256 << 10
"""Objects have a checksum for each of these. A node verifies ranges of whole blocks without reading any block twice."""
FIRST_BYTES = 128 << 10
"""What a reader that has just jumped gets for the asking, however little it wants."""


def chunk_spans(start: int, stop: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """(start, length) of the ranges that cover the bytes from `start` to `stop`."""
    while start < stop:
        end = min(stop, start - start % chunk_bytes + chunk_bytes)
        yield start, end - start
        start = end


@dataclass(slots=True)
class Ramp:
    """How far to be ahead of a reader, in bytes; a pure rule."""

    limit_bytes: int
    ahead_bytes: int = FIRST_BYTES

    def is_straight(self, wanted_bytes: int) -> bool:
        """Whether all that there may be is asked for."""
        return max(self.ahead_bytes, wanted_bytes) >= max(self.limit_bytes, FIRST_BYTES)

    def ask_until(self, position: int, planned: int, wanted_bytes: int, size_bytes: int) -> int:
        """Up to where to ask now, for a reader at `position` with all up to `planned` asked for; `planned`: no more."""
        most = max(self.limit_bytes, FIRST_BYTES)
        target = min(most, max(self.ahead_bytes, wanted_bytes))
        if planned >= size_bytes or (planned > position and planned - position > target // 2):
            return planned
        self.ahead_bytes = min(most, 2 * target)
        until = position + target
        if target >= BLOCK_BYTES:
            until -= until % BLOCK_BYTES
        return max(planned, min(size_bytes, until))


class ReadAhead:
    """The chunks of an object in order from one place on. Belongs to one thread at a time; `close` it, or `jump`."""

    def __init__(
        self,
        client: Client,
        info: ObjectInfo,
        *,
        timeout_s: float,
        limit_bytes: int,
        verify: bool,
        position: int = 0,
        member: str | None = None,
    ) -> None:
        """
        Args:
            info: the object; for a member the archive's, with the member's size.
            limit_bytes: most that may have been asked for and not been read.
        """
        self._client = client
        self._info = info
        self._member = member
        self._options: dict[str, Any] = {"timeout_s": timeout_s, "verify_ranges": verify}
        self._limit_bytes = limit_bytes
        self._under_way: deque[tuple[Batch, bool]] = deque()
        """With whether it is a long one."""
        self._long_from = 0
        """Position before which there is none."""
        self.jump(position)

    def jump(self, position: int) -> None:
        """Go on from here; what is on its way to another place is given up."""
        self.close()
        self.position = self._planned = position
        self._ramp = Ramp(self._limit_bytes)

    @property
    def planned(self) -> int:
        """Everything from `position` up to here is on its way."""
        return min(self._planned, self.position + max(self._limit_bytes, FIRST_BYTES))

    def next(self, wanted_bytes: int) -> memoryview:
        """The bytes that begin at `position`: at least one, at most LONG_CHUNK_BYTES; not to be called at the end.

        Raises what a batch raises. Called again, it asks again for what did not come.
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
            self._ask(wanted_bytes)
            batch, is_long = self._under_way[0]
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
            self._under_way.popleft()

    def _ask(self, wanted_bytes: int) -> None:
        """For what is to be on its way and is not yet."""
        straight = self._ramp.is_straight(wanted_bytes)
        until = self._ramp.ask_until(self.position, self._planned, wanted_bytes, self._info.size_bytes)
        if until > self._planned and not (straight and self._ask_long()):
            batch = self._client.get_batch(self._entries(until, CHUNK_BYTES), **self._options)
            self._under_way.append((batch, False))
            self._planned = until

    def _ask_long(self) -> bool:
        """For all the rest, if that can be and is worth it."""
        until = min(self._info.size_bytes, self._planned + LONG_BYTES)
        if self._planned < self._long_from or min(until - self._planned, self._limit_bytes) < LONG_FROM_BYTES:
            return False
        batch = self._client._long_batch(
            self._entries(until, LONG_CHUNK_BYTES), window_bytes=self._limit_bytes, **self._options
        )
        if batch is None:
            return False
        self._under_way.append((batch, True))
        self._planned = until
        return True

    def _entries(self, until: int, chunk_bytes: int) -> list[Entry]:
        info = self._info
        return [
            Entry(info.bucket, info.name, self._member, start, length, info.version)
            for start, length in chunk_spans(self._planned, until, chunk_bytes)
        ]

    def close(self) -> None:
        """Give up what is on its way. May be called again."""
        while self._under_way:
            self._under_way.popleft()[0].close()
