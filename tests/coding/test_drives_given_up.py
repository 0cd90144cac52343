"""Drives with fragments that are given up: one node after the other, and never while a group still needs them."""

from __future__ import annotations

import random
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.coding.fragments import FragmentWriter
from storage_node.context.channels import OPERATOR
from storage_node.context.errors import ReplicaLost
from storage_node.ops import drive_commands
from tests.coding.coded_cluster import CodedCluster, coded_cluster

pytestmark = pytest.mark.slow

DRAW = random.Random(11)
OBJECTS = {f"s/{at:03}": DRAW.randbytes(10_000) for at in range(240)} | {"large": DRAW.randbytes(900_001)}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator gives up on a node after three seconds, for which nodes of one busy process may be silent."""
    monkeypatch.setattr(drive_commands, "CALL_TIMEOUT_S", 180.0)


def report(cluster: CodedCluster, number: int) -> pb.ListDrivesResponse:
    return drive_commands.drives_at(cluster.nodes[number].endpoint, OPERATOR)


def drives(cluster: CodedCluster, number: int) -> list[pb.DriveCondition]:
    return list(report(cluster, number).drive)


def lose(root: Path, cluster: CodedCluster, number: int) -> Path:
    """Take a drive with fragments away from a node; return where it was."""
    store = cluster.stores[number]
    companion = store.bucket(cluster.companion).uuid_bytes
    drive = next(drive for drive in store.drives if drive is not None and any(drive.scan(companion, "", "")))
    shutil.move(drive.root, root / f"lost-{number}")
    return drive.root


def test_a_drive_is_not_given_up_while_groups_lack_fragments_of_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"drive_grace_s": 1.0, "coding_grace_s": 3600.0}
    with coded_cluster(tmp_path, nodes=3, redundancy="rs:2+1", drives=2, **settings) as cluster:
        cluster.bucket.put_many(OBJECTS.items())
        eventually(lambda: cluster.files_bytes(OBJECTS) < 3 * 2 * (64 << 10))

        async def fails(*_: Any, **__: Any) -> None:
            raise ReplicaLost("no node takes a fragment")

        with monkeypatch.context() as patch:
            patch.setattr(FragmentWriter, "write", fails)
            lose(tmp_path, cluster, 1)
            eventually(lambda: len(drives(cluster, 1)) == 1)  # given up: groups can be read without it
            cluster.check(OBJECTS)
            eventually(lambda: not report(cluster, 1).refilling)  # it has its entries again
            place = lose(tmp_path, cluster, 2)
            reason = re.compile("lack fragments of|fewer fragments")
            eventually(lambda: any(reason.search(one.kept_because) for one in drives(cluster, 2)))
            looked_s = time.monotonic() + 12.0  # long enough for another look of its node at whether it is needed
            eventually(lambda: time.monotonic() > looked_s)
            assert len(drives(cluster, 2)) == 2
            shutil.move(tmp_path / "lost-2", place)
            eventually(lambda: all(one.state == pb.DriveCondition.ACTIVE for one in drives(cluster, 2)))
        eventually(cluster.is_spread)
        cluster.check(OBJECTS)
        lose(tmp_path, cluster, 2)
        eventually(lambda: len(drives(cluster, 2)) == 1)
        cluster.check(OBJECTS)
        eventually(cluster.is_spread)
        cluster.nodes[1].stop()
        cluster.check(OBJECTS)
