"""Group commit of results: small ones that are ready at about the same time are stored with one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Stored

SMALL_BYTES = 1 << 20
"""A larger result is stored by itself."""
_GROUP_OBJECTS, _GROUP_BYTES = 128, 4 << 20
_GROUPS = 2
"""Under way at the same time; what is ready meanwhile makes the next ones larger."""
_WAIT_S = 0.05
PutGroup: TypeAlias = Callable[[Sequence[pb.SmallObject]], Awaitable[list[Stored | LoaderError]]]


class Putter:
    """Belongs to the event loop."""

    def __init__(self, put_group: PutGroup) -> None:
        self._put_group = put_group
        self._waiting: list[tuple[pb.SmallObject, asyncio.Future[Stored]]] = []
        self._waiting_bytes = 0
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def put(self, small: pb.SmallObject) -> Stored:
        """Raises LoaderError. Cancelled, it may be stored all the same."""
        answer: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self._waiting.append((small, answer))
        self._waiting_bytes += len(small.data)
        if len(self._waiting) >= _GROUP_OBJECTS or self._waiting_bytes >= _GROUP_BYTES:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WAIT_S, self._flush)
        return await answer

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and len(self._running) < _GROUPS:
            group, size_bytes = 0, 0
            while group < min(_GROUP_OBJECTS, len(self._waiting)) and size_bytes < _GROUP_BYTES:
                size_bytes += len(self._waiting[group][0].data)
                group += 1
            taken, self._waiting = self._waiting[:group], self._waiting[group:]
            self._waiting_bytes -= size_bytes
            task = asyncio.ensure_future(self._store(taken))
            self._running.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._flush()

    async def _store(self, group: list[tuple[pb.SmallObject, asyncio.Future[Stored]]]) -> None:
        results: Sequence[Stored | LoaderError | BaseException]
        try:
            results = await self._put_group([small for small, _ in group])
        except LoaderError as error:
            results = [error] * len(group)
        except BaseException as error:
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error if isinstance(error, Exception) else LoaderError("the node is stopping"))
            raise
        for (_, answer), result in zip(group, results, strict=True):
            if answer.done():
                continue
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    async def close(self) -> None:
        """Let what has begun end."""
        if self._timer is not None:
            self._timer.cancel()
        if self._running:
            await asyncio.wait(self._running)
