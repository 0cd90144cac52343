"""Name locks: writes of one name run one after another. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TypeAlias

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
