"""Who assembles a batch when nobody has said so: the client, but for small batches in clusters of very many nodes, and
for batches of coded buckets."""

from __future__ import annotations

import uuid

from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.cluster.routing import DIRECT_FROM_ENTRIES_PER_OWNER, DIRECT_TO_NODES, assemblers
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.redundancy import companion_name
from tests.table import table


def members(nodes: int, *, coded: bool = False) -> Members:
    map_ = pb.ClusterMap(cluster_uuid=bytes(16), version=1)
    for number in range(1, nodes + 1):
        map_.node.add(
            uuid=uuid.UUID(int=number).bytes,
            host=f"h{number}",
            endpoint=f"127.0.0.1:{number}",
            weight=1.0,
            number=number,
        )
    bucket = map_.bucket.add(name="b", uuid=uuid.UUID(int=7).bytes, copies=1, min_copies=1)
    bucket.snapshot.add(name="then", cut=1)
    if coded:
        map_.bucket.add(name=companion_name(bucket.uuid), uuid=uuid.UUID(int=8).bytes, copies=1, coded_of=bucket.uuid)
    return Members(ClusterView(map_), ClusterOptions(retry_s=0.0))


def assembled_by_a_node(
    nodes: int, entries: int, assembly: str = "auto", *, coded: bool = False, bucket: str = "b"
) -> bool:
    several = members(nodes, coded=coded)
    request = batch_pb.BatchRequest(bucket=[bucket], name=[f"k{number}" for number in range(entries)])
    targets = assemblers(request, several, assembly, "none")
    assert sorted(targets) in ([], sorted(node.uuid for node in several.view.nodes))
    return bool(targets)


@table("entries", [1, 3, 128])
def test_the_client_does_in_a_cluster_that_it_has_sessions_for(entries: int) -> None:
    assert not assembled_by_a_node(3, entries)
    assert not assembled_by_a_node(DIRECT_TO_NODES, entries)


def test_in_a_larger_one_a_node_does_unless_there_is_enough_for_each_owner() -> None:
    nodes = DIRECT_TO_NODES + 1
    assert assembled_by_a_node(nodes, 128)
    assert not assembled_by_a_node(nodes, nodes * DIRECT_FROM_ENTRIES_PER_OWNER)
    assert not assembled_by_a_node(nodes, 1)  # one owner has all of it


def test_who_says_so_gets_it() -> None:
    assert assembled_by_a_node(3, 1000, "target")
    assert not assembled_by_a_node(DIRECT_TO_NODES + 1, 2, "direct")


def test_a_node_does_for_a_coded_bucket_and_its_snapshots_unless_one_object_is_wanted() -> None:
    for bucket in ("b", "b@then"):
        assert assembled_by_a_node(3, 2, coded=True, bucket=bucket)
        assert not assembled_by_a_node(3, 1, coded=True, bucket=bucket)
        assert not assembled_by_a_node(3, 128, "direct", coded=True, bucket=bucket)
        assert not assembled_by_a_node(3, 128, bucket=bucket)
