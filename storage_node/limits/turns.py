"""Turns of tenants at a few threads: in order within a tenant, one tenant after the other.

Where jobs differ much in how long they take, turns are counted by their time (`TimedTurns`).

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar

_REMEMBERED = 4096
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
        while self._waiting and (following := self._following()) is not None:
            mine = self._waiting[following].popleft()
            self._waiting.move_to_end(following)
            if not self._waiting[following]:
                del self._waiting[following]
            if not mine.done():
                self._begin(following)
                mine.set_result(None)

    def _following(self) -> str | None:
        """Whose turn it is, of those who wait."""
        return next(filter(self._may_run, self._waiting), None)

    def _forget(self, tenant: str, mine: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(tenant)
        if waiting is not None and mine in waiting:
            waiting.remove(mine)
            if not waiting:
                del self._waiting[tenant]


class TimedTurns(Turns):
    """Turns that count for as long as they last: next is the tenant that has had the least time, by its weight.

    Between two tenants that both wait all the time, what they have had differs by no more than what a job of each
    takes, on each thread. One that asks for nothing saves nothing up: when it comes back it has had as much as the one
    served last.

    Args:
        weights: of tenants that are to have more or less than 1.
        clock_s: the time, for tests.
    """

    def __init__(
        self, limit: int, weights: Mapping[str, float], *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(limit)
        self._weights, self._clock_s = weights, clock_s
        self._had: dict[str, tuple[float, float]] = {}
        """Seconds by weight that a tenant has had, and when that was counted."""
        self._served = 0.0
        """What the tenant served last had had, when its turn came."""

    def _count(self, tenant: str) -> float:
        """What a tenant has had, all that it has running included."""
        now_s = self._clock_s()
        had, counted_s = self._had.get(tenant, (self._served, now_s))
        running = self._running.get(tenant, 0)
        had += running * (now_s - counted_s) / self._weights.get(tenant, 1.0)
        if not running and tenant not in self._waiting:
            had = max(had, self._served)
        self._had[tenant] = had, now_s
        return had

    async def begin(self, tenant: str) -> None:
        """See Turns."""
        if len(self._had) >= _REMEMBERED:  # names cost a client nothing
            self._had = {name: had for name, had in self._had.items() if name in self._running or name in self._waiting}
        self._count(tenant)
        await super().begin(tenant)

    def _begin(self, tenant: str) -> None:
        self._served = max(self._served, self._count(tenant))
        super()._begin(tenant)

    def end(self, tenant: str) -> None:
        """See Turns."""
        self._count(tenant)
        super().end(tenant)

    def _following(self) -> str | None:
        return min(filter(self._may_run, self._waiting), key=self._count, default=None)
