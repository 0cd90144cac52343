"""Wake-up of background work: an event that any thread may set, and intervals whose ends a node's work shares.

A node that does nothing does not run. Its background work waits for what it depends on: a new map, a change of the
store's record, an error of a drive. What nothing announces, such as a folder that is gone, is looked for at intervals.
These end at multiples of TICK_S of the event loop's clock, so that the process wakes up once for all that is due. The
timers of asyncio are the wheel.
"""

from __future__ import annotations

import asyncio
import contextlib

TICK_S = 0.5


class Wakeup:
    """Event for which one task waits. `set` may be called from any thread; the rest belongs to the event loop.

    A wait may end early for no reason: its task looks whether there is something to do.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_set = False

    def set(self, *_: object) -> None:
        """End the current wait, or the next one. Takes any arguments, so that it can be a listener."""
        if not self._is_set:  # until the task runs, further calls cost nothing
            self._is_set = True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has been closed
                    self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, longest_s: float | None = None) -> None:
        """Wait until the event is set, or `longest_s` at most, and clear it."""
        await self._wait_until(None if longest_s is None else asyncio.get_running_loop().time() + longest_s)

    async def wait_for_tick(self, period_s: float) -> None:
        """Wait like `wait`, until the last tick within a period; of a period without one, until its end."""
        await self._wait_until(last_tick_s(asyncio.get_running_loop().time(), period_s))

    async def _wait_until(self, ends_s: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_set:
            await asyncio.sleep(0)  # others run, too, if it is set all the time
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends_s):
                    await self._event.wait()
        self._event.clear()
        self._is_set = False


def last_tick_s(now_s: float, period_s: float) -> float:
    """Return the last tick within a period that begins now; the period's end if there is none."""
    ends_s = now_s + period_s
    tick_s = ends_s // TICK_S * TICK_S
    return tick_s if tick_s > now_s else ends_s


async def tick(period_s: float) -> None:
    """Wait for the last tick within a period; see `Wakeup.wait_for_tick`."""
    await Wakeup().wait_for_tick(period_s)
