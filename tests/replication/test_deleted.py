"""A tombstone on one holder of an object says that it is gone, whoever else cannot be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader import ClusterOptions, connect, errors
from ais_loader.errors import ObjectDeleted, ObjectNotFound
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.store.buckets import ReplicaStale
from storage_node.store.format import Version
from tests.node.cluster_kit import BUCKET, LocalCluster

RETRY_S = 60.0


@pytest.mark.slow
@pytest.mark.parametrize("assembly", ["direct", "target"])
def test_what_was_deleted_while_objects_move_is_not_found_though_a_holder_is_away(
    tmp_path: Path, assembly: str
) -> None:
    with LocalCluster(tmp_path, 4, copies=2, repair_interval_s=600.0, peer_timeout_s=1.0) as cluster:
        cluster.map.node[3].state = cluster_pb.MapNode.JOINING
        cluster.learn()
        name = next(
            name
            for at in range(1000)
            if len(cluster.holders(name := f"n{at}")) == 3
            and cluster.owners(name)[0] != 0
            and 0 in cluster.holders(name)
        )
        with connect(",".join(node.url for node in cluster.nodes), options=ClusterOptions(retry_s=RETRY_S)) as client:
            bucket = client.bucket(BUCKET)
            bucket.put(name, b"there")
            bucket.delete(name)
            away = next(at for at in cluster.holders(name) if at != 0)
            cluster.nodes[away].stop(grace_s=0.2)
            with pytest.raises(errors.ObjectDeleted, match="deleted with version"):
                bucket.head(name)
            with pytest.raises(errors.ObjectNotFound):
                bucket.get(name)
            (item,) = bucket.get_batch([name], on_error="placeholder", assembly=assembly)
            assert item.status.name == "NOT_FOUND" and isinstance(item.error, errors.ObjectDeleted)


def test_a_tombstone_in_doubt_settles_nothing(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster, connect(cluster.nodes[0].url) as client:
        bucket = client.bucket(BUCKET)
        bucket.put("k", b"there")
        bucket.delete("k")
        store, uuid = cluster.batches(0).node.store, cluster.map.bucket[0].uuid
        with pytest.raises(ObjectDeleted):
            store.head(BUCKET, "k")
        store.replicas.stale.mark_names(uuid, {"k": Version(99, 1)})
        with pytest.raises(ReplicaStale):
            store.head(BUCKET, "k")
        assert cluster.ask(["k"], local=True, initial_credit_bytes=1 << 20).status == {0: pb.UNAVAILABLE}
        store.replicas.stale.trust_name(uuid, "k", Version(99, 1))
        with pytest.raises(ObjectNotFound) as caught:
            store.head(BUCKET, "never")
        assert type(caught.value) is ObjectNotFound
