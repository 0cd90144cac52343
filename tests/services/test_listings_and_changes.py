"""Listings, and what rests on them, while the cluster grows and shrinks: every name that was there all the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Bucket, connect, errors
from ais_loader.testing import eventually
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.repair import usage
from storage_node.store.summary import NameSummary
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow
NAMES = [f"n{at:04}" for at in range(400)]


@pytest.fixture(params=[1, 2], ids=["one copy", "two copies"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three nodes that have the objects, and two that are not yet in the map."""
    with LocalCluster(tmp_path, 5, copies=request.param, repair_interval_s=0.2, read_lease_s=10.0) as cluster:
        cluster.later = list(cluster.map.node[3:])  # type: ignore[attr-defined]
        del cluster.map.node[3:]
        cluster.learn()
        cluster.put({name: name.encode() for name in NAMES})
        yield cluster


@pytest.fixture
def bucket(cluster: LocalCluster) -> Iterator[Bucket]:
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        yield client.bucket(BUCKET)


def grow(cluster: LocalCluster) -> None:
    """Two nodes join, and have what is theirs; the others have it no longer."""
    for node in cluster.later:  # type: ignore[attr-defined]
        cluster.map.node.add().CopyFrom(node)
        cluster.map.node[-1].state = cluster_pb.MapNode.JOINING
    cluster.learn()
    for node in cluster.nodes:
        node.repair.wake()
    eventually(lambda: all(names_on(cluster, at) == owned_by(cluster, at) for at in range(5)))


def owned_by(cluster: LocalCluster, number: int) -> set[str]:
    return {name for name in NAMES if number in cluster.owners(name)}


def names_on(cluster: LocalCluster, number: int) -> set[str]:
    return {name for name, _ in cluster.batches(number).node.store.objects(BUCKET)}


def test_nothing_is_missing_from_a_list_while_nodes_join(cluster: LocalCluster, bucket: Bucket) -> None:
    found = bucket.client._transport.objects(BUCKET, prefix="", page_size=20)
    names = [next(found).name for _ in range(5)]
    grow(cluster)
    assert names + [info.name for info in found] == NAMES


def test_a_list_goes_on_when_a_node_is_overloaded_no_more(
    cluster: LocalCluster, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bucket.get(NAMES[0]) == NAMES[0].encode()
    page, left = NodeCalls.list_page, 4

    def overloaded(self: NodeCalls, request: pb.ListRequest, **options: Any) -> pb.ListResponse:
        nonlocal left
        if request.start_after and (left := left - 1) >= 0:
            raise errors.Overloaded("try again later")
        return page(self, request, **options)

    monkeypatch.setattr(NodeCalls, "list_page", overloaded)
    found = bucket.client._transport.objects(BUCKET, prefix="", page_size=20)
    assert [info.name for info in found] == NAMES
    assert left < 0


def test_a_client_with_an_old_map_lists_all(cluster: LocalCluster, bucket: Bucket) -> None:
    assert bucket.get(NAMES[0]) == NAMES[0].encode()
    grow(cluster)
    assert [info.name for info in bucket.objects()] == NAMES


def test_a_prefix_is_deleted_whole_by_a_client_with_an_old_map(cluster: LocalCluster, bucket: Bucket) -> None:
    assert bucket.get(NAMES[0]) == NAMES[0].encode()
    grow(cluster)
    assert bucket.delete_prefix("n").deleted == len(NAMES)
    with connect(cluster.nodes[4].url) as other:
        assert list(other.bucket(BUCKET).objects()) == []


def test_usage_counts_all_while_nodes_join(cluster: LocalCluster, bucket: Bucket) -> None:
    assert bucket.summary().objects == len(NAMES)
    grow(cluster)
    assert bucket.summary().objects == len(NAMES)


def test_usage_goes_on_by_a_newer_map_with_its_nodes(
    cluster: LocalCluster, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "PAGE_NAMES", 40)
    merge, merged = usage.merge, []

    def grows_after_the_first(parts: Sequence[usage.PageRows], tally: NameSummary) -> None:
        merge(parts, tally)
        if not merged:
            grow(cluster)
        merged.append(len(parts))

    monkeypatch.setattr(usage, "merge", grows_after_the_first)
    assert bucket.summary().objects == len(NAMES)
    assert len(merged) > 1
