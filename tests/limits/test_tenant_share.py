"""The part of a node that one tenant may have: calls, lanes, and bytes in flight; others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

from ais_loader import ClusterOptions, connect
from ais_loader.errors import Overloaded
from ais_loader.testing.waiting import eventually
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_batch_pb2_grpc as rpc
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.lane import CALL, FAILED, GREETING, HEADER, MAGIC, MESSAGE, VERSION, WELCOME
from ais_loader.wire.reserved import TENANT_KEY
from storage_node.limits.call_slots import CallSlots, Streams, peer_of_address
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.node.loop_kit import run, settle

MiB = 1 << 20


def test_a_tenant_has_no_more_than_its_share_of_a_budget_and_others_pass_it() -> None:
    async def check() -> None:
        budget = MemoryBudget(100, 0.5)
        await budget.acquire(40, tenant="a")
        waiting = asyncio.create_task(budget.acquire(20, tenant="a"))
        await settle()
        assert not waiting.done() and not budget.acquire_now(20, tenant="a")
        assert budget.acquire_now(50, tenant="b")  # passes what waits for its own tenant
        also = asyncio.create_task(budget.acquire(20, tenant="c"))
        await settle()
        assert not also.done()  # the whole is full
        budget.release(50, "b")
        await settle()
        assert also.done() and not waiting.done()
        budget.release(40, "a")
        await waiting
        assert budget.held_bytes == 40
        assert not budget.is_over("a", 30) and budget.is_over("a", 31)
        budget.release(20, "a")
        assert budget.acquire_now(70, tenant="a")  # a single request that is larger than the part
        budget.release(70, "a")
        budget.release(20, "c")
        assert (budget.held_bytes, budget._held_by) == (0, {})

    run(check())


def test_a_cancelled_wait_of_a_tenant_holds_nothing() -> None:
    async def check() -> None:
        budget = MemoryBudget(100, 0.5)
        await budget.acquire(40, tenant="a")
        waiting = [asyncio.create_task(budget.acquire(20, tenant="a")) for _ in range(2)]
        await settle()
        waiting[0].cancel()
        await settle()
        budget.release(40, "a")
        await waiting[1]
        budget.release(20, "a")
        assert (budget.held_bytes, budget._held_by) == (0, {})

    run(check())


def test_a_refusal_names_the_tenant_and_the_limit() -> None:
    slots = CallSlots(4, 5.0, tenant_share=0.5)
    assert all(slots.take("a", print) for _ in range(2))
    assert slots.take("a", print) is None
    assert "tenant 'a': 2 calls run, as many as one tenant may have" in slots.why("a", "calls run", "max_calls")
    assert slots.take("b", print) and slots.take("b", print)
    assert slots.take("c", print) is None
    assert slots.why("c", "calls run", "max_calls") == "4 calls run (max_calls=4): try again later"
    assert slots.refused == {"tenant": 1, "all": 1}


def test_messages_of_a_tenant_beyond_its_share_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.limits.call_slots.MESSAGE_WAIT_S", 0.2)

    async def check() -> None:
        streams = Streams(8, 10.0, 60.0, message_bytes=100, tenant_share=0.5)
        await streams.acquire(40, tenant="greedy")
        with pytest.raises(Overloaded, match=r"tenant 'greedy' .*max_message_bytes=100"):
            await streams.acquire(20, tenant="greedy")
        await streams.acquire(50, tenant="modest")

    run(check())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    config = ServerConfig(port=0, max_lanes=4, max_message_bytes=32 * MiB, tenant_share=0.5, message_timeout_s=600.0)
    with NodeServer([tmp_path_factory.mktemp("drive")], config) as node:
        yield node


def opened_lane(node: NodeServer, tenant: str) -> socket.socket:
    """Open a lane over TCP as a client of this tenant. Returns it after the node has answered its token."""
    with grpc.insecure_channel(node.endpoint) as channel:
        request = pb.OpenLaneRequest(port=node.port)
        offer = rpc.GetBatchStub(channel).OpenLane(request, timeout=180, metadata=[(TENANT_KEY, tenant.encode())])
    lane = socket.create_connection(("127.0.0.1", offer.tcp_port), timeout=180)
    lane.sendall(GREETING.pack(MAGIC, VERSION, offer.token))
    return lane


def answer(lane: socket.socket) -> tuple[int, bytes]:
    head = b""
    while len(head) < HEADER.size and (part := lane.recv(HEADER.size - len(head))):
        head += part
    size_bytes, kind = HEADER.unpack(head)
    data = b""
    while len(data) < size_bytes:
        data += lane.recv(size_bytes - len(data))
    return kind, data


def half_message(lane: socket.socket, size_bytes: int) -> None:
    """Begin a call with a message of which the last byte never comes."""
    name = b"Objects/PutMany"
    lane.sendall(HEADER.pack(len(name), CALL) + name + HEADER.pack(size_bytes + 1, MESSAGE))
    with contextlib.suppress(OSError):
        lane.sendall(bytes(size_bytes))


def begin_put(lane: socket.socket) -> None:
    """Begin a PUT of which only the header comes."""
    name, header = b"Objects/Put", objects_pb.PutRequest(header=objects_pb.PutHeader(bucket="b", name="x"))
    message = header.SerializeToString()
    lane.sendall(HEADER.pack(len(name), CALL) + name + HEADER.pack(len(message), MESSAGE) + message)


def serves_others(node: NodeServer, bucket: str) -> None:
    with connect(node.url, options=ClusterOptions(tenant="modest", retry_s=240.0)) as client:
        made = client.create_bucket(bucket)
        made.put("x", bytes(10 * MiB))
        made.put_many([(f"{number}", b"x" * 1000) for number in range(50)])
        assert len(made.get("x")) == 10 * MiB


def test_a_tenant_has_its_part_of_the_lanes(node: NodeServer) -> None:
    assert node.batches is not None
    streams = node.batches.node.streams.slots
    with ExitStack() as stack:
        before = streams.held
        for number in range(2):
            lane = stack.enter_context(opened_lane(node, "greedy"))
            assert answer(lane)[0] == WELCOME
            begin_put(lane)
            eventually(lambda number=number: streams.held == before + number + 1)  # type: ignore[misc]
        refused = stack.enter_context(opened_lane(node, "greedy"))
        kind, data = answer(refused)
        error = objects_pb.Error.FromString(data)
        assert (kind, error.kind) == (FAILED, "overloaded")
        assert "tenant 'greedy' has 2 lanes" in error.message and "max_lanes=4" in error.message
        assert node.lanes.closed["tenant"] == 1
        serves_others(node, "lanes")
    eventually(lambda: streams.held == before)


@pytest.mark.slow
def test_half_messages_of_one_tenant_leave_memory_to_others(node: NodeServer) -> None:
    assert node.batches is not None
    messages = node.batches.node.streams.messages
    with ExitStack() as stack:
        for _ in range(2):
            lane = stack.enter_context(opened_lane(node, "half"))
            assert answer(lane)[0] == WELCOME
            half_message(lane, 12 * MiB)
        eventually(lambda: messages._held_by.get("half", 0) > 8 * MiB)
        serves_others(node, "memory")
        assert messages._held_by.get("half", 0) <= 16 * MiB
    eventually(lambda: not messages._held_by)


def test_remote_clients_are_counted_by_address_or_network() -> None:
    assert peer_of_address("10.0.0.5") == peer_of_address("::ffff:10.0.0.5") == "10.0.0.5"
    assert peer_of_address("2001:db8::1") == peer_of_address("2001:db8::ffff:2") == "2001:db8::/64"
    assert peer_of_address("2001:db8:0:1::1") != peer_of_address("2001:db8::1")
    assert peer_of_address("fe80::1%eth0") == "fe80::/64"
