"""Locks of writes that this node coordinates: one for each name, and a barrier for each bucket.

`NameLocks`: changes of one name run one at a time.

`SnapshotBarrier` holds back the writes of a bucket while a snapshot of it is cut. A write is inside the barrier from
before its version is chosen until its commits have ended. `hold` waits for the writes inside. No write enters until the
hold is released or has expired, as the node that requested it may have died.

Both belong to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import TypeAlias

from storage_node.cluster.errors import TooFewCopies

HOLD_S = 10.0
DRAIN_S = 5.0
"""Part of `HOLD_S` for which `hold` waits for the writes inside the barrier."""
Name: TypeAlias = tuple[bytes, str]
"""A bucket's uuid and an object's name."""


class _Lock:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        """Number of tasks that hold it or wait for it."""


class NameLocks:
    """One lock per name that is in use; a lock is dropped with its last user."""

    def __init__(self) -> None:
        self._locks: dict[Name, _Lock] = {}

    @contextlib.asynccontextmanager
    async def hold(self, names: Iterable[Name]) -> AsyncIterator[None]:
        """Hold all these names, first come, first served. Everyone locks in sorted order, which prevents deadlocks."""
        held: list[_Lock] = []
        wanted = sorted(set(names))
        using = [self._locks.setdefault(name, _Lock()) for name in wanted]
        for one in using:
            one.users += 1
        try:
            for one in using:
                await one.lock.acquire()
                held.append(one)
            yield
        finally:
            for one in held:
                one.lock.release()
            for name, one in zip(wanted, using, strict=True):
                one.users -= 1
                if not one.users:
                    del self._locks[name]

    def __len__(self) -> int:
        return len(self._locks)


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
        """Enter the barrier for these buckets (uuids). Waits while one is held, at most `HOLD_S` per hold."""
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
        """Hold a bucket, and return once no write is inside; call `release` afterwards.

        Raises TooFewCopies, and does not hold the bucket, if another attempt holds it or writes take too long.
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
        """Return whether no write has entered since this attempt's `hold`."""
        hold = self._holds.get(bucket)
        return hold is not None and hold.attempt == attempt

    def release(self, bucket: bytes, attempt: bytes) -> bool:
        """Release the bucket; return whether this attempt still held it."""
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
