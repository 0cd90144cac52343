"""Name locks: one change of each name at a time among those that this node coordinates. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TypeAlias

Name: TypeAlias = tuple[bytes, str]
"""A bucket's uuid, and an object's name."""


class _Lock:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        """Who hold it or wait for it."""


class NameLocks:
    """There are only those that somebody uses."""

    def __init__(self) -> None:
        self._locks: dict[Name, _Lock] = {}

    @contextlib.asynccontextmanager
    async def hold(self, names: Iterable[Name]) -> AsyncIterator[None]:
        """In one order for everybody, so that nobody waits in a circle; who came first is first."""
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
