"""Entries under way: what one that passes through transforms holds of memory, of the spool and of its stages, and what
comes of it. A `TransformedRun` has them, one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ais_loader.errors import LoaderError
from ais_loader.wire.frame import EntryFault
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.etl.run.result_cache import ResultCache, Shared
from storage_node.etl.run.stages import Admitted, NodeTransforms
from storage_node.etl.spool import Spool
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content
from storage_node.limits.memory_budget import MemoryBudget


class RunSettings:
    """What the runs of one process share. Belongs to the event loop that stages run on."""

    def __init__(
        self,
        transforms: NodeTransforms,
        cache: ResultCache,
        memory: MemoryBudget,
        spooled: MemoryBudget,
        spool: Spool,
        on_thread: Callable[..., Awaitable[Any]],
        ahead: int,
    ) -> None:
        """`memory`, `spooled`: of inputs and outputs, those that are files apart."""
        self.transforms, self.cache, self.memory, self.spooled = transforms, cache, memory, spooled
        self.spool = spool
        self.on_thread, self.ahead = on_thread, ahead


class MadeBy:
    """What makes the results of a call now, and how many that are kept have been delivered."""

    __slots__ = ("args", "kept", "kept_bytes", "versions")

    def __init__(self, versions: tuple[bytes, ...], args: tuple[str, ...]) -> None:
        self.versions, self.args = versions, args
        self.kept = self.kept_bytes = 0


class Failed:
    """Nothing was made of an entry, and why."""

    def __init__(self, status: int, fault: EntryFault) -> None:
        self.status, self.fault = status, fault


class Work:
    """What a result is made of and by what: others may wait for it when the entry that has begun it is given up."""

    def __init__(self, admitted: Admitted) -> None:
        self.admitted = admitted
        self.source = Content(0, 0)
        self.asked = False
        """Whoever was asked closes it."""

    def close_unless_asked(self, _: object) -> None:
        if not self.asked:
            self.close()

    def close(self) -> None:
        self.source.close()
        self.admitted.release()


class Room:
    """What an entry that is under way has of memory and of the spool: for its input, then for what is made of it."""

    def __init__(self, settings: RunSettings) -> None:
        self._memory, self._spooled = settings.memory, settings.spooled
        self._memory_bytes = self._spooled_bytes = 0

    def take(self, size_bytes: int, *, anyway: bool) -> bool:
        """For an input; whether there was room. `anyway`: nothing could go on without it."""
        memory_bytes = min(size_bytes, MAX_IN_MEMORY_BYTES)
        spooled_bytes = size_bytes if size_bytes > MAX_IN_MEMORY_BYTES else 0
        if anyway:
            self._memory.acquire_anyway(memory_bytes)
            self._spooled.acquire_anyway(spooled_bytes)
        elif not self._memory.acquire_now(memory_bytes):
            return False
        elif not self._spooled.acquire_now(spooled_bytes):
            self._memory.release(memory_bytes)
            return False
        self._memory_bytes, self._spooled_bytes = memory_bytes, spooled_bytes
        return True

    def becomes(self, made: Content | None) -> None:
        """It holds this in place of the input: it has happened already."""
        in_memory = made is not None and made.data is not None
        size_bytes = made.size_bytes if made is not None else 0
        before = self._memory_bytes, self._spooled_bytes
        self._memory_bytes, self._spooled_bytes = (size_bytes, 0) if in_memory else (0, size_bytes)
        self._memory.acquire_anyway(self._memory_bytes)
        self._spooled.acquire_anyway(self._spooled_bytes)
        self._memory.release(before[0])
        self._spooled.release(before[1])

    def release(self) -> None:
        """May be called again."""
        self.becomes(None)


class Due:
    """An entry that is under way."""

    def __init__(self, position: int, room: Room, task: asyncio.Future[Shared | Failed], kind: int) -> None:
        self.position, self.room, self.task, self.kind = position, room, task, kind
        self._released = False
        task.add_done_callback(self._made)

    def _made(self, task: asyncio.Future[Shared | Failed]) -> None:
        if self._released or task.cancelled() or task.exception() is not None:
            return
        result = task.result()
        self.room.becomes(result.content if isinstance(result, Shared) else None)

    def release(self) -> None:
        """Of its room."""
        self._released = True
        self.room.release()


def failed_by(error: LoaderError) -> Failed:
    return Failed(pb.FAILED, EntryFault(str(error).encode("utf-8", "backslashreplace").decode(), error.kind))


def known(result: Shared | Failed) -> asyncio.Future[Shared | Failed]:
    """Known already: not a task, which would be done only when the loop has come round to it."""
    made: asyncio.Future[Shared | Failed] = asyncio.get_running_loop().create_future()
    made.set_result(result)
    return made
