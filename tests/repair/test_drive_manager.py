"""Drives of nodes that serve: added, retired, disabled, given up; what was on them is read, and comes back."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.drives import health, manager
from storage_node.ops import drive_commands
from storage_node.ops.drive_commands import NodeOfDrives
from storage_node.ops.node_discovery import find_nodes
from storage_node.ops.ray_head import ClusterError
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.drive.drive import Drive
from storage_node.store.store import Store
from tests.node.drive_kit import TIMEOUT_S, DriveCluster, drive_cluster
from tests.patience import PATIENT_CLIENT

TWO, ONE = "two", "one"
OBJECTS = {f"k{at:03d}": seeded_bytes(300_000 if at % 20 == 7 else 200 + at, seed=at) for at in range(80)}


def fill(cluster: DriveCluster, bucket: Bucket) -> None:
    bucket.put_many(OBJECTS.items())
    cluster.copied(bucket.name, set(OBJECTS))


def read_all(bucket: Bucket) -> None:
    """Every object, in every way."""
    for assembly in ("direct", "target"):
        assert bucket.get_batch(list(OBJECTS), assembly=assembly).tobytes() == list(OBJECTS.values())
    assert [info.name for info in bucket.objects()] == sorted(OBJECTS)
    for name, data in OBJECTS.items():
        assert bucket.head(name).size_bytes == len(data)
        assert bucket.get(name) == data


def node_of(cluster: DriveCluster, number: int) -> NodeOfDrives:
    return drive_commands.find_node(drive_commands.nodes_with_drives(cluster.root), f"node-{number}")


def of(cluster: DriveCluster, number: int, drive: int) -> pb.DriveCondition:
    uuid = cluster.drive_uuid(number, drive)
    return next(one for one in cluster.report(number).drive if one.uuid == uuid)


def on_drive(cluster: DriveCluster, number: int, drive: int, bucket: str) -> set[str]:
    """Names on one drive of a node."""
    store = cluster.store(number)
    uuid = cluster.drive_uuid(number, drive)
    found = next(one for one in store.drives if one is not None and one.identity.drive_uuid == uuid)
    return {name for name, _ in found.scan(store.bucket(bucket).uuid_bytes, "", "")}


def given_up(cluster: DriveCluster, number: int, drive: int) -> bool:
    """Give a drive up; False while a busy node does not say in time how its copies are."""
    try:
        drive_commands.forget(node_of(cluster, number), of(cluster, number, drive), lost=False)
    except ClusterError as error:
        assert "does not answer" in str(error) or "still bringing" in str(error)
        return False
    return True


@pytest.mark.slow
def test_what_is_on_a_disabled_drive_is_read_from_other_copies_and_written_past_it(tmp_path: Path) -> None:
    with (  # in the end one node is left, which nobody would grant a lease
        drive_cluster(tmp_path, buckets={TWO: 2}, read_lease_s=0.0) as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        bucket = client.bucket(TWO)
        fill(cluster, bucket)
        away = on_drive(cluster, 1, 0, TWO)
        assert away and on_drive(cluster, 1, 1, TWO)
        drive_commands.disable(node_of(cluster, 1), of(cluster, 1, 0))
        assert cluster.states(1) == ["DISABLED", "ACTIVE"]
        read_all(bucket)
        now = OBJECTS | {name: OBJECTS[name][::-1] for name in away}
        for name in away:
            bucket.put(name, now[name])
        deleted = min(away)
        bucket.delete(deleted)
        read = {name: data for name, data in now.items() if name != deleted}
        assert bucket.get_batch(list(read)).tobytes() == list(read.values())
        drive_commands.enable(node_of(cluster, 1), of(cluster, 1, 0), None)
        cluster.settled(1)
        assert cluster.states(1) == ["ACTIVE", "ACTIVE"]
        eventually(lambda: cluster.in_place(TWO, set(read)), TIMEOUT_S, interval_s=0.1)
        assert cluster.held(1, TWO)[deleted].is_tombstone, "it was deleted while the drive was away"
        cluster.nodes[0].stop(grace_s=0.2)
        cluster.nodes[2].stop(grace_s=0.2)
        for name in away - {deleted}:
            assert bucket.get(name) == now[name], "nothing old is on the drive that is back"


@pytest.mark.slow
def test_what_has_one_copy_on_a_disabled_drive_is_answered_with_its_status(tmp_path: Path) -> None:
    with (
        drive_cluster(tmp_path, 2, buckets={ONE: 1}) as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as patient,
        connect(cluster.url, options=ClusterOptions(retry_s=1.0)) as client,
    ):
        bucket = client.bucket(ONE)
        fill(cluster, patient.bucket(ONE))
        away = on_drive(cluster, 0, 1, ONE)
        drive_commands.disable(node_of(cluster, 0), of(cluster, 0, 1))
        items = list(bucket.get_batch(list(OBJECTS), on_error="placeholder"))
        assert {item.entry.name for item in items if not item.ok} == away
        assert {item.status.name for item in items if not item.ok} == {"UNAVAILABLE"}
        with pytest.raises(errors.DriveFailed, match="disabled by hand"):
            bucket.head(min(away))
        with pytest.raises(ClusterError, match="keeps one copy"):
            drive_commands.forget(node_of(cluster, 0), of(cluster, 0, 1), lost=False)
        drive_commands.forget(node_of(cluster, 0), of(cluster, 0, 1), lost=True)
        assert {info.name for info in bucket.objects()} == set(OBJECTS) - away
        with pytest.raises(errors.ObjectNotFound):
            bucket.head(min(away))


@pytest.mark.slow
def test_a_drive_that_was_given_up_is_filled_again_from_other_nodes(tmp_path: Path) -> None:
    with drive_cluster(tmp_path, buckets={TWO: 2}) as cluster, connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket(TWO)
        fill(cluster, bucket)
        lost = on_drive(cluster, 1, 0, TWO)
        drive_commands.disable(node_of(cluster, 1), of(cluster, 1, 0))
        old = cluster.folder(1, 0)
        with pytest.raises(ClusterError, match="works: retire it"):
            drive_commands.forget(node_of(cluster, 1), of(cluster, 1, 1), lost=True)
        for other in (0, 2):  # one that stood still, on a busy machine, may lack what the drive has
            cluster.settled(other)
        eventually(lambda: given_up(cluster, 1, 0), TIMEOUT_S, interval_s=0.1)
        read_all(bucket)
        cluster.settled(1)
        assert cluster.states(1) == ["ACTIVE"]
        eventually(lambda: cluster.in_place(TWO, set(OBJECTS)), TIMEOUT_S, interval_s=0.1)
        assert lost <= on_drive(cluster, 1, 1, TWO)
        assert cluster.nodes[1].repair.metrics.names_fetched + sum(
            node.repair.metrics.objects_pushed for node in cluster.nodes
        ) >= len(lost)
        read_all(bucket)
        with pytest.raises(ClusterError, match="empty the folder"):
            drive_commands.add(node_of(cluster, 1), old)
        shutil.rmtree(old)
        drive_commands.add(node_of(cluster, 1), old)
        cluster.settled(1)
        assert on_drive(cluster, 1, 0, TWO)
        read_all(bucket)


@pytest.mark.slow
def test_while_lost_copies_are_looked_for_a_lack_is_no_answer(tmp_path: Path) -> None:
    with (
        drive_cluster(tmp_path, 2, buckets={TWO: 2}, reconcile_patience_s=600.0) as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        bucket = client.bucket(TWO)
        fill(cluster, bucket)
        lost = on_drive(cluster, 1, 0, TWO)
        kept = on_drive(cluster, 1, 1, TWO)
        drive_commands.disable(node_of(cluster, 1), of(cluster, 1, 0))
        config = cluster.nodes[0].config
        port = cluster.nodes[0].port
        cluster.nodes[0].stop(grace_s=0.2)
        drive_commands.forget(node_of(cluster, 1), of(cluster, 1, 0), lost=True)
        for name in kept:
            assert bucket.get(name) == OBJECTS[name], "what is here is as good as ever"
        with connect(cluster.url, options=ClusterOptions(retry_s=0.5)) as impatient:
            with pytest.raises(errors.NodeUnavailable):
                impatient.bucket(TWO).head(min(lost))
            items = list(impatient.bucket(TWO).get_batch(sorted(lost), on_error="placeholder"))
            assert {item.status.name for item in items} == {"UNAVAILABLE"}
            with pytest.raises(errors.NodeUnavailable):
                list(impatient.bucket(TWO).objects())
        assert cluster.report(1).refilling
        folders = [cluster.folder(0, drive) for drive in range(2)]
        with NodeServer(folders, config.replace(port=port)) as back:
            cluster.nodes[0] = back
            cluster.settled(1)
            assert cluster.held(1, TWO).keys() == OBJECTS.keys()
            with pytest.raises(errors.ObjectNotFound):
                bucket.head("never")
            read_all(bucket)


def test_objects_move_to_a_new_drive_and_off_one_that_retires(tmp_path: Path) -> None:
    with (
        drive_cluster(tmp_path, 2, drives=1, buckets={TWO: 2}) as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        bucket = client.bucket(TWO)
        fill(cluster, bucket)
        new = drive_commands.new_folder(tmp_path, node_of(cluster, 0))
        assert new == tmp_path / "node-0" / "drive-1"
        drive_commands.add(node_of(cluster, 0), new)
        read_all(bucket)
        cluster.settled(0)
        moved = on_drive(cluster, 0, 1, TWO)
        assert moved and not moved & on_drive(cluster, 0, 0, TWO)
        eventually(lambda: cluster.report(0).objects_moved >= len(moved), TIMEOUT_S)
        drive_commands.retire(node_of(cluster, 0), of(cluster, 0, 0))
        read_all(bucket)
        eventually(lambda: len(cluster.states(0)) == 1, TIMEOUT_S, interval_s=0.1)
        assert on_drive(cluster, 0, 1, TWO) == set(OBJECTS)
        read_all(bucket)
        (found,) = [node for node in find_nodes(tmp_path).nodes if node.name == "node-0"]
        assert found.drives == (new,), "a drive that has left is not looked for again"
        cluster.nodes[0].stop(grace_s=0.2)
        with Store.open(found.drives, mode="a") as store:
            assert {name for name, _ in store.objects(TWO)} == set(OBJECTS)
            assert {state.problem for state in store.pool.states()} == {None}


@pytest.mark.slow
def test_a_drive_that_is_missing_is_given_up_after_its_grace_and_no_sooner_than_it_may(tmp_path: Path) -> None:
    with (
        drive_cluster(tmp_path, buckets={TWO: 2, ONE: 1}, drive_grace_s=0.3) as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        bucket = client.bucket(TWO)
        fill(cluster, bucket)
        folders = [cluster.folder(2, drive) for drive in range(2)]
        config, port = cluster.nodes[2].config, cluster.nodes[2].port
        cluster.nodes[2].stop(grace_s=0.2)
        folders[1].rename(tmp_path / "away")
        with NodeServer(folders, config.replace(port=port)) as back:
            cluster.nodes[2] = back
            eventually(lambda: "keeps one copy" in cluster.report(2).drive[1].kept_because, TIMEOUT_S)
            assert cluster.states(2) == ["ACTIVE", "MISSING"]
            client.delete_bucket(ONE, force=True)
            eventually(lambda: cluster.states(2) == ["ACTIVE"], TIMEOUT_S, interval_s=0.1)
            cluster.settled(2)
            eventually(lambda: cluster.in_place(TWO, set(OBJECTS)), TIMEOUT_S, interval_s=0.1)
            read_all(bucket)


@pytest.mark.slow
def test_while_a_drive_that_has_returned_cannot_be_used_the_others_are_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node compares its copies once, not with each try to open the drive; and not at all without the drive."""
    monkeypatch.setattr(manager, "RETURN_INTERVAL_S", 0.1)
    with drive_cluster(tmp_path, 2, buckets={TWO: 2}, reconcile_patience_s=3.0, drive_grace_s=0.0) as cluster:
        with connect(cluster.url, options=PATIENT_CLIENT) as client:
            fill(cluster, client.bucket(TWO))
        here, folder, away = on_drive(cluster, 1, 1, TWO), cluster.folder(1, 0), tmp_path / "away"
        folder.rename(away)
        eventually(lambda: cluster.states(1) == ["MISSING", "ACTIVE"], TIMEOUT_S)
        (away / "catalog" / "CURRENT").write_text("of another program")
        away.rename(folder)
        eventually(lambda: cluster.nodes[1].drives.problem_at(folder), TIMEOUT_S)
        cluster.nodes[0].stop(grace_s=0.2)
        with connect(cluster.nodes[1].url, options=ClusterOptions(retry_s=1.0)) as client:

            def are_read() -> bool:
                items = client.bucket(TWO).get_batch(sorted(here), on_error="placeholder")
                return items.tobytes() == [OBJECTS[name] for name in sorted(here)]

            eventually(are_read, TIMEOUT_S, interval_s=0.1)
        assert cluster.nodes[1].drives.problem_at(folder)


@pytest.mark.slow
def test_a_change_of_the_map_waits_for_a_drive_only_until_it_is_given_up(tmp_path: Path) -> None:
    with drive_cluster(tmp_path, buckets={TWO: 2}) as cluster, connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket(TWO)
        fill(cluster, bucket)
        drive_commands.disable(node_of(cluster, 1), of(cluster, 1, 0))
        cluster.map.version += 1
        cluster.map.node[2].state = pb.MapNode.LEAVING
        for node in cluster.nodes:
            node.membership.learn(cluster.map)
        eventually(lambda: cluster.nodes[2].repair.metrics.passes > 2, TIMEOUT_S)
        view = cluster.nodes[0].membership.view
        assert view is not None and view.version == cluster.map.version, "node 1 may lack what node 2 has"
        drive_commands.forget(node_of(cluster, 1), of(cluster, 1, 0), lost=True)

        def left() -> bool:
            now = cluster.nodes[0].membership.view
            return now is not None and len(now.nodes) == 2

        eventually(left, TIMEOUT_S, interval_s=0.1)
        cluster.nodes[2].stop(grace_s=0.2)
        for name, data in OBJECTS.items():
            assert bucket.get(name) == data


def test_orders_that_make_no_sense_are_refused_with_the_reason(tmp_path: Path) -> None:
    with drive_cluster(tmp_path, 1, drives=1, buckets={TWO: 2}) as cluster:
        node = node_of(cluster, 0)
        with pytest.raises(ClusterError, match="absolute path"):
            drive_commands.add(node, Path("relative"))
        with pytest.raises(ClusterError, match="a drive of this store already"):
            drive_commands.add(node, cluster.folder(0, 0))
        full = tmp_path / "node-0" / "full"
        full.mkdir()
        (full / "letter.txt").write_text("mine")
        with pytest.raises(ClusterError, match=r"letter\.txt"):
            drive_commands.add(node, full)
        with pytest.raises(ClusterError, match="no drive 1234"):
            drive_commands.retire(node, pb.DriveCondition(uuid="1234"))
        with pytest.raises(ClusterError, match="last one"):
            drive_commands.retire(node, of(cluster, 0, 0))
        with pytest.raises(ClusterError, match="NODE/DRIVE"):
            drive_commands.require_below(tmp_path, tmp_path / "elsewhere")
        assert cluster.states(0) == ["ACTIVE"]


class NoRoom:
    """A catalog's handle that refuses what comes, as RocksDB does until it has found room again."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.refused = 0

    def write(self, *_: object) -> None:
        self.refused += 1
        raise RuntimeError("IO error: No space left on device: while appending to the log")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@pytest.mark.slow
def test_a_catalog_that_finds_no_room_where_there_is_some_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STUCK_S", 0.3)
    with drive_cluster(tmp_path, 1, drives=1, buckets={ONE: 1}) as cluster, connect(cluster.url) as client:
        bucket = client.bucket(ONE)
        bucket.put("before", b"1")
        drive = cluster.store(0).drives[0]
        assert drive is not None
        stuck = drive.catalog._db = NoRoom(drive.catalog._db)

        def taken() -> bool:
            try:
                bucket.put("after", b"2")
            except (errors.DriveFull, errors.DriveFailed, errors.NodeUnavailable):
                return False
            return True

        eventually(taken)
        assert stuck.refused
        assert bucket.get_batch(["before", "after"]).tobytes() == [b"1", b"2"]


# -- a node in no cluster


def test_a_drive_that_fails_is_disabled_at_once_and_not_when_the_node_looks_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "WATCH_INTERVAL_S", 3600.0)
    config = ServerConfig(port=0, drive_errors=3)
    with NodeServer([tmp_path / f"drive-{number}" for number in range(2)], config) as node:
        assert node.batches is not None
        pool, drive = node.batches.node.store.pool, node.batches.node.store.drives[1]
        assert drive is not None
        for _ in range(config.store.drive_errors):
            drive.faults.note(OSError(errno.EIO, "broken"), "reading")
        eventually(lambda: [one.status for one in pool.states()] == ["active", "disabled"], TIMEOUT_S)


@pytest.mark.slow
def test_a_node_alone_uses_a_drive_again_that_has_returned(tmp_path: Path) -> None:
    folders = [tmp_path / f"drive-{number}" for number in range(2)]
    names, away = sorted(OBJECTS), tmp_path / "away"
    with NodeServer(folders, ServerConfig(port=0)) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        bucket.put_many(OBJECTS.items())

        def unavailable() -> dict[int, errors.LoaderError]:
            batch = bucket.get_batch(names, on_error="placeholder")
            batch.tobytes()
            return dict(batch.failures)

        def is_awaited() -> bool:
            found = unavailable()
            said = all("it is used again once it is back" in str(error) for error in found.values())
            return said and 0 < len(found) < len(OBJECTS)

        folders[1].rename(away)
        eventually(is_awaited, TIMEOUT_S)
        away.rename(folders[1])
        eventually(lambda: not unavailable(), TIMEOUT_S, interval_s=0.1)
        read_all(bucket)
        bucket.put_many((name, data + b"new") for name, data in OBJECTS.items())
        assert bucket.get_batch(names).tobytes() == [OBJECTS[name] + b"new" for name in names]


@pytest.mark.slow
def test_a_node_alone_uses_a_drive_that_was_missing_when_it_started(tmp_path: Path) -> None:
    folders = [tmp_path / f"drive-{number}" for number in range(2)]
    with NodeServer(folders, ServerConfig(port=0)) as node, connect(node.url) as client:
        client.create_bucket("b").put_many(OBJECTS.items())
    folders[1].rename(tmp_path / "away")
    folders[1].mkdir()
    with NodeServer(folders, ServerConfig(port=0)) as node, connect(node.url) as client:
        bucket = client.bucket("b")
        with pytest.raises(errors.LoaderError, match="drive"):
            bucket.get_batch(list(OBJECTS)).tobytes()
        folders[1].rmdir()
        (tmp_path / "away").rename(folders[1])

        def is_whole() -> bool:
            return None not in bucket.get_batch(list(OBJECTS), on_error="placeholder").tobytes()

        eventually(is_whole, TIMEOUT_S, interval_s=0.1)
        read_all(bucket)


def test_a_drive_that_is_opened_again_is_not_disabled_for_failures_of_before(tmp_path: Path) -> None:
    with drive_cluster(tmp_path, 1, buckets={ONE: 1}) as cluster:
        node, store, uuid = cluster.nodes[0], cluster.store(0), cluster.drive_uuid(0, 0)

        async def turn() -> None:
            """Open the drive again in a turn that the node's own change waits for."""
            async with node.drives._changing:
                (drive,) = (one for one in store.drives if one is not None and one.identity.drive_uuid == uuid)
                drive.faults.sync_failed = "for this test"
                node.drives._due.set()
                while not node.drives._changes:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(store.pool.disable_drive, uuid, "for this test")
                await asyncio.to_thread(store.pool.enable_drive, uuid)
            await asyncio.gather(*node.drives._changes)

        asyncio.run_coroutine_threadsafe(turn(), node._loop).result(TIMEOUT_S)
        assert cluster.states(0) == ["ACTIVE", "ACTIVE"]


@pytest.mark.slow
def test_a_drive_that_is_disabled_by_hand_while_giving_it_up_waits_for_its_turn_is_kept(tmp_path: Path) -> None:
    with drive_cluster(tmp_path, buckets={TWO: 2}, drive_grace_s=3600.0) as cluster:
        drives, uuid = cluster.nodes[2].drives, cluster.drive_uuid(2, 1)
        drive = cluster.store(2).drives[1]
        assert drive is not None and drives is not None
        drive.faults.sync_failed = "for this test"
        drives._due.set()
        eventually(lambda: cluster.states(2) == ["ACTIVE", "DISABLED"], TIMEOUT_S)

        async def turn() -> None:
            async with drives._changing:
                drives._away[uuid].since_s -= 3600.0
                while not drives._changes:
                    drives._due.set()
                    await asyncio.sleep(0.01)
                await drives.disable(uuid)
            await asyncio.gather(*drives._changes)

        asyncio.run_coroutine_threadsafe(turn(), cluster.nodes[2]._loop).result(TIMEOUT_S)
        assert cluster.states(2) == ["ACTIVE", "DISABLED"]


@pytest.mark.slow
def test_a_drive_that_is_being_disabled_is_not_taken_for_one_that_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits, which are waited for, may take long on a drive that fails."""
    monkeypatch.setattr(manager, "RETURN_INTERVAL_S", 0.05)
    go_on, give_up = threading.Event(), Drive.give_up

    def slowly(drive: Drive, reason: str) -> None:
        assert go_on.wait(TIMEOUT_S)
        give_up(drive, reason)

    with drive_cluster(tmp_path, buckets={TWO: 2}) as cluster:
        drives, uuid = cluster.nodes[2].drives, cluster.drive_uuid(2, 1)
        monkeypatch.setattr(Drive, "give_up", slowly)
        disabling = asyncio.run_coroutine_threadsafe(drives.disable(uuid), cluster.nodes[2]._loop)
        try:
            eventually(lambda: len(drives._changes) == 2, TIMEOUT_S)  # another one waits for its turn
        finally:
            go_on.set()
        disabling.result(TIMEOUT_S)
        eventually(lambda: not drives._changes, TIMEOUT_S)
        assert cluster.states(2) == ["ACTIVE", "DISABLED"]
