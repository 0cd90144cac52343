"""Buckets of a cluster, made and deleted at any node, seen at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from agreement_kit import TIMEOUT_S, endpoint_of, known_map, make_cluster, node_at, nodes_at

from ais_loader import connect, errors
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as rpc
from storage_node.cluster.map import buckets as bucket_changes
from storage_node.server import NodeServer


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeServer]]:
    with nodes_at(tmp_path, 3) as running:
        make_cluster(running)
        yield running


class Buckets:
    """The buckets, asked for at this one node; a client would choose a node by itself."""

    def __init__(self, node: NodeServer) -> None:
        self._channel = grpc.insecure_channel(endpoint_of(node))
        self._stub = rpc.BucketsStub(self._channel)

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=180)
        except grpc.RpcError as error:
            kind = dict(error.trailing_metadata()).get("ais-error-kind", "")
            raise errors.from_kind(kind, error.details()) from error

    def create(self, name: str, copies: int = 0, *, exist_ok: bool = False) -> pb.Bucket:
        request = pb.CreateBucketRequest(name=name, copies=copies, exist_ok=exist_ok)
        return self._call(self._stub.CreateBucket, request)

    def get(self, name: str) -> pb.Bucket:
        return self._call(self._stub.GetBucket, pb.GetBucketRequest(name=name))

    def names(self) -> list[str]:
        return [bucket.name for bucket in self._call(self._stub.ListBuckets, pb.ListBucketsRequest()).bucket]

    def delete(self, name: str, *, force: bool = False) -> int:
        request = pb.DeleteBucketRequest(name=name, force=force)
        return int(self._call(self._stub.DeleteBucket, request).deleted_objects)

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def clients(nodes: list[NodeServer]) -> Iterator[list[Buckets]]:
    opened = [Buckets(node) for node in nodes]
    yield opened
    for client in opened:
        client.close()


def stored(node: NodeServer, name: str) -> bytes | None:
    """The uuid under which the node's own store has the bucket."""
    assert node.batches is not None
    found = node.batches.node.store.find_bucket(name)
    return None if found is None else found.uuid_bytes


def put_on(node: NodeServer, bucket: str, name: str) -> None:
    """An object of this one node, wherever it belongs."""
    assert node.batches is not None
    upload = node.batches.node.store.begin_put(bucket, name)
    upload.write(b"x")
    upload.commit()


def test_a_bucket_made_at_one_node_is_there_at_all_when_the_call_returns(
    nodes: list[NodeServer], clients: list[Buckets]
) -> None:
    for at, client in enumerate(clients):
        client.create(f"b{at}", copies=at + 1)
        for node, other in zip(nodes, clients, strict=True):
            assert other.names() == [f"b{n}" for n in range(at + 1)]
            map_ = known_map(node)
            assert map_ is not None and stored(node, f"b{at}") == map_.bucket[at].uuid
    found = known_map(nodes[0])
    assert found is not None
    assert [(bucket.copies, bucket.min_copies) for bucket in found.bucket] == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.slow
def test_the_errors_are_those_of_one_node(clients: list[Buckets]) -> None:
    one, two, three = clients
    one.create("b")
    with pytest.raises(errors.BucketExists, match="exist_ok"):
        two.create("b")
    assert two.create("b", exist_ok=True).name == "b"
    with pytest.raises(errors.InvalidName):
        two.create("not/a/name")
    with pytest.raises(errors.InvalidRequest, match="copies=4: need 1 to 3"):
        three.create("c", copies=4)
    with pytest.raises(errors.BucketNotFound):
        three.get("c")
    with pytest.raises(errors.BucketNotFound):
        three.delete("c")
    assert three.names() == ["b"]


@pytest.mark.slow
def test_a_bucket_with_an_object_on_any_node_is_deleted_only_by_force(
    nodes: list[NodeServer], clients: list[Buckets]
) -> None:
    clients[0].create("b")
    put_on(nodes[2], "b", "somewhere/else")
    put_on(nodes[1], "b", "a")
    put_on(nodes[2], "b", "a")
    with pytest.raises(errors.BucketNotEmpty):
        clients[0].delete("b")
    assert clients[0].delete("b", force=True) == 2, "an object is counted once, however many copies it has"
    assert all(client.names() == [] for client in clients)
    assert [stored(node, "b") for node in nodes] == [None] * 3


@pytest.mark.slow
def test_an_empty_bucket_is_deleted_everywhere_and_can_be_made_anew(
    nodes: list[NodeServer], clients: list[Buckets]
) -> None:
    clients[0].create("b")
    before = stored(nodes[0], "b")
    assert clients[1].delete("b") == 0
    clients[2].create("b")
    after = {stored(node, "b") for node in nodes}
    assert len(after) == 1 and after != {before}


@pytest.mark.slow
def test_what_a_node_that_is_down_holds_is_not_deleted_unasked(
    tmp_path: Path, nodes: list[NodeServer], clients: list[Buckets]
) -> None:
    clients[0].create("b")
    port = nodes[2].port
    put_on(nodes[2], "b", "a")
    nodes[2].stop(0.0)
    with pytest.raises(errors.NodeUnavailable, match=rf"{nodes[2].peer_endpoint}.*force=True"):
        clients[0].delete("b")
    assert clients[1].names() == ["b"]
    clients[0].delete("b", force=True)
    with node_at(tmp_path / "node-2", port) as back:
        assert eventually(lambda: stored(back, "b") is None, timeout_s=TIMEOUT_S)


@pytest.mark.slow
def test_without_a_majority_no_bucket_is_made(
    nodes: list[NodeServer], clients: list[Buckets], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_changes, "CHANGE_TIMEOUT_S", 1.0)
    for node in nodes[1:]:
        node.stop(0.0)
    with pytest.raises(errors.NodeUnavailable, match="majority of the 3 nodes"):
        clients[0].create("b")
    assert stored(nodes[0], "b") is None


@pytest.mark.slow
def test_a_bucket_of_the_node_s_own_with_objects_in_it_is_never_deleted_for_a_name(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 3) as nodes:
        with connect(nodes[2].url) as client:
            client.create_bucket("b").put("precious", b"bytes")
        own = stored(nodes[2], "b")
        make_cluster(nodes)
        with closing(Buckets(nodes[0])) as buckets:
            buckets.create("b")
        assert stored(nodes[2], "b") == own
        assert nodes[2].batches is not None
        assert nodes[2].batches.node.store.head("b", "precious").size_bytes == 5
        assert stored(nodes[0], "b") == stored(nodes[1], "b") != own
