"""A client that goes while an input is read, or a result is made or read from its file: the file is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.etl.jobs.job_store import OwnStore
from storage_node.etl.run.result_cache import Shared
from storage_node.etl.run.run_state import EntryInProgress, Reservation, RunSettings, completed
from storage_node.etl.run.transformed_run import TransformedRun
from storage_node.etl.servers.channel import OutputReceiver
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content, Spool
from storage_node.etl.worker.process import WorkerInput, WorkerProcess, _PendingRequest
from storage_node.etl.worker.stage import CommandStage
from storage_node.etl.worker.stage_context import StageCounts
from storage_node.limits.blocking_calls import BlockingCalls
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.limits.tasks import cancel_others
from storage_node.store.read.batch import StoreBatch
from storage_node.store.store import Store
from tests.open_files import open_files


def test_a_result_that_is_being_read_is_closed_with_its_run() -> None:
    async def scenario() -> None:
        is_reading = asyncio.Event()

        async def on_thread(*_: object) -> None:
            is_reading.set()
            await asyncio.Event().wait()

        memory = MemoryBudget(1 << 20), MemoryBudget(1 << 20)
        settings = RunSettings(cast(Any, None), cast(Any, None), *memory, cast(Any, None), on_thread, 1)
        content = Content(100_000, 0, fd=os.memfd_create("result", os.MFD_CLOEXEC))
        run = object.__new__(TransformedRun)
        run._settings, run._request, run._n, run._next = settings, pb.BatchRequest(), 1, 1
        run._batch = cast(Any, SimpleNamespace(kind=lambda _: pb.STORED, begins_again=False, close=lambda: None))
        run._delivering, run._pieces, run._entries, run._hits = None, None, {}, {}
        run._due = deque([EntryInProgress(0, Reservation(settings), completed(Shared(content)), pb.STORED)])
        next_frame = asyncio.create_task(run.next())
        async with asyncio.timeout(180):
            await is_reading.wait()
            next_frame.cancel()
            with pytest.raises(asyncio.CancelledError):
                await next_frame
            await run.close()
        assert content.fd == -1
        assert [one.held_bytes for one in memory] == [0, 0]

    asyncio.run(scenario())


def test_a_worker_that_is_being_ended_is_waited_for_by_a_store_that_closes() -> None:
    """The store cancels all tasks, of which some have not begun. A process that nobody waits for stays as a zombie."""

    async def scenario(begun: bool) -> None:
        async def on_thread(function: Any, *arguments: Any) -> Any:
            return await asyncio.to_thread(function, *arguments)

        worker = WorkerProcess(cast(Any, None), 0, 0, on_thread, lambda _: None)
        worker._process = process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        stage = object.__new__(CommandStage)
        stage._context, stage._closing = cast(Any, SimpleNamespace(counts=StageCounts())), set()
        stage._close(worker)
        if begun:
            await asyncio.sleep(0)
        await cancel_others(180.0)
        assert process.returncode == -signal.SIGKILL and not stage._closing

    for begun in (False, True):
        asyncio.run(scenario(begun))


def test_a_result_that_was_made_is_closed_with_those_that_were_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two objects has its result, and the worker works on the second."""

    async def scenario() -> None:
        is_first_made = asyncio.Event()
        content = Content(100_000, 0, fd=os.memfd_create("result", os.MFD_CLOEXEC))

        async def exchange(requests: Any, *_: object) -> None:
            requests[0].outcome = content
            is_first_made.set()
            await asyncio.Event().wait()

        worker = WorkerProcess(cast(Any, None), 0, 0, cast(Any, None), lambda _: None)
        monkeypatch.setattr(worker, "_burst", lambda *_: b"")
        monkeypatch.setattr(worker, "_exchange", exchange)
        running = asyncio.create_task(worker.run([WorkerInput("one", Content.of(b"1"), 1 << 20)] * 2, "", 180.0))
        async with asyncio.timeout(180):
            await is_first_made.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert content.fd == -1

    asyncio.run(scenario())


class SlowSpool(Spool):
    """A spool whose files are made once `may_go_on` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_making, self.may_go_on = threading.Event(), threading.Event()

    def new_file(self) -> int:
        self.is_making.set()
        assert self.may_go_on.wait(180)
        return super().new_file()

    def open_files(self) -> int:
        """Return how many descriptors of this process are files of the spool, which have no name any more."""
        return sum(path.startswith(f"{self.folder}/") for path in open_files().values())


def test_the_output_of_a_server_that_is_spooled_meanwhile_is_closed(tmp_path: Path) -> None:
    async def output(store: Store, spool: SlowSpool, read: Any) -> None:
        receiver = OutputReceiver(1 << 30, "", spool.new_file)
        try:
            await receiver.take(bytes(MAX_IN_MEMORY_BYTES + 1))
        finally:
            receiver.discard()

    assert cancelled_while_it_spools(tmp_path, output) == 0


def test_the_next_file_of_a_worker_that_is_made_meanwhile_is_closed(tmp_path: Path) -> None:
    """The worker has written a large output, which is its file now."""

    async def worker(store: Store, spool: SlowSpool, read: Any) -> None:
        process = WorkerProcess(spool, 0, 0, asyncio.to_thread, lambda _: None)
        process._output, size_bytes = os.memfd_create("output", os.MFD_CLOEXEC), MAX_IN_MEMORY_BYTES + 1
        os.ftruncate(process._output, size_bytes)
        request = _PendingRequest(1, size_bytes)
        request.written_bytes = size_bytes
        process._requests.append(request)
        try:
            await process._take_written(request)
        finally:
            await process.close()

    assert cancelled_while_it_spools(tmp_path, worker) == 0


def cancelled_while_it_spools(
    tmp_path: Path, work: Callable[[Store, SlowSpool, Any], Coroutine[Any, Any, object]]
) -> int:
    """Cancel what reads a large object, b/large, while its file is made; return how many files are still open."""
    store, spool, threads = Store.open([tmp_path / "drive"], mode="a"), SlowSpool(tmp_path / "spool"), BlockingCalls(1)
    store.create_bucket("b")
    store.stage("b", "large", [bytes(MAX_IN_MEMORY_BYTES + 1)], {}).commit()

    async def read(function: Callable[..., Any], *arguments: Any) -> Any:
        return await threads.submit(lambda: function(*arguments)).settled()

    async def scenario() -> None:
        async with asyncio.timeout(180):
            running = asyncio.create_task(work(store, spool, read))
            await asyncio.to_thread(spool.is_making.wait, 180)
            running.cancel()
            await asyncio.sleep(0)
            spool.may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await running

    try:
        asyncio.run(scenario())
        eventually(lambda: spool.open_files() == 0)  # the thread lets go of its result a moment later
        return spool.open_files()
    finally:
        threads.close()
        store.close()


def test_an_input_of_a_batch_that_is_spooled_meanwhile_is_closed(tmp_path: Path) -> None:
    async def batch(store: Store, spool: SlowSpool, read: Any) -> None:
        memory = MemoryBudget(1 << 30), MemoryBudget(1 << 30)
        settings = RunSettings(cast(Any, None), cast(Any, None), *memory, spool, read, 1)
        request = pb.BatchRequest(bucket=["b"], name=["large"])
        run = TransformedRun(settings, request, StoreBatch.of_files(store, request))
        try:
            await run.next()
        finally:
            await run.close()

    assert cancelled_while_it_spools(tmp_path, batch) == 0


def test_a_source_of_a_job_that_is_spooled_meanwhile_is_closed(tmp_path: Path) -> None:
    async def sources(store: Store, spool: SlowSpool, read: Any) -> None:
        await OwnStore(store, read, spool).read("b", ["large"])

    assert cancelled_while_it_spools(tmp_path, sources) == 0
