"""Bursts: small runs of one stage that wait for a worker and go to it together.

Sending an object to a worker and receiving the result costs more than most transforms of a small object: two messages,
and two context switches between processes. Runs that have to wait anyway are queued together with those of the same
stage, arguments and tenant. Each turn takes a share of the queue, so that the other workers get theirs, and no more
than the stage finishes within a short time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from ais_loader.errors import LoaderError
from storage_node.etl.values import Content, Origin


class _BurstItem:
    """One object and its result."""

    def __init__(self, origin: Origin, content: Content) -> None:
        self.origin = origin
        self.input = Content(content.size_bytes, content.checksum, content.data)
        """A reference of its own to the bytes: they stay until the burst is over, even if the caller closes its
        content."""
        self.result: asyncio.Future[Content] = asyncio.get_running_loop().create_future()
        self.burst: _Burst | None = None

    def end(self, outcome: Content | BaseException) -> None:
        self.input.close()
        if self.result.done():  # cancelled by the caller
            if isinstance(outcome, Content):
                outcome.close()
        elif isinstance(outcome, Content):
            self.result.set_result(outcome)
        elif isinstance(outcome, asyncio.CancelledError):
            self.result.cancel()
        else:
            self.result.set_exception(outcome)


class _Burst:
    def __init__(self) -> None:
        self.runs: list[_BurstItem] = []
        self.task: asyncio.Task[None]


class Bursts:
    """Bursts of one stage, with the same arguments, for one tenant. Belongs to the event loop.

    Args:
        workers: Number of workers among which the queued runs are divided.
        size: Returns the number of runs that a burst should have now.
        turn: Returns the context manager that is held while a worker is used.
        run_many: Passes inputs through, within a turn, and returns one outcome for each. If it is cancelled, it
            releases them.
        on_idle: Called when no burst is running any more.
    """

    def __init__(
        self,
        workers: int,
        size: Callable[[], int],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        run_many: Callable[[Sequence[tuple[Origin, Content]]], Awaitable[Sequence[Content | LoaderError]]],
        on_idle: Callable[[], None],
    ) -> None:
        self._workers, self._size, self._turn, self._run_many = workers, size, turn, run_many
        self._on_idle = on_idle
        self._waiting: deque[_BurstItem] = deque()
        self._next: _Burst | None = None
        """The burst that takes queued runs when its turn comes."""
        self._running: set[_Burst] = set()

    async def run(self, origin: Origin, content: Content) -> Content:
        """Pass one input, which is in memory, through. The input remains the caller's; the result becomes the caller's.

        If this call is cancelled, its burst ends when no caller waits for any other run of it.

        Raises the error of the run.
        """
        mine = _BurstItem(origin, content)
        self._waiting.append(mine)
        self._ask()
        try:
            return await mine.result
        except asyncio.CancelledError:
            self._give_up(mine)
            raise

    def _ask(self) -> None:
        """Request the next turn if any run waits for one."""
        if self._waiting and self._next is None:
            self._next = burst = _Burst()
            self._running.add(burst)
            burst.task = asyncio.create_task(self._go(burst))
            burst.task.add_done_callback(lambda _: self._over(burst))

    def _over(self, burst: _Burst) -> None:
        self._running.remove(burst)
        if not self._running:
            self._on_idle()

    def _give_up(self, run: _BurstItem) -> None:
        if run.burst is None:
            if run in self._waiting:
                self._waiting.remove(run)
            run.input.close()
        elif run.result.done() and not run.result.cancelled() and run.result.exception() is None:
            run.result.result().close()  # finished at the same moment
        elif all(one.result.done() for one in run.burst.runs):
            run.burst.task.cancel()

    async def _go(self, burst: _Burst) -> None:
        try:
            async with self._turn():
                self._next = None
                share = min(self._size(), -(-len(self._waiting) // self._workers))
                for _ in range(share):
                    run = self._waiting.popleft()
                    run.burst = burst
                    burst.runs.append(run)
                self._ask()
                if not burst.runs:
                    return
                outcomes = await self._run_many([(run.origin, run.input) for run in burst.runs])
                for run, outcome in zip(burst.runs, outcomes, strict=True):
                    run.end(outcome)
        except BaseException as error:
            if self._next is burst:  # it never got its turn
                self._next = None
                burst.runs.extend(self._waiting)
                self._waiting.clear()
            for run in burst.runs:
                run.end(error)
            if not isinstance(error, Exception):
                raise
