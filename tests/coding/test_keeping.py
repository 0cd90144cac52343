"""Fragments that a keeper writes again, in groups that tests have made."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.testing import eventually
from tests.coding.coded_kit import CodedCluster
from tests.node.cluster_kit import BUCKET

pytestmark = pytest.mark.slow

DRAW = random.Random(3)
OBJECTS = {f"s/{number:02}": DRAW.randbytes(20_000) for number in range(20)}


def has(cluster: CodedCluster, number: int, fragment: str) -> bool:
    [entry] = cluster.store(number).replicas.newest(cluster.companion, [fragment])
    return entry is not None and entry.has_file


def test_a_group_that_only_a_snapshot_sees_gets_its_lost_fragments_again(tmp_path: Path) -> None:
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)
        cut = max(cluster.store(number).replicas.clock for number in range(6)) + 1
        cluster.map.bucket[0].snapshot.add(name="s", cut=cut)
        cluster.learn()
        cluster.await_compared()
        with connect(cluster.nodes[0].url) as client:
            client.bucket(BUCKET).put_many((name, b"new") for name in OBJECTS)
            looked_s = time.monotonic() + 4.0
            eventually(lambda: time.monotonic() > looked_s)  # its owners have been asked, and none has it
            lost = manifest.fragments[1]
            cluster.store(cluster.holder(lost)).delete(cluster.companion, lost)
            eventually(lambda: has(cluster, cluster.holder(lost), lost))
            pinned = client.bucket(f"{BUCKET}@s")
            assert [item.tobytes() for item in pinned.get_batch(list(OBJECTS))] == list(OBJECTS.values())
