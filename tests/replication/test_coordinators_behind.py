"""A coordinator that has not heard of the newest map: what it is asked to copy, to delete or to do once more has been
handed over to a node that it does not know, and none of those that it asks has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader import connect, errors
from ais_loader.transport.cluster.transport import RemoteTransport
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.map.sync import MapSync
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import Writer

NEARLY_NOTHING = 1e-12
TRIES = 1000
"""Of a client that is told to try again."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """By the map that node 0 has, node 1 owns all; by the newer one of the others, node 2 does, which came with it."""

    async def never(map_sync: MapSync) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(MapSync, "run", never)  # nobody hears of a map by himself
    with LocalCluster(tmp_path, 3, repair_interval_s=600.0, read_lease_s=0) as cluster:
        late = cluster_pb.MapNode()
        late.CopyFrom(cluster.map.node[2])
        del cluster.map.node[2]
        cluster.map.node[0].weight = NEARLY_NOTHING
        cluster.learn()
        assert cluster.owners("x") == [1]
        newer = cluster_pb.ClusterMap()
        newer.CopyFrom(cluster.map)
        newer.version += 1
        newer.node[1].weight = NEARLY_NOTHING
        newer.node.append(late)
        for number in (1, 2):
            cluster.nodes[number].membership.learn(newer)
        yield cluster


def tried(call: Callable[[], object]) -> object:
    """As a client does: NodeUnavailable is tried again."""
    for _ in range(TRIES):
        try:
            return call()
        except errors.NodeUnavailable as error:
            last = error
            time.sleep(0.05)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            last = errors.NodeUnavailable(str(error))
            time.sleep(0.05)
    raise last


def stored(cluster: LocalCluster) -> dict[str, bytes]:
    with connect(cluster.nodes[2].url) as client:
        bucket = client.bucket(BUCKET)
        return {info.name: bytes(bucket.get(info.name)) for info in bucket.objects()}


def test_what_it_is_to_copy_is_found(cluster: LocalCluster) -> None:
    cluster.put_on(2, {"x": b"handed over"})
    source = compose_pb.ComposeRange(bucket=BUCKET, name="x")
    made = pb.PutHeader(bucket=BUCKET, name="y")
    request = compose_pb.ComposeRequest(object=made, part=[compose_pb.ComposePart(range=source)])
    assert cluster.transport.compose(request).size_bytes == len(b"handed over")
    assert stored(cluster) == {"x": b"handed over", "y": b"handed over"}
    request.part[0].range.name = "never put"
    with pytest.raises(errors.ObjectNotFound):
        cluster.transport.compose(request)


@pytest.mark.parametrize("names", [["x"], ["x", "y", "never put"]], ids=["one", "many"])
def test_what_it_is_to_delete_is_deleted(cluster: LocalCluster, names: list[str]) -> None:
    cluster.put_on(2, {"x": b"1", "y": b"2", "z": b"3"})
    transport: RemoteTransport = cluster.transport
    missing = []
    if len(names) == 1:
        tried(lambda: transport.delete(BUCKET, "x"))
    else:
        left = list(names)
        for _ in range(TRIES):
            found = dict(zip(left, transport.delete_names(BUCKET, left), strict=True))
            missing += [name for name, error in found.items() if isinstance(error, errors.ObjectNotFound)]
            left = [name for name, error in found.items() if isinstance(error, errors.NodeUnavailable)]
            if not left:
                break
        assert not left
    assert missing == names[2:]
    assert stored(cluster) == {name: data for name, data in {"y": b"2", "z": b"3"}.items() if name not in names}
    with pytest.raises(errors.ObjectNotFound):
        transport.delete(BUCKET, "never put")


def test_a_write_that_was_done_and_replaced_is_not_done_once_more(cluster: LocalCluster) -> None:
    mine = pb.PutCondition(write_id=b"1" * 16)
    with Writer(cluster.nodes[2].url) as writer:
        began_s = time.monotonic()
        writer.put("x", b"W1", condition=mine)
        writer.put("x", b"W2", condition=pb.PutCondition(write_id=b"2" * 16))
    mine.repeat_ms = 1 + int((time.monotonic() - began_s) * 1000)
    with Writer(cluster.nodes[0].url) as writer:
        tried(lambda: writer.put("x", b"W1", condition=mine))
    assert stored(cluster) == {"x": b"W2"}
