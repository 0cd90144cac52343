"""A map is believed as far as it is harmless: one that takes something away only when a majority has accepted it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from agreement_kit import TIMEOUT_S, endpoints_of, known_map, make_cluster, member, node_at, nodes_at

from ais_loader import Client, connect
from ais_loader.errors import BucketNotFound
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from storage_node.cluster.consensus import map_bounds
from storage_node.cluster.consensus.acceptor import AcceptorState, MapRefused, accept, prepare
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.confirmation import digest, removals, witnessed
from storage_node.cluster.map.mutations import add_node, create_bucket, delete_bucket
from storage_node.server import NodeServer
from tests.peer_kit import operator_of, peer_of
from tests.table import table

HIGHEST = (1 << 64) - 1
CLUSTER = b"c" * 16


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeServer]]:
    with nodes_at(tmp_path, 3) as running:
        yield running


@pytest.fixture
def client(nodes: list[NodeServer]) -> Iterator[Client]:
    """Of a cluster of these nodes with an object on each, and a snapshot."""
    make_cluster(nodes)
    change_map(endpoints_of(nodes), create_bucket("b", copies=3))
    with connect(",".join(node.url for node in nodes)) as client:
        client.bucket("b").put("a", b"bytes")
        client.bucket("b").snapshot("s")
        client.bucket("b").put("a", b"newer")
        yield client


def map_at(node: NodeServer) -> pb.ClusterMap:
    known = known_map(node)
    assert known is not None
    return known


def forged(nodes: list[NodeServer], version: int = 1) -> pb.ClusterMap:
    """What they know, so many versions later."""
    map_ = pb.ClusterMap()
    map_.CopyFrom(map_at(nodes[0]))
    map_.version += version
    return map_


def told(node: NodeServer, map_: pb.ClusterMap) -> grpc.StatusCode:
    with operator_of(node) as channel:
        try:
            rpc.ClusterStub(channel).Learn(pb.LearnRequest(map=map_), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def works(nodes: list[NodeServer], client: Client) -> None:
    """Nothing is gone, and the map can still be changed."""
    assert client.bucket("b").get("a") == b"newer"
    assert client.bucket("b", snapshot="s").get("a") == b"bytes"

    def all_have(name: str, there: bool) -> bool:
        return all((name in {bucket.name for bucket in map_at(node).bucket}) == there for node in nodes)

    change_map(endpoints_of(nodes), create_bucket("more"), timeout_s=TIMEOUT_S)
    eventually(lambda: all_have("more", True))
    change_map(endpoints_of(nodes), delete_bucket("more"), timeout_s=TIMEOUT_S)
    eventually(lambda: all_have("more", False))


def without_buckets(map_: pb.ClusterMap) -> None:
    del map_.bucket[:]


def without_a_snapshot(map_: pb.ClusterMap) -> None:
    del map_.bucket[0].snapshot[:]


def with_another_of_that_name(map_: pb.ClusterMap) -> None:
    map_.bucket[0].uuid = b"other" + bytes(11)


def without_a_node(map_: pb.ClusterMap) -> None:
    del map_.node[1]


FORGERIES = (without_buckets, without_a_snapshot, with_another_of_that_name, without_a_node)


@pytest.mark.slow
@pytest.mark.parametrize("change", FORGERIES, ids=lambda change: change.__name__)
def test_one_who_says_so_deletes_nothing(
    nodes: list[NodeServer], client: Client, change: Callable[[pb.ClusterMap], None]
) -> None:
    before = known_map(nodes[0])
    for version in (1, 5):
        map_ = forged(nodes, version)
        change(map_)
        for node in nodes:
            assert told(node, map_) is grpc.StatusCode.UNAVAILABLE
            # Also in the name of another node, which has not accepted it.
            with peer_of(node, nodes[0].membership.node_uuid, map_.version) as channel, pytest.raises(grpc.RpcError):
                rpc.ClusterStub(channel).Learn(pb.LearnRequest(map=map_), timeout=TIMEOUT_S)
    assert all(known_map(node) == before for node in nodes)
    works(nodes, client)


@pytest.mark.slow
def test_a_map_far_ahead_keeps_out_none_that_follow(nodes: list[NodeServer], client: Client) -> None:
    for version in (HIGHEST, 1 << 63, 1 << 48, (1 << 16) + 10):
        map_ = forged(nodes)
        map_.version = version
        for node in nodes:
            assert told(node, map_) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT), version
    works(nodes, client)


@pytest.mark.slow
def test_the_highest_ballot_keeps_out_none_that_follow(nodes: list[NodeServer], client: Client) -> None:
    ballot = pb.Ballot(number=HIGHEST, proposer=b"p" * 16)
    map_ = forged(nodes)
    map_.ballot.CopyFrom(ballot)
    for node in nodes[:2]:
        with operator_of(node) as channel:
            stub = rpc.ClusterStub(channel)
            calls: list[tuple[Any, Any]] = [
                (stub.Prepare, pb.PrepareRequest(cluster_uuid=map_.cluster_uuid, ballot=ballot)),
                (stub.Accept, pb.AcceptRequest(map=map_)),
                (stub.Learn, pb.LearnRequest(map=map_)),
            ]
            for call, request in calls:
                with pytest.raises(grpc.RpcError) as caught:
                    call(request, timeout=TIMEOUT_S)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    works(nodes, client)


@pytest.mark.slow
def test_a_node_of_no_cluster_is_not_caught_by_a_map(tmp_path: Path, nodes: list[NodeServer], client: Client) -> None:
    with node_at(tmp_path / "fourth") as fourth:
        map_ = pb.ClusterMap(cluster_uuid=CLUSTER, version=HIGHEST)
        map_.node.append(member(fourth))
        assert told(fourth, map_) is grpc.StatusCode.INVALID_ARGUMENT
        assert told(fourth, forged(nodes)) is grpc.StatusCode.INVALID_ARGUMENT  # it has no part in it
        change_map(endpoints_of(nodes), add_node(member(fourth)), timeout_s=TIMEOUT_S)
        eventually(lambda: known_map(fourth) is not None)
        with connect(fourth.url) as other, pytest.raises(BucketNotFound):
            other.bucket("gone").get("a")


def test_what_a_map_takes_away_is_told_by_its_ids() -> None:
    known = pb.ClusterMap(node=[pb.MapNode(uuid=b"1" * 16), pb.MapNode(uuid=b"2" * 16)])
    bucket = known.bucket.add(name="b", uuid=b"b" * 16)
    bucket.snapshot.add(name="s", cut=7)
    bucket.snapshot.add(name="unfinished", cut=8, maker=b"1" * 16)

    def after(change: Callable[[pb.ClusterMap], object]) -> str:
        new = pb.ClusterMap()
        new.CopyFrom(known)
        change(new)
        return removals(known, new)

    assert after(lambda new: new.bucket.add(name="c", uuid=b"c" * 16)) == ""
    assert after(lambda new: new.bucket[0].snapshot.pop()) == ""
    assert after(lambda new: new.bucket.pop()) == "bucket 'b'"
    assert after(lambda new: setattr(new.bucket[0], "name", "c")) == "bucket 'b'"
    assert after(lambda new: new.bucket[0].snapshot.pop(0)) == "snapshot 's' of bucket 'b'"
    assert after(lambda new: setattr(new.bucket[0].snapshot[0], "cut", 6)) == "snapshot 's' of bucket 'b'"
    assert after(lambda new: new.node.pop()) == f"node {(b'2' * 16).hex()}"


def test_a_node_bears_witness_to_what_it_has_accepted_by_any_ballot() -> None:
    map_ = pb.ClusterMap(version=3, ballot=pb.Ballot(number=1, proposer=b"p"))
    again = pb.ClusterMap(version=3, ballot=pb.Ballot(number=2, proposer=b"q"))
    other = pb.ClusterMap(version=3, removed=[b"1" * 16])
    for state in (AcceptorState(accepted=map_), AcceptorState(committed=map_)):
        assert witnessed(state, 3, digest(again))
        assert not witnessed(state, 3, digest(other)) and not witnessed(state, 4, digest(again))
    assert not witnessed(AcceptorState(), 3, digest(map_))


# -- what an acceptor takes in


def test_ballots_are_taken_in_as_far_as_attempts_may_have_gone() -> None:
    known = AcceptorState(promise=pb.Ballot(number=5, proposer=b"p"))
    far = 5 + map_bounds.MAX_BALLOT_LEAD
    state, answer = prepare(known, pb.PrepareRequest(ballot=pb.Ballot(number=far, proposer=b"p")))
    assert answer.promised and state.promise is not None and state.promise.number == far
    for ballot in (pb.Ballot(number=far + 1), pb.Ballot(number=HIGHEST), pb.Ballot(number=6, proposer=b"p" * 17)):
        with pytest.raises(MapRefused):
            prepare(known, pb.PrepareRequest(ballot=ballot))
        with pytest.raises(MapRefused):
            accept(known, pb.AcceptRequest(map=pb.ClusterMap(cluster_uuid=CLUSTER, version=1, ballot=ballot)))


def of_bucket(**fields: Any) -> pb.ClusterMap:
    bucket = pb.MapBucket(**{"name": "b", "uuid": b"b" * 16, "copies": 1, **fields})
    return pb.ClusterMap(cluster_uuid=CLUSTER, bucket=[bucket])


def of_node(**fields: Any) -> pb.ClusterMap:
    return pb.ClusterMap(cluster_uuid=CLUSTER, node=[pb.MapNode(**{"uuid": b"1" * 16, **fields})])


WRONG = {
    "cluster": pb.ClusterMap(cluster_uuid=b"c"),
    "node": of_node(uuid=b"1"),
    "host": of_node(host="h" * 5000),
    "endpoint": of_node(peer_endpoint="h" * 5000),
    "changes": pb.ClusterMap(cluster_uuid=CLUSTER, change=[b"1" * 16] * 5000),
    "change": pb.ClusterMap(cluster_uuid=CLUSTER, change=[b"1" * 5000]),
    "removed": pb.ClusterMap(cluster_uuid=CLUSTER, removed=[b""]),
    "bucket": of_bucket(uuid=b"b"),
    "no copies": of_bucket(copies=0),
    "many copies": of_bucket(copies=(1 << 32) - 1),
    "former copies": of_bucket(former_copies=[0]),
    "min copies": of_bucket(min_copies=2),
    "two of a name": pb.ClusterMap(
        cluster_uuid=CLUSTER, bucket=[pb.MapBucket(name="b", uuid=uuid * 16, copies=1) for uuid in (b"b", b"c")]
    ),
}


@table("wrong", WRONG)
def test_a_map_that_no_cluster_has_is_not_taken_in(wrong: str) -> None:
    map_bounds.require_map(of_bucket())
    map_bounds.require_map(of_node())
    with pytest.raises(MapRefused):
        map_bounds.require_map(WRONG[wrong])
