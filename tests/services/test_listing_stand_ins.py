"""Lists beside copies on nodes that do not own them: a node that stood in for an owner hears of no later writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Bucket, ClusterOptions, connect
from ais_loader.errors import NodeUnavailable
from ais_loader.objects.bucket import one_level
from ais_loader.testing import eventually
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.listings import name_of_item
from ais_loader.wire.generated.ais_objects_pb2 import ListRequest
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication.replicas import Replicas
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.errors import ReplicaLost
from storage_node.store.format import Version
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import cluster_of, copies_of
from tests.patience import PATIENT_CLIENT
from tests.replication.test_full_copies import FullDrives

pytestmark = pytest.mark.slow

NAMES = [f"{at:02d}" for at in range(30)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Its nodes keep what does not belong to them: repair has not come past it yet."""

    async def keep(*_: object) -> None: ...

    monkeypatch.setattr(Repair, "_take_away", keep)
    with cluster_of(tmp_path, 3, copies=2) as running:
        yield running


def put_everywhere(cluster: LocalCluster) -> None:
    versions = {name: Version(1, 1000 + at) for at, name in enumerate(NAMES)}
    for number in range(3):
        cluster.put_on(number, {name: name.encode() for name in NAMES}, versions)


def test_what_was_deleted_is_not_listed_though_a_node_that_stood_in_still_has_it(cluster: LocalCluster) -> None:
    put_everywhere(cluster)
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket(BUCKET)
        bucket.delete_many(NAMES[:20])
        bucket.delete(NAMES[20])
        for page_size in (3, 1000):
            assert [info.name for info in bucket.objects(page_size=page_size)] == NAMES[21:]
        assert list(bucket) == list(map(name_of_item, one_level(bucket))) == NAMES[21:]
        assert [info.name for info in bucket.objects("1")] == []
        assert bucket.delete_prefix("0").deleted == 0
        bucket.put(NAMES[0], b"again")
        assert [(info.name, info.size_bytes) for info in bucket.objects("0")] == [(NAMES[0], 5)]


def test_a_folder_whose_objects_were_deleted_is_not_listed(cluster: LocalCluster) -> None:
    names = [f"{folder}/{at:02d}" for folder in ("gone", "left") for at in range(20)]
    versions = {name: Version(1, 1000 + at) for at, name in enumerate(names)}
    for number in range(3):
        cluster.put_on(number, {name: name.encode() for name in names}, versions)
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket(BUCKET)
        bucket.delete_many([*names[:20], *names[20:39]])
        for page_size in (1, 3, 1000):
            assert list(one_level(bucket, page_size=page_size)) == ["left/"]


def test_what_only_a_node_that_stood_in_has_is_listed(cluster: LocalCluster) -> None:
    """All its owners were away when it was put; what they know is that an earlier one was deleted."""
    stood_in = {name: ({0, 1, 2} - set(cluster.owners(name))).pop() for name in NAMES}
    for name, number in stood_in.items():
        cluster.put_on(number, {name: name.encode()}, {name: Version(2, 5000)})
        for owner in cluster.owners(name):
            cluster.batches(owner).node.store.delete(BUCKET, name, Version(1, 10), keep_tombstone=True)
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        # A node that has no lease yet counts as one that is away, and of what only it has nobody else knows.
        eventually(lambda: [info.name for info in client.bucket(BUCKET).objects()] == NAMES)
        assert list(client.bucket(BUCKET)) == NAMES
        cluster.nodes[1].stop(grace_s=0.0)
        left = [name for name in NAMES if stood_in[name] != 1]
        assert [info.name for info in client.bucket(BUCKET).objects()] == list(client.bucket(BUCKET)) == left


def test_a_node_that_reaches_no_owner_does_not_list_what_it_stood_in_for(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been deleted. As long as the node cannot tell it counts as one that does not answer."""
    put_everywhere(cluster)
    name = next(name for name in NAMES if 2 not in cluster.owners(name))
    newest = Replicas.newest

    async def cut_off(self: Replicas, replica_set: ReplicaSet, node: int, *rest: Any, **how: Any) -> Any:
        if replica_set.position == 2 and node != 2:
            raise ReplicaLost(f"{node} is cut off")
        return await newest(self, replica_set, node, *rest, **how)

    monkeypatch.setattr(Replicas, "newest", cut_off)
    alone = NodeCalls(cluster.nodes[2].url, ClusterOptions(retry_s=0.0))

    def said(**how: Any) -> str:
        """Another reason may be that the node has no lease for a moment."""
        with pytest.raises(NodeUnavailable) as caught:
            alone.list_page(ListRequest(bucket=BUCKET, prefix=name, **how), has_others=False)
        return str(caught.value)

    eventually(lambda: "no owner says whether" in said(page_size=10))
    eventually(lambda: "no owner says whether" in said(names_only=True))
    alone.close()
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        assert [info.name for info in client.bucket(BUCKET).objects()] == NAMES  # there are others who have all
        assert list(client.bucket(BUCKET)) == NAMES


def test_a_copy_of_a_stand_in_is_not_listed_when_the_owner_of_a_newer_one_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = FullDrives(tmp_path, monkeypatch)
    with (
        cluster_of(
            tmp_path, 3, copies=2, linked=True, clients_linked=True, repair_interval_s=3600.0, reach_timeout_s=3.0
        ) as cluster,
        connect(",".join(link.url for link in cluster.client_links), options=PATIENT_CLIENT) as client,
        connect(client.url, options=ClusterOptions(retry_s=1.0)) as impatient,
    ):
        bucket = client.bucket(BUCKET)
        first, second = cluster.owners("a")
        (other,) = {0, 1, 2} - {first, second}
        full.nodes, full.refused = {second}, 1
        bucket.put("a", b"old")
        assert {number: data for number, (_, data) in copies_of(cluster, "a").items()} == {first: b"old", other: b"old"}
        full.nodes = {second, other}
        bucket.put("a", b"newer")
        assert {number: data for number, (_, data) in copies_of(cluster, "a").items()} == {
            first: b"newer",
            other: b"old",
        }
        eventually(lambda: _sizes(bucket) == {"a": len(b"newer")})
        impatient.bucket(BUCKET).get("a")  # it knows the map
        links = cluster.links[first], cluster.client_links[first]
        for link in links:
            link.stall()
        try:
            for listing in (_sizes, list):
                with pytest.raises(NodeUnavailable, match="in doubt"):
                    listing(impatient.bucket(BUCKET))
        finally:
            for link in links:
                link.flow()
        eventually(lambda: _sizes(bucket) == {"a": len(b"newer")})


def _sizes(bucket: Bucket) -> dict[str, int]:
    return {info.name: info.size_bytes for info in bucket.objects()}
