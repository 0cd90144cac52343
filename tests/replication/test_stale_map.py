"""A part of a batch that was planned with an older map is refused: its entries may belong to others by now."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import connect, errors
from ais_loader.testing import eventually
from ais_loader.transport.cluster.transport import RemoteTransport
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.server import NodeServer
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.node_kit import RawSession, batch_of, serving
from tests.patience import PATIENT_CLIENT
from tests.table import table

pytestmark = pytest.mark.slow

NAMES = ["a", "nope"]


def learn(node: NodeServer, version: int) -> None:
    map_ = cluster_pb.ClusterMap(cluster_uuid=bytes(16), version=version)
    map_.node.add(
        uuid=node.membership.node_uuid,
        host="h",
        endpoint=node.endpoint,
        peer_endpoint=node.peer_endpoint,
        weight=1.0,
        number=1,
    )
    map_.bucket.add(name="b", uuid=uuid.UUID(int=7).bytes, copies=1, min_copies=1)
    node.membership.learn(map_)


@table(
    ("fields", "refused"),
    [
        ({"local": True, "map_version": 2}, True),
        ({"local": True, "map_version": 3}, False),
        ({"local": True, "map_version": 4}, False),  # this node is the one that is behind
        ({"local": True}, False),
        ({"map_version": 2}, False),  # the node looks up itself who has what
    ],
)
def test_only_a_part_with_an_older_map_is_refused(tmp_path: Path, fields: dict[str, int], refused: bool) -> None:
    with serving(tmp_path) as node, RawSession(node.url) as session:
        learn(node, 3)
        frames, end = session.ask(1, batch_of(NAMES, **fields))
        if refused:
            assert (frames, end.outcome, end.error_kind) == ([], pb.End.REFUSED, "stale-map")
            assert end.message == "planned with map 2, this node has 3"
        else:
            assert (end.outcome, end.entries, end.failed_entries) == (pb.End.COMPLETE, 2, 2)
        assert session.ask(2, batch_of(NAMES, local=True, map_version=3))[1].outcome == pb.End.COMPLETE


def test_what_goes_to_a_node_that_has_not_heard_of_its_bucket_yet_is_stored_when_it_has(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path) as cluster,
        connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        assert [info.name for info in client.buckets()] == [BUCKET]
        cluster.map.bucket.add(name="new", uuid=uuid.UUID(int=8).bytes, copies=1, min_copies=1)
        cluster.map.version += 1
        view, behind = ClusterView(cluster.map), cluster.nodes[2].membership
        names = [name for at in range(100) if view.owners(view.buckets["new"], name := f"n{at}") == [2]][:6]
        for node in cluster.nodes[:2]:
            node.membership.learn(cluster.map)
        bucket = client.bucket("new")
        one = threads.submit(bucket.put, names[0], b"one")
        many = threads.submit(lambda: bucket.put_many([(name, name.encode()) for name in names[1:]]))
        transport = client._transport
        assert isinstance(transport, RemoteTransport)
        members = transport.members
        eventually(lambda: members.is_suspect(behind.node_uuid) or one.done())  # it has refused one, or asked others
        behind.learn(cluster.map)
        assert one.result(180).size_bytes == 3
        assert [info.name for info in many.result(180).infos] == names[1:]
        assert [bucket.get(name) for name in names] == [b"one", *(name.encode() for name in names[1:])]
        with pytest.raises(errors.BucketNotFound):
            client.bucket("never").put("a", b"1")
        with pytest.raises(errors.BucketNotFound):
            client.bucket("never").put_many([("a", b"1")])
