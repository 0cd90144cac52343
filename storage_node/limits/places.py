"""Places of calls on a node: how many there are, who holds them, and from whom one is taken back when others need it.

A call that waits for its client holds memory, descriptors or bytes on a drive for as long as the client likes. Places
bound how many do. As long as there are enough, a call that stands still is left alone; when somebody finds none free,
the one that has stood still the longest gives its place up, of its own tenant or of one that has more than its share.

Pure bookkeeping: the time is an argument of whoever makes it. Belongs to the node's event loop.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

PROGRESS_BYTES = 64 << 10
"""What a client has to have moved before a call counts as moving again: a byte now and then is no progress."""
RESERVED_SHARE = 8
"""One of so many places is not for a tenant that has all the others."""


class Place:
    """One call's. `evict` is called, once, when it is taken back; it must not wait."""

    __slots__ = (
        "_moved_bytes",
        "_places",
        "_waited_s",
        "_waiting_since_s",
        "_waits",
        "evict",
        "evicted",
        "keeps",
        "tenant",
    )

    def __init__(self, places: Places, tenant: str, evict: Callable[[], None]) -> None:
        self._places = places
        self.tenant = tenant
        self.evict = evict
        self.evicted = False
        self.keeps = False
        """Whether its call keeps memory that others may need."""
        self._moved_bytes = 0
        self._waits = 0
        self._waiting_since_s = 0.0
        self._waited_s = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around whatever waits for the client. May be nested, and overlap."""
        self.begin_waiting()
        try:
            yield
        finally:
            self.end_waiting()

    def begin_waiting(self) -> None:
        """`end_waiting` follows."""
        if not self._waits:
            self._waiting_since_s = self._places.now_s()
        self._waits += 1

    def end_waiting(self) -> None:
        self._waits -= 1
        if not self._waits:
            self._waited_s += self._places.now_s() - self._waiting_since_s

    def moved(self, size_bytes: int = PROGRESS_BYTES) -> None:
        """The client has taken or sent so much."""
        self._moved_bytes += size_bytes
        if self._moved_bytes >= PROGRESS_BYTES:
            self._moved_bytes = 0
            self._waited_s = 0.0
            self._waiting_since_s = self._places.now_s()

    def still_s(self) -> float:
        """For how long its client has been waited for since it last moved anything; 0 while it is not waited for."""
        return self._waited_s + self._places.now_s() - self._waiting_since_s if self._waits else 0.0

    def give_back(self) -> None:
        """The call has ended; harmless when the place was taken back."""
        self._places.give_back(self)


class Places:
    """
    Args:
        limit: how many there are.
        still_s: from when on a call that waits for its client may lose its place to another one.
        weights: of tenants; 1 where none is given.
        tenant_limit: how many one tenant may hold; by default all but one of RESERVED_SHARE.
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
        """Places taken back so far."""
        self.now_s = now_s
        self._still_s = still_s
        self._weights = weights or {}
        self._of: dict[str, set[Place]] = {}
        self.held = 0

    def take(self, tenant: str, evict: Callable[[], None]) -> Place | None:
        """None when there is none: the call has to come back later."""
        mine = len(self._of.get(tenant, ()))
        free = self.held < self.limit and mine < self._tenant_limit
        if not free and self.reclaim(self._over_their_share(tenant)) is None:
            return None
        place = Place(self, tenant, evict)
        self._of.setdefault(tenant, set()).add(place)
        self.held += 1
        return place

    @property
    def still(self) -> int:
        """How many calls stand still for so long that they would lose their place to another one."""
        return sum(one.still_s() >= self._still_s for places in list(self._of.values()) for one in list(places))

    def _over_their_share(self, tenant: str) -> Callable[[Place], bool]:
        """Whose places may go to this tenant: its own; others' only while it has less than its share, and they more."""
        if self.held < self.limit or len(self._of.get(tenant, ())) >= self._tenant_limit:
            return lambda place: place.tenant == tenant
        total = sum(self._weights.get(name, 1.0) for name in {tenant, *self._of})

        def more_than_share(name: str, held: int) -> bool:
            return held * total > self.limit * self._weights.get(name, 1.0)

        poor = not more_than_share(tenant, len(self._of.get(tenant, ())) + 1)
        return lambda place: (
            place.tenant == tenant or (poor and more_than_share(place.tenant, len(self._of[place.tenant])))
        )

    def reclaim(self, wanted: Callable[[Place], bool]) -> Place | None:
        """Take the place back that has stood still the longest, of those that are `wanted`; None where none does."""
        still = [(one.still_s(), one) for places in self._of.values() for one in places if wanted(one)]
        longest_s, place = max(still, key=lambda pair: pair[0], default=(0.0, None))
        if place is None or longest_s < self._still_s:
            return None
        self.give_back(place)
        place.evicted = True
        self.evicted += 1
        place.evict()
        return place

    def reclaim_still(self) -> None:
        """Take back the places of all calls that have stood still for `still_s`: what they hold is needed."""
        while self.reclaim(lambda place: True) is not None:
            pass

    def give_back(self, place: Place) -> None:
        places = self._of.get(place.tenant)
        if places is not None and place in places:
            places.discard(place)
            self.held -= 1
            if not places:
                del self._of[place.tenant]
