"""What one client can make a node hold, and that another one is served meanwhile: batches."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from ais_loader import ClusterOptions, connect
from ais_loader.testing import SeededObjects, eventually
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.server import NodeServer
from tests.node.node_kit import RawSession, batch_of, bucket_of, serving

pytestmark = pytest.mark.slow

MiB = 1 << 20
OBJECTS = SeededObjects({f"{at:02d}": (MiB, at) for at in range(32)})
STILL_S = 0.2
LIMIT = 16
SERVED_S = 60.0
"""By when a neighbour has to be served, on a machine that has other things to do."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeServer]:
    budgets = {"max_active_batches": LIMIT, "memory_bytes": 6 * MiB, "max_buffered_bytes": 47 * MiB // 10}
    with serving(tmp_path, still_s=STILL_S, reject_retry_after_ms=20, **budgets) as node:
        with bucket_of(node) as bucket:
            bucket.put_many(OBJECTS.items())
        yield node


def read_as(node: NodeServer, tenant: str, names: list[str], **options: bool) -> None:
    """As a well-behaved client does. Raises when it takes too long."""
    with connect(node.url, options=ClusterOptions(tenant=tenant, retry_s=SERVED_S)) as client:
        found = client.bucket("b").get_batch(names, **options).tobytes()  # type: ignore[arg-type]
    assert found == [OBJECTS[name] for name in names]


def holds_nothing(node: NodeServer) -> bool:
    assert node.batches is not None
    resources = node.batches.resources
    held = resources.batches.held, resources.parts.held, resources.reserved_bytes, resources.requests.held_bytes
    return held == (0, 0, 0, 0)


def test_batches_without_credit_leave_places_for_other_tenants(node: NodeServer) -> None:
    assert node.batches is not None
    with RawSession(node.url) as hostile:
        for batch_id in range(LIMIT):
            hostile.send(batch_id, batch_of(["00"], credit=0, tenant="hostile"))
        for _ in range(LIMIT // 8):
            assert hostile.receive().HasField("reject")
        assert node.batches.resources.batches.held == LIMIT - LIMIT // 8
        read_as(node, "modest", ["01", "02"])
    eventually(lambda: holds_nothing(node))


def test_a_batch_that_nobody_reads_gives_way_to_its_own_tenants_others(node: NodeServer) -> None:
    with RawSession(node.url) as hostile:
        for batch_id in range(LIMIT):
            hostile.send(batch_id, batch_of(["00"], credit=0))
        reasons = [hostile.receive().reject.reason for _ in range(LIMIT // 8)]
        read_as(node, "", ["01", "02"])
        reasons.append(hostile.receive().reject.reason)
        assert any("still_s" in reason for reason in reasons)
    eventually(lambda: holds_nothing(node))


def test_a_batch_that_gave_way_goes_on_where_its_consumer_comes_back(node: NodeServer) -> None:
    assert node.batches is not None
    resources = node.batches.resources
    with connect(node.url) as client:
        unread = client.bucket("b").get_batch([*OBJECTS])
        items = [next(unread).tobytes()]
        eventually(lambda: resources.batches.stalled == 1)
        with RawSession(node.url) as hostile:
            for batch_id in range(LIMIT - LIMIT // 8 - 1):
                hostile.send(batch_id, batch_of(["00"], credit=0))
            eventually(lambda: resources.batches.held == LIMIT - LIMIT // 8)
            read_as(node, "", ["01"])
            assert node.batches.node.metrics.rejections["still"] == 1  # the client's: it had waited the longest
        items += [item.tobytes() for item in unread]
        assert items == [*OBJECTS.values()]
        assert unread.timing.retries == 1
    eventually(lambda: holds_nothing(node))


def test_frames_that_nobody_takes_off_the_network_give_their_memory_back(node: NodeServer) -> None:
    """All the credit in the world, and not a byte read: gRPC's windows fill, then the node's budget of frames."""
    assert node.batches is not None
    resources = node.batches.resources
    with ExitStack() as open_sessions:
        stuck = [open_sessions.enter_context(RawSession(node.url)) for _ in range(6)]
        for session in stuck:
            session.send(1, batch_of([*OBJECTS] * 4, tenant="hostile"))
        eventually(lambda: resources.slots.waits_for_memory)
        read_as(node, "modest", ["01", "02"])
        failures: list[grpc.RpcError] = []
        for session in stuck:
            try:
                while not session.receive().HasField("end"):
                    pass
            except grpc.RpcError as failure:
                failures.append(failure)
        assert {failure.code() for failure in failures} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert all("still_s" in failure.details() for failure in failures)
    eventually(lambda: holds_nothing(node))


def test_collected_answers_that_nobody_takes_make_room_for_others(node: NodeServer) -> None:
    with RawSession(node.url) as hostile:
        for batch_id in range(4):
            hostile.send(batch_id, batch_of(["00"], credit=0, buffered=True, tenant="hostile"))
        assert node.batches is not None
        eventually(lambda: node.batches.resources.buffered.held_bytes == 4 * MiB)
        read_as(node, "modest", ["01", "02", "03"], streaming=False)
    eventually(lambda: holds_nothing(node))


def test_requests_of_batches_that_stand_still_are_bounded(tmp_path: Path) -> None:
    with serving(tmp_path, still_s=STILL_S, reject_retry_after_ms=20, max_request_bytes=MiB) as node:
        with bucket_of(node) as bucket:
            bucket.put_many(OBJECTS.items())
        with RawSession(node.url) as hostile:
            for batch_id in range(8):
                names = ["00", *(f"{at:04d}" + "x" * 1000 for at in range(255))]
                hostile.send(batch_id, batch_of(names, credit=0, tenant="hostile"))
            assert node.batches is not None
            assert "requests" in hostile.receive().reject.reason
            assert node.batches.resources.requests.held_bytes <= MiB
            read_as(node, "modest", [*OBJECTS] * 2)
        eventually(lambda: holds_nothing(node))


def test_sessions_that_nobody_uses_give_way_and_are_opened_again(tmp_path: Path) -> None:
    with serving(tmp_path, max_sessions=4, still_s=STILL_S) as node, bucket_of(node) as bucket, ExitStack() as idle:
        bucket.put_many(OBJECTS.items())
        sessions = []
        for _ in range(4):
            sessions.append(idle.enter_context(RawSession(node.url)))
            sessions[-1].ask(1, batch_of(["00"]))
        assert node.batches is not None
        slots = node.batches.session_slots
        eventually(lambda: slots.stalled == 4)
        read_as(node, "", [*OBJECTS])
        assert slots.evicted == 1
        with pytest.raises(StopIteration):
            sessions[0].receive()
        assert bucket.get_batch(["01"]).tobytes() == [OBJECTS["01"]]


def test_sessions_that_one_tenant_uses_leave_some_to_others(tmp_path: Path) -> None:
    with serving(tmp_path, max_sessions=8, still_s=60.0) as node, ExitStack() as held:
        with bucket_of(node) as bucket:
            bucket.put_many(OBJECTS.items())
        for _ in range(7):
            held.enter_context(RawSession(node.url)).ask(1, batch_of(["00"]))
        with RawSession(node.url) as one_more, pytest.raises(grpc.RpcError) as refused:
            one_more.ask(1, batch_of(["00"]))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        read_as(node, "modest", [*OBJECTS])
        read_as(node, "modest", ["01"], streaming=False)


@pytest.mark.parametrize(
    "event", [pb.Credit(payload_bytes=MiB), pb.Cancel(), None], ids=["credit", "cancel", "nothing"]
)
def test_sessions_that_only_pretend_to_be_used_give_way(tmp_path: Path, event: pb.Credit | pb.Cancel | None) -> None:
    """They say something all the time, of a batch that there is not."""
    over = threading.Event()
    with serving(tmp_path, max_sessions=4, still_s=5 * STILL_S) as node, ExitStack() as held:
        with bucket_of(node) as bucket:
            bucket.put_many(OBJECTS.items())
        sessions = [held.enter_context(RawSession(node.url)) for _ in range(4)]
        for session in sessions:
            session.ask(1, batch_of(["00"]))

        def pretend() -> None:
            while not over.wait(STILL_S / 4):
                for session in sessions:
                    session.send(7, event)

        pretending = threading.Thread(target=pretend)
        pretending.start()
        held.callback(pretending.join)
        held.callback(over.set)
        read_as(node, "", [*OBJECTS])


@pytest.mark.parametrize("method", ["Objects/Head", "Objects/PutMany", "GetBatch/Session", "Cluster/GetMap"])
def test_a_message_of_more_than_32_mib_is_not_taken(node: NodeServer, method: str) -> None:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(node.endpoint, options=options) as channel:
        call = channel.stream_stream(f"/ais_loader.v1.{method}")(iter([bytes(33 * MiB)]), timeout=SERVED_S)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    read_as(node, "modest", ["01"])


def test_a_node_has_all_the_descriptors_that_it_may_have(tmp_path: Path) -> None:
    low = """if True:
        import resource, sys
        from storage_node.settings.config import ServerConfig
        from storage_node.server import NodeServer
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with NodeServer([sys.argv[1]], ServerConfig(port=0)):
            print(*resource.getrlimit(resource.RLIMIT_NOFILE))
    """
    command = [sys.executable, "-c", low, tmp_path / "drive"]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=180)
    soft, hard = map(int, said.stdout.split())
    assert soft == hard > 200
