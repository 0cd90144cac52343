"""Weighted scheduling: tenants share a node by weight, however many sessions, batches and jobs each of them has.

The algorithm is start-time fair queueing (Goyal, Vin, Cheng, 1996). Every served item advances its tenant's clock by
cost / weight, and the waiting tenant with the lowest clock is served next. Costs are bytes, seconds, or 1 for equal
turns. An idle tenant saves nothing up: when it returns, its clock is set to that of the item served last, so the share
of idle tenants goes to the others.

`WeightedScheduler` implements only that order, without time or waiting. Frames wait in it for one of a few slots and
for the memory that they need (`FrameSlots`), jobs for one of a few threads (`JobTurns`). All belong to the node's event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Generic, TypeVar

from storage_node.limits.memory_budget import MemoryBudget

T = TypeVar("T")

MIN_COST_BYTES = 4 << 10
"""Minimum cost of a frame. If empty frames were free, a tenant that sends only these would precede all others."""
ALONE_SLOTS = 64
"""Number of slots while a single tenant is active: no limitation in practice, but few enough that another tenant gets
its turn soon."""
CROWD_S = 1.0
"""Time for which tenants share the node after two of them have been active: between two batches, a tenant requests
nothing."""
SLOW_WRITE_S = 0.02
"""Write time after which a frame returns its slot: a slow client or network then delays only itself."""
OTHER_TENANTS = "other"
_REMEMBERED = 4096


class _Tenant(Generic[T]):
    __slots__ = ("clock", "entry", "name", "running", "waiting", "weight")

    def __init__(self, name: str, clock: float, weight: float) -> None:
        self.name = name
        self.clock = clock
        self.weight = weight
        self.waiting: deque[tuple[float, T]] = deque()
        self.running = 0
        self.entry: tuple[float, int, _Tenant[T]]
        """The entry in the heap that is not outdated, while anything waits."""


class WeightedScheduler(Generic[T]):
    """Items of tenants, each with a cost; first in, first out within a tenant.

    Between two tenants that both wait all the time, what they have been given differs, by weight, by no more than one
    item of each: |given_a / weight_a - given_b / weight_b| <= largest_a / weight_a + largest_b / weight_b. If items are
    charged while they run, this holds for as many items of each as run at the same time.

    Args:
        weights: of tenants with another weight than 1.
        tenant_limit: If given, items run until `end`. Their tenants are not idle, and one with so many is passed over.
    """

    def __init__(self, weights: Mapping[str, float], tenant_limit: int = 0) -> None:
        self._weights = weights
        self._tenant_limit = tenant_limit
        self._clock = 0.0
        """Clock of the tenant served last, at the time of its turn."""
        self._tenants: dict[str, _Tenant[T]] = {}
        self._running: dict[str, _Tenant[T]] = {}
        self._order: list[tuple[float, int, _Tenant[T]]] = []
        """A heap of waiting tenants by their clocks. It also contains outdated entries."""
        self._pushed = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def _tenant(self, name: str) -> _Tenant[T]:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= _REMEMBERED:  # any number of names may come from one client
                self._tenants = {name: kept for name, kept in self._tenants.items() if kept.waiting or kept.running}
            tenant = self._tenants[name] = _Tenant(name, self._clock, self._weights.get(name, 1.0))
        elif tenant.clock < self._clock and not tenant.waiting and not tenant.running:
            tenant.clock = self._clock
        return tenant

    def charge(self, name: str, cost: float) -> None:
        """Charge for an item that is served at once, past those that wait."""
        tenant = self._tenant(name)
        if not self._length:
            self._clock = max(self._clock, tenant.clock)
        self._serve(tenant, cost)

    def charge_running(self, cost: float) -> None:
        for tenant in self._running.values():
            self._advance(tenant, cost * tenant.running)

    def end(self, name: str) -> None:
        tenant = self._running[name]
        tenant.running -= 1
        if not tenant.running:
            del self._running[name]
        if tenant.waiting:
            heapq.heappush(self._order, tenant.entry)  # it may have been passed over

    def may_start(self, name: str) -> bool:
        """Return whether an item of this tenant may be served at once, because none that waits may be."""
        tenant = self._running.get(name)
        return (tenant is None or tenant.running < self._tenant_limit) and self._first() is None

    def may_pass(self, name: str) -> bool:
        """Return whether an item of this tenant may be served before all that wait, because it would be next."""
        if (first := self._first()) is None:
            return True
        tenant = self._tenant(name)
        return not tenant.waiting and tenant.clock <= first.clock

    def push(self, name: str, cost: float, item: T) -> None:
        tenant = self._tenant(name)
        tenant.waiting.append((cost, item))
        self._length += 1
        if len(tenant.waiting) == 1:
            self._enter(tenant)

    def head(self) -> T | None:
        """Return the next item; None if none may be served."""
        tenant = self._first()
        return tenant.waiting[0][1] if tenant is not None else None

    def pop(self) -> T:
        """Remove the next item and charge for it. Raises IndexError if none may be served."""
        if (tenant := self._first()) is None:
            raise IndexError("nothing waits that may be served")
        cost, item = tenant.waiting.popleft()
        self._length -= 1
        self._clock = max(self._clock, tenant.clock)
        if not tenant.waiting and not tenant.running:
            tenant.clock = self._clock
        self._serve(tenant, cost)
        return item

    def discard(self, name: str, item: T) -> bool:
        """Remove an item that has not been served, at no cost. Return False if it was served or was never here."""
        tenant = self._tenants.get(name)
        for at, (_, waiting) in enumerate(tenant.waiting if tenant is not None else ()):
            if waiting is item:
                assert tenant is not None
                del tenant.waiting[at]
                self._length -= 1
                return True
        return False

    def forgive(self) -> None:
        """Reset all clocks if nothing waits or is being served."""
        if not self._length and not self._running:
            self._tenants.clear()
            self._order.clear()
            self._clock = 0.0

    def _serve(self, tenant: _Tenant[T], cost: float) -> None:
        if self._tenant_limit:
            tenant.running += 1
            self._running[tenant.name] = tenant
        self._advance(tenant, cost)

    def _advance(self, tenant: _Tenant[T], cost: float) -> None:
        tenant.clock += cost / tenant.weight
        if tenant.waiting:
            self._enter(tenant)

    def _enter(self, tenant: _Tenant[T]) -> None:
        self._pushed += 1
        tenant.entry = (tenant.clock, self._pushed, tenant)
        heapq.heappush(self._order, tenant.entry)

    def _first(self) -> _Tenant[T] | None:
        """Return the tenant to be served next. `end` enters those that are passed over again."""
        while self._order:
            entry = self._order[0]
            tenant = entry[2]
            if tenant.waiting and tenant.entry is entry and (not tenant.running or tenant.running < self._tenant_limit):
                return tenant
            heapq.heappop(self._order)
        return None


class _Request:
    """A request for a turn, with this much memory."""

    __slots__ = ("granted", "memory_bytes", "tenant")

    def __init__(self, tenant: str, memory_bytes: int, granted: asyncio.Future[None]) -> None:
        self.tenant = tenant
        self.memory_bytes = memory_bytes
        self.granted = granted


class _Turns:
    """A limited number of turns, granted in the order of a scheduler."""

    def __init__(self, scheduler: WeightedScheduler[_Request]) -> None:
        self._scheduler = scheduler
        self.in_use = 0

    @property
    def waiting(self) -> int:
        return len(self._scheduler)

    def _take(self, memory_bytes: int) -> bool:
        """Take a turn with this memory, if both are free."""
        raise NotImplementedError

    def _give_up(self, request: _Request) -> None:
        """Give back what has been granted to a request that was cancelled at that moment."""
        raise NotImplementedError

    async def _acquire(self, tenant: str, cost: float, cost_at_once: float, memory_bytes: int = 0) -> None:
        """Wait for a turn with the memory. If cancelled while waiting, it holds nothing and is charged nothing.

        `cost_at_once`: the cost of a turn that it need not wait for.
        """
        if self._scheduler.may_start(tenant) and self._take(memory_bytes):
            self._scheduler.charge(tenant, cost_at_once)
            return
        request = _Request(tenant, memory_bytes, asyncio.get_running_loop().create_future())
        self._scheduler.push(tenant, cost, request)
        try:
            await request.granted
        except asyncio.CancelledError:
            if not self._scheduler.discard(tenant, request) and not request.granted.cancelled():
                self._give_up(request)
            self._grant()
            raise

    def _grant(self) -> None:
        while (request := self._scheduler.head()) is not None:
            if request.granted.done():  # cancelled; its task has not run yet
                self._scheduler.discard(request.tenant, request)
            elif self._take(request.memory_bytes):
                self._scheduler.pop()
                request.granted.set_result(None)
            else:
                return


class FrameSlot:
    """Permission to read and write one frame. `release` it at the end; releasing it twice is harmless."""

    __slots__ = ("_slots", "_timer")

    def __init__(self, slots: FrameSlots) -> None:
        self._slots: FrameSlots | None = slots
        self._timer: asyncio.TimerHandle | None = None

    def writing(self) -> None:
        """Note that the frame has been read. If writing takes long, the slot is released before its end."""
        if self._timer is None and self._slots is not None:
            self._timer = asyncio.get_running_loop().call_later(SLOW_WRITE_S, self.release)

    def release(self) -> None:
        slots, self._slots = self._slots, None
        if self._timer is not None:
            self._timer.cancel()
        if slots is not None:
            slots.give_back()


class FrameSlots(_Turns):
    """Slots of a node, and the memory of the frames in them, granted in fair order.

    While one tenant is active there are ALONE_SLOTS. While several are, there are `crowded_slots`, so that requests
    wait here, where their order is decided, and not at the drives or in the network. A slot's holder waits for no other
    holder: a read ends by itself, and a write releases its slot after SLOW_WRITE_S.

    Args:
        memory: Budget for frames between their read and the end of their write; return it with `release_memory`.
    """

    def __init__(self, memory: MemoryBudget, weights: Mapping[str, float], crowded_slots: int) -> None:
        super().__init__(WeightedScheduler(weights))
        self._memory = memory
        self._crowded_slots = crowded_slots
        self.charged_bytes = dict.fromkeys((*weights, OTHER_TENANTS), 0)
        """Bytes charged to tenants. Tenants without a weight are counted together, because clients may use any number
        of names."""
        self._last_tenant: str | None = None
        self._crowded_until_s = 0.0

    @property
    def waits_for_memory(self) -> bool:
        """Whether the next request waits for memory, not for a slot."""
        return self.waiting > 0 and self.in_use < self._limit()

    @property
    def crowded(self) -> bool:
        """Whether several tenants are active."""
        return time.monotonic() < self._crowded_until_s

    def _limit(self) -> int:
        return self._crowded_slots if self.crowded else ALONE_SLOTS

    def _note(self, tenant: str) -> None:
        if tenant != self._last_tenant:
            if self._last_tenant is not None:
                self._crowded_until_s = time.monotonic() + CROWD_S
            self._last_tenant = tenant

    def may_pass(self, tenant: str) -> bool:
        """Return whether something small may be served without a slot: nothing waits, or this tenant would be next."""
        return self._scheduler.may_pass(tenant)

    def charge(self, tenant: str, size_bytes: int) -> None:
        """Charge for something small that was served without a slot. On an idle node, no clocks are kept."""
        self._note(tenant)
        self._count(tenant, size_bytes)
        if self.in_use or self.waiting:
            self._scheduler.charge(tenant, max(size_bytes, MIN_COST_BYTES))

    async def acquire(self, tenant: str, size_bytes: int, memory_bytes: int = 0) -> FrameSlot:
        """Return a slot, in this tenant's turn, with the memory. The tenant is charged `size_bytes`.

        If cancelled while waiting, it holds nothing and is charged nothing.
        """
        self._note(tenant)
        cost = max(size_bytes, MIN_COST_BYTES)
        await self._acquire(tenant, cost, cost, memory_bytes)
        self._count(tenant, size_bytes)
        return FrameSlot(self)

    def _count(self, tenant: str, size_bytes: int) -> None:
        self.charged_bytes[tenant if tenant in self.charged_bytes else OTHER_TENANTS] += size_bytes

    def _take(self, memory_bytes: int) -> bool:
        if self.in_use >= self._limit() or (memory_bytes and not self._memory.acquire_now(memory_bytes)):
            return False
        self.in_use += 1
        return True

    def _give_up(self, request: _Request) -> None:
        self.give_back()
        self._memory.release(request.memory_bytes)

    def give_back(self) -> None:
        """Return a slot. Called by `FrameSlot.release`."""
        self.in_use -= 1
        self._grant()

    def release_memory(self, size_bytes: int) -> None:
        self._memory.release(size_bytes)
        self._grant()

    def _grant(self) -> None:
        super()._grant()
        if not self.in_use:
            self._scheduler.forgive()


class JobTurns(_Turns):
    """Turns of jobs at a few threads.

    With a clock, a turn costs the seconds that it takes, charged as they pass: the next tenant is the one that has used
    the least time, by its weight. Without one, turns are equal, and one that no other had to wait for costs nothing.

    Args:
        limit: number of jobs that run in parallel.
        spare: number of them that are not available to a single tenant.
    """

    def __init__(
        self,
        limit: int,
        weights: Mapping[str, float] | None = None,
        *,
        spare: int = 0,
        clock_s: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(WeightedScheduler(weights or {}, max(1, limit - spare)))
        self._limit, self._clock_s = limit, clock_s
        self._charged_s = 0.0
        """Time up to which running jobs have been charged."""

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
        if self._clock_s is not None:
            self._charge_time(self._clock_s())
        await self._acquire(tenant, 1.0 if self._clock_s is None else 0.0, 0.0)

    def end(self, tenant: str) -> None:
        if self._clock_s is not None:
            self._charge_time(self._clock_s())
        self._scheduler.end(tenant)
        self.in_use -= 1
        self._grant()

    def _take(self, memory_bytes: int) -> bool:
        if self.in_use >= self._limit:
            return False
        self.in_use += 1
        return True

    def _give_up(self, request: _Request) -> None:
        self.end(request.tenant)

    def _charge_time(self, now_s: float) -> None:
        self._scheduler.charge_running(now_s - self._charged_s)
        self._charged_s = now_s
