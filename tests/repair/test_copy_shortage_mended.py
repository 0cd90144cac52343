"""What has fewer copies than it should is counted, and mended without waiting for a pass; full and lost drives."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Client, connect
from ais_loader.testing import SeededObjects, eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.drive_kit import drive_cluster
from tests.store.small_drive import small_drive

pytestmark = pytest.mark.slow
TIMEOUT_S = 180.0
NEVER_S = 3600.0
"""Passes of repair come at the start only."""
LARGE = 1 << 20
MANY = SeededObjects({f"k{at:02d}": (20_000 if at % 3 else LARGE, at) for at in range(24)})


def hosts_with(cluster: LocalCluster, name: str) -> set[int]:
    found = set()
    for number in range(len(cluster.nodes)):
        record = cluster.batches(number).node.store.replicas.newest(BUCKET, [name])[0]
        if record is not None and not record.is_tombstone:
            found.add(number)
    return found


def short(cluster: LocalCluster) -> int:
    return sum(node.repair.short_objects().get(BUCKET, 0) for node in cluster.nodes)


def idle(cluster: LocalCluster) -> bool:
    """Whether every node has gone through what it has by the newest map: the next pass is far away."""
    return all(node.repair.metrics.clean_version == cluster.map.version for node in cluster.nodes)


@contextmanager
def last_node_on_a_small_drive(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> Iterator[tuple[Any, LocalCluster, Client]]:
    """The drive, the cluster, which makes passes of repair at the start only, and a client of it."""
    with small_drive(folder, monkeypatch) as small:
        if small.kind != "mounted":
            pytest.skip("needs a file system of its own for one node")
        small.root.mkdir()
        (folder / f"node-{nodes - 1}").symlink_to(small.root)
        with (
            LocalCluster(folder, nodes, copies=2, repair_interval_s=NEVER_S) as cluster,
            connect(",".join(node.url for node in cluster.nodes)) as client,
        ):
            eventually(lambda: idle(cluster), TIMEOUT_S)
            yield small, cluster, client


def test_another_host_keeps_what_a_full_node_cannot_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with last_node_on_a_small_drive(tmp_path, monkeypatch, 3) as (small, cluster, client):
        small.leave(14 << 20)  # two of the reserve are left: the first objects fit, and then none
        bucket = client.bucket(BUCKET)
        for name, data in MANY.items():
            bucket.put(name, data)
        displaced = [name for name in MANY if 2 in cluster.owners(name) and 2 not in hosts_with(cluster, name)]
        assert displaced
        eventually(lambda: all(len(hosts_with(cluster, name)) == 2 for name in MANY), TIMEOUT_S)
        eventually(lambda: short(cluster) == 0, TIMEOUT_S)
        small.release()
        for node in cluster.nodes:
            node.repair.wake()
        eventually(lambda: all(hosts_with(cluster, name) == set(cluster.owners(name)) for name in MANY), TIMEOUT_S)


def test_objects_with_too_few_copies_are_counted_while_nobody_can_take_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with last_node_on_a_small_drive(tmp_path, monkeypatch, 2) as (small, cluster, client):
        small.leave(1 << 20)
        bucket = client.bucket(BUCKET)
        for name, data in MANY.items():
            bucket.put(name, data)
        eventually(lambda: short(cluster) == len(MANY), TIMEOUT_S)
        progress = cluster.nodes[0].repair.progress()
        assert progress.short_objects == {BUCKET: len(MANY)}
        assert progress.short_writes + cluster.nodes[1].repair.metrics.short_writes >= len(MANY)
        small.release()
        eventually(lambda: all(len(hosts_with(cluster, name)) == 2 for name in MANY), TIMEOUT_S)
        eventually(lambda: short(cluster) == 0, TIMEOUT_S)


def test_a_drive_whose_folder_is_removed_is_missing_at_once_and_its_objects_are_copied_elsewhere(
    tmp_path: Path,
) -> None:
    with (  # a pass finds what a busy node was not told of: `left_short` gives up then
        drive_cluster(tmp_path, buckets={BUCKET: 2}, drive_grace_s=NEVER_S, repair_interval_s=10.0) as cluster,
        connect(cluster.url) as client,
    ):
        bucket = client.bucket(BUCKET)
        before = dict(list(MANY.items())[:12])
        for name, data in before.items():
            bucket.put(name, data)
        cluster.copied(BUCKET, set(before))
        shutil.rmtree(cluster.folder(2, 0))
        eventually(lambda: sorted(cluster.states(2)) == ["ACTIVE", "MISSING"], TIMEOUT_S)
        assert "gone" in next(one.problem for one in cluster.report(2).drive if one.state == pb.DriveCondition.MISSING)
        for name in list(MANY)[12:]:
            bucket.put(name, MANY[name])

        def copies(name: str) -> int:
            found = 0
            for number in range(3):
                for drive in cluster.store(number).drives:
                    if drive is not None:
                        uuid = cluster.store(number).bucket(BUCKET).uuid_bytes
                        found += drive.newest(uuid, [name])[0] is not None
            return found

        eventually(lambda: all(copies(name) == 2 for name in MANY), TIMEOUT_S)
        assert {name: bucket.get(name) for name in MANY} == MANY
