"""Objects on their way to another drive: nothing of them is lost, hidden or made up, and readers follow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import CorruptObject, DriveFailed, ObjectNotFound
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store import format as fmt
from storage_node.store import store_record as records
from storage_node.store import write
from storage_node.store.checksum import crc32c
from storage_node.store.files.segment_format import is_slot
from storage_node.store.format import BLOCK_BYTES, Version
from storage_node.store.fsck import fsck as doctor
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.drives_kit import WANTED, move_all, store_with
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    drive_of,
    file_of,
    flip_a_byte,
    kinds,
    names,
    put,
    read,
)


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_with(WANTED, *roots):
        return roots


@pytest.fixture
def store(roots: list[Path]) -> Iterator[Store]:
    with Store.open(roots) as store:
        yield store


# -- moving


@pytest.mark.slow
def test_all_that_an_object_is_survives_the_move(store: Store, roots: list[Path], tmp_path: Path) -> None:
    large = os.urandom(3 * BLOCK_BYTES + 7)
    given = Version(9, 1 << 40, 5)
    for number in range(20):
        with store.begin_put(BUCKET, f"copy/{number}", {"sprache": "grüß"}, given) as upload:
            upload.write(large)
            upload.commit()
        put(store, f"gone/{number}", b"x")
        store.delete(BUCKET, f"gone/{number}", given, keep_tombstone=True)
    before = {name: store.head(BUCKET, name) for name in names(store)}
    tombstones = list(store.replicas.tombstones(BUCKET))
    assert len(tombstones) == 20
    store.pool.add_drive(tmp_path / "c")
    store.pool.retire_drive(store.record.current.drives[0])
    move_all(store)
    assert not [record for record in before if record not in names(store)]
    for name, record in before.items():
        after = store.head(BUCKET, name)
        assert after[:6] == record[:6] and after.raw_metadata == record.raw_metadata
        drive = drive_of(store, name)
        identity = fmt.decode_identity(drive.files.identity(after.path) or b"")
        assert (identity.name, identity.version, identity.checksum, identity.metadata) == (
            name,
            record.version,
            record.checksum,
            record.metadata,
        )
    assert list(store.replicas.tombstones(BUCKET)) == tombstones
    at = 2 * BLOCK_BYTES - 5
    assert read(store, "copy/1", start=at, length=20, verify=True) == large[at : at + 20]
    drive, record = store.locate(BUCKET, "copy/3")
    assert drive.block_checksums(record, 1, 2) == [crc32c(large[BLOCK_BYTES : 2 * BLOCK_BYTES])]
    wanted = contents(store)
    store.close()
    used = [roots[1], tmp_path / "c"]
    assert_sound(*used)
    assert not doctor.rebuild(used, all_drives=True).errors
    with Store.open(used) as rebuilt:
        assert contents(rebuilt) == wanted


def test_archives_that_move_with_small_objects_keep_files_of_their_own(store: Store, tmp_path: Path) -> None:
    for number in range(20):
        put(store, f"{number}.tar", bytes(1024))
    store.pool.add_drive(tmp_path / "c")
    for uuid in store.record.current.drives[:2]:
        store.pool.retire_drive(uuid)
    move_all(store)
    lie_in_segments = {name: is_slot(store.head(BUCKET, name).path) for name in names(store)}
    assert [name for name in lie_in_segments if name.endswith(".tar")]
    assert not [name for name, lies in lie_in_segments.items() if lies and name.endswith(".tar")]
    assert any(lie_in_segments.values())


def test_damage_moves_along_and_stays_damage(store: Store, tmp_path: Path) -> None:
    put(store, "large", os.urandom(2 * BLOCK_BYTES + 1))
    uuid = store.record.current.drives[0]
    mine = [name for name in [*WANTED, "large"] if drive_of(store, name).identity.drive_uuid == uuid]
    if "large" not in mine:
        uuid = store.record.current.drives[1]
        mine = [name for name in [*WANTED, "large"] if drive_of(store, name).identity.drive_uuid == uuid]
    flipped, gone, cut = mine[:3]
    flip_a_byte(file_of(store, flipped))
    flip_a_byte(file_of(store, "large"), BLOCK_BYTES + 9)
    os.unlink(file_of(store, gone))
    os.truncate(file_of(store, cut), 1)
    store.pool.retire_drive(uuid)
    move_all(store)
    for name in (flipped, gone, cut, "large"):
        assert batch(store, [name]) == [(pb.CORRUPT, b"")]
        with pytest.raises(CorruptObject):
            read(store, name)
    assert len(read(store, "large", start=0, length=BLOCK_BYTES, verify=True)) == BLOCK_BYTES
    with pytest.raises(CorruptObject):
        read(store, "large", start=BLOCK_BYTES, length=5, verify=True)
    assert all(read(store, name) == data for name, data in WANTED.items() if name not in (flipped, gone, cut))


def test_a_step_moves_no_more_than_it_is_told_but_one_object_at_least(store: Store) -> None:
    for number in range(10):
        put(store, f"large/{number}", bytes(100_000))
    store.pool.retire_drive(store.record.current.drives[1])
    step = store.pool.move_some(1, 1)
    assert (step.objects, step.problem) == (1, "") and step.left_estimate > 0
    while store.pool.moving:
        step = store.pool.move_some(1000, 150_000)
        assert (step.objects or not store.pool.moving) and step.bytes <= 350_000  # the last one may only look again
    assert store.pool.move_some(10, 10) == (0, 0, 0, "")


@pytest.mark.slow
def test_the_doctor_tells_what_moves_from_what_is_wrong(store: Store, roots: list[Path], tmp_path: Path) -> None:
    store.pool.add_drive(tmp_path / "c")
    store.pool.move_some(3, 1 << 20)
    store.close()
    report = doctor.check([*roots, tmp_path / "c"], checksums=True)
    assert report.healthy and {finding.kind for finding in report.findings} == {"moving"}
    repaired = doctor.repair([*roots, tmp_path / "c"])
    assert repaired.healthy and kinds(repaired) == []
    with Store.open([*roots, tmp_path / "c"]) as again:
        assert contents(again) == WANTED and again.pool.moving
        move_all(again)
    assert_sound(*roots, tmp_path / "c")


def test_a_copy_that_comes_late_does_not_hide_what_has_not_moved_yet(store: Store, tmp_path: Path) -> None:
    newer, older = Version(9, 70, 2), Version(9, 60, 3)
    for name in WANTED:
        store.delete(BUCKET, name, newer, keep_tombstone=True)
        if int(name) % 2:
            put_copy(store, name, b"newer", Version(9, 70, 3))
    uuid = store.pool.add_drive(tmp_path / "c")
    theirs = [name for name in WANTED if drive_of(store, name).identity.drive_uuid == uuid]
    alive = [name for name in theirs if int(name) % 2]
    assert len(alive) > 3 and len(theirs) > len(alive) + 3
    for name in theirs:
        assert put_copy(store, name, b"older", older) >= newer
        store.delete(BUCKET, name, older)
        left = store.delete(BUCKET, name, older, keep_tombstone=True)
        assert left is not None and left.version >= newer
        if name in alive:
            assert read(store, name) == b"newer"
        else:
            with pytest.raises(ObjectNotFound):
                read(store, name)
            assert not store.replicas.forget_tombstone(BUCKET, name, older)
    wanted = {name: b"newer" for name in WANTED if int(name) % 2}
    assert contents(store) == wanted
    assert store.replicas.forget_tombstone(BUCKET, next(name for name in theirs if name not in alive), newer)
    move_all(store)
    assert contents(store) == wanted


def put_copy(store: Store, name: str, data: bytes, version: Version) -> Version:
    with store.begin_put(BUCKET, name, version=version) as upload:
        upload.write(data)
        return upload.commit().version


@pytest.mark.parametrize("deleted", [False, True])
def test_what_a_crash_left_behind_is_not_found_when_its_drive_owns_the_name_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    a = store.record.current.drives[0]
    mine = [name for name in WANTED if drive_of(store, name).identity.drive_uuid == a]
    store.pool.retire_drive(a)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(write, "_drop", lambda *_, **__: None)
        for name in mine:
            put(store, name, b"newer")
            if deleted:
                store.delete(BUCKET, name, keep_tombstone=True)
    store.pool.reinstate_drive(a)
    wanted = {name: data if name not in mine else b"newer" for name, data in WANTED.items()}
    for name in mine if deleted else ():
        del wanted[name]
        with pytest.raises(ObjectNotFound):
            read(store, name)
    assert contents(store) == wanted
    asked = batch(store, list(WANTED))
    assert asked == [(pb.OK, wanted[name]) if name in wanted else (pb.NOT_FOUND, b"") for name in WANTED]
    store.pool.move_some(5, 1 << 20)
    assert contents(store) == wanted
    move_all(store)
    assert contents(store) == wanted


# -- readers beside


def test_a_reader_follows_drives_that_come_and_go(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(roots) as store, Store.open(roots, mode="r") as reader:
        assert contents(reader) == WANTED
        store.pool.add_drive(tmp_path / "c")
        put(store, "put/1", b"new")
        assert read(reader, "put/1") == b"new"
        move_all(store)
        for drive in store.drives:
            assert drive is not None
            drive.reap(everything=True)
        assert contents(reader) == {**WANTED, "put/1": b"new"}
        store.pool.retire_drive(store.record.current.drives[0])
        store.pool.move_some(20, 1 << 20)
        assert [data for _, data in batch(reader, list(WANTED))] == list(WANTED.values())
        move_all(store)
        assert [data for _, data in batch(reader, list(WANTED))] == list(WANTED.values())
        assert contents(reader) == {**WANTED, "put/1": b"new"}
        assert reader.record.current.drives == store.record.current.drives


def test_a_reader_that_cannot_see_a_new_drive_says_so(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(roots) as store, Store.open(roots, mode="r") as reader:
        assert contents(reader) == WANTED
        uuid = store.pool.add_drive(tmp_path / "elsewhere" / "c")
        theirs = [name for name in WANTED if drive_of(store, name).identity.drive_uuid == uuid]
        move_all(store)
        for drive in store.drives:
            assert drive is not None
            drive.reap(everything=True)
        put(store, theirs[0], b"newer")
        for name, data in WANTED.items():
            if name in theirs:
                with pytest.raises(DriveFailed, match="added to the store, and is not open here"):
                    read(reader, name)
                assert batch(reader, [name]) == [(pb.UNAVAILABLE, b"")]
            else:
                assert read(reader, name) == data
        with pytest.raises(DriveFailed):
            names(reader)
        reader.pool.enable_drive(uuid, tmp_path / "elsewhere" / "c")
        assert contents(reader) == {**WANTED, theirs[0]: b"newer"}


# -- the record


def test_the_record_of_every_drive_says_which_drives_come_and_go(roots: list[Path], tmp_path: Path) -> None:
    def record(root: Path) -> records.StoreRecord:
        found = records.read(root)
        assert found is not None
        return found

    with Store.open(roots) as store:
        a, b = store.record.current.drives
        c = store.pool.add_drive(tmp_path / "c")
        fields = record(roots[0])
        assert (fields.former, fields.drives) == (((a, b),), (a, b, c))
        assert record(tmp_path / "c") == record(roots[1]) == fields
        move_all(store)
        assert record(roots[0]).former == ()
        store.pool.retire_drive(b)
        assert record(tmp_path / "c").retiring == (b,)
        move_all(store)
        fields = record(tmp_path / "c")
        assert (fields.gone, fields.former, fields.drives) == ({b: "retired"}, (), (a, c))
