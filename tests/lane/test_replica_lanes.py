"""Replicas of writes by lane: what the owners have, whatever becomes of a lane, and who may call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader.testing import eventually, seeded_bytes, throwaway_folder
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_batch_pb2_grpc as rpc
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.lane import CALL, HEADER, LAST, MESSAGE
from storage_node.cluster.replication.replica import HeldWrite
from storage_node.cluster.replication.replicas import RemoteReplicaStream
from storage_node.context.call_lanes import CallLanes, LaneCall
from storage_node.context.channels import Channels
from storage_node.server import NodeServer
from storage_node.store.read.object_reader import open_object
from tests.lane.lane_kit import RawLane, error_of
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import Writer
from tests.peer_kit import operator_of, peer_of

TIMEOUT_S = 180.0
BEGIN = HEADER.pack(len(b"Replica/Write"), CALL) + b"Replica/Write"


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with throwaway_folder() as folder, LocalCluster(folder, 2, copies=2, reach_timeout_s=20.0) as cluster:
        yield cluster


@pytest.fixture
def lanes(shared: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> CallLanes:
    """Those of node 0, of which one to node 1 carries nothing."""
    found: list[CallLanes] = []
    begin = CallLanes.begin

    def noted(lanes: CallLanes, endpoint: str) -> LaneCall | None:
        found.append(lanes)
        return begin(lanes, endpoint)

    with Writer(shared.nodes[0].url) as writer, monkeypatch.context() as patched:
        patched.setattr(CallLanes, "begin", noted)
        writer.put("before", b"-")
    eventually(lambda: found[0]._idle[shared.nodes[1].peer_endpoint], TIMEOUT_S)
    return found[0]


@pytest.fixture
def cluster(shared: LocalCluster, lanes: CallLanes) -> LocalCluster:
    return shared


def held(cluster: LocalCluster, name: str) -> list[bytes]:
    """What the nodes have."""
    found = []
    for number in range(len(cluster.nodes)):
        reader = open_object(cluster.batches(number).node.store, BUCKET, name)
        try:
            found.append(b"".join(reader))
        finally:
            reader.close()
    return found


@pytest.fixture
def by_lanes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(stream: RemoteReplicaStream) -> None:
        raise AssertionError("gRPC was used")

    monkeypatch.setattr(RemoteReplicaStream, "_by_grpc", never)


@pytest.mark.parametrize("size_bytes", [0, 1 << 10, 3 * (1 << 20) + 7])
def test_both_owners_have_what_went_by_lane(cluster: LocalCluster, by_lanes_only: None, size_bytes: int) -> None:
    data = seeded_bytes(size_bytes, size_bytes)
    with Writer(cluster.nodes[0].url) as writer:
        for name in (f"a-{size_bytes}", f"b-{size_bytes}"):
            writer.put(name, data)
            assert held(cluster, name) == [data] * 2


def test_a_lane_that_the_node_has_just_ended_costs_no_copy(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, served, ended = CallLanes.begin, cluster.nodes[1].peer_lanes, []

    def ending(own: CallLanes, endpoint: str) -> LaneCall | None:
        call = begin(own, endpoint)
        if call is not None and not ended:
            loop = cluster.nodes[1]._loop
            assert loop is not None
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in served._serving])
            eventually(lambda: not served.open_lanes, TIMEOUT_S)  # the event loop of node 0 waits here
            ended.append(call)
        return call

    monkeypatch.setattr(CallLanes, "begin", ending)
    with Writer(cluster.nodes[0].url) as writer:
        writer.put("raced", b"data")
    assert ended and held(cluster, "raced") == [b"data"] * 2


def test_a_write_that_is_given_up_leaves_nothing_and_its_lane_goes_on(
    cluster: LocalCluster, by_lanes_only: None
) -> None:
    lanes = set(cluster.nodes[1].peer_lanes._serving)
    with Writer(cluster.nodes[0].url) as writer:
        for size_bytes in (10, 200_000):  # of a group, and streamed
            writer.put(f"kept-{size_bytes}", b"old")
            with pytest.raises(grpc.RpcError):
                new = pb.PutCondition(if_absent=True)
                writer.put(f"kept-{size_bytes}", bytes(size_bytes), size_bytes=size_bytes, condition=new)
            assert held(cluster, f"kept-{size_bytes}") == [b"old"] * 2
            writer.put("next", b"%d" % size_bytes)
            assert held(cluster, "next") == [b"%d" % size_bytes] * 2
    assert set(cluster.nodes[1].peer_lanes._serving) == lanes
    eventually(lambda: not cluster.batches(1).node.replica_streams.slots.held, TIMEOUT_S)
    drives = [drive.root for drive in cluster.batches(1).node.store.drives if drive is not None]
    eventually(lambda: not any(list((root / "staging").iterdir()) for root in drives), TIMEOUT_S)


def test_no_idle_lane_is_used_to_a_node_that_was_silent(cluster: LocalCluster, lanes: CallLanes) -> None:
    loop, node = cluster.nodes[0]._loop, cluster.nodes[1]
    channels = lanes._channel.__self__  # type: ignore[attr-defined]
    assert loop is not None and isinstance(channels, Channels) and node.peer_lanes.open_lanes
    loop.call_soon_threadsafe(partial(channels.failed, node.peer_endpoint, silent=True))
    eventually(lambda: not node.peer_lanes.open_lanes, TIMEOUT_S)
    loop.call_soon_threadsafe(channels.answered, node.peer_endpoint)


def offer_to(channel: Any, node: NodeServer) -> batch_pb.OpenLaneResponse:
    with channel:
        request = batch_pb.OpenLaneRequest(port=node.peer_port)
        answer: batch_pb.OpenLaneResponse = rpc.GetBatchStub(channel).OpenLane(request, timeout=TIMEOUT_S)
        return answer


def group(cluster: LocalCluster, name: str) -> bytes:
    small = pb.SmallObject(bucket=BUCKET, name=name, data=b"x")
    one = wire.WriteGroup(object=[small], bucket_uuid={BUCKET: cluster.map.bucket[0].uuid})
    message = wire.WriteRequest(group=one).SerializeToString()
    return BEGIN + HEADER.pack(len(message), MESSAGE) + message


def test_a_node_whose_drive_takes_long_says_that_it_is_alive(
    shared: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, go_on = HeldWrite.take, threading.Event()

    def slow(held: HeldWrite, request: wire.WriteRequest) -> wire.WriteResponse | None:
        assert go_on.wait(TIMEOUT_S)
        return take(held, request)

    monkeypatch.setattr(HeldWrite, "take", slow)
    node, caller = shared.nodes[1], shared.map.node[0].uuid
    offer = offer_to(peer_of(node, caller, version=1), node)
    try:
        with RawLane(offer) as lane:
            lane.greet(offer.token)
            lane.socket.sendall(group(shared, "slow"))
            assert lane.receive() == (MESSAGE, b"")
            go_on.set()
            kind, answer = lane.receive()
            assert (kind, wire.WriteResponse.FromString(answer).staged.object[0].size_bytes) == (MESSAGE, 1)
            lane.socket.sendall(HEADER.pack(0, LAST) + group(shared, "given up before"))
            assert wire.WriteResponse.FromString(lane.receive()[1]).HasField("staged")
    finally:
        go_on.set()


def test_an_operator_writes_no_replicas_by_lane(shared: LocalCluster) -> None:
    node = shared.nodes[1]
    offer = offer_to(operator_of(node), node)
    with RawLane(offer) as lane:
        lane.greet(offer.token)
        lane.socket.sendall(group(shared, "of an operator"))
        assert error_of(*lane.receive()).kind == "stale-map"
        assert lane.is_ended()


def test_a_node_that_has_left_the_cluster_writes_no_replicas_by_the_lanes_it_has(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2) as cluster:
        node, leaving = cluster.nodes[1], cluster.map.node[2].uuid
        offer = offer_to(peer_of(node, leaving, version=1), node)
        with RawLane(offer) as lane:
            lane.greet(offer.token)
            lane.socket.sendall(group(cluster, "a"))
            assert wire.WriteResponse.FromString(lane.receive()[1]).HasField("staged")
            lane.socket.sendall(HEADER.pack(0, LAST))
            known = cluster_pb.ClusterMap()
            known.CopyFrom(cluster.map)
            known.version += 1
            del known.node[2]
            node.membership.learn(known)
            lane.socket.sendall(group(cluster, "b"))
            assert error_of(*lane.receive()).kind == "stale-map"
            assert lane.is_ended()


@pytest.mark.slow
def test_a_node_that_stands_still_is_left_out_and_has_lanes_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2, reach_timeout_s=0.5) as cluster:
        name = next(str(at) for at in range(1000) if cluster.owners(str(at)) == [0, 1])
        go_on, loop = threading.Event(), cluster.nodes[1]._loop
        assert loop is not None
        with Writer(cluster.nodes[0].url) as writer:
            writer.put(name, b"1")
            eventually(lambda: cluster.nodes[1].peer_lanes._idle, TIMEOUT_S)
            loop.call_soon_threadsafe(go_on.wait, TIMEOUT_S)
            try:
                writer.put(name, b"2")
                began_s = time.monotonic()
                writer.put(name, b"3")
                assert time.monotonic() - began_s < TIMEOUT_S / 2
            finally:
                go_on.set()
            stores = [cluster.batches(number).node.store for number in (0, 1)]

            def is_on_both() -> bool:
                writer.put(name, b"4")
                first, second = (store.replicas.newest(BUCKET, [name])[0] for store in stores)
                return first is not None and second is not None and first.version == second.version

            eventually(is_on_both, TIMEOUT_S)
            eventually(lambda: cluster.nodes[1].peer_lanes._idle, TIMEOUT_S)
