"""The end of a session while a message is being sent: nothing of it stays behind, and no client can prevent it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import InvalidRequest, Overloaded
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.session import BatchService
from storage_node.limits.call_slots import MAX_TENANT
from storage_node.server import NodeServer
from tests.node.loop_kit import settle, until
from tests.node.node_kit import batch_of, bucket_of, serving
from tests.table import table

TIMEOUT_S = 180.0
NAMES = [f"{at:02}" for at in range(6)]
REQUESTS: dict[str, Callable[[], list[pb.BatchRequest]]] = {
    "END": lambda: [batch_of([], tenant="x" * (MAX_TENANT + 1))],
    "collected frame": lambda: [batch_of(NAMES, buffered=True)],
    "frame": lambda: [batch_of(NAMES)],
    "frames of several batches": lambda: [batch_of(NAMES), batch_of(NAMES), batch_of(NAMES, buffered=True)],
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    folder: Path = tmp_path_factory.mktemp("ends")
    with serving(folder) as node:
        with bucket_of(node) as bucket:
            bucket.put_many((name, bytes(1 << 20)) for name in NAMES)
        yield node


class SlowClient:
    """A client that reads nothing before `reads` is set, and ends with this error once something is sent to it."""

    def __init__(self, requests: list[pb.BatchRequest], error: Exception) -> None:
        self._requests = requests
        self._error = error
        self._is_sent_to = asyncio.Event()
        self.reads = asyncio.Event()
        self.received = 0

    async def write(self, message: bytes) -> None:
        self._is_sent_to.set()
        await self.reads.wait()
        self.received += 1

    async def requests(self) -> AsyncIterator[pb.SessionRequest]:
        for batch_id, request in enumerate(self._requests):
            yield pb.SessionRequest(batch_id=batch_id, request=request)
        await self._is_sent_to.wait()
        await settle()
        raise self._error


def on_loop(node: NodeServer, check: Callable[[BatchService], Coroutine[Any, Any, None]]) -> None:
    """Run a check on the node's event loop. It must leave nothing there."""

    async def checked() -> None:
        assert node.batches is not None
        service, others = node.batches, asyncio.all_tasks()
        async with asyncio.timeout(TIMEOUT_S):
            await check(service)
        assert (service.open_sessions, service.session_slots.held, service.resources.reserved_bytes) == (0, 0, 0)
        await until(lambda: asyncio.all_tasks() <= others, 0.01)  # the node's own reads come and go

    assert node._loop is not None
    asyncio.run_coroutine_threadsafe(checked(), node._loop).result(2 * TIMEOUT_S)


@table("requests", REQUESTS)
def test_who_goes_and_reads_nothing_leaves_nothing(node: NodeServer, requests: str) -> None:
    async def check(service: BatchService) -> None:
        client = SlowClient(REQUESTS[requests](), EOFError("gone"))
        with pytest.raises(EOFError):
            await service.serve(client.requests(), client, "a")

    on_loop(node, check)


@table("requests", REQUESTS)
def test_who_sends_nonsense_and_reads_nothing_gives_way_to_others(
    node: NodeServer, requests: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(service: BatchService) -> None:
        client = SlowClient(REQUESTS[requests](), InvalidRequest("nonsense"))
        serving = asyncio.create_task(service.serve(client.requests(), client, "a"))
        await client._is_sent_to.wait()
        for _ in range(3):
            await settle()
        assert (service.open_sessions, service.session_slots.held) == (1, 1)
        monkeypatch.setattr(service.session_slots, "_still_s", 0.0)
        assert service.session_slots.reclaim(lambda _: True) is not None
        with pytest.raises(Overloaded):
            await serving

    on_loop(node, check)


@table("requests", REQUESTS)
def test_who_sends_nonsense_is_told_after_the_message_that_is_being_sent(node: NodeServer, requests: str) -> None:
    async def check(service: BatchService) -> None:
        client = SlowClient(REQUESTS[requests](), InvalidRequest("nonsense"))
        serving = asyncio.create_task(service.serve(client.requests(), client, "a"))
        await client._is_sent_to.wait()
        for _ in range(3):
            await settle()
        assert not serving.done()
        client.reads.set()
        with pytest.raises(InvalidRequest):
            await serving
        assert client.received == 1

    on_loop(node, check)
