"""Takedowns in coded buckets: a denied object is refused at once, and its bytes leave the fragments of its group."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Entry, Status, connect, errors
from ais_loader.errors import LoaderError
from ais_loader.testing import eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from storage_node.batch import coded_entries
from storage_node.batch.gather.fragments import GatheredFragments
from storage_node.cluster.coding import coded_objects, fragments, keeper
from storage_node.cluster.coding.group_reader import GroupReader, Wanted
from storage_node.cluster.coding.keeper import Keeper
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.errors import TooFewCopies
from storage_node.ops import status
from storage_node.store.drive import ended_versions
from storage_node.store.format import CatalogEntry
from tests.changing_folder import files_below
from tests.coding.coded_kit import CodedCluster, SettableClock
from tests.faults.fault_kit import take_snapshot
from tests.node.cluster_kit import BUCKET
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow

DRAW = random.Random(7)
OBJECTS = {f"s/{number:02}": DRAW.randbytes(40_000) for number in range(20)}


def files_with(folder: Path, data: bytes) -> list[str]:
    """Files with a piece of an object: fragments cut it."""
    found = list[str]()
    for path, _ in files_below(folder):
        with suppress(FileNotFoundError):  # removed meanwhile
            if data[1000:1400] in path.read_bytes():
                found.append(str(path))
    return found


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_bytes_of_denied_objects_leave_their_group_and_the_others_stay(
    tmp_path: Path, snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments, "WINDOW_BYTES", 4096)  # objects end in one window, and others begin in the next
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            bucket, denied = client.bucket(BUCKET), ["s/03", "s/11"]
            if snapshot:
                take_snapshot(bucket, "kept")
            assert all(files_with(tmp_path, OBJECTS[name]) for name in denied)
            found = bucket.deny(denied, reason="order")
            assert {copy.kind for one in found.names for copy in one.copies} == {"fragments"}
            others = {name: data for name, data in OBJECTS.items() if name not in denied}

            def check() -> None:
                for of in [BUCKET, f"{BUCKET}@kept"] if snapshot else [BUCKET]:
                    items = list(client.bucket(of).get_batch(list(OBJECTS), on_error="placeholder"))
                    for item in items:
                        if item.entry.name in denied:
                            assert item.status == Status.OBJECT_DENIED
                        else:
                            assert bytes(item.data) == OBJECTS[item.entry.name]

            check()
            with pytest.raises(errors.ObjectDenied):
                bucket.get("s/03")
            eventually(lambda: not any(files_with(tmp_path, OBJECTS[name]) for name in denied))
            eventually(lambda: bucket.denied().is_purged)
            check()
            entry = cluster.entry(cluster.owners("s/04")[0], "s/04")
            assert entry.group == manifest.group  # nothing was moved
            # The parity is that of what is left: no node asks for the first two fragments.
            monkeypatch.setattr(
                GatheredFragments,
                "failing",
                lambda _, bucket, names: {one for one in names if one[32:35] in ("/0/", "/1/")},
            )
            assert [bytes(item.data) for item in bucket.get_batch(list(others))] == list(others.values())


def test_lost_fragments_are_written_again_while_denied_bytes_cannot_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    async def wipe(*of: object) -> bool:
        tried.append(of)
        raise TooFewCopies("no host is left")

    monkeypatch.setattr(Keeper, "_wipe", wipe)
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            client.bucket(BUCKET).deny(["s/03"], reason="order")
        eventually(lambda: bool(tried))
        lost = manifest.fragments[1]
        store = cluster.store(cluster.holder(lost))
        store.delete(cluster.companion, lost)
        eventually(lambda: [one.has_file for one in store.replicas.newest(cluster.companion, [lost]) if one] == [True])


def test_denied_bytes_that_cannot_leave_are_told_and_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grace_s, clock, tried, passes = 3600.0, SettableClock(keeper, monkeypatch), list[Keeper](), Counter[Keeper]()
    pass_, wipe, is_possible = Keeper.pass_, Keeper._wipe, list[bool]()

    async def counted(self: Keeper, view: ClusterView) -> bool:
        done = await pass_(self, view)
        passes[self] += 1
        return done

    async def failing(self: Keeper, *of: Any) -> bool:
        tried.append(self)
        if is_possible:
            return await wipe(self, *of)
        raise TooFewCopies("no host is left")

    def await_passes() -> int:
        """Let the keeper of the group look at it a few times; return how often it has tried."""
        before = passes[tried[0]]
        eventually(lambda: passes[tried[0]] >= before + 4)
        return len(tried)

    monkeypatch.setattr(Keeper, "pass_", counted)
    monkeypatch.setattr(Keeper, "_wipe", failing)
    with CodedCluster(tmp_path, coding_grace_s=grace_s, repair_interval_s=0.5) as cluster:
        cluster.put_coded(OBJECTS)
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            client.bucket(BUCKET).deny(["s/03"], reason="order")
            clock.passed_s += grace_s / 8
            eventually(lambda: bool(tried))
            count = await_passes()
            assert await_passes() == count
            clock.passed_s += grace_s / 8
            assert await_passes() == count + 1
            denied = tried[0]._metrics.denied
            assert denied == {BUCKET: "no host is left"}
            progress = replica_pb.ProgressResponse(coding=replica_pb.CodingProgress(denied=denied))
            assert status._shortages(progress) == ["'b' still has denied bytes: no host is left"]
            assert len([one for one in caplog.messages if "keeps denied bytes" in one]) == 1
            is_possible.append(True)
            clock.passed_s += grace_s / 8
            eventually(lambda: client.bucket(BUCKET).denied().is_purged)
            clock.passed_s += grace_s / 8
            eventually(lambda: not tried[0]._metrics.denied)


def test_denied_bytes_leave_a_group_with_fewer_hosts_than_fragments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_versions, "GRACE_S", 3600.0)  # files of what is only deleted stay
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        cluster.put_coded(OBJECTS)
        cluster.map.node[5].host = cluster.map.node[0].host
        cluster.learn()
        cluster.await_compared()
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            bucket, denied = client.bucket(BUCKET), ["s/03", "s/11"]
            bucket.deny(denied, reason="order")
            eventually(lambda: bucket.denied().is_purged)
            eventually(lambda: not any(files_with(tmp_path, OBJECTS[name]) for name in denied))
            others = [name for name in OBJECTS if name not in denied]
            assert [bytes(item.data) for item in bucket.get_batch(others)] == [OBJECTS[name] for name in others]


LARGE = {f"l/{number}": DRAW.randbytes(600_000) for number in range(4)}
BESIDE = {f"{name}/{number}": DRAW.randbytes(20_000) for name in LARGE for number in range(2)}


@pytest.mark.parametrize("knows", [False, True])
def test_a_reader_that_is_under_way_gets_no_zeros_for_bytes_that_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """The object is denied when its place has been looked up, and so are others in its fragments, one after another.
    `knows`: the reader has the manifest from before."""
    for module in (coded_objects, coded_entries):
        monkeypatch.setattr(module, "WINDOW_BYTES", 200_000)
    read, denying = GroupReader.read, list[str]()
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        cluster.put_coded({name: (LARGE | BESIDE)[name] for name in sorted(LARGE | BESIDE)})
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            bucket = client.bucket(BUCKET)

            def deny(name: str) -> None:
                for one in (name, *(one for one in BESIDE if one.startswith(f"{name}/"))):
                    bucket.deny([one], reason="order")
                    eventually(lambda: bucket.denied().is_purged)

            async def late(self: GroupReader, of: Any, wanted: Any, **more: Any) -> Any:
                if denying:
                    await asyncio.to_thread(deny, denying.pop())
                    if not knows:
                        self.forget([one.group for one in wanted])
                return await read(self, of, wanted, **more)

            monkeypatch.setattr(GroupReader, "read", late)
            assert [item.tobytes() for item in bucket.get_batch(list(LARGE))] == list(LARGE.values())
            entries = [Entry(BUCKET, name, start=300_000, length=40_000) for name in LARGE]
            denying.append("l/1")
            items = list(client.get_batch(entries, on_error="placeholder"))
            assert [item.status for item in items] == [Status.OK, Status.OBJECT_DENIED, Status.OK, Status.OK]
            for name in ("l/0", "l/2", "l/3"):
                assert items[int(name[2:])].tobytes() == LARGE[name][300_000:340_000]
            denying.append("l/2")
            with pytest.raises(errors.ObjectDenied, match="order"):
                bucket.get("l/2", start=1, length=590_000)
            denying.append("l/3")
            with pytest.raises(errors.ObjectDenied, match="order"):
                bucket.get("l/3")
            assert not denying
            assert bucket.get("l/0", start=5, length=580_000) == LARGE["l/0"][5:580_005]
            assert bucket.get("l/0/1") == BESIDE["l/0/1"]


def test_a_reader_that_knows_an_old_manifest_gets_the_old_bytes_or_none(tmp_path: Path) -> None:
    objects = {f"s/{number:02}": DRAW.randbytes(150_000) for number in range(8)}  # two in a fragment
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(objects)
        node = cluster.batches(0).node
        reader = cluster.batches(0).resources.coded.groups
        ranges = [Wanted(manifest.group, slot.offset + 10, 50_000) for slot in manifest.slots]

        async def read() -> list[memoryview | LoaderError]:
            reader._known[manifest.group] = manifest.joined()
            assert node.membership.view is not None
            return await reader.read(node.membership.view.buckets[BUCKET], ranges)

        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            bucket, denied = client.bucket(BUCKET), ["s/00", "s/01", "s/02", "s/04", "s/06", "s/03", "s/05"]
            for count, name in enumerate(denied, 1):
                bucket.deny([name], reason="order")
                eventually(lambda: bucket.denied().is_purged)
                loop = cluster.nodes[0]._loop
                assert loop is not None
                found = asyncio.run_coroutine_threadsafe(read(), loop).result(180)
                for slot, data in zip(manifest.slots, found, strict=True):
                    if slot.name in denied[:count]:
                        assert isinstance(data, errors.NodeUnavailable), (count, slot.name)
                    else:
                        assert not isinstance(data, LoaderError), (count, slot.name)
                        assert bytes(data) == objects[slot.name][10:50_010], (count, slot.name)


def test_denials_of_fragments_are_forgotten_as_deletions_are_and_those_of_objects_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny, denied = WriteCoordinator.deny, dict[str, list[str]]()

    async def noted(self: WriteCoordinator, replica_set: ReplicaSet, names: Sequence[str], raw_metadata: bytes) -> Any:
        denied.setdefault(replica_set.bucket.name, []).extend(names)
        return await deny(self, replica_set, names, raw_metadata)

    monkeypatch.setattr(WriteCoordinator, "deny", noted)
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5, tombstone_grace_s=2.0) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)

        def left(bucket: str) -> list[CatalogEntry]:
            stores = [cluster.store(number) for number in range(len(cluster.nodes))]
            found = [one for store in stores for one in store.replicas.newest(bucket, denied[bucket])]
            return [one for one in found if one is not None]

        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            bucket = client.bucket(BUCKET)
            bucket.deny(["s/03"], reason="order")
            eventually(lambda: bucket.denied().is_purged)
            eventually(lambda: cluster.companion in denied)
            assert set(denied[cluster.companion]) < set(manifest.fragments)
            eventually(lambda: not left(cluster.companion))
            assert [one.is_denied for one in left(BUCKET)] == [True] * 3
            assert bucket.denied().is_purged and not files_with(tmp_path, OBJECTS["s/03"])
            others = [name for name in OBJECTS if name != "s/03"]
            assert [bytes(item.data) for item in bucket.get_batch(others)] == [OBJECTS[name] for name in others]
