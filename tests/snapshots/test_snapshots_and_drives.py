"""What snapshots of a cluster see when a node loses a drive: read from other copies, and made again from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader import Client, connect
from ais_loader.testing import eventually, seeded_bytes
from storage_node.ops import drive_commands
from storage_node.ops.ray_head import ClusterError
from tests.faults.fault_kit import take_snapshot
from tests.node.drive_kit import TIMEOUT_S, DriveCluster, drive_cluster
from tests.patience import PATIENT_CLIENT
from tests.repair.test_drive_manager import node_of, of
from tests.store.snapshot_kit import contents_at

pytestmark = pytest.mark.slow

BUCKET = "two"
OBJECTS = {f"k{at:02d}": seeded_bytes(300_000 if at == 7 else 200 + at, seed=at) for at in range(30)}


def on_node(cluster: DriveCluster, number: int) -> dict[str, bytes]:
    return {name: data for name, (_, data) in contents_at(cluster.store(number), f"{BUCKET}@s").items()}


def owned(cluster: DriveCluster, number: int) -> dict[str, bytes]:
    view = cluster.nodes[0].membership.view
    assert view is not None
    here = view.position[cluster.nodes[number].membership.node_uuid]
    return {name: data for name, data in OBJECTS.items() if here in view.owners(view.buckets[BUCKET], name)}


def read_all(client: Client) -> None:
    frozen = client.bucket(BUCKET, snapshot="s")
    assert frozen.get_batch(list(OBJECTS)).tobytes() == list(OBJECTS.values())
    assert [info.name for info in frozen.objects()] == list(OBJECTS)
    assert {name: frozen.get(name) for name in OBJECTS} == OBJECTS
    assert frozen.head("k07").size_bytes == len(OBJECTS["k07"])


def test_what_a_lost_drive_retained_is_read_from_other_copies_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive_commands, "CALL_TIMEOUT_S", 180.0)  # nodes of one busy process are silent for seconds
    with (
        drive_cluster(tmp_path, buckets={BUCKET: 2}, repair_interval_s=0.2) as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        bucket = client.bucket(BUCKET)
        bucket.put_many(OBJECTS.items())
        take_snapshot(bucket, "s")
        for name in list(OBJECTS)[:20]:
            bucket.put(name, b"now")
        for name in list(OBJECTS)[10:25]:
            bucket.delete(name)
        eventually(lambda: all(on_node(cluster, at) == owned(cluster, at) for at in range(3)), TIMEOUT_S)
        for number in range(3):
            cluster.settled(number)
        drive_commands.disable(node_of(cluster, 1), of(cluster, 1, 0))
        read_all(client)
        bucket.put("k29", b"now")
        drive_commands.forget(node_of(cluster, 1), of(cluster, 1, 0), lost=False)
        read_all(client)
        cluster.settled(1)
        eventually(lambda: on_node(cluster, 1) == owned(cluster, 1), TIMEOUT_S, interval_s=0.1)
        assert owned(cluster, 1)
        read_all(client)
        with pytest.raises(ClusterError, match="delete them before drives come or go"):
            drive_commands.add(node_of(cluster, 1), tmp_path / "another")
        bucket.delete_snapshot("s")
