"""Slots of calls, the preemption of stalled calls, and the streams of calls that carry an object in or out.

A call that waits for its client holds memory, descriptors or bytes on a drive for as long as the client likes. Slots
bound the number of such calls. As long as slots are free, a stalled call is left alone. When a call finds none free,
the call that has been stalled for the longest loses its slot: one of the same tenant, or of a tenant that has more than
its share. Slots are pure bookkeeping: the clock is an argument.

Streams have a slot each, and a deadline for their client's progress. There is no deadline for the call as a whole: an
upload of hundreds of gigabytes over a slow line continues as long as it moves. A stream that does not move at all is
ended, and a stalled one earlier, if another call finds no slot. All belong to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from ais_loader.errors import LoaderError, Overloaded, SilenceTimeout
from ais_loader.wire.reserved import TENANT_KEY
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.limits.tasks import end_now

T = TypeVar("T")

PROGRESS_BYTES = 64 << 10
"""Bytes that a client must move before a stalled call counts as moving again: a byte now and then is no progress."""
TENANT_SHARE = 0.875
"""Largest part of all slots that one tenant gets, unless a setting says otherwise."""
MAX_TENANT = 128
"""Maximum length of a tenant's name, in characters."""
MESSAGE_WAIT_S = 5.0
"""Time that a received message waits for room among the others before its call is rejected."""
_RECLAIM_INTERVAL_S = 0.1
current_tenant: ContextVar[str] = ContextVar("current_tenant", default="the node itself")
"""Tenant of the running task. The node's own work, and that for other nodes, has turns of its own."""
token_tenant: ContextVar[str | None] = ContextVar("token_tenant", default=None)
"""Tenant by the token of the running task's client; None where no token is needed."""


def tenant_of(context: Any) -> str:
    """Return the tenant of a call: that of its token, or else the one that its client names."""
    tenant = token_tenant.get()
    return tenant if tenant is not None else _named_in(context.invocation_metadata())


def note_tenant(details: Any) -> None:
    """Make the tenant of a call the current one. Runs in the call's own task, on the server for clients; a batch names
    its own tenant."""
    current_tenant.set(_named_in(details.invocation_metadata))


def _named_in(metadata: Any) -> str:
    """Return the tenant in a call's metadata; "" if there is none, or an invalid one."""
    for key, value in metadata or ():
        if key == TENANT_KEY:
            try:
                name = bytes(value).decode()
            except UnicodeDecodeError:
                return ""
            return name if len(name) <= MAX_TENANT else ""
    return ""


def limit_of_tenant(limit: int, share: float) -> int:
    """Return how many of `limit` things one tenant gets: all but the part that its share leaves to others."""
    return max(1, limit - int(limit * (1 - share)))


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

    def stalled_s(self) -> float:
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
        tenant_limit: maximum for one tenant; by default that of `tenant_share`.
        tenant_share: largest part of the slots that one tenant gets.
    """

    def __init__(
        self,
        limit: int,
        still_s: float,
        weights: Mapping[str, float] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        *,
        tenant_limit: int | None = None,
        tenant_share: float = TENANT_SHARE,
    ) -> None:
        self.limit = limit
        self.tenant_limit = limit_of_tenant(limit, tenant_share) if tenant_limit is None else tenant_limit
        """Number of slots that one tenant gets."""
        self.refused = {"tenant": 0, "all": 0}
        """Number of calls that got no slot: because their tenant has all that it gets, or because all are taken."""
        self.evicted = 0
        """Number of preempted slots."""
        self.now_s = now_s
        self._still_s = still_s
        self._weights = weights or {}
        self._by_tenant: dict[str, set[CallSlot]] = {}
        self.held = 0

    def take(self, tenant: str, evict: Callable[[], None]) -> CallSlot | None:
        """Take a slot. Returns None if there is none: the call has to be retried later."""
        mine = len(self._by_tenant.get(tenant, ()))
        free = self.held < self.limit and mine < self.tenant_limit
        if not free and self.reclaim(self._over_their_share(tenant)) is None:
            self.refused["tenant" if mine >= self.tenant_limit else "all"] += 1
            return None
        slot = CallSlot(self, tenant, evict)
        self._by_tenant.setdefault(tenant, set()).add(slot)
        self.held += 1
        return slot

    def why(self, tenant: str, what: str, setting: str) -> str:
        """Return the reason why a tenant gets no slot. `what`: what the slots are for, as in "sessions are open"."""
        mine = len(self._by_tenant.get(tenant, ()))
        if self.limit > mine >= self.tenant_limit:
            return (
                f"tenant {tenant!r}: {mine:,} {what}, as many as one tenant may have (tenant_share of {setting}="
                f"{self.limit:,}): try again later"
            )
        return f"{self.held:,} {what} ({setting}={self.limit:,}): try again later"

    @property
    def stalled(self) -> int:
        """Number of calls that have been stalled long enough to lose their slot to another one."""
        return sum(one.stalled_s() >= self._still_s for slots in list(self._by_tenant.values()) for one in list(slots))

    def _over_their_share(self, tenant: str) -> Callable[[CallSlot], bool]:
        """Preemption rule: a tenant may preempt its own calls; another tenant's only if it is below its share and they
        are above theirs."""
        if self.held < self.limit or len(self._by_tenant.get(tenant, ())) >= self.tenant_limit:
            return lambda slot: slot.tenant == tenant
        total = sum(self._weights.get(name, 1.0) for name in {tenant, *self._by_tenant})

        def more_than_share(name: str, held: int) -> bool:
            return held * total > self.limit * self._weights.get(name, 1.0)

        poor = not more_than_share(tenant, len(self._by_tenant.get(tenant, ())) + 1)
        return lambda slot: (
            slot.tenant == tenant or (poor and more_than_share(slot.tenant, len(self._by_tenant[slot.tenant])))
        )

    def reclaim(self, wanted: Callable[[CallSlot], bool]) -> CallSlot | None:
        """Preempt the slot, among those that are `wanted`, that has been stalled for the longest. Returns None if none
        has been stalled long enough."""
        stalled = [(one.stalled_s(), one) for slots in self._by_tenant.values() for one in slots if wanted(one)]
        longest_s, slot = max(stalled, key=lambda pair: pair[0], default=(0.0, None))
        if slot is None or longest_s < self._still_s:
            return None
        self.give_back(slot)
        slot.evicted = True
        self.evicted += 1
        slot.evict()
        return slot

    def reclaim_stalled(self) -> None:
        """Preempt all slots stalled for `still_s`, because what they hold is needed."""
        while self.reclaim(lambda slot: True) is not None:
            pass

    def give_back(self, slot: CallSlot) -> None:
        slots = self._by_tenant.get(slot.tenant)
        if slots is not None and slot in slots:
            slots.discard(slot)
            self.held -= 1
            if not slots:
                del self._by_tenant[slot.tenant]


class Received(NamedTuple, Generic[T]):
    """A message and its size on the wire: computing the size would serialize the message again."""

    message: T
    size_bytes: int
    reserved_bytes: int = 0
    """Room in `Streams.messages` that has been acquired for it already. The consumer of the message releases it."""


class Streams:
    """Streams of one node and one kind. Belongs to its event loop.

    Args:
        message_bytes: limit on all messages in progress together.
        tenant_share: largest part of slots and bytes that one tenant gets. None for streams of nodes, which act for
            all tenants: their bytes have no such limit.
    """

    def __init__(
        self,
        limit: int,
        still_s: float,
        stall_timeout_s: float,
        weights: Mapping[str, float] | None = None,
        *,
        message_bytes: int,
        tenant_share: float | None = None,
    ) -> None:
        self.slots = CallSlots(
            limit, still_s, weights, tenant_share=TENANT_SHARE if tenant_share is None else tenant_share
        )
        self.still_s = still_s
        self.stall_timeout_s = stall_timeout_s
        self.messages = MemoryBudget(message_bytes, 1.0 if tenant_share is None else tenant_share)
        """Messages in progress, or waiting for their commit."""

    @contextlib.contextmanager
    def open(self, tenant: str) -> Iterator[CallStream]:
        """Hold a slot for the duration of a call. Raises Overloaded if there is none."""
        stream = CallStream(self)
        slot = self.slots.take(tenant, stream.evict)
        if slot is None:
            raise Overloaded(self.slots.why(tenant, "objects are being put, got and listed", "max_streams"))
        stream.slot = slot
        try:
            yield stream
        finally:
            stream.close()
            slot.give_back()

    async def acquire(self, size_bytes: int, own_bytes: int = 0, tenant: str | None = None) -> None:
        """Acquire room for a message of a tenant. Raises Overloaded if there is none for a while.

        Args:
            own_bytes: room that the same message has acquired already.
        """
        if self.messages.acquire_now(size_bytes, own_bytes, tenant):
            return
        acquiring = asyncio.ensure_future(self.messages.acquire(size_bytes, own_bytes, tenant))
        acquired = False
        try:
            async with asyncio.timeout(MESSAGE_WAIT_S):
                while not acquiring.done():
                    of_whom = tenant if self.messages.is_over(tenant, size_bytes, own_bytes) else None
                    self.slots.reclaim(partial(_keeps, of_whom))
                    await asyncio.wait([acquiring], timeout=_RECLAIM_INTERVAL_S)
            acquired = True
        except TimeoutError:
            if self.messages.is_over(tenant, size_bytes, own_bytes):
                raise Overloaded(
                    f"tenant {tenant!r} has as many bytes in progress as one tenant may have (tenant_share of "
                    f"max_message_bytes={self.messages.limit_bytes:,}): try again later"
                ) from None
            raise Overloaded(
                f"{self.messages.held_bytes:,} bytes that have come are being worked on (max_message_bytes): try again"
            ) from None
        finally:
            if not acquiring.done():
                acquiring.cancel()
            elif not acquired:
                self.messages.release(size_bytes, tenant)  # granted at the moment of the timeout or cancellation


def _keeps(tenant: str | None, slot: CallSlot) -> bool:
    """Whether a call keeps memory; of this tenant, if one is given."""
    return slot.keeps and tenant in (None, slot.tenant)


class CallStream:
    """The stream of one call."""

    slot: CallSlot

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._waiting: asyncio.Timeout | None = None
        self._ends_s: float | None = None
        """Time of the loop's clock at which the current wait is ended; None if there is no wait, or no deadline."""
        self._timer: asyncio.TimerHandle | None = None
        self._evicted = False
        self._held_bytes = 0

    async def keep(self, size_bytes: int) -> None:
        """Count this many bytes until the call ends. Raises Overloaded."""
        await self._streams.acquire(size_bytes, tenant=self.slot.tenant)
        self._held_bytes += size_bytes
        self.slot.keeps = True
        self.slot.moved(size_bytes)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes:
            self._streams.messages.release(held_bytes, self.slot.tenant)

    def evict(self) -> None:
        """Preempt the call, because another one needs the slot: its wait for the client ends now."""
        self._evicted = True
        if self._waiting is not None:
            end_now(self._waiting)

    async def waiting(self, step: Awaitable[T], *, deadline: bool = True) -> T:
        """Return the result of a wait for the client. Raises Overloaded, SilenceTimeout; the call has to be ended then.

        Without a `deadline`, it may take as long as no other call needs the slot.
        """
        loop = asyncio.get_running_loop()
        self._ends_s = loop.time() + self._streams.stall_timeout_s if deadline else None
        if deadline and self._timer is None:
            self._watch(loop)
        try:
            async with asyncio.timeout(None) as self._waiting:
                self.slot.begin_waiting()
                try:
                    return await step
                finally:
                    self.slot.end_waiting()
        except LoaderError:  # SilenceTimeout is also a TimeoutError
            raise
        except TimeoutError:
            raise self._stalled() from None
        finally:
            self._waiting = self._ends_s = None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run one timer for all steps of the call. It checks again when it fires, because most steps end at once."""
        self._timer = None
        if self._ends_s is None:
            return
        if self._waiting is not None and loop.time() >= self._ends_s:
            end_now(self._waiting)
        else:
            self._timer = loop.call_at(self._ends_s, self._watch, loop)

    def _stalled(self) -> LoaderError:
        if self._evicted:
            return Overloaded(
                f"nothing moved for {self._streams.still_s:g} s (still_s) while others waited for a place: try again"
            )
        return SilenceTimeout(
            f"the client neither sent nor took anything for {self._streams.stall_timeout_s:g} s (stall_timeout_s)"
        )

    async def messages(
        self,
        requests: AsyncIterator[Received[T]],
        *,
        keeps: Callable[[T], bool] = lambda message: False,
        look: Callable[[T], object] | None = None,
        deadline: bool = True,
    ) -> AsyncGenerator[T, None]:
        """Yield the client's messages, each counted until the next one is requested; those that `keeps` selects, until
        the call ends. `look` is called with each of them first, and may raise.

        Raises like `waiting`.
        """
        streams, incoming = self._streams, aiter(requests)
        while (received := await self.waiting(anext(incoming, None), deadline=deadline)) is not None:
            message, size_bytes, held_bytes = received
            try:
                if look is not None:
                    look(message)
                if keeps(message):
                    streams.messages.release(held_bytes, self.slot.tenant)
                    held_bytes = 0
                    await self.keep(size_bytes)
                else:
                    self.slot.moved(size_bytes)
                    if not held_bytes:
                        await streams.acquire(size_bytes, tenant=self.slot.tenant)
                        held_bytes = size_bytes
                yield message
            finally:
                streams.messages.release(held_bytes, self.slot.tenant)


def peer_of_address(text: str) -> str:
    """Return the address by which a remote client is counted: an IPv4 address, or the /64 network of an IPv6 one."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if address.version == 4 or address.ipv4_mapped is not None:
        return str(address.ipv4_mapped if address.version == 6 else address)
    return str(ipaddress.ip_network((address, 64), strict=False))
