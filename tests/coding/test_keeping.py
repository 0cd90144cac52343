"""Fragments that a keeper writes again, in groups that tests have made."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect
from ais_loader.testing import eventually
from ais_loader.wire.cluster_map import ClusterView
from storage_node.cluster.coding import keeper
from storage_node.cluster.coding.fragments import FragmentWriter
from storage_node.cluster.coding.group import Manifest
from storage_node.cluster.coding.keeper import Keeper
from storage_node.store.names import CODED_PREFIX
from tests.coding.coded_kit import CodedCluster, SettableClock
from tests.node.cluster_kit import BUCKET
from tests.patience import PATIENT_CLIENT

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
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            client.bucket(BUCKET).put_many((name, b"new") for name in OBJECTS)
            looked_s = time.monotonic() + 4.0
            eventually(lambda: time.monotonic() > looked_s)  # its owners have been asked, and none has it
            lost = manifest.fragments[1]
            cluster.store(cluster.holder(lost)).delete(cluster.companion, lost)
            eventually(lambda: has(cluster, cluster.holder(lost), lost))
            pinned = client.bucket(f"{BUCKET}@s")
            assert [item.tobytes() for item in pinned.get_batch(list(OBJECTS))] == list(OBJECTS.values())


def test_the_last_copy_of_an_object_whose_group_cannot_be_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, passes, pass_ = threading.Event(), Counter[Keeper](), Keeper.pass_

    async def counted(self: Keeper, view: ClusterView) -> bool:
        is_counted = begun.is_set()
        clean = await pass_(self, view) if is_counted else True
        passes[self] += is_counted
        return clean

    monkeypatch.setattr(Keeper, "pass_", counted)
    with CodedCluster(tmp_path, coding_grace_s=3600.0, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)
        kept = manifest.slots[0]
        owners = cluster.owners(kept.name)
        cluster.put_on(owners[1], {kept.name: OBJECTS[kept.name]}, {kept.name: kept.version})
        assert [cluster.entry(number, kept.name).has_file for number in owners] == [False, True, False]
        for fragment in manifest.fragments[:3]:
            cluster.store(cluster.holder(fragment)).delete(cluster.companion, fragment)
        begun.set()  # each keeper asks owners in its first pass
        eventually(lambda: len(passes) == 6 and min(passes.values()) >= 2)
        assert [cluster.entry(number, kept.name).has_file for number in owners] == [False, True, False]
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            assert client.bucket(BUCKET).get(kept.name) == OBJECTS[kept.name]


def test_a_group_of_a_time_to_come_is_looked_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of its coder was ahead by a year, or that of its keeper has been set back since."""
    monkeypatch.setattr(keeper, "created_ns", lambda _: time.time_ns() + 365 * 24 * 3600 * 10**9)
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)
        slot = manifest.slots[0]
        [owner, *_] = cluster.owners(slot.name)
        cluster.put_on(owner, {slot.name: OBJECTS[slot.name]}, {slot.name: slot.version})
        eventually(lambda: cluster.entry(owner, slot.name).is_coded)


def test_fragments_that_take_longer_to_write_than_they_stay_unnamed_take_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace_s, clock, write = 3600.0, SettableClock(keeper, monkeypatch), FragmentWriter.write

    async def slowly(self: FragmentWriter, *of: Any, **more: Any) -> None:
        clock.passed_s += grace_s
        await write(self, *of, **more)

    monkeypatch.setattr(FragmentWriter, "write", slowly)
    with CodedCluster(tmp_path, nodes=8, coding_grace_s=grace_s, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)
        for first, second in ((0, 1), (2, 3)):  # some fragments are on one host, by any seed
            cluster.map.node[second].host = cluster.map.node[first].host
        cluster.learn()
        cluster.await_compared()

        def named() -> tuple[str, ...]:
            name = CODED_PREFIX + manifest.group.hex()
            return Manifest.decode(cluster.bytes_in(BUCKET, name, cluster.owners(name)[0])).fragments

        def hosts(names: Iterable[str]) -> set[str]:
            return {cluster.view.nodes[cluster.holder(name)].host for name in names}

        assert len(hosts(manifest.fragments)) < 6
        eventually(lambda: len(hosts(named())) == 6)
        eventually(lambda: all(has(cluster, cluster.holder(name), name) for name in named()))
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            found = client.bucket(BUCKET).get_batch(list(OBJECTS))
            assert [item.tobytes() for item in found] == list(OBJECTS.values())
