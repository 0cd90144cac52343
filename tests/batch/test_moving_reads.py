"""An object that moves between two questions is found: at its owner, when it is no longer where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader import Bucket, connect
from ais_loader.errors import ObjectNotFound
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.gather.replica_choice import NodeLoads
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.batch.gather.routing import ReplicaRouting
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT

WAYS: dict[str, Callable[[Bucket, str], bytes]] = {
    "get": lambda bucket, name: bucket.get(name),
    "head": lambda bucket, name: b"x" * bucket.head(name).size_bytes,
    "direct": lambda bucket, name: next(iter(bucket.get_batch([name], assembly="direct"))).tobytes(),
    "target": lambda bucket, name: next(iter(bucket.get_batch([name], assembly="target"))).tobytes(),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_object_that_moves_between_two_questions_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with LocalCluster(tmp_path, 4, copies=1, linked=True, repair_interval_s=600.0) as cluster:
        cluster.links[3].refuse()  # so that nobody finishes the change
        cluster.map.node[2].state = cluster_pb.MapNode.JOINING
        cluster.learn()
        moved: list[str] = []
        owner = cluster.batches(2).node.store
        said = owner.replicas.missing

        def move(bucket: str, bucket_uuid: bytes, name: str) -> ObjectNotFound:
            """It has not come yet, and comes while the answer is on its way."""
            error = said(bucket, bucket_uuid, name)
            before = cluster.holders(name)[1]
            if not moved:
                moved.append(name)
                cluster.put_on(2, {name: name.encode()})
                cluster.batches(before).node.store.delete(BUCKET, name)
            return error

        monkeypatch.setattr(owner.replicas, "missing", move)
        names = [
            name
            for at in range(1000)
            if len(cluster.holders(name := f"n{at}")) == 2
            and cluster.owners(name) == [2]
            and cluster.holders(name)[1] != 3
        ]
        with connect(",".join(node.url for node in cluster.nodes[:3]), options=PATIENT_CLIENT) as client:
            for name in names[:50]:  # a node may have moved the object itself before it is asked for
                cluster.put_on(cluster.holders(name)[1], {name: name.encode()})
                found = WAYS[way](client.bucket(BUCKET), name)
                assert found == (name.encode() if way != "head" else b"x" * len(name))
                if moved:
                    break
        assert moved


def test_owners_are_asked_again_when_all_have_been_also_a_holder_that_is_thought_to_fail() -> None:
    """It is asked last, and what it lets go of meanwhile is with an owner that was asked before."""
    map_ = cluster_pb.ClusterMap(cluster_uuid=bytes(16), version=1)
    for number in range(2):
        state = cluster_pb.MapNode.LEAVING if number else cluster_pb.MapNode.ACTIVE
        where = f"e{number}"
        map_.node.add(
            uuid=bytes([number]) * 16, host=where, endpoint=where, peer_endpoint=where, weight=1.0, state=state
        )
    map_.bucket.add(name=BUCKET, uuid=bytes(16), copies=1, min_copies=1)
    view = ClusterView(map_)
    names = [f"n{at}" for at in range(50)]
    moved = [at for at, name in enumerate(names) if len(view.holders(view.buckets[BUCKET], [name])[0]) == 2]
    assert moved
    request = pb.BatchRequest(bucket=[BUCKET], name=names)
    for failing in ("", "e0", "e1"):
        routing = ReplicaRouting(view, b"elsewhere", request, failing.__eq__, NodeLoads())
        asked = [1, 0] if failing == "e0" else [0, 1]
        assert [routing.left[at] for at in moved] == [[*asked, 0]] * len(moved)
