"""Read leases where a new map brings them, or ends them: nobody reads by it without what it asks for."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.map import sync
from storage_node.cluster.replication import invalidation
from tests.node.cluster_kit import LocalCluster
from tests.node.write_kit import DOUBT, Writer, name_with, said
from tests.replication.test_read_leases import Cuts, Reading, cuts

OLD, NEW = b"old", b"new"
LEASE_S = 0.3
TIMEOUT_S = 180.0
__all__ = ["cuts"]


def _learn_alone(cluster: LocalCluster, number: int) -> None:
    cluster.map.version += 1
    known = cluster_pb.ClusterMap()
    known.CopyFrom(cluster.map)
    cluster.nodes[number].membership.learn(known)


def _refuse(view: ClusterView) -> None:
    raise ValueError("this node is to go on with the map that it has")


@pytest.mark.slow
def test_a_node_that_holds_a_lease_learns_of_a_newer_map_by_its_renewals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "BACKOFF", Backoff(3600.0, 3600.0))
    with LocalCluster(tmp_path, 3, read_lease_s=LEASE_S) as cluster:
        _learn_alone(cluster, 1)
        for number in (0, 2):
            eventually(lambda node=cluster.nodes[number]: node.membership.map_version == cluster.map.version, TIMEOUT_S)


def test_a_node_reads_nothing_without_a_lease_from_the_map_on_that_has_leases(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2, read_lease_s=LEASE_S) as cluster:
        cluster.put({"a": OLD})
        eventually(lambda: said(cluster, 0, "a") == OLD)
        for number in (2, 3):  # nobody is there who would grant one
            cluster.map.node.add(
                uuid=uuid.uuid4().bytes,
                host=f"host-{number}",
                endpoint=f"127.0.0.1:{number}",
                peer_endpoint=f"127.0.0.1:{number + 10}",
                weight=1.0,
                number=number + 1,
            )
        _learn_alone(cluster, 0)
        assert said(cluster, 0, "a") == DOUBT


@pytest.mark.slow
def test_a_bucket_that_gets_a_second_copy_is_read_under_a_lease_from_that_map_on(tmp_path: Path, cuts: Cuts) -> None:
    with LocalCluster(tmp_path, 3, copies=1, read_lease_s=LEASE_S) as cluster:
        name = name_with(cluster, lambda owners: owners == [1])
        cluster.put({name: OLD})
        stale = cluster.batches(1).node.store.replicas.stale
        eventually(lambda: stale._until_s > float("-inf"))
        cuts.cut(cluster, [1], [0, 2])
        eventually(lambda: stale.any)
        assert said(cluster, 1, name) == OLD, "of one copy nobody else can have a newer one"
        bucket = cluster.map.bucket[0]
        bucket.former_copies[:] = [bucket.copies]
        bucket.copies = 2
        _learn_alone(cluster, 1)
        assert said(cluster, 1, name) == DOUBT


@pytest.mark.slow
def test_a_write_waits_for_the_lease_that_a_node_has_by_the_map_before_which_had_leases(
    tmp_path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invalidation, "REACH_TIMEOUT_S", 0.1)
    config = {"reach_timeout_s": 0.3, "repair_interval_s": 600.0, "read_lease_s": 1.5}
    with LocalCluster(tmp_path, 3, copies=2, **config) as cluster, Writer(cluster.nodes[0].url) as writer:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        writer.put(name, OLD)
        eventually(lambda: said(cluster, 1, name) == OLD, TIMEOUT_S)
        with Reading(cluster, 1, name) as reading:
            cuts.cut(cluster, [0], [1])
            cuts.cut(cluster, [1], [0, 2])
            cluster.nodes[1].membership.on_change(_refuse)
            del cluster.map.node[2]
            _learn_alone(cluster, 0)
            writer.put(name, NEW)
            acknowledged_s = time.monotonic()
            eventually(lambda: reading.since(acknowledged_s + 0.5), TIMEOUT_S)
        assert reading.since(acknowledged_s) == {DOUBT}
