"""HostLimiter: requests in flight to one host of remote storage, and the common back-off when it throttles.

A storage that answers 503 or 429 throttles the account or the partition, and not one request. All requests of this
process to the host then wait: until a common time, which doubles with each throttled answer to a request that was sent
after the last back-off. The number of requests in flight is halved, and recovers by one for each window of successes,
as in TCP. Failures of other kinds slow nobody else.

Requests for which a reader waits go before those for objects that are needed later (`Urgency`), of which only some are
in flight at once.

A bucket whose requests per second are limited has a limiter of its own before that.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from ais_loader.wire.backoff import Backoff
from storage_node.limits.single_flight import Urgency, current_urgency
from storage_node.limits.tasks import deliver

THROTTLED = Backoff(0.1, 10.0, jitter=0.5)
"""Pauses of all requests to a host after it has throttled some."""

BURST_S = 0.1
"""A limiter with a rate sends the requests of this time at once, if it has sent none in it before."""


class HostTurn:
    """The place of one request in flight, from `begin` until `end`; or within a context."""

    __slots__ = ("_is_ahead", "_limiter", "sent_s")

    def __init__(self, limiter: HostLimiter) -> None:
        self._limiter = limiter

    async def begin(self) -> Self:
        """Wait until the request may be sent."""
        self._is_ahead, self.sent_s = await self._limiter.acquire()
        return self

    def end(self) -> None:
        """Give up the place: the answer is complete."""
        self._limiter.release(self._is_ahead)

    __aenter__ = begin

    async def __aexit__(self, *_: object) -> None:
        self.end()


class _Waiter:
    __slots__ = ("granted", "is_ahead", "urgency")
    granted: asyncio.Future[bool]

    def __init__(self, urgency: Urgency) -> None:
        self.urgency = urgency
        """May become urgent while it waits."""
        self.is_ahead = False


class HostLimiter:
    """Limits for one host. Belongs to one event loop.

    Args:
        most: maximum number of requests in flight.
        most_ahead: maximum number of those for which no reader waits when they are sent; all, by default.
        per_s: maximum number of requests in a second, after a burst of those of BURST_S; 0 for no limit.
    """

    def __init__(
        self,
        most: int,
        now_s: Callable[[], float] = time.monotonic,
        source: random.Random | None = None,
        *,
        most_ahead: int | None = None,
        per_s: float = 0.0,
    ) -> None:
        self.most = most
        self._most_ahead = most if most_ahead is None else most_ahead
        self.limit: float = most
        """Current number of requests in flight that is allowed; between 1 and `most`."""
        self.in_flight = 0
        self._ahead = 0
        """Number of those for which no reader waited when they were sent."""
        self._now_s = now_s
        self._source = source
        self._waiting: deque[_Waiter] = deque()
        self._not_before_s = 0.0
        self._backed_off_s = float("-inf")
        """Time of the last back-off. Throttled answers to requests sent earlier tell nothing new."""
        self._failures = 0
        self._interval_s = 1 / per_s if per_s else 0.0
        self._due_s = float("-inf")
        """Time before which no request may be sent, by the rate."""
        self._is_woken = False
        """Whether a timer will look again when the next request is due."""

    def turn(self) -> HostTurn:
        """Return the place of one request, which is still to be waited for."""
        return HostTurn(self)

    @property
    def is_busy(self) -> bool:
        """Whether another request would have to wait."""
        not_before_s = max(self._not_before_s, self._due_s)
        return bool(self._waiting) or self.in_flight + 1 > self.limit or not_before_s > self._now_s()

    @property
    def is_backing_off(self) -> bool:
        """Whether all requests wait because the host has throttled some."""
        return self._not_before_s > self._now_s()

    def throttled(self, turn: HostTurn) -> None:
        """Note that the host refused a request because there were too many."""
        if turn.sent_s < self._backed_off_s:
            return
        now_s = self._now_s()
        self._backed_off_s = now_s
        self._not_before_s = now_s + THROTTLED.pause_s(self._failures, source=self._source)
        self._failures += 1
        self.limit = max(1.0, self.limit / 2)

    def answered(self, turn: HostTurn) -> None:
        """Note that the host answered a request."""
        if (self.limit == self.most and not self._failures) or turn.sent_s < self._backed_off_s:
            return
        self._failures = 0
        self.limit = min(float(self.most), self.limit + 1 / self.limit)
        self._wake()

    async def acquire(self) -> tuple[bool, float]:
        """Wait until a request may be sent. Returns whether it has a place for which no reader waits, and the time."""
        is_ahead = await self._place()
        try:
            while (pause_s := self._not_before_s - self._now_s()) > 0:
                # Spread over a tenth of the pause: all requests at once would be throttled again.
                await asyncio.sleep(pause_s * (self._source or random).uniform(1, 1.1))
        except asyncio.CancelledError:
            self.release(is_ahead)
            raise
        return is_ahead, self._now_s()

    async def _place(self) -> bool:
        """Wait for a place. Returns whether it is one of those for which no reader waits."""
        waiter = _Waiter(current_urgency.get())
        self._waiting.append(waiter)
        if self._next() is waiter:
            return self._take(waiter)
        waiter.granted = asyncio.get_running_loop().create_future()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self.release(waiter.is_ahead)  # it was granted in the meantime
            raise

    def _next(self) -> _Waiter | None:
        """Return the waiter whose turn it is, if there is a place."""
        if self.in_flight + 1 > self.limit or not self._waiting:
            return None
        if (pause_s := self._due_s - self._now_s()) > 0:
            self._wake_in(pause_s)
            return None
        for waiter in self._waiting:
            if waiter.urgency.is_urgent:
                return waiter
        return self._waiting[0] if self._ahead < self._most_ahead else None

    def _take(self, waiter: _Waiter) -> bool:
        self._waiting.remove(waiter)
        waiter.is_ahead = not waiter.urgency.is_urgent
        self.in_flight += 1
        self._ahead += waiter.is_ahead
        if self._interval_s:
            self._due_s = max(self._due_s, self._now_s() - BURST_S) + self._interval_s
        return waiter.is_ahead

    def release(self, is_ahead: bool) -> None:
        self.in_flight -= 1
        self._ahead -= is_ahead
        self._wake()

    def _wake_in(self, pause_s: float) -> None:
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_later(pause_s, self._wake_now)

    def _wake_now(self) -> None:
        self._is_woken = False
        self._wake()

    def _wake(self) -> None:
        while (waiter := self._next()) is not None:
            deliver(waiter.granted, self._take(waiter))


class HostLimiters:
    """The limiters of one event loop, by host."""

    def __init__(self, most: int, most_ahead: int | None = None) -> None:
        """See `HostLimiter`."""
        self._most, self._most_ahead = most, most_ahead
        self._by_host: dict[str, HostLimiter] = {}

    def of(self, host: str) -> HostLimiter:
        return self._by_host.setdefault(host, HostLimiter(self._most, most_ahead=self._most_ahead))

    @property
    def are_backing_off(self) -> bool:
        """Whether a host has throttled requests, so that others wait now. Thread-safe."""
        return any(limiter.is_backing_off for limiter in tuple(self._by_host.values()))
