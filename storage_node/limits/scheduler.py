"""Fair queueing: tenants share a node by weight, however many sessions and batches each of them has.

The algorithm is start-time fair queueing (Goyal, Vin, Cheng, 1996). Every served item advances its tenant's clock by
bytes / weight, and the waiting tenant with the lowest clock is served next. An idle tenant saves nothing up: when it
returns, its clock is set to that of the item served last, so the share of idle tenants goes to the others.

`FairQueue` implements only that order, without time or waiting. `FrameSlots` makes frames wait in it for one of a few
slots and for the memory that they need. Both belong to the node's event loop.
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
        """Clock of the tenant served last, at the time of its turn."""
        self._tenants: dict[str, _Tenant[T]] = {}
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
                self._tenants = {name: kept for name, kept in self._tenants.items() if kept.waiting}
            tenant = self._tenants[name] = _Tenant(self._clock, self._weights.get(name, 1.0))
        elif tenant.clock < self._clock and not tenant.waiting:
            tenant.clock = self._clock
        return tenant

    def charge(self, name: str, cost: float) -> None:
        """Charge for an item that was served at once, past those that wait."""
        tenant = self._tenant(name)
        if not self._length:
            self._clock = tenant.clock
        tenant.clock += cost / tenant.weight
        if tenant.waiting:
            self._enter(tenant)

    def may_pass(self, name: str) -> bool:
        """Return whether an item of this tenant may be served before all that wait, because it would be next."""
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
        """Return the next item. Raises IndexError if nothing waits."""
        return self._head().waiting[0][1]

    def pop(self) -> T:
        """Remove the next item and charge for it. Raises IndexError if nothing waits."""
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


class _Waiting:
    """A request for a slot with this much memory."""

    __slots__ = ("granted", "memory_bytes", "tenant")

    def __init__(self, tenant: str, memory_bytes: int, granted: asyncio.Future[FrameSlot]) -> None:
        self.tenant = tenant
        self.memory_bytes = memory_bytes
        self.granted = granted


class FrameSlots:
    """Slots of a node, and the memory of the frames in them, granted in fair order.

    While one tenant is active there are ALONE_SLOTS. While several are, there are `crowded_slots`, so that requests
    wait here, where their order is decided, and not at the drives or in the network. A slot's holder waits for no other
    holder: a read ends by itself, and a write releases its slot after SLOW_WRITE_S.

    Args:
        memory: Budget for frames between their read and the end of their write; return it with `release_memory`.
    """

    def __init__(self, memory: MemoryBudget, weights: Mapping[str, float], crowded_slots: int) -> None:
        self._memory = memory
        self._crowded_slots = crowded_slots
        self._queue: FairQueue[_Waiting] = FairQueue(weights)
        self.taken = 0
        self.charged_bytes = dict.fromkeys((*weights, OTHER_TENANTS), 0)
        """Bytes charged to tenants. Tenants without a weight are counted together, because clients may use any number
        of names."""
        self._last_tenant: str | None = None
        self._crowded_until_s = 0.0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def waits_for_memory(self) -> bool:
        """Whether the next request waits for memory, not for a slot."""
        return len(self._queue) > 0 and self.taken < self._limit()

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
        return not len(self._queue) or self._queue.may_pass(tenant)

    def charge(self, tenant: str, size_bytes: int) -> None:
        """Charge for something small that was served without a slot. On an idle node, no clocks are kept."""
        self._note(tenant)
        self._count(tenant, size_bytes)
        if self.taken or len(self._queue):
            self._queue.charge(tenant, max(size_bytes, MIN_COST_BYTES))

    async def acquire(self, tenant: str, size_bytes: int, memory_bytes: int = 0) -> FrameSlot:
        """Return a slot, in this tenant's turn, with the memory. The tenant is charged `size_bytes`.

        If cancelled while waiting, it holds nothing and is charged nothing.
        """
        self._note(tenant)
        cost = max(size_bytes, MIN_COST_BYTES)
        if not len(self._queue) and self.taken < self._limit() and self._acquire_memory(memory_bytes):
            self._queue.charge(tenant, cost)
            self._count(tenant, size_bytes)
            self.taken += 1
            return FrameSlot(self)
        waiting = _Waiting(tenant, memory_bytes, asyncio.get_running_loop().create_future())
        self._queue.push(tenant, cost, waiting)
        try:
            slot = await waiting.granted
            self._count(tenant, size_bytes)
            return slot
        except asyncio.CancelledError:
            if not self._queue.discard(tenant, waiting) and waiting.granted.done() and not waiting.granted.cancelled():
                waiting.granted.result().release()  # granted at the moment of the cancellation
                self._memory.release(memory_bytes)
            self._grant()
            raise

    def _count(self, tenant: str, size_bytes: int) -> None:
        self.charged_bytes[tenant if tenant in self.charged_bytes else OTHER_TENANTS] += size_bytes

    def _acquire_memory(self, size_bytes: int) -> bool:
        return not size_bytes or self._memory.acquire_now(size_bytes)

    def give_back(self) -> None:
        """Return a slot. Called by `FrameSlot.release`."""
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
            if waiting.granted.done():  # cancelled; its task has not run yet
                self._queue.discard(waiting.tenant, waiting)
            elif self._acquire_memory(waiting.memory_bytes):
                self._queue.pop()
                self.taken += 1
                waiting.granted.set_result(FrameSlot(self))
            else:
                return
