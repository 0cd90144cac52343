"""What a node does with whoever comes to its lanes: those with a token are served, all others are told, or let go."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, connect
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.frame import Response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.lane import CALL, FAILED, HEADER, MAX_RESPONSE_BYTES, MESSAGE, WELCOME
from ais_loader.wire.lane import DATA as BYTES
from storage_node.server import NodeServer
from storage_node.services.lane import listener
from storage_node.services.lane.connection import LaneConnection
from storage_node.settings.config import ServerConfig
from tests.lane.lane_kit import RawLane, error_of, offer_of, open_lane
from tests.lane.test_lane_calls import PUT, end_of, frame, header_of, stored
from tests.node.node_kit import serving
from tests.table import table

DATA = {f"s/{at:03}": seeded_bytes(1000 + at, seed=at) for at in range(20)}
BIG = seeded_bytes(3 << 20, seed=99)
PLENTY = 1 << 40
AUTO = ClusterOptions(lane="auto")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    with serving(tmp_path_factory.mktemp("lanes")) as node:
        with connect(node.url, options=AUTO) as client:
            bucket = client.create_bucket("b")
            bucket.put_many(DATA.items())
            bucket.put("big", BIG)
        yield node


@pytest.fixture(scope="module")
def slow_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    """A node that does not wait long for what a client has begun to send."""
    with serving(tmp_path_factory.mktemp("impatient"), message_timeout_s=0.3) as node:
        with connect(node.url, options=AUTO) as client:
            client.create_bucket("b")
        yield node


@pytest.fixture
def client(node: NodeServer) -> Iterator[Client]:
    with connect(node.url, options=AUTO) as client:
        yield client


def group_of(name: str) -> bytes:
    group = objects_pb.PutManyRequest(object=[objects_pb.SmallObject(bucket="b", name=name, data=bytes(100))])
    return frame(MESSAGE, group.SerializeToString())


def request(*names: str, **fields: object) -> pb.BatchRequest:
    return pb.BatchRequest(bucket=["b"], name=names, initial_credit_bytes=PLENTY, **fields)  # type: ignore[arg-type]


def answer(lane: RawLane) -> tuple[bytes, Response]:
    """The payloads of one batch, and its last message."""
    data = b""
    while True:
        response = lane.response()
        data += bytes(response.frame.payload) if response.frame is not None else b""
        if response.end is not None or response.reject is not None:
            return data, response


@pytest.mark.parametrize("tcp", [False, True])
def test_a_session_goes_by_a_lane_as_by_grpc(node: NodeServer, tcp: bool) -> None:
    with open_lane(node, tcp=tcp) as lane:
        lane.send(7, request=request("s/003", "big", "s/001"))
        data, last = answer(lane)
        assert data == DATA["s/003"] + BIG + DATA["s/001"]
        assert last.end is not None and (last.batch_id, last.end.entries) == (7, 3)
        lane.send(8, request=request("none"))
        assert answer(lane)[1].end is not None
        lane.socket.shutdown(socket.SHUT_WR)  # the client has no more to ask
        assert lane.is_ended()


def test_a_token_lets_one_in_and_nobody_after(node: NodeServer) -> None:
    offer = offer_of(node)
    with RawLane(offer) as first:
        assert first.greet(offer.token) == (WELCOME, b"")
        with RawLane(offer) as second:
            assert error_of(*second.greet(offer.token)).kind == "lane-token"
            assert second.is_ended()
        first.send(1, request=request("s/000"))
        assert answer(first)[0] == DATA["s/000"]


def test_a_wrong_token_and_another_version_are_refused(node: NodeServer) -> None:
    offer = offer_of(node)
    for token, version in ((os.urandom(16), 1), (bytes(16), 1), (offer.token, 2)):
        with RawLane(offer) as lane:
            assert error_of(*lane.greet(token, version)).kind == "lane-token"
            assert lane.is_ended()


def test_an_old_token_is_refused(node: NodeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LIFETIME_S", 0.0)
    offer = offer_of(node)
    with RawLane(offer) as lane:
        assert error_of(*lane.greet(offer.token)).kind == "lane-token"


def test_unused_tokens_are_bounded_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    given = listener.LaneTokens()
    monkeypatch.setattr(listener, "MAX_PENDING", 3)
    kept = [given.give("t") for _ in range(4)]
    assert given.take(kept[0]) is None  # the fourth has taken its place
    assert given.take(kept[1]) == listener.LaneClient("t", None)
    assert given.take(kept[1]) is None
    monkeypatch.setattr(listener.time, "monotonic", lambda: 1e12)
    assert given.take(kept[2]) is None
    assert [given.give("v") for _ in range(3)]


def test_who_says_nothing_is_let_go(node: NodeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GREETING_TIMEOUT_S", 0.2)
    with RawLane(offer_of(node)) as silent, RawLane(offer_of(node)) as half:
        with suppress(BrokenPipeError):  # on a machine that stands still, it has been let go
            half.socket.sendall(b"AISL\1")
        for lane in (silent, half):
            assert error_of(*lane.receive()).kind == "lane-token"
            assert lane.is_ended()


def test_connections_without_a_token_end_each_other_and_no_client(
    node: NodeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_STRANGERS", 2)
    before = node.lanes.closed["strangers"]
    with open_lane(node) as served, RawLane(offer_of(node)) as oldest, RawLane(offer_of(node)) as kept:
        with RawLane(offer_of(node)) as third:
            assert oldest.is_ended()
            offer = offer_of(node)
            with RawLane(offer) as another:
                assert another.greet(offer.token) == (WELCOME, b"")
            assert node.lanes.closed["strangers"] == before + 2  # `kept` is the second one
            assert kept.is_ended()
            third.socket.sendall(b"AISL")
        served.send(1, request=request("s/000"))
        assert answer(served)[0] == DATA["s/000"]


@table(
    ("message", "what"),
    [
        (b"\xff" * 8, "a message of kind"),
        (HEADER.pack(MAX_RESPONSE_BYTES, MESSAGE), "a message of kind"),
        (HEADER.pack(4, FAILED) + b"oops", "a message of kind"),
        (HEADER.pack(4, MESSAGE) + b"\xff\xff\xff\xff", "not a SessionRequest"),
    ],
    ids=["garbage", "a size beyond all bounds", "another kind", "no request"],
)
def test_nonsense_ends_the_lane_and_is_told(node: NodeServer, message: bytes, what: str) -> None:
    with open_lane(node) as lane:
        lane.socket.sendall(message)
        error = error_of(*lane.receive())
        assert error.kind == "invalid-request" and what in error.message
        assert lane.is_ended()


def test_a_lane_that_is_cut_anywhere_leaves_nothing(node: NodeServer) -> None:
    message = pb.SessionRequest(batch_id=1, request=request("big")).SerializeToString()
    sent = HEADER.pack(len(message), MESSAGE) + message
    for cut in range(0, len(sent) + 1, 3):
        with open_lane(node) as lane:
            lane.socket.sendall(sent[:cut])
    eventually(lambda: node.lanes.open_lanes == 0)
    assert node.batches is not None
    eventually(lambda: node.batches.resources.reserved_bytes == 0)  # type: ignore[union-attr]


def test_who_reads_nothing_has_what_his_credit_allows_and_others_go_on(node: NodeServer, client: Client) -> None:
    with open_lane(node) as deaf:
        for batch in range(1, 9):
            deaf.send(batch, request=request(*["big"] * 8))
        for _ in range(3):
            batch_of_all = client.bucket("b").get_batch(list(DATA))
            assert [item.tobytes() for item in batch_of_all] == list(DATA.values())
        assert node.batches is not None
        assert node.batches.resources.reserved_bytes <= node.config.reads.memory_bytes


@pytest.mark.parametrize("tcp", [False, True])
def test_who_ends_a_lane_while_much_is_due_to_him_leaves_nothing(node: NodeServer, tcp: bool) -> None:
    """He says that he has gone, and takes nothing: what the node is writing cannot be written to its end."""
    batches = node.batches
    assert batches is not None

    def being_written() -> bool:
        return batches.resources.reserved_bytes > 0 and any(
            session.stalled_s() > 0.1 for session in list(batches._sessions)
        )

    with open_lane(node, tcp=tcp) as lane:
        for batch in range(1, 4):
            lane.send(batch, request=request(*["big"] * 8))
        eventually(being_written)
        lane.socket.shutdown(socket.SHUT_WR)
        eventually(lambda: node.lanes.open_lanes == 0)
        eventually(lambda: batches.resources.reserved_bytes == 0)


@pytest.mark.slow
def test_idle_lanes_cost_no_thread(node: NodeServer) -> None:
    before = threading.active_count()
    lanes = [open_lane(node) for _ in range(100)]
    try:
        eventually(lambda: node.lanes.open_lanes >= 100)
        eventually(lambda: threading.active_count() <= before + 2)  # of grpcio, which gave the tokens
        lanes[50].send(1, request=request("s/000"))
        assert answer(lanes[50])[0] == DATA["s/000"]
    finally:
        for lane in lanes:
            lane.socket.close()


def test_idle_lanes_are_bounded_and_the_one_used_least_lately_is_ended(tmp_path: Path) -> None:
    with serving(tmp_path, max_lanes=3) as node, connect(node.url, options=AUTO) as client:
        bucket = client.create_bucket("b")
        bucket.put("kept", BIG)  # by a lane, which is kept for the next one
        lanes = [open_lane(node) for _ in range(3)]
        eventually(lambda: node.lanes.open_lanes == 3)
        another = open_lane(node)
        assert lanes[0].is_ended()
        bucket.put("another", BIG)
        assert bucket.get("another") == BIG
        for lane in (*lanes, another):
            lane.socket.close()


@pytest.mark.slow
def test_a_lane_that_is_refused_goes_by_grpc(tmp_path: Path) -> None:
    """The lanes of one peer are all in use: none is idle, and none is taken from it."""
    with serving(tmp_path, max_lanes_per_peer=2) as node, connect(node.url, options=AUTO) as client:
        bucket = client.create_bucket("b")
        lanes = [open_lane(node) for _ in range(2)]
        for lane in lanes:
            lane.socket.sendall(PUT + header_of("under way"))
        assert node.batches is not None
        eventually(lambda: node.batches.node.streams.slots.held == 2)  # type: ignore[union-attr]
        offer = offer_of(node)
        with RawLane(offer) as third:
            error = error_of(*third.greet(offer.token))
        assert error.kind == "overloaded" and "max_lanes_per_peer" in error.message
        bucket.put("by gRPC", BIG)
        assert bucket.get("by gRPC") == BIG
        for lane in lanes:
            lane.socket.sendall(frame(BYTES, b"12") + end_of(b"12"))
            assert stored(lane).size_bytes == 2
            lane.socket.close()


@pytest.mark.slow
def test_two_processes_of_another_pid_namespace_are_two_peers() -> None:
    """The node is in a namespace of its own, where those who connect have the number 0."""
    there = f"peers-{os.getpid()}"
    listening = f"""if True:
        import socket
        from storage_node.services.lane.listener import _peer_of
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind("\\0{there}")
            unix.listen()
            print("listening", flush=True)
            for _ in range(3):
                connection, _ = unix.accept()
                print(_peer_of(connection), flush=True)
                connection.sendall(b"1")
    """
    connecting = (
        f"import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('\\0{there}'); s.recv(1); sys.stdin.read()"
    )
    node = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--pid", "--fork", sys.executable, "-c", listening],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with node, ExitStack() as ending:
        assert node.stdout is not None
        if node.stdout.readline() != "listening\n":
            pytest.skip("this kernel makes no pid namespace for a user")
        peers = []
        for _ in range(2):
            ending.enter_context(subprocess.Popen([sys.executable, "-c", connecting], stdin=subprocess.PIPE))
            peers.append(node.stdout.readline())
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(f"\0{there}")
            peers.append(node.stdout.readline())
    assert all(peer.startswith("user ") for peer in peers)
    if "process" in peers[0]:  # Linux 6.9
        assert len(set(peers)) == 3


@pytest.mark.slow
@table(
    "begun",
    [b"AB", HEADER.pack(11, CALL), PUT, PUT + HEADER.pack(1000, MESSAGE) + b"1", HEADER.pack(1000, MESSAGE) + b"1"],
    ids=["half a header", "no method", "no message", "half the first message", "half a request of a session"],
)
def test_half_a_call_is_ended_and_told(slow_node: NodeServer, begun: bytes) -> None:
    before = slow_node.lanes.closed["message"]
    with open_lane(slow_node) as lane:
        lane.socket.sendall(begun)
        error = error_of(*lane.receive())
        assert error.kind == "timeout" and "message_timeout_s" in error.message
        assert lane.is_ended()
    assert slow_node.lanes.closed["message"] == before + 1


@pytest.mark.slow
def test_who_does_not_read_why_a_lane_is_ended_is_let_go(
    slow_node: NodeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LaneConnection.write

    async def full(self: LaneConnection, message: bytes, kind: int = MESSAGE) -> None:
        if kind == FAILED:
            with self._whole():
                await asyncio.Event().wait()
        await write(self, message, kind)

    monkeypatch.setattr(LaneConnection, "write", full)
    with open_lane(slow_node) as lane:
        lane.socket.sendall(b"\xff" * 8)
        assert lane.is_ended()


@pytest.mark.slow
def test_a_group_that_is_not_completed_is_ended_and_told(slow_node: NodeServer) -> None:
    with open_lane(slow_node) as lane:
        lane.socket.sendall(frame(CALL, b"Objects/PutMany") + group_of("a"))
        assert lane.receive()[0] == MESSAGE
        lane.socket.sendall(group_of("b")[:20])
        error = error_of(*lane.receive())
        assert error.kind == "timeout" and "message_timeout_s" in error.message


def test_a_header_of_a_put_that_is_too_large_is_refused(node: NodeServer) -> None:
    with open_lane(node) as lane:
        lane.socket.sendall(PUT + HEADER.pack((64 << 10) + 1, MESSAGE))
        error = error_of(*lane.receive())
        assert error.kind == "invalid-request" and "65,536 bytes at most" in error.message


def test_none_is_offered_where_something_stands_between(node: NodeServer) -> None:
    import grpc

    from ais_loader.wire.generated import ais_batch_pb2_grpc as rpc

    with grpc.insecure_channel(node.endpoint) as channel:
        stub = rpc.GetBatchStub(channel)
        assert stub.OpenLane(pb.OpenLaneRequest(port=node.port + 1)) == pb.OpenLaneResponse()


def test_a_node_that_stops_ends_its_lanes(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        lane = open_lane(node)
    assert lane.is_ended()
    lane.socket.close()


def test_what_is_said_of_a_lane_is_what_is_used(node: NodeServer, client: Client) -> None:
    bucket = client.bucket("b")
    assert bucket.get("s/001") == DATA["s/001"]
    assert client.describe()["lane"] == "unix"
    with connect(node.url, options=ClusterOptions(lane="grpc")) as plain:
        assert plain.bucket("b").get("s/001") == DATA["s/001"]
        assert plain.describe()["lane"] == "grpc"


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(4))
def test_a_connection_that_comes_as_the_node_stops_listening_is_closed(tmp_path: Path, turns: int) -> None:
    """One that is left to the garbage collection is an error of a test."""
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0)) as node, socket.socket(socket.AF_UNIX) as sock:

        async def come_and_stop() -> None:
            sock.connect(f"\0{node.lanes._unix_name}")
            for _ in range(turns):
                await asyncio.sleep(0)
            node.lanes.close()

        [accepting, *_] = node.lanes._accepting
        asyncio.run_coroutine_threadsafe(come_and_stop(), accepting.get_loop()).result(180)
    gc.collect()
