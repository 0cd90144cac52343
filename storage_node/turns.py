"""Turns of tenants at a few threads: in order within a tenant, one tenant after the other.

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextvars import ContextVar

ASKING: ContextVar[str] = ContextVar("ASKING", default="the node itself")
"""For which tenant the running task works. What a node does by itself, or for other nodes, has turns of its own."""


class Turns:
    """
    Args:
        limit: how many jobs run at once.
        spare: how many of them are not for one tenant alone.
    """

    def __init__(self, limit: int, *, spare: int = 0) -> None:
        self._limit = limit
        self._of_one = max(1, limit - spare)
        self.running = 0
        self._running: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By tenant, the one whose turn was longest ago first."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Around a job. Cancelled while waiting, it has taken nobody's turn."""
        await self.begin(tenant)
        try:
            yield
        finally:
            self.end(tenant)

    async def begin(self, tenant: str) -> None:
        """Wait for a turn; `end` it. Cancelled, it has taken nobody's."""
        if tenant in self._waiting or not self._may_run(tenant):
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self.end(tenant)  # granted in the very moment of the cancellation
                else:
                    self._forget(tenant, mine)
                raise
        else:
            self._begin(tenant)

    def _may_run(self, tenant: str) -> bool:
        return self.running < self._limit and self._running.get(tenant, 0) < self._of_one

    def _begin(self, tenant: str) -> None:
        self._running[tenant] = self._running.get(tenant, 0) + 1
        self.running += 1

    def end(self, tenant: str) -> None:
        """A job that had begun is over."""
        self.running -= 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        while self._waiting and (following := next(filter(self._may_run, self._waiting), None)) is not None:
            mine = self._waiting[following].popleft()
            self._waiting.move_to_end(following)
            if not self._waiting[following]:
                del self._waiting[following]
            if not mine.done():
                self._begin(following)
                mine.set_result(None)

    def _forget(self, tenant: str, mine: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(tenant)
        if waiting is not None and mine in waiting:
            waiting.remove(mine)
            if not waiting:
                del self._waiting[tenant]
