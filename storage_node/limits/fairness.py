"""Fair queueing: tenants share a node by weight, however many sessions and batches each of them has.

Start-time fair queueing (Goyal, Vin, Cheng, 1996): what a tenant has been given moves its clock on by bytes ÷ weight,
and of those that wait the one whose clock is furthest behind comes next. A tenant that has nothing to ask for saves
nothing up: when it comes back its clock is that of the one served last, so the share of the idle goes to the others.

`FairQueue` is that order alone, without time or waiting; `FairSlots` has frames wait in it for one of a few slots, and
for the memory that they need. Both belong to the node's event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Mapping
from typing import Generic, TypeVar

from storage_node.limits.memory_budget import MemoryBudget

T = TypeVar("T")

MIN_COST_BYTES = 4 << 10
"""What a frame costs at least: empty ones are not free, or a tenant of nothing but these would go before all others."""
ALONE_SLOTS = 64
"""Frames at once while a single tenant asks: no limit to it, but few enough for the next one to get its turn soon."""
CROWD_S = 1.0
"""Tenants share the node for this time after two of them have asked: between two batches one asks for nothing."""
SLOW_WRITE_S = 0.02
"""A frame that a client or its network takes longer to take gives its slot back, and waits at its own expense."""
OTHER_TENANTS = "other"
_REMEMBERED = 4096


class _Tenant(Generic[T]):
    __slots__ = ("clock", "waiting", "weight")

    def __init__(self, clock: float, weight: float) -> None:
        self.clock = clock
        self.weight = weight
        self.waiting: deque[tuple[float, T]] = deque()


class FairQueue(Generic[T]):
    """Items of tenants, each with a cost; first in, first out within a tenant.

    Between two tenants that both wait all the time, what they have been given differs, by weight, by no more than one
    item of each: |given_a / weight_a - given_b / weight_b| <= largest_a / weight_a + largest_b / weight_b.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._clock = 0.0
        """Of the item served last, when its turn came."""
        self._tenants: dict[str, _Tenant[T]] = {}
        self._order: list[tuple[float, int, _Tenant[T]]] = []
        """A heap with each tenant that waits, by its clock; and entries that are out of date."""
        self._pushed = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def _tenant(self, name: str) -> _Tenant[T]:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= _REMEMBERED:  # names cost a client nothing
                self._tenants = {name: kept for name, kept in self._tenants.items() if kept.waiting}
            tenant = self._tenants[name] = _Tenant(self._clock, self._weights.get(name, 1.0))
        elif tenant.clock < self._clock and not tenant.waiting:
            tenant.clock = self._clock
        return tenant

    def charge(self, name: str, cost: float) -> None:
        """Something was served at once, past those that wait, if any do."""
        tenant = self._tenant(name)
        if not self._length:
            self._clock = tenant.clock
        tenant.clock += cost / tenant.weight
        if tenant.waiting:
            self._enter(tenant)

    def may_pass(self, name: str) -> bool:
        """Whether something of this tenant's may be served before all that wait: it would be next."""
        if not self._length:
            return True
        tenant = self._tenant(name)
        return not tenant.waiting and tenant.clock <= self._head().clock

    def push(self, name: str, cost: float, item: T) -> None:
        tenant = self._tenant(name)
        tenant.waiting.append((cost, item))
        self._length += 1
        if len(tenant.waiting) == 1:
            self._enter(tenant)

    def head(self) -> T:
        """Whose turn it is. Raises IndexError when nobody waits."""
        return self._head().waiting[0][1]

    def pop(self) -> T:
        """Serve the one whose turn it is. Raises IndexError when nobody waits."""
        tenant = self._head()
        heapq.heappop(self._order)
        cost, item = tenant.waiting.popleft()
        self._length -= 1
        self._clock = max(self._clock, tenant.clock)
        tenant.clock += cost / tenant.weight
        if tenant.waiting:
            self._enter(tenant)
        return item

    def discard(self, name: str, item: T) -> bool:
        """Take back what has not been served, at no cost; False when it has been, or never was here."""
        tenant = self._tenants.get(name)
        for at, (_, waiting) in enumerate(tenant.waiting if tenant is not None else ()):
            if waiting is item:
                assert tenant is not None
                del tenant.waiting[at]
                self._length -= 1
                return True
        return False

    def forgive(self) -> None:
        """Nothing waits and nothing is being served: all begin anew, as equals."""
        if not self._length:
            self._tenants.clear()
            self._order.clear()
            self._clock = 0.0

    def _enter(self, tenant: _Tenant[T]) -> None:
        self._pushed += 1
        heapq.heappush(self._order, (tenant.clock, self._pushed, tenant))

    def _head(self) -> _Tenant[T]:
        while True:
            clock, _, tenant = self._order[0]
            if tenant.waiting and clock == tenant.clock:
                return tenant
            heapq.heappop(self._order)


class Slot:
    """The right to have one frame read and written. `release` it when it is over; harmless when it has been."""

    __slots__ = ("_slots", "_timer")

    def __init__(self, slots: FairSlots) -> None:
        self._slots: FairSlots | None = slots
        self._timer: asyncio.TimerHandle | None = None

    def writing(self) -> None:
        """The frame has been read. Whoever has to take it now does not hold up others for long."""
        if self._timer is None and self._slots is not None:
            self._timer = asyncio.get_running_loop().call_later(SLOW_WRITE_S, self.release)

    def release(self) -> None:
        slots, self._slots = self._slots, None
        if self._timer is not None:
            self._timer.cancel()
        if slots is not None:
            slots.give_back()


class _Waiting:
    """Who waits for a slot, with this much memory."""

    __slots__ = ("granted", "memory_bytes", "tenant")

    def __init__(self, tenant: str, memory_bytes: int, granted: asyncio.Future[Slot]) -> None:
        self.tenant = tenant
        self.memory_bytes = memory_bytes
        self.granted = granted


class FairSlots:
    """Slots of a node, and the memory of the frames in them, granted in fair order.

    While one tenant asks there are ALONE_SLOTS. When several do there are `crowded_slots`, so that those who wait do so
    here, where their order is decided, and not before the drives or in the network. Who holds a slot waits for no
    other: a read ends by itself, and a write gives its slot back after SLOW_WRITE_S.

    Args:
        memory: of frames between their read and the end of their write; give it back with `release_memory`.
    """

    def __init__(self, memory: MemoryBudget, weights: Mapping[str, float], crowded_slots: int) -> None:
        self._memory = memory
        self._crowded_slots = crowded_slots
        self._queue: FairQueue[_Waiting] = FairQueue(weights)
        self.taken = 0
        self.charged_bytes = dict.fromkeys((*weights, OTHER_TENANTS), 0)
        """What tenants were charged, those without a weight together: names of clients are without number."""
        self._last_tenant: str | None = None
        self._crowded_until_s = 0.0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def waits_for_memory(self) -> bool:
        """Whether the one whose turn it is waits for memory, not for a slot."""
        return len(self._queue) > 0 and self.taken < self._limit()

    @property
    def crowded(self) -> bool:
        """Whether several tenants ask."""
        return time.monotonic() < self._crowded_until_s

    def _limit(self) -> int:
        return self._crowded_slots if self.crowded else ALONE_SLOTS

    def _note(self, tenant: str) -> None:
        if tenant != self._last_tenant:
            if self._last_tenant is not None:
                self._crowded_until_s = time.monotonic() + CROWD_S
            self._last_tenant = tenant

    def may_pass(self, tenant: str) -> bool:
        """Whether something small may be served without a slot: nobody waits, or this tenant would be next."""
        return not len(self._queue) or self._queue.may_pass(tenant)

    def charge(self, tenant: str, size_bytes: int) -> None:
        """Something small was. With nothing else about, all are equals again at once."""
        self._note(tenant)
        self._count(tenant, size_bytes)
        if self.taken or len(self._queue):
            self._queue.charge(tenant, max(size_bytes, MIN_COST_BYTES))

    async def acquire(self, tenant: str, size_bytes: int, memory_bytes: int = 0) -> Slot:
        """A slot, in this tenant's turn, and the memory. `size_bytes` is what the tenant is charged.

        Cancelled while waiting, it holds nothing and is charged nothing.
        """
        self._note(tenant)
        cost = max(size_bytes, MIN_COST_BYTES)
        if not len(self._queue) and self.taken < self._limit() and self._acquire_memory(memory_bytes):
            self._queue.charge(tenant, cost)
            self._count(tenant, size_bytes)
            self.taken += 1
            return Slot(self)
        waiting = _Waiting(tenant, memory_bytes, asyncio.get_running_loop().create_future())
        self._queue.push(tenant, cost, waiting)
        try:
            slot = await waiting.granted
            self._count(tenant, size_bytes)
            return slot
        except asyncio.CancelledError:
            if not self._queue.discard(tenant, waiting) and waiting.granted.done() and not waiting.granted.cancelled():
                waiting.granted.result().release()  # granted in the very moment of the cancellation
                self._memory.release(memory_bytes)
            self._grant()
            raise

    def _count(self, tenant: str, size_bytes: int) -> None:
        self.charged_bytes[tenant if tenant in self.charged_bytes else OTHER_TENANTS] += size_bytes

    def _acquire_memory(self, size_bytes: int) -> bool:
        return not size_bytes or self._memory.acquire_now(size_bytes)

    def give_back(self) -> None:
        """By a slot."""
        self.taken -= 1
        self._grant()

    def release_memory(self, size_bytes: int) -> None:
        self._memory.release(size_bytes)
        self._grant()

    def _grant(self) -> None:
        if not len(self._queue):
            if not self.taken:
                self._queue.forgive()
            return
        limit = self._limit()
        while len(self._queue) and self.taken < limit:
            waiting = self._queue.head()
            if waiting.granted.done():  # cancelled, and its task has not run yet to say so
                self._queue.discard(waiting.tenant, waiting)
            elif self._acquire_memory(waiting.memory_bytes):
                self._queue.pop()
                self.taken += 1
                waiting.granted.set_result(Slot(self))
            else:
                return
