"""A client that goes while a result is made, or read from its file: the file is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.etl.run.result_cache import Shared
from storage_node.etl.run.run_state import EntryInProgress, Reservation, RunSettings, completed
from storage_node.etl.run.transformed_run import TransformedRun
from storage_node.etl.values import Content
from storage_node.etl.worker.process import WorkerInput, WorkerProcess
from storage_node.etl.worker.stage import CommandStage
from storage_node.etl.worker.stage_context import StageCounts
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.limits.tasks import cancel_others


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
        run._batch = cast(Any, SimpleNamespace(kind=lambda _: pb.STORED, close=lambda: None))
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
