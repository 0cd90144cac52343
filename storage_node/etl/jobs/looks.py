"""Polling of jobs: immediately after a change on this node, otherwise after a delay.

Changes on other nodes are polled with delays that grow with the job's age. A client that waits for a job learns of its
end after at most a tenth of its duration, and a long job costs four polls a second.
"""

from __future__ import annotations

import asyncio

SHORTEST_S, LONGEST_S = 0.01, 0.25
_OF_AGE = 0.1


class Looks:
    """Wakes pollers. Belongs to the event loop. Any number of tasks may wait."""

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes. A waiting task passes the number that it has seen."""
        self._waiting: set[asyncio.Future[None]] = set()

    def changed(self) -> None:
        """Wake all waiting tasks."""
        self.changes += 1
        for one in self._waiting:
            if not one.done():
                one.set_result(None)

    async def pause(self, seen: int, age_s: float) -> None:
        """Wait until the next poll. Returns at once if there has been a change after `seen`.

        Args:
            age_s: Time since the start of what is polled.
        """
        if self.changes != seen:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait([waiting], timeout=min(LONGEST_S, max(SHORTEST_S, _OF_AGE * age_s)))
        finally:
            self._waiting.discard(waiting)
            waiting.cancel()
