"""Deletion of a bucket that should be empty, while its objects move: no object is deleted without `force`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect, errors
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.map import buckets
from storage_node.cluster.map.buckets import ClusterBuckets
from storage_node.store.format import Version
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow


def joined(cluster: LocalCluster, node: cluster_pb.MapNode, state: cluster_pb.MapNode.State) -> None:
    cluster.map.node.add().CopyFrom(node)
    cluster.map.node[-1].state = state
    cluster.learn()


def name_of(cluster: LocalCluster, number: int) -> str:
    """Return a name whose only owner is this node."""
    return next(name for name in map(str, range(1000)) if cluster.owners(name) == [number])


def test_a_node_that_knows_an_older_map_asks_those_that_joined(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=1) as cluster:
        last, before = cluster.map.node.pop(), cluster.map.version
        cluster.learn()
        old = cluster.view
        joined(cluster, last, cluster_pb.MapNode.ACTIVE)
        node, name = cluster.batches(0).node, name_of(cluster, 2)
        cluster_buckets = ClusterBuckets(node.membership, node.caller)
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            client.bucket(BUCKET).put(name, b"1")
            assert old.version == before + 1
            with pytest.raises(errors.BucketNotEmpty):
                asyncio.run(cluster_buckets.delete(old, BUCKET, force=False))
            assert bytes(client.bucket(BUCKET).get(name)) == b"1"
            assert asyncio.run(cluster_buckets.delete(old, BUCKET, force=True)) == 1
            with pytest.raises(errors.BucketNotFound):
                client.bucket(BUCKET).info()


def test_an_object_that_moves_between_two_answers_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(tmp_path, 3, copies=1, repair_interval_s=3600.0) as cluster:
        last = cluster.map.node.pop()
        cluster.learn()
        joined(cluster, last, cluster_pb.MapNode.JOINING)
        name = name_of(cluster, 2)
        del cluster.map.node[2:]
        cluster.learn()
        cluster.put({name: b"1"})
        joined(cluster, last, cluster_pb.MapNode.JOINING)
        node, listed = cluster.batches(0).node, buckets._Listing._page
        has_answered = asyncio.Event()

        async def last_first(self: Any, endpoint: str, *arguments: Any) -> Any:
            if endpoint == last.peer_endpoint:
                page = await listed(self, endpoint, *arguments)
                has_answered.set()
                return page
            await has_answered.wait()

            def moved() -> bool:
                for one in cluster.nodes:
                    one.repair.wake()
                places = [any(True for _ in cluster.batches(at).node.store.objects(BUCKET)) for at in range(3)]
                return places == [False, False, True]

            await asyncio.to_thread(eventually, moved, 180, interval_s=0.1)
            return await listed(self, endpoint, *arguments)

        monkeypatch.setattr(buckets._Listing, "_page", last_first)
        cluster_buckets = ClusterBuckets(node.membership, node.caller)
        with pytest.raises(errors.BucketNotEmpty):
            asyncio.run(cluster_buckets.delete(cluster.view, BUCKET, force=False))


def test_an_object_that_is_being_replaced_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(tmp_path, 3, copies=2, repair_interval_s=3600.0) as cluster:
        cluster.put({"a": b"1"})
        bucket_uuid, listed = cluster.map.bucket[0].uuid, buckets._Listing._page

        async def announced(self: Any, *arguments: Any) -> Any:
            for at in range(3):  # each owner knows of a version that is not here yet
                stale = cluster.batches(at).node.store.replicas.stale
                stale.mark_names(bucket_uuid, {"a": Version(1, 2**61, 1)})
            return await listed(self, *arguments)

        monkeypatch.setattr(buckets._Listing, "_page", announced)
        node = cluster.batches(0).node
        cluster_buckets = ClusterBuckets(node.membership, node.caller)
        with pytest.raises(errors.NodeUnavailable, match="no node is sure of 'a' yet"):
            asyncio.run(cluster_buckets.delete(cluster.view, BUCKET, force=False))
