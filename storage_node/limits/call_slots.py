"""Call slots of a node: their number, their holders, and the preemption of stalled calls.

A call that waits for its client holds memory, descriptors or bytes on a drive for as long as the client likes. Slots
bound the number of such calls. As long as slots are free, a stalled call is left alone. When a call finds none free,
the call that has been stalled for the longest loses its slot: one of the same tenant, or of a tenant that has more than
its share.

Pure bookkeeping: the clock is an argument. Belongs to the node's event loop.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

PROGRESS_BYTES = 64 << 10
"""Bytes that a client must move before a stalled call counts as moving again: a byte now and then is no progress."""
RESERVED_SHARE = 8
"""One in this many slots is not available to a tenant that has all others."""


class CallSlot:
    """The slot of one call. `evict` is called once, if the slot is preempted; it must not block."""

    __slots__ = (
        "_moved_bytes",
        "_slots",
        "_waited_s",
        "_waiting_since_s",
        "_waits",
        "evict",
        "evicted",
        "keeps",
        "tenant",
    )

    def __init__(self, slots: CallSlots, tenant: str, evict: Callable[[], None]) -> None:
        self._slots = slots
        self.tenant = tenant
        self.evict = evict
        self.evicted = False
        self.keeps = False
        """Whether the call keeps memory that others may need."""
        self._moved_bytes = 0
        self._waits = 0
        self._waiting_since_s = 0.0
        self._waited_s = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context for a wait for the client. Waits may be nested, and may overlap."""
        self.begin_waiting()
        try:
            yield
        finally:
            self.end_waiting()

    def begin_waiting(self) -> None:
        """Note the start of a wait; `end_waiting` follows."""
        if not self._waits:
            self._waiting_since_s = self._slots.now_s()
        self._waits += 1

    def end_waiting(self) -> None:
        self._waits -= 1
        if not self._waits:
            self._waited_s += self._slots.now_s() - self._waiting_since_s

    def moved(self, size_bytes: int = PROGRESS_BYTES) -> None:
        """Note that the client has received or sent this many bytes."""
        self._moved_bytes += size_bytes
        if self._moved_bytes >= PROGRESS_BYTES:
            self._moved_bytes = 0
            self._waited_s = 0.0
            self._waiting_since_s = self._slots.now_s()

    def still_s(self) -> float:
        """Return how long the call has waited for its client since the client last moved anything; 0 if it is not
        waiting."""
        return self._waited_s + self._slots.now_s() - self._waiting_since_s if self._waits else 0.0

    def give_back(self) -> None:
        """Release the slot at the end of the call; harmless if it was preempted."""
        self._slots.give_back(self)


class CallSlots:
    """All slots of one kind.

    Args:
        limit: number of slots.
        still_s: time after which a call that waits for its client may lose its slot to another one.
        weights: weights of tenants; 1 by default.
        tenant_limit: maximum for one tenant; by default all but one in RESERVED_SHARE.
    """

    def __init__(
        self,
        limit: int,
        still_s: float,
        weights: Mapping[str, float] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        *,
        tenant_limit: int | None = None,
    ) -> None:
        self.limit = limit
        self._tenant_limit = limit - limit // RESERVED_SHARE if tenant_limit is None else tenant_limit
        self.evicted = 0
        """Number of preempted slots."""
        self.now_s = now_s
        self._still_s = still_s
        self._weights = weights or {}
        self._of: dict[str, set[CallSlot]] = {}
        self.held = 0

    def take(self, tenant: str, evict: Callable[[], None]) -> CallSlot | None:
        """Take a slot. Returns None if there is none: the call has to be retried later."""
        mine = len(self._of.get(tenant, ()))
        free = self.held < self.limit and mine < self._tenant_limit
        if not free and self.reclaim(self._over_their_share(tenant)) is None:
            return None
        slot = CallSlot(self, tenant, evict)
        self._of.setdefault(tenant, set()).add(slot)
        self.held += 1
        return slot

    @property
    def still(self) -> int:
        """Number of calls that have been stalled long enough to lose their slot to another one."""
        return sum(one.still_s() >= self._still_s for slots in list(self._of.values()) for one in list(slots))

    def _over_their_share(self, tenant: str) -> Callable[[CallSlot], bool]:
        """Preemption rule: a tenant may preempt its own calls; another tenant's only if it is below its share and they
        are above theirs."""
        if self.held < self.limit or len(self._of.get(tenant, ())) >= self._tenant_limit:
            return lambda slot: slot.tenant == tenant
        total = sum(self._weights.get(name, 1.0) for name in {tenant, *self._of})

        def more_than_share(name: str, held: int) -> bool:
            return held * total > self.limit * self._weights.get(name, 1.0)

        poor = not more_than_share(tenant, len(self._of.get(tenant, ())) + 1)
        return lambda slot: slot.tenant == tenant or (poor and more_than_share(slot.tenant, len(self._of[slot.tenant])))

    def reclaim(self, wanted: Callable[[CallSlot], bool]) -> CallSlot | None:
        """Preempt the slot, among those that are `wanted`, that has been stalled for the longest. Returns None if none
        has been stalled long enough."""
        still = [(one.still_s(), one) for slots in self._of.values() for one in slots if wanted(one)]
        longest_s, slot = max(still, key=lambda pair: pair[0], default=(0.0, None))
        if slot is None or longest_s < self._still_s:
            return None
        self.give_back(slot)
        slot.evicted = True
        self.evicted += 1
        slot.evict()
        return slot

    def reclaim_still(self) -> None:
        """Preempt all slots stalled for `still_s`, because what they hold is needed."""
        while self.reclaim(lambda slot: True) is not None:
            pass

    def give_back(self, slot: CallSlot) -> None:
        slots = self._of.get(slot.tenant)
        if slots is not None and slot in slots:
            slots.discard(slot)
            self.held -= 1
            if not slots:
                del self._of[slot.tenant]
