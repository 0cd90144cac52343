"""Entries in progress of a `TransformedRun`: the memory, spool space and stages that they hold, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ais_loader.errors import LoaderError
from ais_loader.wire.frame import EntryFault
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.etl.run.node_transforms import AdmittedStages, NodeTransforms
from storage_node.etl.run.result_cache import ResultCache, Shared
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content, Spool
from storage_node.limits.memory_budget import MemoryBudget


class RunSettings:
    """Settings that the runs of one process share. Belongs to the event loop that stages run on."""

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
        """`memory`, `spooled`: Budgets for inputs and outputs; `spooled` for those that are files."""
        self.transforms, self.cache, self.memory, self.spooled = transforms, cache, memory, spooled
        self.spool = spool
        self.on_thread, self.ahead = on_thread, ahead


class FailedEntry:
    """An entry that failed, with its status and error."""

    def __init__(self, status: int, fault: EntryFault) -> None:
        self.status, self.fault = status, fault


class RunInput:
    """Input and stages of a result. Other requests may wait for the result after the entry that started it was given
    up."""

    def __init__(self, admitted: AdmittedStages) -> None:
        self.admitted = admitted
        self.source = Content(0, 0)
        self.handed_over = False
        """Whether the work was handed to the code that closes it."""

    def close_unless_handed_over(self, _: object) -> None:
        if not self.handed_over:
            self.close()

    def close(self) -> None:
        self.source.close()
        self.admitted.release()


class Reservation:
    """Memory and spool space that an entry in progress holds: first for its input, then for its result."""

    def __init__(self, settings: RunSettings) -> None:
        self._memory, self._spooled = settings.memory, settings.spooled
        self._memory_bytes = self._spooled_bytes = 0

    def take(self, size_bytes: int, *, anyway: bool) -> bool:
        """Reserve room for an input; return whether there was room. `anyway`: exceed the budget, because nothing could
        proceed otherwise."""
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

    def becomes(self, content: Content | None) -> None:
        """Hold the room of the result instead of the input's. Never fails, because the result exists already."""
        in_memory = content is not None and content.data is not None
        size_bytes = content.size_bytes if content is not None else 0
        before = self._memory_bytes, self._spooled_bytes
        self._memory_bytes, self._spooled_bytes = (size_bytes, 0) if in_memory else (0, size_bytes)
        self._memory.acquire_anyway(self._memory_bytes)
        self._spooled.acquire_anyway(self._spooled_bytes)
        self._memory.release(before[0])
        self._spooled.release(before[1])

    def release(self) -> None:
        """Release everything. May be called again."""
        self.becomes(None)


class EntryInProgress:
    """An entry in progress."""

    def __init__(self, position: int, room: Reservation, task: asyncio.Future[Shared | FailedEntry], kind: int) -> None:
        self.position, self.room, self.task, self.kind = position, room, task, kind
        self._released = False
        task.add_done_callback(self._on_result)

    def _on_result(self, task: asyncio.Future[Shared | FailedEntry]) -> None:
        if self._released or task.cancelled() or task.exception() is not None:
            return
        result = task.result()
        self.room.becomes(result.content if isinstance(result, Shared) else None)

    def release(self) -> None:
        self._released = True
        self.room.release()


def failed_entry(error: LoaderError) -> FailedEntry:
    return FailedEntry(pb.FAILED, EntryFault(str(error).encode("utf-8", "backslashreplace").decode(), error.kind))


def completed(result: Shared | FailedEntry) -> asyncio.Future[Shared | FailedEntry]:
    """Return a completed future. A task would complete only in a later iteration of the event loop."""
    future: asyncio.Future[Shared | FailedEntry] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future
