"""Idle clock of a node: how long no client has called it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


class IdleClock:
    """Measures how long a node has not been used. Calls are noted on its event loop; any thread may read the clock.

    Args:
        in_use: whether something besides a call, such as an open lane, uses the node now.
    """

    def __init__(self, in_use: Callable[[], bool]) -> None:
        self._in_use = in_use
        self._calls: set[asyncio.Task[Any]] = set()
        self._used_s = time.monotonic()

    def note_call(self) -> None:
        """Note that the current task serves a call, until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._used_s = time.monotonic()
        self._calls.discard(task)

    def idle_s(self) -> float:
        """Return the time since the last use that was noted, or seen here; 0 during one."""
        now_s = time.monotonic()
        if self._calls or self._in_use():
            self._used_s = now_s
        return max(0.0, now_s - self._used_s)
