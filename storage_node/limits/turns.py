"""Scheduling of tenants on a few threads: first come, first served within a tenant, and round robin between tenants.

If jobs differ much in duration, turns are weighted by time (`TimedTurns`).

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
current_tenant: ContextVar[str] = ContextVar("current_tenant", default="the node itself")
"""Tenant of the running task. The node's own work, and that for other nodes, has turns of its own."""


class Turns:
    """Turns of equal weight.

    Args:
        limit: number of jobs that run in parallel.
        spare: number of them that are not available to a single tenant.
    """

    def __init__(self, limit: int, *, spare: int = 0) -> None:
        self._limit = limit
        self._of_one = max(1, limit - spare)
        self.running = 0
        self._running: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting jobs by tenant. The tenant whose last turn was longest ago comes first."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Context of a job. If cancelled while waiting, it has used no turn."""
        await self.begin(tenant)
        try:
            yield
        finally:
            self.end(tenant)

    async def begin(self, tenant: str) -> None:
        """Wait for a turn, which `end` ends. If cancelled, it has used no turn."""
        if tenant in self._waiting or not self._may_run(tenant):
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self.end(tenant)  # granted at the moment of the cancellation
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
        """End a job that has begun."""
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
        """Return the next tenant among those that wait."""
        return next(filter(self._may_run, self._waiting), None)

    def _forget(self, tenant: str, mine: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(tenant)
        if waiting is not None and mine in waiting:
            waiting.remove(mine)
            if not waiting:
                del self._waiting[tenant]


class TimedTurns(Turns):
    """Turns weighted by their duration: the next tenant is the one that has used the least time, by its weight.

    Between two tenants that always have jobs waiting, the used times differ by no more than the duration of one job of
    each, on each thread. An idle tenant saves nothing up: when it returns, it counts as having used as much as the
    tenant served last.

    Args:
        weights: of tenants with another weight than 1.
        clock_s: the clock, for tests.
    """

    def __init__(
        self, limit: int, weights: Mapping[str, float], *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(limit)
        self._weights, self._clock_s = weights, clock_s
        self._had: dict[str, tuple[float, float]] = {}
        """Weighted seconds that a tenant has used, and the time of that count."""
        self._served = 0.0
        """Time used by the tenant served last, when its turn came."""

    def _count(self, tenant: str) -> float:
        """Return the time that a tenant has used, including its running jobs."""
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
