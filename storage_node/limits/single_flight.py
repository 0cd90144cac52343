"""Single flight: callers that want the same thing at the same time share one attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from ais_loader.errors import NotFound, RemoteUnavailable
from storage_node.limits.tasks import deliver, retrieve

# Urgency of a fetch: whether a reader waits for it, or a loader will need the object later.
#
# A fetch begins with the urgency of the task that begins it, and so do all tasks of it. When a reader joins, the fetch
# becomes urgent.


class Urgency:
    """Urgency of one fetch, which the tasks of the fetch share."""

    __slots__ = ("is_urgent",)

    def __init__(self, is_urgent: bool) -> None:
        self.is_urgent = is_urgent
        """Whether a reader waits."""


_READER = Urgency(True)
current_urgency: ContextVar[Urgency] = ContextVar("current_urgency", default=_READER)
"""Urgency of the running task."""

OLD_S = 1.0
"""Callers that come within this time share a failure."""


class _Flight(NamedTuple):
    task: asyncio.Task[None]
    urgency: Urgency
    began_s: float
    """When it began, by the loop's clock."""


class SingleFlight:
    """Belongs to one event loop. `failure_kept_s`: a failure other than NotFound answers for this long."""

    def __init__(self, failure_kept_s: float) -> None:
        self._failure_kept_s = failure_kept_s
        self._flights: dict[Hashable, _Flight] = {}

    async def join(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, None]], *, leads: bool = False) -> None:
        """Wait for the flight of this key; see `flight`. A caller that is cancelled leaves it.

        With `leads`, the current task becomes the flight if there is none: no reader cancels it, and this ends it.
        """
        if leads and key not in self._flights and (task := asyncio.current_task()) is not None:
            self._take_off(key, task, current_urgency.get())
            await begin()
        else:
            await self.flight(key, begin)

    def flight(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
        """Return the outcome of this key's flight, which begins if there is none. To cancel or fail it leaves the
        flight.

        A flight becomes as urgent as the most urgent of its callers. One that had been in progress for `OLD_S` may be
        waiting for what has recovered since: if it ends as unavailable, the caller gets the outcome of a newer one.
        """
        flight, is_new = self._begun(key, begin)
        task, loop = flight.task, asyncio.get_running_loop()
        outcome: asyncio.Future[None] = loop.create_future()
        if not is_new and not task.done() and loop.time() - flight.began_s >= OLD_S:
            task = loop.create_task(self._outlasted(key, flight, begin))
            outcome.add_done_callback(lambda _: task.cancel())
        task.add_done_callback(partial(_pass_on, outcome))
        return outcome

    def _begun(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, None]]) -> tuple[_Flight, bool]:
        urgency = current_urgency.get()
        flight = self._flights.get(key)
        if flight is not None:
            if urgency.is_urgent:
                flight.urgency.is_urgent = True
            return flight, False
        return self._take_off(key, asyncio.create_task(begin(), name="flight"), urgency), True

    def _take_off(self, key: Hashable, task: asyncio.Task[None], urgency: Urgency) -> _Flight:
        flight = self._flights[key] = _Flight(task, urgency, asyncio.get_running_loop().time())
        task.add_done_callback(lambda _: self._landed(key, flight))
        return flight

    async def _outlasted(self, key: Hashable, old: _Flight, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await asyncio.shield(old.task)
        except RemoteUnavailable:
            self._forget(key, old)
            newer, _ = self._begun(key, begin)
            await asyncio.shield(newer.task)

    def _landed(self, key: Hashable, flight: _Flight) -> None:
        task = flight.task
        retrieve(task)
        # What does not exist now may exist in a moment.
        if task.cancelled() or task.exception() is None or isinstance(task.exception(), NotFound):
            self._forget(key, flight)
        else:
            asyncio.get_running_loop().call_later(self._failure_kept_s, self._forget, key, flight)

    def _forget(self, key: Hashable, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._flights

    async def settle(self, keys: Iterable[Hashable]) -> None:
        """Wait until the flights of these keys that are in progress have ended, however they end."""
        flights = [flight.task for key in keys if (flight := self._flights.get(key)) is not None]
        await asyncio.gather(*map(asyncio.shield, flights), return_exceptions=True)

    async def close(self) -> None:
        flights = [flight.task for flight in self._flights.values()]
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)


def _pass_on(outcome: asyncio.Future[None], task: asyncio.Task[None]) -> None:
    if task.cancelled():
        outcome.cancel()
    else:
        deliver(outcome, None, task.exception())
