"""Adding, retiring, forgetting and disabling drives: what is allowed, what is kept, and what is said."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from protos import ais_batch_pb2 as pb
from storage_node.store import doctor, placed_changes
from storage_node.store.checksum import crc32c
from storage_node.store.errors import (
    CorruptObject,
    DriveFailed,
    DriveFull,
    FormatError,
    InvalidRequest,
    ObjectNotFound,
    StoreClosed,
    StoreReadOnly,
)
from storage_node.store.format import BLOCK_BYTES, Version
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.small_drive import SmallDrive, small_drive
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
    store_at,
    stored_identity,
)

WANTED = {f"{number:03}": b"%d" % number * 3 for number in range(90)}


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        for name, data in WANTED.items():
            put(store, name, data)
    return roots


@pytest.fixture
def store(roots: list[Path]) -> Iterator[Store]:
    with Store.open(roots) as store:
        yield store


def move_all(store: Store) -> int:
    """Every step, each of them checked; how many entries went."""
    moved = 0
    for _ in range(1000):
        step = store.move_some(20, 1 << 20)
        moved += step.objects
        assert step.objects <= 20 and not step.problem, step
        if not step.left_estimate:
            assert not store.moving
            return moved
    raise AssertionError("it does not end")


def files_on(root: Path) -> int:
    return sum(1 for path in (root / "objects").rglob("*") if path.is_file())


# -- adding


def test_a_new_drive_gets_its_share_and_no_more_than_that_moves(store: Store, tmp_path: Path) -> None:
    before = {name: store.head(BUCKET, name) for name in WANTED}
    uuid = store.add_drive(tmp_path / "new" / "c")
    assert store.record.active == (*store.record.drives[:2], uuid) and store.moving
    assert [state.status for state in store.states()] == ["active"] * 3
    owned = [name for name in WANTED if drive_of(store, name).identity.drive_uuid == uuid]
    assert 10 < len(owned) < 60
    assert move_all(store) == len(owned)
    for drive in store.drives:
        assert drive is not None
        drive.reap(everything=True)
    assert files_on(tmp_path / "new" / "c") == len(owned)
    assert files_on(tmp_path / "a") + files_on(tmp_path / "b") == len(WANTED) - len(owned)
    for name in WANTED:
        after = store.head(BUCKET, name)
        assert (after.version, after.modified_ns, after.checksum) == (
            before[name].version, before[name].modified_ns, before[name].checksum,
        )  # fmt: skip
        assert (after.path == before[name].path) == (name not in owned)


def test_what_is_put_on_a_new_drive_ranks_above_all_that_went_before(store: Store, tmp_path: Path) -> None:
    newest = max(store.head(BUCKET, name).version for name in WANTED)
    store.add_drive(tmp_path / "c")
    for name in WANTED:
        assert put(store, name, b"again").version > newest
    assert contents(store) == dict.fromkeys(WANTED, b"again")
    move_all(store)
    roots = [drive.root for drive in store.drives if drive is not None]
    store.close()
    with Store.open(roots) as again:
        assert contents(again) == dict.fromkeys(WANTED, b"again")
        newest = max(again.head(BUCKET, name).version for name in WANTED)
        assert all(put(again, name, b"once more").version > newest for name in list(WANTED)[:20])


def test_only_an_empty_folder_becomes_a_drive(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is a drive of this store already"):
        store.add_drive(tmp_path / "a")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(b"jpeg")
    with pytest.raises(FormatError, match="not a store, and not empty either"):
        store.add_drive(tmp_path / "photos")
    with store_at(tmp_path / "other"):
        pass
    with pytest.raises(FormatError, match="a drive of another store"):
        store.add_drive(tmp_path / "other")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FormatError, match="is not a folder"):
        store.add_drive(tmp_path / "file")
    assert len(store.record.drives) == 2 and not store.moving
    (tmp_path / "empty").mkdir()
    store.add_drive(tmp_path / "empty")
    with Store.open([tmp_path / "a", tmp_path / "b", tmp_path / "empty"], mode="r") as reader:
        for change in (reader.add_drive, reader.retire_drive, reader.forget_drive, reader.reinstate_drive):
            with pytest.raises(StoreReadOnly):
                change(str(tmp_path / "d"))
        with pytest.raises(StoreReadOnly):
            reader.move_some(1, 1)
    store.close()
    with pytest.raises(StoreClosed):
        store.add_drive(tmp_path / "d")


def test_a_drive_that_was_only_about_to_be_added_is_left_out_and_added_again(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(roots) as store:
        uuid = store.store_uuid
    (tmp_path / "c").mkdir()
    begun = {"format": 2, "drive_uuid": "c" * 32, "store_uuid": uuid}
    (tmp_path / "c" / "drive.json").write_text(json.dumps(begun))
    with Store.open([*roots, tmp_path / "c"]) as store:
        assert list(store.left_out) == [tmp_path / "c"] and "add it again" in store.left_out[tmp_path / "c"]
        assert store.add_drive(tmp_path / "c") == "c" * 32
        move_all(store)
        assert contents(store) == WANTED
    assert_sound(*roots, tmp_path / "c")


def test_beside_a_missing_drive_only_its_own_names_wait(roots: list[Path], tmp_path: Path) -> None:
    three = [*roots, tmp_path / "c"]
    with Store.open(roots) as store:
        missing = store.add_drive(tmp_path / "c")
        move_all(store)
        lost = {name for name in WANTED if drive_of(store, name).identity.drive_uuid == missing}
    (tmp_path / "far").mkdir()
    shutil.move(tmp_path / "c", tmp_path / "far" / "away")
    with Store.open(three) as store:
        new = store.add_drive(tmp_path / "d")
        store.move_some(20, 1 << 20)
        taken_over = next(name for name in sorted(lost) if drive_of_or_none(store, name) == new)
        for name, data in WANTED.items():
            if name in lost:
                with pytest.raises(DriveFailed):
                    read(store, name)
                with pytest.raises(DriveFailed):
                    put(store, name, b"would hide what is newer")
            else:
                assert read(store, name) == data
        assert [state.status for state in store.states()] == ["active", "active", "missing", "active"]
        with pytest.raises(DriveFailed):
            store.retire_drive(missing)
        with pytest.raises(DriveFailed, match="not mounted"):
            store.enable_drive(missing)
        while store.move_some(100, 1 << 30).objects:
            pass
        assert store.moving  # it may hold names that belong elsewhere
        store.enable_drive(missing, tmp_path / "far" / "away")
        assert read(store, taken_over) == WANTED[taken_over]
        put(store, taken_over, b"newer")
        move_all(store)
        assert contents(store) == {**WANTED, taken_over: b"newer"}
    assert_sound(*roots, tmp_path / "far" / "away", tmp_path / "d")


def drive_of_or_none(store: Store, name: str) -> str | None:
    try:
        return drive_of(store, name).identity.drive_uuid
    except DriveFailed:
        return None


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDrive]:
    with small_drive(tmp_path, monkeypatch) as drive:
        yield drive


def test_a_new_drive_that_is_full_takes_nothing_and_hides_nothing(store: Store, small: SmallDrive) -> None:
    uuid = store.add_drive(small.root)
    large = bytes(1 << 20)
    theirs = [name for name in WANTED if drive_of(store, name).identity.drive_uuid == uuid]
    small.leave(6 << 20)
    step = store.move_some(1000, 1 << 30)
    assert step.objects == 0 and step.left_estimate > 0 and "no space left" in step.problem
    assert store.moving and contents(store) == WANTED
    with pytest.raises(DriveFull):
        put(store, theirs[0], large)
    assert read(store, theirs[0]) == WANTED[theirs[0]]
    store.delete(BUCKET, theirs[1])
    with pytest.raises(ObjectNotFound):
        read(store, theirs[1])
    small.release()
    move_all(store)
    assert contents(store) == {name: data for name, data in WANTED.items() if name != theirs[1]}


# -- moving


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
    graves = list(store.tombstones(BUCKET))
    assert len(graves) == 20
    store.add_drive(tmp_path / "c")
    store.retire_drive(store.record.drives[0])
    move_all(store)
    assert not [record for record in before if record not in names(store)]
    for name, record in before.items():
        after = store.head(BUCKET, name)
        assert after[:7] == record[:7] and after.raw_metadata == record.raw_metadata
        identity = stored_identity(file_of(store, name))
        assert (identity.name, identity.version, identity.checksum, identity.metadata) == (
            name, record.version, record.checksum, record.metadata,
        )  # fmt: skip
    assert list(store.tombstones(BUCKET)) == graves
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


def test_damage_moves_along_and_stays_damage(store: Store, tmp_path: Path) -> None:
    put(store, "large", os.urandom(2 * BLOCK_BYTES + 1))
    uuid = store.record.drives[0]
    mine = [name for name in [*WANTED, "large"] if drive_of(store, name).identity.drive_uuid == uuid]
    if "large" not in mine:
        uuid = store.record.drives[1]
        mine = [name for name in [*WANTED, "large"] if drive_of(store, name).identity.drive_uuid == uuid]
    flipped, gone, cut = mine[:3]
    flip_a_byte(file_of(store, flipped))
    flip_a_byte(file_of(store, "large"), BLOCK_BYTES + 9)
    os.unlink(file_of(store, gone))
    os.truncate(file_of(store, cut), 1)
    store.retire_drive(uuid)
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
    store.retire_drive(store.record.drives[1])
    step = store.move_some(1, 1)
    assert (step.objects, step.problem) == (1, "") and step.left_estimate > 0
    while store.moving:
        step = store.move_some(1000, 150_000)
        assert step.objects and step.bytes <= 350_000
    assert store.move_some(10, 10) == (0, 0, 0, "")


def test_the_doctor_tells_what_moves_from_what_is_wrong(store: Store, roots: list[Path], tmp_path: Path) -> None:
    store.add_drive(tmp_path / "c")
    store.move_some(3, 1 << 20)
    store.close()
    report = doctor.check([*roots, tmp_path / "c"], checksums=True)
    assert report.healthy and {finding.kind for finding in report.findings} == {"moving"}
    repaired = doctor.repair([*roots, tmp_path / "c"])
    assert repaired.healthy and kinds(repaired) == []
    with Store.open([*roots, tmp_path / "c"]) as again:
        assert contents(again) == WANTED and again.moving
        move_all(again)
    assert_sound(*roots, tmp_path / "c")


def test_a_copy_that_comes_late_does_not_hide_what_has_not_moved_yet(store: Store, tmp_path: Path) -> None:
    newer, older = Version(9, 70, 2), Version(9, 60, 3)
    for name in WANTED:
        store.delete(BUCKET, name, newer, keep_tombstone=True)
        if int(name) % 2:
            put_copy(store, name, b"newer", Version(9, 70, 3))
    uuid = store.add_drive(tmp_path / "c")
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
            assert not store.forget_tombstone(BUCKET, name, older)
    wanted = {name: b"newer" for name in WANTED if int(name) % 2}
    assert contents(store) == wanted
    assert store.forget_tombstone(BUCKET, next(name for name in theirs if name not in alive), newer)
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
    a = store.record.drives[0]
    mine = [name for name in WANTED if drive_of(store, name).identity.drive_uuid == a]
    store.retire_drive(a)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(placed_changes, "_drop", lambda *_, **__: None)
        for name in mine:
            put(store, name, b"newer")
            if deleted:
                store.delete(BUCKET, name, keep_tombstone=True)
    store.reinstate_drive(a)
    wanted = {name: data if name not in mine else b"newer" for name, data in WANTED.items()}
    for name in mine if deleted else ():
        del wanted[name]
        with pytest.raises(ObjectNotFound):
            read(store, name)
    assert contents(store) == wanted
    asked = batch(store, list(WANTED))
    assert asked == [(pb.OK, wanted[name]) if name in wanted else (pb.NOT_FOUND, b"") for name in WANTED]
    store.move_some(5, 1 << 20)
    assert contents(store) == wanted
    move_all(store)
    assert contents(store) == wanted


# -- retiring


def test_a_retired_drive_leaves_and_its_folder_says_so(store: Store, roots: list[Path], tmp_path: Path) -> None:
    first = store.record.drives[0]
    store.retire_drive(first)
    store.retire_drive(first)
    assert [state.status for state in store.states()] == ["retiring", "active"]
    with pytest.raises(InvalidRequest, match="the last one that takes objects"):
        store.retire_drive(store.record.drives[1])
    assert put(store, "new", b"data").path and drive_of(store, "new") is store.drives[1]
    assert contents(store) == {**WANTED, "new": b"data"}
    move_all(store)
    assert store.record.drives == (store.record.active[0],) != (first,)
    assert not (roots[0] / "drive.json").exists() and (roots[0] / "left.json").exists() and not files_on(roots[0])
    with pytest.raises(InvalidRequest, match="not one of this store"):
        store.retire_drive(first)
    with pytest.raises(FormatError, match="was retired; empty the folder"):
        store.add_drive(roots[0])
    store.close()
    with pytest.raises(FormatError, match="was retired"):
        Store.open([roots[0]])
    report = doctor.check(roots)
    assert report.healthy and [finding.kind for finding in report.findings] == ["left-out"]
    with Store.open(roots) as again:
        assert list(again.left_out) == [roots[0]]
        assert contents(again) == {**WANTED, "new": b"data"}
        shutil.rmtree(roots[0])
        assert again.add_drive(roots[0]) != first
        move_all(again)
    assert_sound(*roots)


def test_several_drives_retire_at_once_and_one_is_reinstated(store: Store, roots: list[Path], tmp_path: Path) -> None:
    added = [store.add_drive(tmp_path / name) for name in ("c", "d")]
    move_all(store)
    a, b = store.record.drives[:2]
    store.retire_drive(a)
    store.move_some(5, 1 << 20)
    store.retire_drive(b)
    store.move_some(5, 1 << 20)
    store.retire_drive(added[0])
    for name in list(WANTED)[:30]:
        put(store, name, b"new")
    wanted = {**WANTED, **dict.fromkeys(list(WANTED)[:30], b"new")}
    store.reinstate_drive(b)
    assert contents(store) == wanted
    assert [data for _, data in batch(store, list(wanted))] == list(wanted.values())
    move_all(store)
    assert set(store.record.drives) == {b, added[1]} and contents(store) == wanted
    assert_sound_after(store, roots[1], tmp_path / "d")


def assert_sound_after(store: Store, *roots: Path) -> None:
    store.close()
    assert_sound(*roots)


# -- forgetting


def test_a_forgotten_drive_is_not_let_in_again_before_it_is_empty(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(roots) as store:
        a, b = store.record.drives
        lost = {name for name in WANTED if drive_of(store, name).identity.drive_uuid == b}
        with pytest.raises(InvalidRequest, match="works: retire it"):
            store.forget_drive(b)
    with Store.open(roots[:1]) as store:
        with pytest.raises(InvalidRequest, match="not one of this store"):
            store.forget_drive("0" * 32)
        store.forget_drive(b)
        assert not store.moving and store.record.drives == (a,)
        assert names(store) == sorted(set(WANTED) - lost)
        assert [status for status, _ in batch(store, sorted(lost))] == [pb.NOT_FOUND] * len(lost)
        put(store, sorted(lost)[0], b"new")
        with pytest.raises(FormatError, match="which was forgotten"):
            store.add_drive(roots[1])
        with pytest.raises(InvalidRequest, match="not one of this store"):
            store.enable_drive(b, roots[1])
    with Store.open(roots) as store:
        assert "which was forgotten" in store.left_out[roots[1]]
        assert read(store, sorted(lost)[0]) == b"new"
        shutil.rmtree(roots[1])
        roots[1].mkdir()
        store.add_drive(roots[1])
        move_all(store)
        assert len(names(store)) == len(WANTED) - len(lost) + 1
    assert_sound(*roots)


def test_a_drive_is_replaced_beside_a_broken_one(store: Store, roots: list[Path], tmp_path: Path) -> None:
    b = store.record.drives[1]
    kept = {name: data for name, data in WANTED.items() if drive_of(store, name).identity.drive_uuid != b}
    store.disable_drive(b, "it clicks")
    assert store.states()[1].problem == "it clicks"
    with pytest.raises(DriveFailed, match="needs a majority"):
        store.add_drive(tmp_path / "early")
    store.forget_drive(b)
    store.add_drive(tmp_path / "c")
    assert contents(store) == kept
    move_all(store)
    assert contents(store) == kept
    assert_sound_after(store, roots[0], tmp_path / "c")


def test_a_forgotten_drive_leaves_an_unfinished_move_to_the_others(store: Store, tmp_path: Path) -> None:
    c = store.add_drive(tmp_path / "c")
    a = store.record.drives[0]
    store.retire_drive(a)
    store.move_some(10, 1 << 20)
    held = {name for name in WANTED if store.locate(BUCKET, name)[0].identity.drive_uuid == c}
    assert held and len(held) < len(WANTED)
    store.disable_drive(c, "gone")
    store.forget_drive(c)
    kept = {name: data for name, data in WANTED.items() if name not in held}
    assert contents(store) == kept
    move_all(store)
    assert contents(store) == kept and a not in store.record.drives


# -- readers beside


def test_a_reader_follows_drives_that_come_and_go(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(roots) as store, Store.open(roots, mode="r") as reader:
        assert contents(reader) == WANTED
        store.add_drive(tmp_path / "c")
        put(store, "put/1", b"new")
        assert read(reader, "put/1") == b"new"
        move_all(store)
        for drive in store.drives:
            assert drive is not None
            drive.reap(everything=True)
        assert contents(reader) == {**WANTED, "put/1": b"new"}
        store.retire_drive(store.record.drives[0])
        store.move_some(20, 1 << 20)
        assert [data for _, data in batch(reader, list(WANTED))] == list(WANTED.values())
        move_all(store)
        assert [data for _, data in batch(reader, list(WANTED))] == list(WANTED.values())
        assert contents(reader) == {**WANTED, "put/1": b"new"}
        assert reader.record.drives == store.record.drives


def test_a_reader_that_cannot_see_a_new_drive_says_so(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(roots) as store, Store.open(roots, mode="r") as reader:
        assert contents(reader) == WANTED
        uuid = store.add_drive(tmp_path / "elsewhere" / "c")
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
        reader.enable_drive(uuid, tmp_path / "elsewhere" / "c")
        assert contents(reader) == {**WANTED, theirs[0]: b"newer"}


# -- the record


def test_only_a_store_whose_drives_have_changed_needs_the_later_format(roots: list[Path], tmp_path: Path) -> None:
    def record(root: Path) -> tuple[int, dict[str, object]]:
        outer = json.loads((root / "record.json").read_text())
        return outer["format"], json.loads(outer["record"])

    assert record(roots[0])[0] == 2 and not {"retiring", "former", "gone"} & set(record(roots[0])[1])
    with Store.open(roots) as store:
        a, b = store.record.drives
        c = store.add_drive(tmp_path / "c")
        number, fields = record(roots[0])
        assert (number, fields["former"], fields["drives"]) == (3, [[a, b]], [a, b, c])
        assert record(tmp_path / "c") == record(roots[1]) == (number, fields)
        move_all(store)
        assert record(roots[0])[0] == 2
        store.retire_drive(b)
        assert record(tmp_path / "c")[1]["retiring"] == [b]
        move_all(store)
        number, fields = record(tmp_path / "c")
        assert (number, fields["gone"], fields["former"], fields["drives"]) == (3, {b: "retired"}, [], [a, c])
