"""Looks at jobs: at once where something has changed on this node, and soon otherwise.

What has happened on another node is asked for, after pauses that grow with the time that has gone by. Whoever waits for
a job learns of its end at most a tenth of its time late, and one that takes long costs four looks a second.
"""

from __future__ import annotations

import asyncio

SHORTEST_S, LONGEST_S = 0.01, 0.25
_OF_AGE = 0.1


class Looks:
    """Belongs to the event loop. Any number may wait."""

    def __init__(self) -> None:
        self.changes = 0
        """So many there were: whoever waits says up to which it has seen them."""
        self._waiting: set[asyncio.Future[None]] = set()

    def changed(self) -> None:
        """Who waits looks again."""
        self.changes += 1
        for one in self._waiting:
            if not one.done():
                one.set_result(None)

    async def pause(self, seen: int, age_s: float) -> None:
        """Until the next look. Returns at once after a change that came later than `seen`.

        Args:
            age_s: how long that has gone on which is looked at.
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
