"""Single flight: callers that want the same thing at the same time share one attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, NamedTuple

from ais_loader.errors import NotFound
from storage_node.limits.tasks import retrieve
from storage_node.limits.urgency import Urgency, current_urgency


class _Flight(NamedTuple):
    task: asyncio.Task[None]
    urgency: Urgency


class SingleFlight:
    """Belongs to one event loop. `failure_kept_s`: a failure other than NotFound answers for this long."""

    def __init__(self, failure_kept_s: float) -> None:
        self._failure_kept_s = failure_kept_s
        self._flights: dict[Hashable, _Flight] = {}

    async def join(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the flight of this key. A caller that is cancelled leaves it."""
        await asyncio.shield(self.flight(key, begin))

    def flight(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Return the flight of this key, which begins if there is none. It is shared, so never cancel it.

        A flight becomes as urgent as the most urgent of its callers.
        """
        urgency = current_urgency.get()
        flight = self._flights.get(key)
        if flight is None:
            task = asyncio.create_task(begin(), name=f"flight {key}")
            flight = self._flights[key] = _Flight(task, urgency)
            task.add_done_callback(retrieve)
            task.add_done_callback(lambda done: self._landed(key, done))
        elif urgency.is_urgent:
            flight.urgency.is_urgent = True
        return flight.task

    def _landed(self, key: Hashable, flight: asyncio.Task[None]) -> None:
        # What does not exist now may exist in a moment.
        if flight.cancelled() or flight.exception() is None or isinstance(flight.exception(), NotFound):
            self._flights.pop(key, None)
        else:
            asyncio.get_running_loop().call_later(self._failure_kept_s, self._flights.pop, key, None)

    async def settle(self, keys: Iterable[Hashable]) -> None:
        """Wait until the flights of these keys that are in progress have ended, however they end."""
        flights = [flight.task for key in keys if (flight := self._flights.get(key)) is not None]
        await asyncio.gather(*map(asyncio.shield, flights), return_exceptions=True)

    async def close(self) -> None:
        flights = [flight.task for flight in self._flights.values()]
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
