"""Bursts: small runs of one stage that wait for a worker, and go to it together.

To be given to a worker and taken back costs more than most transforms of a small object: two messages, and two
processes that wake each other. Runs that have to wait anyway wait with those of the same stage, arguments and tenant;
whoever's turn it is takes its share of them, so that the other workers have theirs, and no more than the stage is soon
done with.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from ais_loader.errors import LoaderError
from storage_node.etl.values import Content, Origin


class _Run:
    """One object, and what is made of it."""

    def __init__(self, origin: Origin, content: Content) -> None:
        self.origin = origin
        self.input = Content(content.size_bytes, content.checksum, content.data)
        """Its bytes stay until the burst is over, whenever the caller closes what is its own."""
        self.made: asyncio.Future[Content] = asyncio.get_running_loop().create_future()
        self.burst: _Burst | None = None

    def end(self, outcome: Content | BaseException) -> None:
        self.input.close()
        if self.made.done():  # given up
            if isinstance(outcome, Content):
                outcome.close()
        elif isinstance(outcome, Content):
            self.made.set_result(outcome)
        elif isinstance(outcome, asyncio.CancelledError):
            self.made.cancel()
        else:
            self.made.set_exception(outcome)


class _Burst:
    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.task: asyncio.Task[None]


class Bursts:
    """Of one stage, with the same arguments, for one tenant. Belongs to the event loop.

    Args:
        workers: that runs are shared out to.
        size: how many are worth a burst now.
        turn: what is held while a worker is used.
        run_many: passes inputs through, in a turn: an outcome for each. Cancelled, it lets go of them.
        on_idle: called when nothing is under way any more.
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
        self._waiting: deque[_Run] = deque()
        self._next: _Burst | None = None
        """That takes what waits when its turn has come."""
        self._under_way: set[_Burst] = set()

    async def run(self, origin: Origin, content: Content) -> Content:
        """Pass one input, which is in memory, through. It stays the caller's; what is made of it becomes the caller's.

        Cancelled, it ends its burst if nobody waits for any other run of it.

        Raises what comes of it.
        """
        mine = _Run(origin, content)
        self._waiting.append(mine)
        self._ask()
        try:
            return await mine.made
        except asyncio.CancelledError:
            self._give_up(mine)
            raise

    def _ask(self) -> None:
        """For the next turn, if any run waits for one."""
        if self._waiting and self._next is None:
            self._next = burst = _Burst()
            self._under_way.add(burst)
            burst.task = asyncio.create_task(self._go(burst))
            burst.task.add_done_callback(lambda _: self._over(burst))

    def _over(self, burst: _Burst) -> None:
        self._under_way.remove(burst)
        if not self._under_way:
            self._on_idle()

    def _give_up(self, run: _Run) -> None:
        if run.burst is None:
            if run in self._waiting:
                self._waiting.remove(run)
            run.input.close()
        elif run.made.done() and not run.made.cancelled() and run.made.exception() is None:
            run.made.result().close()  # made in this very moment
        elif all(one.made.done() for one in run.burst.runs):
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
            if self._next is burst:  # its turn has not come, and will not
                self._next = None
                burst.runs.extend(self._waiting)
                self._waiting.clear()
            for run in burst.runs:
                run.end(error)
            if not isinstance(error, Exception):
                raise
