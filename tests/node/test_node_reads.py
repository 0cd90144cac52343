"""Results of reader threads for which no task waits any more: what they hold open is closed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from storage_node.context.node import Node
from storage_node.limits.blocking_calls import BlockingCall
from storage_node.server import NodeServer
from storage_node.store.read.file_frame import FileFrame, FilePart
from tests.node.loop_kit import settle
from tests.node.node_kit import serving

TIMEOUT_S = 180.0


def on_loop(server: NodeServer, coroutine: Coroutine[Any, Any, None]) -> None:
    assert server._loop is not None
    asyncio.run_coroutine_threadsafe(coroutine, server._loop).result(TIMEOUT_S)


def frame_of(path: Path) -> FileFrame:
    path.write_bytes(b"x")
    return FileFrame(b"", 1, [FilePart(os.open(path, os.O_RDONLY), 0, 1, owned=True)])


@pytest.mark.parametrize("archives", [False, True])
def test_a_frame_read_for_a_cancelled_task_is_closed(tmp_path: Path, archives: bool) -> None:
    frame = frame_of(tmp_path / "file")

    async def check(node: Node) -> None:
        begun, may_end = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def read() -> FileFrame:
            loop.call_soon_threadsafe(begun.set)
            assert may_end.wait(TIMEOUT_S)
            return frame

        reading = node.open_archives("a", read) if archives else node.read(read)
        task = asyncio.create_task(reading)
        await begun.wait()
        task.cancel()
        await settle()
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serving(tmp_path) as server:
        assert server.batches is not None
        on_loop(server, check(server.batches.node))
    assert not frame.parts[0].owned


@pytest.mark.parametrize("is_delivered_first", [False, True])
def test_a_frame_of_a_task_cancelled_in_the_moment_of_its_delivery_is_closed(
    is_delivered_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = frame_of(tmp_path / "file")
    tasks: list[asyncio.Task[FileFrame]] = []
    end = BlockingCall.end

    def cancelled_meanwhile(call: BlockingCall[Any], result: Any, error: BaseException | None) -> None:
        if is_delivered_first:
            end(call, result, error)
        if result is frame:
            tasks[0].cancel()
        if not is_delivered_first:
            end(call, result, error)

    async def check(node: Node) -> None:
        tasks.append(asyncio.create_task(node.read(lambda: frame)))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]

    monkeypatch.setattr(BlockingCall, "end", cancelled_meanwhile)
    with serving(tmp_path) as server:
        assert server.batches is not None
        on_loop(server, check(server.batches.node))
    assert not frame.parts[0].owned
