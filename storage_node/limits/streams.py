"""Streams of single calls, which carry an object in or out: a slot for each, and a deadline for its client's progress.

There is no deadline for the call as a whole: an upload of hundreds of gigabytes over a slow line continues as long as
it moves. A stream that does not move at all is ended, and a stalled one earlier, if another call finds no slot.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from ais_loader.errors import LoaderError, Overloaded, SilenceTimeout
from ais_loader.wire.reserved import TENANT_KEY
from storage_node.limits.call_slots import CallSlot, CallSlots
from storage_node.limits.memory_budget import MemoryBudget

T = TypeVar("T")
MAX_TENANT = 128
"""Maximum length of a tenant's name, in characters."""
MESSAGE_WAIT_S = 5.0
"""Time that a received message waits for room among the others before its call is rejected."""

_LOOK_S = 0.1


class Received(NamedTuple, Generic[T]):
    """A message and its size on the wire: computing the size would serialize the message again."""

    message: T
    size_bytes: int
    reserved_bytes: int = 0
    """Room in `Streams.messages` that has been acquired for it already. The consumer of the message releases it."""


def tenant_of(context: Any) -> str:
    """Return the tenant of a call, as named by its client."""
    return named_in(context.invocation_metadata())


def named_in(metadata: Any) -> str:
    """Return the tenant in a call's metadata; "" if there is none, or an invalid one."""
    for key, value in metadata or ():
        if key == TENANT_KEY:
            try:
                name = bytes(value).decode()
            except UnicodeDecodeError:
                return ""
            return name if len(name) <= MAX_TENANT else ""
    return ""


class Streams:
    """Streams of one node and one kind. Belongs to its event loop.

    Args:
        message_bytes: limit on all messages in progress together.
    """

    def __init__(
        self,
        limit: int,
        still_s: float,
        stall_timeout_s: float,
        weights: Mapping[str, float] | None = None,
        *,
        message_bytes: int,
    ) -> None:
        self.slots = CallSlots(limit, still_s, weights)
        self.still_s = still_s
        self.stall_timeout_s = stall_timeout_s
        self.messages = MemoryBudget(message_bytes)
        """Messages in progress, or waiting for their commit."""

    @contextlib.contextmanager
    def open(self, tenant: str) -> Iterator[Stream]:
        """Hold a slot for the duration of a call. Raises Overloaded if there is none."""
        stream = Stream(self)
        slot = self.slots.take(tenant, stream.evict)
        if slot is None:
            raise Overloaded(f"{self.slots.held} objects are being put, got and listed (max_streams): try again later")
        stream.slot = slot
        try:
            yield stream
        finally:
            stream.close()
            slot.give_back()

    async def acquire(self, size_bytes: int, own_bytes: int = 0) -> None:
        """Acquire room for a message. Raises Overloaded if there is none for a while.

        Args:
            own_bytes: room that the same message has acquired already.
        """
        if self.messages.acquire_now(size_bytes, own_bytes):
            return
        acquiring = asyncio.ensure_future(self.messages.acquire(size_bytes))
        acquired = False
        try:
            async with asyncio.timeout(MESSAGE_WAIT_S):
                while not acquiring.done():
                    self.slots.reclaim(lambda slot: slot.keeps)
                    await asyncio.wait([acquiring], timeout=_LOOK_S)
            acquired = True
        except TimeoutError:
            raise Overloaded(
                f"{self.messages.held_bytes:,} bytes that have come are being worked on (max_message_bytes): try again"
            ) from None
        finally:
            if not acquiring.done():
                acquiring.cancel()
            elif not acquired:
                self.messages.release(size_bytes)  # granted at the moment of the timeout or cancellation


class Stream:
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
        await self._streams.acquire(size_bytes)
        self._held_bytes += size_bytes
        self.slot.keeps = True
        self.slot.moved(size_bytes)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes:
            self._streams.messages.release(held_bytes)

    def evict(self) -> None:
        """Preempt the call, because another one needs the slot: its wait for the client ends now."""
        self._evicted = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

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
            self._waiting.reschedule(loop.time())
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
        deadline: bool = True,
    ) -> AsyncGenerator[T, None]:
        """Yield the client's messages, each counted until the next one is requested; those that `keeps` selects, until
        the call ends.

        Raises like `waiting`.
        """
        streams, coming = self._streams, aiter(requests)
        while (received := await self.waiting(anext(coming, None), deadline=deadline)) is not None:
            message, size_bytes, reserved_bytes = received
            if keeps(message):
                streams.messages.release(reserved_bytes)
                await self.keep(size_bytes)
                yield message
                continue
            self.slot.moved(size_bytes)
            if not reserved_bytes:
                await streams.acquire(size_bytes)
            try:
                yield message
            finally:
                streams.messages.release(reserved_bytes or size_bytes)
