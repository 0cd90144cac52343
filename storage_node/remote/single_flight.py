"""Single flight: callers that want the same thing at the same time share one attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any

from ais_loader.errors import NotFound
from storage_node.limits.tasks import retrieve


class SingleFlight:
    """Belongs to one event loop. `failure_kept_s`: a failure other than NotFound answers for this long."""

    def __init__(self, failure_kept_s: float) -> None:
        self._failure_kept_s = failure_kept_s
        self._flights: dict[Hashable, asyncio.Task[None]] = {}

    async def join(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the flight of this key, which begins if there is none. A caller that is cancelled leaves it."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = asyncio.create_task(begin(), name=f"flight {key}")
            flight.add_done_callback(retrieve)
            flight.add_done_callback(lambda done: self._landed(key, done))
        await asyncio.shield(flight)

    def _landed(self, key: Hashable, flight: asyncio.Task[None]) -> None:
        # What does not exist now may exist in a moment.
        if flight.cancelled() or flight.exception() is None or isinstance(flight.exception(), NotFound):
            self._flights.pop(key, None)
        else:
            asyncio.get_running_loop().call_later(self._failure_kept_s, self._flights.pop, key, None)

    async def settle(self, keys: Iterable[Hashable]) -> None:
        """Wait until the flights of these keys that are in progress have ended, however they end."""
        flights = [flight for key in keys if (flight := self._flights.get(key)) is not None]
        await asyncio.gather(*map(asyncio.shield, flights), return_exceptions=True)

    async def close(self) -> None:
        """Cancel all flights."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
