"""Lanes between nodes: what a target gathers comes by them, whatever becomes of a lane while it does."""

from __future__ import annotations

import os
import re
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader import connect
from ais_loader.testing import SeededObjects, eventually, throwaway_folder
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_batch_pb2_grpc as rpc
from ais_loader.wire.lane import CALL, FAILED, HEADER, LAST, REFUSED, WELCOME
from storage_node.context import call_lanes
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.changing_folder import files_below
from tests.faulty_link import FaultyLink
from tests.free_ports import free_port
from tests.lane.lane_kit import RawLane, error_of, offer_of
from tests.node.cluster_kit import BUCKET, Answer, LocalCluster
from tests.node.node_kit import RawSession, batch_of
from tests.peer_kit import OPTIONS, peer_of

MiB = 1 << 20
OBJECTS = SeededObjects(
    {f"s/{at:03d}": (20_000 + at, at) for at in range(60)}
    | {f"m/{at}": (MiB + at, 1000 + at) for at in range(12)}
    | {f"l/{at}": (9 * MiB + at, 2000 + at) for at in range(3)}
)
NAMES = sorted(OBJECTS, key=lambda name: zlib.crc32(name.encode()))
TIMEOUT_S = 180.0
SOON = Backoff(0.05, 0.05)
Offer = Callable[[str, int | None], pb.OpenLaneResponse]


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with (
        throwaway_folder() as folder,
        LocalCluster(folder, 3, spread=NAMES, peer_timeout_s=60.0, metrics_port=0) as cluster,
    ):
        cluster.put(OBJECTS)
        yield cluster


@pytest.fixture
def cluster(shared: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Without lanes to begin with, and with nothing held in the end."""
    monkeypatch.setattr(call_lanes, "LANE_AGAIN", SOON)
    for node in shared.nodes:
        end_lanes(node)
    eventually(lambda: not shared.batches(0).resources.peers.open_lanes)
    yield shared
    shared.settle()
    for number in range(3):
        assert shared.batches(number).resources.assembly.held_bytes == 0


def end_lanes(node: NodeServer) -> None:
    assert node._loop is not None
    node._loop.call_soon_threadsafe(lambda: [task.cancel() for task in node.peer_lanes._serving])


def open_lanes(cluster: LocalCluster) -> int:
    return cluster.batches(0).resources.peers.open_lanes


def lanes_told(node: NodeServer) -> dict[str, float]:
    """By its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=TIMEOUT_S) as response:
        told = re.findall(r'^ais_loader_open_lanes{kind="(\w+)"} (\S+)$', response.read().decode(), re.MULTILINE)
    return {kind: float(number) for kind, number in told}


def until_lanes(cluster: LocalCluster, count: int = 2) -> None:
    """They are opened beside what is asked."""

    def opened() -> bool:
        assert_whole(cluster.ask(NAMES[:10]), NAMES[:10])
        return open_lanes(cluster) == count

    eventually(opened)


def assert_whole(answer: Answer, names: list[str] = NAMES) -> None:
    assert answer.order == list(range(len(names)))
    assert not any(answer.status.values()), answer.faults
    assert all(answer.data[at] == OBJECTS[name] for at, name in enumerate(names))


def offering(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, change: Callable[[pb.OpenLaneResponse], Any]
) -> None:
    """Nodes 1 and 2 offer lanes that have been changed."""

    def changed(offer: Offer) -> Offer:
        def offered(tenant: str, user: int | None) -> pb.OpenLaneResponse:
            answer = offer(tenant, user)
            change(answer)
            return answer

        return offered

    for node in cluster.nodes[1:]:
        monkeypatch.setattr(node.peer_lanes, "offer", changed(node.peer_lanes.offer))


@pytest.fixture
def links(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FaultyLink]]:
    """Through which the lanes to nodes 1 and 2 go, by TCP."""
    with ExitStack() as held:
        links = {
            node.peer_lanes.port: held.enter_context(FaultyLink(f"127.0.0.1:{node.peer_lanes.port}"))
            for node in cluster.nodes[1:]
        }

        def change(offer: pb.OpenLaneResponse) -> None:
            offer.unix_name, offer.tcp_port = "ais-loader-none", links[offer.tcp_port].port

        offering(monkeypatch, cluster, change)
        until_lanes(cluster)
        yield list(links.values())
    eventually(lambda: not open_lanes(cluster))


def test_what_a_target_gathers_comes_by_lanes_once_they_are_open(cluster: LocalCluster) -> None:
    until_lanes(cluster)
    assert_whole(cluster.ask(NAMES))
    assert open_lanes(cluster) == 2
    eventually(lambda: [node.peer_lanes.open_lanes for node in cluster.nodes[1:]] == [1, 1])
    eventually(lambda: [node.lanes.open_lanes for node in cluster.nodes[1:]] == [0, 0])
    none = {"clients": 0, "peers": 0, "to_peers": 0}
    assert [lanes_told(node) for node in cluster.nodes] == [none | {"to_peers": 2}, *[none | {"peers": 1}] * 2]
    # Those by which they began have ended.
    eventually(lambda: [cluster.batches(number).open_sessions for number in (1, 2)] == [1, 1])


@pytest.mark.slow
def test_bytes_that_went_bad_in_a_file_are_not_delivered(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=1, spread=[f"m/{at}" for at in range(12)]) as cluster:
        cluster.put(OBJECTS)
        until_lanes(cluster, 1)
        names = cluster.names_of(1, [name for name in NAMES if name.startswith("m/")])
        store = cluster.batches(1).node.store
        for path, found in files_below(*(drive.root for drive in store.drives if drive is not None)):
            if found.st_size == len(OBJECTS[names[0]]):
                with path.open("r+b") as file:
                    file.seek(500_000)
                    file.write(b"spoilt")
        answer = cluster.ask(names)
        assert answer.status[0] == pb.CORRUPT
        assert [answer.data[at] for at in range(1, len(names))] == [OBJECTS[name] for name in names[1:]]
        cluster.settle()


# -- who is let in


def peer_offer(node: NodeServer, uuid: bytes = b"") -> pb.OpenLaneResponse:
    with peer_of(node, uuid, version=1) as channel:
        answer: pb.OpenLaneResponse = rpc.GetBatchStub(channel).OpenLane(
            pb.OpenLaneRequest(port=node.peer_port), timeout=TIMEOUT_S
        )
        return answer


@pytest.mark.parametrize("tcp", [False, True])
def test_a_token_of_one_listener_lets_nobody_in_at_the_other(cluster: LocalCluster, tcp: bool) -> None:
    node = cluster.nodes[1]
    of_client, of_peer = offer_of(node), peer_offer(node)
    assert of_client.tcp_port != of_peer.tcp_port and of_peer.method == ["Replica/Write"]
    for where, token in ((of_client, of_peer.token), (of_peer, of_client.token), (of_peer, os.urandom(16))):
        with RawLane(where, tcp=tcp) as lane:
            assert error_of(*lane.greet(token)).kind == "lane-token"
            assert lane.is_ended()
    with RawLane(of_peer, tcp=tcp) as lane:
        assert lane.greet(of_peer.token) == (WELCOME, b"")


def test_clients_and_strangers_get_no_token_of_the_peer_listener(cluster: LocalCluster) -> None:
    node = cluster.nodes[1]
    request = pb.OpenLaneRequest(port=node.peer_port)
    with grpc.insecure_channel(node.endpoint, options=OPTIONS) as channel:
        assert rpc.GetBatchStub(channel).OpenLane(request, timeout=TIMEOUT_S) == pb.OpenLaneResponse()
    with (
        grpc.insecure_channel(node.peer_endpoint, options=OPTIONS) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        rpc.GetBatchStub(channel).OpenLane(request, timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.RpcError) as refused:
        peer_offer(node, b"stranger" * 2)
    assert "is not in the cluster" in str(refused.value.details())


@pytest.mark.parametrize("method", ["Objects/Put", "Objects/PutMany", "Replica/Newest", "GetBatch/Session"])
def test_lanes_between_nodes_carry_no_other_calls(cluster: LocalCluster, method: str) -> None:
    offer = peer_offer(cluster.nodes[1])
    with RawLane(offer) as lane:
        lane.greet(offer.token)
        lane.socket.sendall(HEADER.pack(len(method), CALL) + method.encode() + HEADER.pack(0, LAST))
        kind, message = lane.receive()
        assert kind in (REFUSED, FAILED)
        assert error_of(kind, message).kind == "invalid-request"


# -- where there is none


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda offer: offer.Clear(),
        lambda offer: setattr(offer, "token", os.urandom(16)),
        lambda offer: (setattr(offer, "unix_name", "ais-loader-none"), setattr(offer, "tcp_port", free_port())),
    ],
    ids=["none offered", "wrong token", "not reachable"],
)
def test_without_lanes_it_goes_by_grpc_and_they_are_tried_again(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, change: Callable[[pb.OpenLaneResponse], Any]
) -> None:
    asked = []
    with monkeypatch.context() as changed:
        offering(changed, cluster, lambda offer: (asked.append(1), change(offer)))

        def tried_again() -> bool:
            assert_whole(cluster.ask(NAMES))
            return len(asked) >= 4

        eventually(tried_again)
        assert open_lanes(cluster) == 0
        eventually(lambda: [cluster.batches(number).open_sessions for number in (1, 2)] == [1, 1])
    until_lanes(cluster)


# -- what becomes of them


@pytest.mark.slow
def test_a_lane_that_breaks_in_the_middle_costs_nothing_of_the_answer(
    cluster: LocalCluster, links: list[FaultyLink]
) -> None:
    for at in (1, HEADER.size + 3, 3 * MiB):
        for link in links:
            link.cut_after(at)
        assert_whole(cluster.ask(NAMES))
        until_lanes(cluster)


@pytest.mark.slow
def test_a_lane_that_falls_silent_is_given_up_for_grpc(
    cluster: LocalCluster, links: list[FaultyLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    for link in links:
        link.stall()
    with monkeypatch.context() as impatient:
        impatient.setattr(cluster.batches(0).resources.peers, "timeout_s", 2.5)
        answer = cluster.ask(NAMES)  # there is nobody else to be asked
    for at, name in enumerate(NAMES):
        assert answer.status[at] == (pb.OK if cluster.owners(name) == [0] else pb.UNAVAILABLE)
    assert open_lanes(cluster) == 0
    assert_whole(cluster.ask(NAMES))
    for link in links:
        link.flow()
    until_lanes(cluster)


@pytest.mark.slow
def test_a_batch_that_is_left_in_the_middle_of_a_frame_leaves_the_lane_in_order(
    cluster: LocalCluster, links: list[FaultyLink]
) -> None:
    for link in links:
        link.bytes_per_s = 40e6
    with RawSession(cluster.nodes[0].url) as session:
        for batch_id in range(1, 4):
            session.send(batch_id, batch_of(NAMES, bucket=BUCKET, ordered=True))
            assert session.receive_frame().payload
            session.send(batch_id, pb.Cancel())
    cluster.settle()
    for link in links:
        link.bytes_per_s = None
    assert open_lanes(cluster) == 2
    assert_whole(cluster.ask(NAMES))


@pytest.mark.slow
def test_nodes_that_stop_end_their_lanes(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, spread=NAMES) as cluster:
        cluster.put(OBJECTS)
        until_lanes(cluster, 1)
        cluster.nodes[0].stop()
        eventually(lambda: not cluster.nodes[1].peer_lanes.open_lanes)


@pytest.mark.slow
def test_a_node_that_begins_anew_on_the_same_port_gets_lanes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lanes, "LANE_AGAIN", SOON)
    with LocalCluster(tmp_path, 2, spread=NAMES, peer_timeout_s=15.0) as cluster, ExitStack() as held:
        cluster.put(OBJECTS)
        until_lanes(cluster, 1)
        port = cluster.nodes[1].peer_port
        cluster.nodes[1].stop()
        config = ServerConfig(port=0, read_lease_s=1.0)
        cluster.nodes[1] = held.enter_context(NodeServer([tmp_path / "node-1"], config))
        assert cluster.nodes[1].peer_port == port
        cluster.nodes[1].membership.learn(cluster.map)
        assert_whole(cluster.ask(NAMES))
        until_lanes(cluster, 1)
        assert_whole(cluster.ask(NAMES))
        with connect(cluster.nodes[0].url) as client:
            assert client.bucket(BUCKET).get(NAMES[0]) == OBJECTS[NAMES[0]]
        cluster.settle()
