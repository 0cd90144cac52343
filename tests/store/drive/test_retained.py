"""What snapshots keep on the drives: all that they see, nothing else, over restarts, crashes, damage and rebuilds."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from ais_loader.errors import (
    BucketHasSnapshots,
    CorruptObject,
    DriveFailed,
    InvalidRequest,
    ObjectNotFound,
    SnapshotExists,
    SnapshotNotFound,
    SnapshotReadOnly,
)
from storage_node.store import format as fmt
from storage_node.store import store_record as records
from storage_node.store.drive import clean_shutdown
from storage_node.store.drive.commit_files import CommitFiles
from storage_node.store.drive.drive import Drive
from storage_node.store.fsck import fsck as doctor
from storage_node.store.snapshots import Snapshot
from storage_node.store.store import Store
from tests.store.snapshot_kit import LARGE, at, reap, retained, retained_file
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    drive_of,
    flip_a_byte,
    kinds,
    object_files,
    put,
    read,
    store_at,
)
from tests.table import table

# -- what is kept


@pytest.mark.slow
@table("seed", range(6))
def test_snapshots_stay_as_they_were_through_any_changes_and_leave_nothing_behind(tmp_path: Path, seed: int) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    draw = random.Random(seed)
    store = Store.open(roots)
    store.create_bucket(BUCKET)
    now: dict[str, bytes] = {}
    frozen: dict[str, dict[str, bytes]] = {}
    for step in range(150):
        name = f"n{draw.randrange(12)}"
        kind = draw.random()
        if kind < 0.45:
            now[name] = LARGE + b"%d" % step if draw.random() < 0.1 else b"%d" % step
            put(store, name, now[name])
        elif kind < 0.7:
            if name in now:
                store.delete(BUCKET, name, keep_tombstone=draw.random() < 0.3)
                del now[name]
        elif kind < 0.82:
            made = store.snapshots.create(BUCKET, f"s{step}")
            assert (made.objects, made.size_bytes) == (len(now), sum(map(len, now.values())))
            frozen[made.name] = dict(now)
        elif kind < 0.92 and frozen:
            gone = draw.choice(sorted(frozen))
            store.snapshots.delete(BUCKET, gone)
            del frozen[gone]
        elif kind > 0.97:
            store.close()
            store = Store.open(roots)
        some = draw.choice([*frozen, ""])
        assert contents(store, at(some) if some else BUCKET) == (frozen[some] if some else now)
    for snapshot, wanted in frozen.items():
        assert contents(store, at(snapshot)) == wanted
        some = draw.choice(sorted(wanted, key=str.encode) or [""])
        listed = [name for name, _ in store.objects(at(snapshot), "", some)]
        assert listed == [name for name in sorted(wanted, key=str.encode) if name > some]
    assert [one.name for one in store.snapshots.of(BUCKET)] == list(frozen)
    reap(store)
    needed = {(name, data) for seen in [now, *frozen.values()] for name, data in seen.items()}
    assert sum(len(object_files(root)) for root in roots) == len(needed)
    store.close()
    assert_sound(*roots)
    with Store.open(roots) as store:
        for snapshot in frozen:
            store.snapshots.delete(BUCKET, snapshot)
        reap(store)
        assert not retained(store) and not store.record.current.trimming
        assert sum(len(object_files(root)) for root in roots) == len(now)
        assert contents(store) == now


def test_a_put_that_took_its_number_before_the_snapshot_and_commits_after_it_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_at(tmp_path) as store:
        put(store, "old", b"1")
        prepare = CommitFiles.prepare

        def overtaken(files: CommitFiles) -> list[fmt.CatalogEntry]:
            records = prepare(files)
            store.snapshots.create(BUCKET, "s")
            return records

        monkeypatch.setattr(CommitFiles, "prepare", overtaken)
        for name in ("old", "new"):
            put(store, name, b"2")
            assert contents(store, at("s")) == ({"old": b"1"} if name == "old" else {"old": b"2"})
            store.snapshots.delete(BUCKET, "s")
        assert contents(store) == {"old": b"2", "new": b"2"}


@pytest.mark.slow
def test_snapshots_beside_writers_are_cuts_between_acknowledged_and_begun_and_never_change(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    begun, done = [0] * 4, [0] * 4
    stop = threading.Event()
    problems: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            while not stop.is_set():
                begun[worker] += 1
                put(store, f"w{worker}", b"%d" % begun[worker])
                done[worker] = begun[worker]
        except BaseException as error:  # noqa: BLE001 - told by the test
            problems.append(error)

    with store_at(*roots) as store:
        workers = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
        for worker in workers:
            worker.start()
        seen: dict[str, dict[str, bytes]] = {}
        for number in range(12):
            before = list(done)
            store.snapshots.create(BUCKET, f"s{number}")
            after = list(begun)
            found = seen[f"s{number}"] = contents(store, at(f"s{number}"))
            for worker in range(4):
                state = int(found.get(f"w{worker}", b"0"))
                assert before[worker] <= state <= after[worker]
        stop.set()
        for worker in workers:
            worker.join(180)
        assert not problems
        assert {name: contents(store, at(name)) for name in seen} == seen
    with Store.open(roots) as store:
        assert {name: contents(store, at(name)) for name in seen} == seen


# -- what is refused


def test_a_snapshot_is_read_only_its_name_unique_and_its_bucket_stays(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put(store, "a", b"1")
        store.snapshots.create(BUCKET, "s")
        for change in (
            lambda: put(store, "b", b"2", at("s")),
            lambda: store.delete(at("s"), "a"),
            lambda: store.delete_bucket(at("s"), force=True),
            lambda: store.snapshots.create(at("s"), "t"),
            lambda: store.snapshots.delete(at("s"), "s"),
        ):
            with pytest.raises(SnapshotReadOnly):
                change()
        with pytest.raises(SnapshotExists):
            store.snapshots.create(BUCKET, "s")
        for force in (False, True):
            with pytest.raises(BucketHasSnapshots, match="snapshots, s"):
                store.delete_bucket(BUCKET, force=force)
        for missing in (lambda: store.snapshots.delete(BUCKET, "t"), lambda: store.head(at("t"), "a")):
            with pytest.raises(SnapshotNotFound, match="no snapshot 't'"):
                missing()
        assert contents(store, at("s")) == contents(store) == {"a": b"1"}
        store.snapshots.delete(BUCKET, "s")
        store.delete_bucket(BUCKET, force=True)


def test_drives_neither_come_nor_go_while_there_are_snapshots_and_none_is_made_without_one(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        store.snapshots.create(BUCKET, "s")
        uuid = store.record.current.drives[0]
        for change in (lambda: store.pool.add_drive(tmp_path / "c"), lambda: store.pool.retire_drive(uuid)):
            with pytest.raises(InvalidRequest, match="delete them before drives come or go"):
                change()
        assert not (tmp_path / "c").exists()
        store.pool.disable_drive(uuid, "for a test")
        with pytest.raises(InvalidRequest, match="snapshots"):
            store.pool.forget_drive(uuid)
        with pytest.raises(DriveFailed, match="a snapshot needs all"):
            store.snapshots.create(BUCKET, "t")
        store.pool.enable_drive(uuid)
        for number in range(20):
            put(store, f"{number}", b"old")
        store.snapshots.create(BUCKET, "t")
        store.pool.disable_drive(uuid, "for a test")
        store.pool.enable_drive(uuid)  # which knows of the snapshots again
        for number in range(20):
            put(store, f"{number}", b"new")
        assert set(contents(store, at("t")).values()) == {b"old"} and not contents(store, at("s"))


# -- on the disk


def test_a_store_without_snapshots_is_what_it_was_before_there_were_any(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put(store, "a", b"1")
        store.snapshots.create(BUCKET, "s")
        put(store, "a", b"2")
        assert retained(store) == ["a"]
        store.snapshots.delete(BUCKET, "s")
        reap(store)
        [file] = object_files(tmp_path)
        assert file.read_bytes() == b"2"


def test_a_reader_beside_the_writer_sees_a_snapshot_at_once_and_as_it_is(tmp_path: Path) -> None:
    with store_at(tmp_path) as store, Store.open([tmp_path], mode="r") as reader:
        put(store, "a", b"1")
        assert read(reader, "a") == b"1"  # which is cached
        put(store, "a", b"2")
        made = store.snapshots.create(BUCKET, "s")
        assert contents(reader, at("s")) == {"a": b"2"}
        put(store, "a", b"3")
        put(store, "b", b"4")
        assert contents(reader, at("s")) == {"a": b"2"} and reader.snapshots.of(BUCKET) == [made]
        store.snapshots.delete(BUCKET, "s")
        with pytest.raises(SnapshotNotFound):
            read(reader, "a", at("s"))


@pytest.mark.slow
def test_readers_beside_a_writer_that_replaces_everything_read_the_snapshot_all_the_time(tmp_path: Path) -> None:
    wanted = {f"{number:02}": b"%d" % number for number in range(20)} | {"large": LARGE}
    stop = threading.Event()
    with store_at(tmp_path) as store, Store.open([tmp_path], mode="r") as reader:
        for name, data in wanted.items():
            put(store, name, data)
        store.snapshots.create(BUCKET, "s")

        def write() -> None:
            while not stop.is_set():
                for name in wanted:
                    put(store, name, b"other")
                    store.delete(BUCKET, name)
                reap(store)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for some in (store, reader) * 15:
                assert contents(some, at("s")) == wanted
        finally:
            stop.set()
            writer.join(180)


def test_a_power_cut_leaves_what_snapshots_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(tmp_path) as store:
        put(store, "a", b"1")
        put(store, "b", LARGE)
        store.snapshots.create(BUCKET, "s")
        put(store, "a", b"2")
        store.delete(BUCKET, "b")
        monkeypatch.setattr(clean_shutdown.MarkWriter, "end", lambda *args, **kwargs: None)
    monkeypatch.setattr(clean_shutdown, "boot_id", lambda: b"another start of the machine")
    with Store.open([tmp_path]) as store:
        assert contents(store, at("s")) == {"a": b"1", "b": LARGE} and contents(store) == {"a": b"2"}
    monkeypatch.undo()
    with Store.open([tmp_path]):
        pass
    assert_sound(tmp_path)


def test_a_rebuilt_catalog_has_the_snapshots_and_nothing_that_was_deleted_comes_back(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        for name in ("changed", "deleted", "kept"):
            put(store, name, LARGE + name.encode(), metadata={"of": name})
        store.snapshots.create(BUCKET, "s")
        put(store, "changed", b"2")
        store.delete(BUCKET, "deleted")
        store.snapshots.create(BUCKET, "t")
        put(store, "changed", b"3")
        store.delete(BUCKET, "kept")
        seen = {name: contents(store, name) for name in (BUCKET, at("s"), at("t"))}
        infos = store.snapshots.of(BUCKET)
        reap(store)
    doctor.rebuild([tmp_path], all_drives=True)
    assert_sound(tmp_path)
    with Store.open([tmp_path]) as store:
        assert {name: contents(store, name) for name in seen} == seen
        assert store.head(at("s"), "deleted").metadata == {"of": "deleted"}
        assert store.snapshots.of(BUCKET) == infos
        put(store, "deleted", b"again")  # with a number that neither sees
        assert {name: contents(store, name) for name in seen} == {**seen, BUCKET: {**seen[BUCKET], "deleted": b"again"}}
        for snapshot in "st":
            store.snapshots.delete(BUCKET, snapshot)
        reap(store)
        assert len(object_files(tmp_path)) == 2


def test_the_doctor_knows_what_is_retained_finds_its_damage_and_drops_it_when_told(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        for name in ("a", "b", "c"):
            put(store, name, LARGE)
        store.snapshots.create(BUCKET, "s")
        for name in ("a", "b", "c"):
            put(store, name, b"new")
        flip_a_byte(retained_file(store, "a"), 5)
        retained_file(store, "b").unlink()
        unmarked = retained_file(store, "c").relative_to(tmp_path / "objects")
        drive_of(store).files.set_ended(str(unmarked).encode(), None)
    found = doctor.check([tmp_path], checksums=True)
    assert kinds(found) == ["corrupt", "file-identity", "missing-file"]
    assert {finding.name for finding in found.findings} == {"a", "b", "c"}
    assert all("retained for snapshots" in finding.message for finding in found.findings)
    with Store.open([tmp_path]) as store:
        with pytest.raises(CorruptObject):
            read(store, "a", at("s"))
        assert read(store, "c", at("s")) == LARGE
    doctor.repair([tmp_path], checksums=True, drop_damaged=True)
    assert_sound(tmp_path)
    with Store.open([tmp_path]) as store:
        assert contents(store, at("s")) == {"c": LARGE}
        for name in ("a", "b"):
            with pytest.raises(ObjectNotFound):
                read(store, name, at("s"))
        assert contents(store) == dict.fromkeys("abc", b"new")


def test_a_snapshot_whose_record_cannot_be_written_is_none_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        put(store, "a", b"1")

        def refuse(folder: Path, record: object) -> None:
            raise OSError(5, "for a test")

        with monkeypatch.context() as broken:
            broken.setattr(records, "write", refuse)
            with pytest.raises(DriveFailed):
                store.snapshots.create(BUCKET, "s")
        assert not store.snapshots.of(BUCKET)
        put(store, "a", b"2")  # it may be there after a crash: this is kept for it
        assert retained(store) == ["a"]
        store.create_bucket("other")
    with Store.open(roots) as store:
        assert not store.snapshots.of(BUCKET) and not retained(store) and not store.record.current.trimming
        reap(store)
        assert sum(len(object_files(root)) for root in roots) == 1


def test_a_snapshot_that_cannot_be_made_lasting_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(tmp_path) as store:
        put(store, "a", b"1")

        def fail(drive: Drive) -> None:
            raise DriveFailed("for a test")

        with monkeypatch.context() as broken:
            broken.setattr(Drive, "sync", fail)
            with pytest.raises(DriveFailed):
                store.snapshots.create(BUCKET, "s")
        assert not store.snapshots.of(BUCKET)
        assert isinstance(store.snapshots.create(BUCKET, "s"), Snapshot)
