"""Commit barrier: holds up the writes that this node coordinates while a snapshot of their bucket is made.

A write passes from before its version is chosen until its commits are over. Who holds a bucket waits for those that are
passing; nothing passes until it is released, or its time is over: the node that wanted it may have died.
Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable

from storage_node.cluster.errors import TooFewCopies

HOLD_S = 10.0
DRAIN_S = 5.0
"""Of that time, for the writes that are passing."""


class _Hold:
    def __init__(self, attempt: bytes) -> None:
        self.attempt = attempt
        self.over = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None


class SnapshotBarrier:
    def __init__(self) -> None:
        self._passing: Counter[bytes] = Counter()
        self._holds: dict[bytes, _Hold] = {}
        self._drained = asyncio.Event()

    @contextlib.asynccontextmanager
    async def passing(self, buckets: Iterable[bytes]) -> AsyncIterator[None]:
        """Waits while one of these buckets, by their uuids, is held: for HOLD_S at most, each time."""
        mine = set(buckets)
        while held := [self._holds[bucket] for bucket in mine if bucket in self._holds]:
            await held[0].over.wait()
        self._passing.update(mine)
        try:
            yield
        finally:
            self._passing -= Counter(mine)
            self._drained.set()

    async def hold(self, bucket: bytes, attempt: bytes) -> None:
        """Returns when nothing passes any more; `release` should follow.

        Raises TooFewCopies when somebody else holds the bucket, or writes take too long; it is not held then.
        """
        if bucket in self._holds:
            raise TooFewCopies("another snapshot of the bucket is being made; try again")
        hold = self._holds[bucket] = _Hold(attempt)
        hold.timer = asyncio.get_running_loop().call_later(HOLD_S, self._end, bucket, hold)
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._passing[bucket]:
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            self._end(bucket, hold)
            raise TooFewCopies(f"writes into the bucket have been under way for {DRAIN_S:g} s; try again") from None
        except BaseException:
            self._end(bucket, hold)
            raise

    def holds(self, bucket: bytes, attempt: bytes) -> bool:
        """Whether nothing has passed since this attempt's `hold`."""
        hold = self._holds.get(bucket)
        return hold is not None and hold.attempt == attempt

    def release(self, bucket: bytes, attempt: bytes) -> bool:
        """Whether it was held until now."""
        hold = self._holds.get(bucket)
        if hold is None or hold.attempt != attempt:
            return False
        self._end(bucket, hold)
        return True

    def _end(self, bucket: bytes, hold: _Hold) -> None:
        if self._holds.get(bucket) is hold:
            del self._holds[bucket]
        if hold.timer is not None:
            hold.timer.cancel()
        hold.over.set()
