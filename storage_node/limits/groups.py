"""Groups: pieces of work that are ready at about the same time, done with one call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from ais_loader.errors import LoaderError
from storage_node.limits.tasks import retrieve

_GROUP_OBJECTS, _GROUP_BYTES = 128, 4 << 20
_GROUPS = 2
_WAIT_S = 0.05
T = TypeVar("T")
R = TypeVar("R")


class _WaitingCaller(Generic[R]):
    """Pieces that one caller waits for together. They may be in several groups."""

    def __init__(self, count: int) -> None:
        self.outcomes: dict[int, R | LoaderError] = {}
        self._count = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, position: int, outcome: R | LoaderError) -> None:
        self.outcomes[position] = outcome
        if len(self.outcomes) == self._count and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
        retrieve(self.done)


class Groups(Generic[T, R]):
    """Belongs to one event loop.

    Args:
        do_group: Does the pieces of a group, and returns the outcome of each.
        wait_s: How long a piece waits for others; 0 if the caller submits no more until this one is done.
        groups: Number of groups in progress. Pieces that become ready meanwhile make the next groups larger.
        stall_s: How long pieces wait for a group in progress at most. After that another one begins, as the first may
            wait for a node that is frozen. None: as long as it takes.
    """

    def __init__(
        self,
        do_group: Callable[[Sequence[T]], Awaitable[list[R | LoaderError]]],
        wait_s: float = _WAIT_S,
        *,
        groups: int = _GROUPS,
        stall_s: float | None = None,
    ) -> None:
        self._do_group, self._wait_s, self._groups, self._stall_s = do_group, wait_s, groups, stall_s
        self._waiting: deque[tuple[T, _WaitingCaller[R], int, int]] = deque()
        """Pieces with the caller that waits for each, its position among the caller's, and its size."""
        self._waiting_bytes = 0
        self._running: set[asyncio.Task[None]] = set()
        self._alone = 0
        """Pieces that their callers do themselves, as nothing else was there. Each counts as a group."""
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._overdue = False
        """Whether the waiting pieces have waited long enough for others."""

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._in_progress

    @property
    def _in_progress(self) -> int:
        return len(self._running) + self._alone

    def _size_bytes(self, piece: T) -> int:
        """Size of a piece, by which groups are limited besides their number of pieces."""
        return 0

    async def put(self, piece: T) -> R:
        """Do one piece. If cancelled, it may be done nevertheless. Raises LoaderError."""
        if self.is_idle and not self._wait_s:
            # A task of its own would cost a small PUT a tenth of its time.
            self._alone += 1
            try:
                (outcome,) = await self._do_group([piece])
            finally:
                self._alone -= 1
                self._flush()
        else:
            (outcome,) = await self.put_many([piece])
        if isinstance(outcome, LoaderError):
            raise outcome
        return outcome

    async def put_many(self, pieces: Sequence[T]) -> list[R | LoaderError]:
        """Do pieces and return the outcome of each. If cancelled, they may be done nevertheless. Raises errors that
        are not LoaderErrors."""
        if not pieces:
            return []
        waiting: _WaitingCaller[R] = _WaitingCaller(len(pieces))
        for position, piece in enumerate(pieces):
            size_bytes = self._size_bytes(piece)
            self._waiting.append((piece, waiting, position, size_bytes))
            self._waiting_bytes += size_bytes
        if not self._wait_s:
            self._overdue = True
        elif self._timer is None and not self._overdue:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._wait_no_longer)
        self._flush()
        await waiting.done
        return [waiting.outcomes[position] for position in range(len(pieces))]

    def _wait_no_longer(self) -> None:
        self._timer, self._overdue = None, True
        self._flush()

    @property
    def _is_due(self) -> bool:
        return (
            len(self._waiting) >= _GROUP_OBJECTS
            or self._waiting_bytes >= _GROUP_BYTES
            or (self._overdue and bool(self._waiting))
        )

    def _flush(self) -> None:
        """Start full groups, and others once their waiting time is over."""
        while self._is_due and self._in_progress < self._groups:
            self._start()
        if self._stall_s is not None and self._is_due and self._stall is None:
            self._stall = asyncio.get_running_loop().call_later(self._stall_s, self._overtake)

    def _overtake(self) -> None:
        self._stall = None
        if self._is_due:
            self._start()
        self._flush()

    def _start(self) -> None:
        group: list[tuple[T, _WaitingCaller[R], int, int]] = []
        size_bytes = 0
        while self._waiting and len(group) < _GROUP_OBJECTS and size_bytes < _GROUP_BYTES:
            group.append(self._waiting.popleft())
            size_bytes += group[-1][3]
        self._waiting_bytes -= size_bytes
        task = asyncio.ensure_future(self._store(group))
        self._running.add(task)
        task.add_done_callback(self._done)
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if not self._waiting:
            self._overdue = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._flush()

    async def _store(self, group: Sequence[tuple[T, _WaitingCaller[R], int, int]]) -> None:
        results: Sequence[R | LoaderError]
        try:
            results = await self._do_group([piece for piece, *_ in group])
        except LoaderError as error:
            results = [error] * len(group)
        except BaseException as error:
            for _, waiting, _, _ in group:
                waiting.fail(error if isinstance(error, Exception) else LoaderError("the node is stopping"))
            raise
        for (_, waiting, position, _), result in zip(group, results, strict=True):
            waiting.take(position, result)

    async def close(self) -> None:
        """Wait for the groups in progress."""
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        if self._running:
            await asyncio.wait(self._running)
