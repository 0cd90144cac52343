"""Adding, retiring, forgetting and disabling drives: what is allowed, what is kept, and what is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import (
    Closed,
    DriveFailed,
    DriveFull,
    InvalidRequest,
    ObjectNotFound,
    StoreFormatError,
    StoreReadOnly,
)
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.fsck import fsck as doctor
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.drives_kit import WANTED, files_on, move_all, store_with
from tests.store.small_drive import SmallDrive, small_drive
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    drive_of,
    names,
    put,
    read,
    store_at,
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


# -- adding


def test_a_new_drive_gets_its_share_and_no_more_than_that_moves(store: Store, tmp_path: Path) -> None:
    before = {name: store.head(BUCKET, name) for name in WANTED}
    uuid = store.pool.add_drive(tmp_path / "new" / "c")
    assert store.record.current.active == (*store.record.current.drives[:2], uuid) and store.pool.moving
    assert [state.status for state in store.pool.states()] == ["active"] * 3
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
            before[name].version,
            before[name].modified_ns,
            before[name].checksum,
        )
        assert (after.path == before[name].path) == (name not in owned)


def test_what_is_put_on_a_new_drive_ranks_above_all_that_went_before(store: Store, tmp_path: Path) -> None:
    newest = max(store.head(BUCKET, name).version for name in WANTED)
    store.pool.add_drive(tmp_path / "c")
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
        store.pool.add_drive(tmp_path / "a")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(b"jpeg")
    with pytest.raises(StoreFormatError, match="not a store, and not empty either"):
        store.pool.add_drive(tmp_path / "photos")
    with store_at(tmp_path / "other"):
        pass
    with pytest.raises(StoreFormatError, match="a drive of another store"):
        store.pool.add_drive(tmp_path / "other")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreFormatError, match="is not a folder"):
        store.pool.add_drive(tmp_path / "file")
    assert len(store.record.current.drives) == 2 and not store.pool.moving
    (tmp_path / "empty").mkdir()
    store.pool.add_drive(tmp_path / "empty")
    with Store.open([tmp_path / "a", tmp_path / "b", tmp_path / "empty"], mode="r") as reader:
        for change in (
            reader.pool.add_drive,
            reader.pool.retire_drive,
            reader.pool.forget_drive,
            reader.pool.reinstate_drive,
        ):
            with pytest.raises(StoreReadOnly):
                change(str(tmp_path / "d"))
        with pytest.raises(StoreReadOnly):
            reader.pool.move_some(1, 1)
    store.close()
    with pytest.raises(Closed):
        store.pool.add_drive(tmp_path / "d")


def test_a_drive_that_was_only_about_to_be_added_is_left_out_and_added_again(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(roots) as store:
        uuid = store.store_uuid
    (tmp_path / "c").mkdir()
    begun = {"format": 2, "drive_uuid": "c" * 32, "store_uuid": uuid}
    (tmp_path / "c" / "drive.json").write_text(json.dumps(begun))
    with Store.open([*roots, tmp_path / "c"]) as store:
        assert list(store.left_out) == [tmp_path / "c"] and "add it again" in store.left_out[tmp_path / "c"]
        assert store.pool.add_drive(tmp_path / "c") == "c" * 32
        move_all(store)
        assert contents(store) == WANTED
    assert_sound(*roots, tmp_path / "c")


def test_beside_a_missing_drive_only_its_own_names_wait(roots: list[Path], tmp_path: Path) -> None:
    three = [*roots, tmp_path / "c"]
    with Store.open(roots) as store:
        missing = store.pool.add_drive(tmp_path / "c")
        move_all(store)
        lost = {name for name in WANTED if drive_of(store, name).identity.drive_uuid == missing}
    (tmp_path / "far").mkdir()
    shutil.move(tmp_path / "c", tmp_path / "far" / "away")
    with Store.open(three) as store:
        new = store.pool.add_drive(tmp_path / "d")
        store.pool.move_some(20, 1 << 20)
        taken_over = next(name for name in sorted(lost) if drive_of_or_none(store, name) == new)
        for name, data in WANTED.items():
            if name in lost:
                with pytest.raises(DriveFailed):
                    read(store, name)
                with pytest.raises(DriveFailed):
                    put(store, name, b"would hide what is newer")
            else:
                assert read(store, name) == data
        assert [state.status for state in store.pool.states()] == ["active", "active", "missing", "active"]
        with pytest.raises(DriveFailed):
            store.pool.retire_drive(missing)
        with pytest.raises(DriveFailed, match="not mounted"):
            store.pool.enable_drive(missing)
        while store.pool.move_some(100, 1 << 30).objects:
            pass
        assert store.pool.moving  # it may hold names that belong elsewhere
        store.pool.enable_drive(missing, tmp_path / "far" / "away")
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


@pytest.mark.slow
def test_a_new_drive_that_is_full_takes_nothing_and_hides_nothing(store: Store, small: SmallDrive) -> None:
    uuid = store.pool.add_drive(small.root)
    large = bytes(1 << 20)
    theirs = [name for name in WANTED if drive_of(store, name).identity.drive_uuid == uuid]
    small.leave(6 << 20)
    step = store.pool.move_some(1000, 1 << 30)
    assert step.objects == 0 and step.left_estimate > 0 and "no space left" in step.problem
    assert store.pool.moving and contents(store) == WANTED
    with pytest.raises(DriveFull):
        put(store, theirs[0], large)
    assert read(store, theirs[0]) == WANTED[theirs[0]]
    store.delete(BUCKET, theirs[1])
    with pytest.raises(ObjectNotFound):
        read(store, theirs[1])
    small.release()
    move_all(store)
    assert contents(store) == {name: data for name, data in WANTED.items() if name != theirs[1]}


# -- retiring


def test_a_retired_drive_leaves_and_its_folder_says_so(store: Store, roots: list[Path], tmp_path: Path) -> None:
    first = store.record.current.drives[0]
    store.pool.retire_drive(first)
    store.pool.retire_drive(first)
    assert [state.status for state in store.pool.states()] == ["retiring", "active"]
    with pytest.raises(InvalidRequest, match="the last one that takes objects"):
        store.pool.retire_drive(store.record.current.drives[1])
    assert put(store, "new", b"data").path and drive_of(store, "new") is store.drives[1]
    assert contents(store) == {**WANTED, "new": b"data"}
    move_all(store)
    assert store.record.current.drives == (store.record.current.active[0],) != (first,)
    assert not (roots[0] / "drive.json").exists() and (roots[0] / "left.json").exists() and not files_on(roots[0])
    with pytest.raises(InvalidRequest, match="not one of this store"):
        store.pool.retire_drive(first)
    with pytest.raises(StoreFormatError, match="was retired; empty the folder"):
        store.pool.add_drive(roots[0])
    store.close()
    with pytest.raises(StoreFormatError, match="was retired"):
        Store.open([roots[0]])
    report = doctor.check(roots)
    assert report.healthy and [finding.kind for finding in report.findings] == ["left-out"]
    with Store.open(roots) as again:
        assert list(again.left_out) == [roots[0]]
        assert contents(again) == {**WANTED, "new": b"data"}
        shutil.rmtree(roots[0])
        assert again.pool.add_drive(roots[0]) != first
        move_all(again)
    assert_sound(*roots)


def test_a_drive_that_leaves_at_this_moment_is_not_said_to_be_active(store: Store) -> None:
    first, seen = store.record.current.drives[0], list[str]()

    def look() -> None:
        seen.extend(state.status for state in store.pool.states() if state.uuid == first)

    store.record.watches |= {look}
    store.pool.retire_drive(first)
    move_all(store)
    assert first not in store.record.current.drives and set(seen) == {"retiring"}


def test_several_drives_retire_at_once_and_one_is_reinstated(store: Store, roots: list[Path], tmp_path: Path) -> None:
    added = [store.pool.add_drive(tmp_path / name) for name in ("c", "d")]
    move_all(store)
    a, b = store.record.current.drives[:2]
    store.pool.retire_drive(a)
    store.pool.move_some(5, 1 << 20)
    store.pool.retire_drive(b)
    store.pool.move_some(5, 1 << 20)
    store.pool.retire_drive(added[0])
    for name in list(WANTED)[:30]:
        put(store, name, b"new")
    wanted = {**WANTED, **dict.fromkeys(list(WANTED)[:30], b"new")}
    store.pool.reinstate_drive(b)
    assert contents(store) == wanted
    assert [data for _, data in batch(store, list(wanted))] == list(wanted.values())
    move_all(store)
    assert set(store.record.current.drives) == {b, added[1]} and contents(store) == wanted
    assert_sound_after(store, roots[1], tmp_path / "d")


def assert_sound_after(store: Store, *roots: Path) -> None:
    store.close()
    assert_sound(*roots)


# -- forgetting


def test_a_forgotten_drive_is_not_let_in_again_before_it_is_empty(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(roots) as store:
        a, b = store.record.current.drives
        lost = {name for name in WANTED if drive_of(store, name).identity.drive_uuid == b}
        with pytest.raises(InvalidRequest, match="works: retire it"):
            store.pool.forget_drive(b)
    with Store.open(roots[:1]) as store:
        with pytest.raises(InvalidRequest, match="not one of this store"):
            store.pool.forget_drive("0" * 32)
        store.pool.forget_drive(b)
        assert not store.pool.moving and store.record.current.drives == (a,)
        assert names(store) == sorted(set(WANTED) - lost)
        assert [status for status, _ in batch(store, sorted(lost))] == [pb.NOT_FOUND] * len(lost)
        put(store, sorted(lost)[0], b"new")
        with pytest.raises(StoreFormatError, match="which was forgotten"):
            store.pool.add_drive(roots[1])
        with pytest.raises(InvalidRequest, match="not one of this store"):
            store.pool.enable_drive(b, roots[1])
    with Store.open(roots) as store:
        assert "which was forgotten" in store.left_out[roots[1]]
        assert read(store, sorted(lost)[0]) == b"new"
        shutil.rmtree(roots[1])
        roots[1].mkdir()
        store.pool.add_drive(roots[1])
        move_all(store)
        assert len(names(store)) == len(WANTED) - len(lost) + 1
    assert_sound(*roots)


def test_a_drive_is_replaced_beside_a_broken_one(store: Store, roots: list[Path], tmp_path: Path) -> None:
    b = store.record.current.drives[1]
    kept = {name: data for name, data in WANTED.items() if drive_of(store, name).identity.drive_uuid != b}
    store.pool.disable_drive(b, "it clicks")
    assert store.pool.states()[1].problem == "it clicks"
    with pytest.raises(DriveFailed, match="needs a majority"):
        store.pool.add_drive(tmp_path / "early")
    store.pool.forget_drive(b)
    store.pool.add_drive(tmp_path / "c")
    assert contents(store) == kept
    move_all(store)
    assert contents(store) == kept
    assert_sound_after(store, roots[0], tmp_path / "c")


def test_a_forgotten_drive_leaves_an_unfinished_move_to_the_others(store: Store, tmp_path: Path) -> None:
    c = store.pool.add_drive(tmp_path / "c")
    a = store.record.current.drives[0]
    store.pool.retire_drive(a)
    store.pool.move_some(10, 1 << 20)
    held = {name for name in WANTED if store.locate(BUCKET, name)[0].identity.drive_uuid == c}
    assert held and len(held) < len(WANTED)
    store.pool.disable_drive(c, "gone")
    store.pool.forget_drive(c)
    kept = {name: data for name, data in WANTED.items() if name not in held}
    assert contents(store) == kept
    move_all(store)
    assert contents(store) == kept and a not in store.record.current.drives
