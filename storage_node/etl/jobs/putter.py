"""Group commit of results: small results that are ready at about the same time are stored with one request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Stored
from storage_node.limits.tasks import retrieve

SMALL_BYTES = 1 << 20
"""Larger results are stored individually."""
_GROUP_OBJECTS, _GROUP_BYTES = 128, 4 << 20
_GROUPS = 2
"""Maximum number of groups in progress. Results that become ready meanwhile make the next groups larger."""
_WAIT_S = 0.05
PutGroup: TypeAlias = Callable[[Sequence[pb.SmallObject]], Awaitable[list[Stored | LoaderError]]]


class _Waiting:
    """Results that one caller waits for together. They may be stored in several groups."""

    def __init__(self, count: int) -> None:
        self.outcomes: dict[int, Stored | LoaderError] = {}
        self._count = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, position: int, outcome: Stored | LoaderError) -> None:
        self.outcomes[position] = outcome
        if len(self.outcomes) == self._count and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
        retrieve(self.done)


_Item: TypeAlias = tuple[pb.SmallObject, _Waiting, int]
"""An object, the caller that waits for it, and its position among the caller's objects."""


class Putter:
    """Groups results. Belongs to the event loop.

    Args:
        wait_s: How long a result waits for others; 0 if the caller submits no more until this one is stored.
    """

    def __init__(self, put_group: PutGroup, wait_s: float = _WAIT_S) -> None:
        self._put_group, self._wait_s = put_group, wait_s
        self._waiting: deque[_Item] = deque()
        self._waiting_bytes = 0
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._overdue = False
        """Whether the waiting results have waited long enough for others."""

    async def put(self, small: pb.SmallObject) -> Stored:
        """Store one result. If cancelled, it may be stored nevertheless. Raises LoaderError."""
        (outcome,) = await self.put_many([small])
        if isinstance(outcome, LoaderError):
            raise outcome
        return outcome

    async def put_many(self, objects: Sequence[pb.SmallObject]) -> list[Stored | LoaderError]:
        """Store results and return the outcome of each. If cancelled, they may be stored nevertheless. Raises errors
        that are not LoaderErrors."""
        if not objects:
            return []
        waiting = _Waiting(len(objects))
        for position, small in enumerate(objects):
            self._waiting.append((small, waiting, position))
            self._waiting_bytes += len(small.data)
        if self._timer is None and not self._overdue:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._wait_no_longer)
        self._flush()
        await waiting.done
        return [waiting.outcomes[position] for position in range(len(objects))]

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
        while self._is_due and len(self._running) < _GROUPS:
            group: list[_Item] = []
            size_bytes = 0
            while self._waiting and len(group) < _GROUP_OBJECTS and size_bytes < _GROUP_BYTES:
                group.append(self._waiting.popleft())
                size_bytes += len(group[-1][0].data)
            self._waiting_bytes -= size_bytes
            task = asyncio.ensure_future(self._store(group))
            self._running.add(task)
            task.add_done_callback(self._done)
            if not self._waiting:
                self._overdue = False
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._flush()

    async def _store(self, group: list[_Item]) -> None:
        results: Sequence[Stored | LoaderError]
        try:
            results = await self._put_group([small for small, _, _ in group])
        except LoaderError as error:
            results = [error] * len(group)
        except BaseException as error:
            for _, waiting, _ in group:
                waiting.fail(error if isinstance(error, Exception) else LoaderError("the node is stopping"))
            raise
        for (_, waiting, position), result in zip(group, results, strict=True):
            waiting.take(position, result)

    async def close(self) -> None:
        """Wait for the groups in progress."""
        if self._timer is not None:
            self._timer.cancel()
        if self._running:
            await asyncio.wait(self._running)
