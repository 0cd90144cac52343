"""A catalog made anew from the files: every object byte for byte, nothing old, nothing deleted."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from ais_loader.errors import CorruptObject, DriveFull, ObjectDenied, StoreFormatError, StoreLocked, StoreNotFound
from storage_node.store import format as fmt
from storage_node.store.drive import catalog as catalogs
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.fsck import rebuild as rebuilding
from storage_node.store.fsck.fsck import rebuild, repair
from storage_node.store.store import Store
from tests.store.fsck.test_store_damage import CATALOG_DAMAGES, newest, overwrite_middle
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    copy_with_attributes,
    drive_of,
    file_of,
    flip_a_byte,
    kinds,
    names,
    object_files,
    put,
    read,
    store_at,
)

States = dict[str, tuple[bytes, str, dict[str, str]]]


def states(store: Store) -> States:
    """Bytes, version and metadata of every object."""
    found = {name: store.head(BUCKET, name) for name in names(store)}
    return {name: (read(store, name), str(record.version), record.metadata) for name, record in found.items()}


def live_a_little(store: Store) -> States:
    """Objects with all kinds of pasts; returns what is there in the end."""
    for number in range(60):
        put(store, f"größe/{number}", b"first %d" % number)
    for number in range(0, 60, 2):
        put(store, f"größe/{number}", b"second %d" % number, metadata={"kind": "second", "name": "größe"})
    for number in range(0, 60, 3):
        store.delete(BUCKET, f"größe/{number}")
    for number in range(0, 60, 6):
        put(store, f"größe/{number}", b"third %d" % number)
    put(store, "empty", b"")
    put(store, "n" * 1024, b"the longest name")
    for blocks in (1, 2, 3):
        put(store, f"large/{blocks}", os.urandom(blocks * BLOCK_BYTES + 1))
    return states(store)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "drive"


@pytest.mark.parametrize("damage", [*CATALOG_DAMAGES, "bad table"])
@pytest.mark.parametrize("after", ["a close", "a crash"])
@pytest.mark.sampled(8)
def test_every_object_comes_back_byte_for_byte_and_nothing_else(root: Path, damage: str, after: str) -> None:
    with store_at(root) as store:
        wanted = live_a_little(store)
        if after == "a crash":
            shutil.copytree(root, root.with_name("crashed"), symlinks=True, copy_function=copy_with_attributes)
    if after == "a crash":
        shutil.rmtree(root)
        root.with_name("crashed").rename(root)
        with Store.open([root]) as store:  # writes tables, so that there is something to damage
            assert states(store) == wanted
    if damage == "bad table":
        overwrite_middle(newest(root, "*.sst"))
    else:
        CATALOG_DAMAGES[damage](root)
    report = rebuild([root])
    assert report.healthy and kinds(report) == ["drive-unusable"]
    assert report.drives[0].objects == len(wanted)
    with Store.open([root]) as store:
        assert states(store) == wanted
        assert read(store, "large/3", start=BLOCK_BYTES + 1, verify=True) == wanted["large/3"][0][BLOCK_BYTES + 1 :]
        newest_version = max(store.head(BUCKET, name).version for name in wanted)
        assert put(store, "größe/1", b"later").version > newest_version
    assert_sound(root)
    aside = [path.name for path in root.iterdir() if path.name.startswith("catalog.")]
    assert aside == ([] if damage == "no catalog" else ["catalog.lost-1"])


def test_dead_files_of_a_crashed_writer_do_not_come_back(root: Path) -> None:
    with store_at(root) as store:
        drive_of(store)._garbage._grace_s = 3600.0  # the machine may stand still before they are copied
        wanted = live_a_little(store)
        files = len(object_files(root))
        assert files > len(wanted), "dead files must be there still"
        shutil.copytree(root, root.with_name("crashed"), symlinks=True, copy_function=copy_with_attributes)
    crashed = root.with_name("crashed")
    shutil.rmtree(crashed / "catalog")
    report = rebuild([crashed])
    assert set(kinds(report)) == {"drive-unusable", "no-identity"}
    with Store.open([crashed]) as store:
        assert states(store) == wanted
    assert not repair([crashed]).errors
    assert_sound(crashed)
    assert len(object_files(crashed)) == len(wanted)


def test_of_two_versions_the_newer_one_counts_in_whatever_order_they_are_found(root: Path) -> None:
    with store_at(root) as store:
        kept: list[tuple[Path, bytes, bytes]] = []
        for number in range(40):
            put(store, f"{number}", b"old")
            path = file_of(store, f"{number}")
            kept.append((path, path.read_bytes(), os.getxattr(path, fmt.XATTR_NAME)))
            put(store, f"{number}", b"new")
    for path, data, identity in kept:
        path.write_bytes(data)
        os.setxattr(path, fmt.XATTR_NAME, identity)
    shutil.rmtree(root / "catalog")
    assert kinds(rebuild([root])) == ["drive-unusable"] + ["orphan"] * 40
    with Store.open([root]) as store:
        assert contents(store) == {f"{number}": b"new" for number in range(40)}
    repair([root])
    assert_sound(root)


def test_counters_and_epochs_go_beyond_everything_that_was_ever_seen(root: Path) -> None:
    with store_at(root) as store:
        for number in range(10):
            put(store, "a", b"%d" % number)
        last = put(store, "b", b"")
        epoch = store.record.current.epoch
    shutil.rmtree(root / "catalog")
    dead = root / "objects" / "00" / "00" / ("cd" * 14 + f".{last.generation + 1000:x}")
    dead.parent.mkdir(parents=True, exist_ok=True)
    dead.write_bytes(b"")
    rebuild([root])
    with Store.open([root]) as store:
        assert store.record.current.epoch == epoch + 1
        new = put(store, "a", b"new")
        assert new.epoch == epoch + 1
        assert new.counter > last.counter and new.generation > last.generation + 1000


def test_a_denial_does_not_hide_the_epoch_of_what_else_is_there(root: Path) -> None:
    with store_at(root) as store:
        store.denied.deny(BUCKET, ["denied"], "order")
        store.record.change(lambda record: record.with_epoch(7))
    with Store.open([root]) as store:
        assert put(store, "a", b"old").epoch == 7
        bucket = f"recovered-{store.bucket(BUCKET).uuid}"
    (root / "record.json").unlink()
    rebuild([root])
    with Store.open([root]) as store:
        assert put(store, "a", b"new", bucket).epoch > 7


def test_what_a_takedown_has_left_is_gone_after_a_catalog_made_anew(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_at(root) as store:
        put(store, "a", b"first " * 1000)
        store.snapshots.create(BUCKET, "kept")
        put(store, "a", b"second " * 1000)
        drive = drive_of(store)
        monkeypatch.setattr(drive.changes, "defer_unlink", lambda ended: None)  # as if it had died there
        store.denied.deny(BUCKET, ["a"], "order")
        assert len(object_files(root)) == 2
        batch = WriteBatch(raw_mode=True)
        batch.put(fmt.object_key(store.bucket(BUCKET).uuid_bytes, "z"), b"damaged")
        drive.catalog.write(batch, sync=True)
    assert kinds(rebuild([root])) == ["drive-unusable"]
    with Store.open([root]) as store:
        for bucket in (BUCKET, f"{BUCKET}@kept"):
            with pytest.raises(ObjectDenied):
                read(store, "a", bucket)
        assert object_files(root) == []


class Killed(BaseException):
    pass


@pytest.mark.parametrize("point", ["rebuild.built", "rebuild.aside"])
def test_a_rebuild_that_is_killed_loses_no_denial_and_no_tombstone(
    root: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def die(at: str) -> None:
        if at == point:
            raise Killed

    with store_at(root) as store:
        put(store, "kept", b"1")
        put(store, "deleted", b"2")
        store.denied.deny(BUCKET, ["denied"], "order")
        store.delete(BUCKET, "deleted", keep_tombstone=True)
        wanted = store.replicas.newest(BUCKET, ["deleted", "denied"])
    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "failpoint", die)
        with pytest.raises(Killed):
            rebuild([root], all_drives=True)
    assert rebuild([root], all_drives=True).healthy
    with Store.open([root]) as store:
        assert contents(store) == {"kept": b"1"}
        assert store.replicas.newest(BUCKET, ["deleted", "denied"]) == wanted
        assert [one.name for one in store.denied.names(BUCKET)] == ["denied"]
        with pytest.raises(ObjectDenied):
            put(store, "denied", b"again")
    assert sorted(path.name for path in root.iterdir() if path.name.startswith("catalog")) == [
        "catalog",
        "catalog.lost-1",
    ]


@pytest.mark.parametrize("all_drives", [False, True])
def test_without_room_to_read_the_old_catalog_nothing_is_rebuilt(
    root: Path, monkeypatch: pytest.MonkeyPatch, all_drives: bool
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with store_at(root) as store:
        put(store, "a", b"1")
        store.denied.deny(BUCKET, ["a"], "order")
    with monkeypatch.context() as patched:  # both are in the folder for temporary files
        patched.setattr(catalogs, "copy_for_salvage", full)
        patched.setattr(catalogs.Catalog, "_open_secondary", full)
        with pytest.raises(DriveFull, match="no space left"):
            rebuild([root], all_drives=all_drives)
    with Store.open([root]) as store, pytest.raises(ObjectDenied):
        put(store, "a", b"again")
    assert rebuild([root], all_drives=True).healthy
    with Store.open([root]) as store, pytest.raises(ObjectDenied):
        put(store, "a", b"again")


def test_a_rebuild_that_finds_no_room_takes_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise DriveFull("no space left")

    with store_at(root) as store:
        put(store, "a", b"1")
    before = sorted(root.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(catalogs.Catalog, "end_session", full)
        with pytest.raises(DriveFull):
            rebuild([root], all_drives=True)
    assert sorted(root.iterdir()) == before
    with Store.open([root]) as store:
        assert contents(store) == {"a": b"1"}


def test_denials_and_tombstones_on_both_sides_of_the_damage_are_kept(root: Path) -> None:
    denied, deleted = ["a", "object 00001", "z"], ["object 00002", "object 03999"]
    with store_at(root) as store:
        for at in range(4000):
            put(store, f"object {at:05}", b"x", metadata={"k": os.urandom(100).hex()})
        store.denied.deny(BUCKET, denied, "order")
        for name in deleted:
            store.delete(BUCKET, name, keep_tombstone=True)
        wanted = store.replicas.newest(BUCKET, [*denied, *deleted])
        drive_of(store).catalog.compact()
    overwrite_middle(max(root.glob("catalog/*.sst"), key=lambda path: path.stat().st_size))
    report = rebuild([root])
    assert kinds(report) == ["drive-unusable"] and report.drives[0].objects == 4000 - 3
    with Store.open([root]) as store:
        assert store.replicas.newest(BUCKET, [*denied, *deleted]) == wanted
        assert [one.name for one in store.denied.names(BUCKET)] == denied


def test_metadata_that_did_not_fit_is_reported_as_lost(root: Path) -> None:
    with store_at(root) as store:
        put(store, "small", b"1", metadata={"k": "v"})
        put(store, "large", b"2", metadata={"k": "v" * 2000})
    shutil.rmtree(root / "catalog")
    report = rebuild([root])
    assert [finding.name for finding in report.errors] == ["large"]
    assert report.errors[0].kind == "metadata-lost"
    with Store.open([root]) as store:
        assert (read(store, "large"), store.head(BUCKET, "large").metadata) == (b"2", {})
        assert store.head(BUCKET, "small").metadata == {"k": "v"}


@pytest.mark.parametrize("size", [100, 3 * BLOCK_BYTES])
@pytest.mark.parametrize("damage", [flip_a_byte, lambda path: os.truncate(path, 50)])
def test_a_damaged_object_keeps_its_entry_and_is_corrupt(root: Path, size: int, damage: Callable[[Path], None]) -> None:
    with store_at(root) as store:
        put(store, "bad", os.urandom(size))
        put(store, "good", b"1")
        damage(file_of(store, "bad"))
    shutil.rmtree(root / "catalog")
    report = rebuild([root])
    assert [finding.name for finding in report.errors] == ["bad"]
    with Store.open([root]) as store:
        with pytest.raises(CorruptObject):
            read(store, "bad")
        with pytest.raises(CorruptObject):
            read(store, "bad", start=1, length=60, verify=True)
        assert read(store, "good") == b"1"


def test_without_verifying_small_objects_are_not_read(root: Path) -> None:
    with store_at(root) as store:
        put(store, "bad", b"12345")
        flip_a_byte(file_of(store, "bad"))
    shutil.rmtree(root / "catalog")
    assert rebuild([root], verify=False).healthy
    with Store.open([root]) as store, pytest.raises(CorruptObject):
        read(store, "bad")


def test_a_sound_catalog_is_left_alone_unless_asked_for(root: Path) -> None:
    with store_at(root) as store:
        wanted = live_a_little(store)
        revision = store.record.current.order
    report = rebuild([root])
    assert [finding.kind for finding in report.findings] == ["catalog-kept"] and report.drives[0].objects == len(wanted)
    with Store.open([root]) as store:
        assert store.record.current.order == revision
    report = rebuild([root], all_drives=True)
    assert [finding.kind for finding in report.findings] == ["catalog-rebuilt"]
    with Store.open([root]) as store:
        assert states(store) == wanted
    assert_sound(root)


def test_only_the_drive_that_lost_its_catalog_is_rebuilt(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        wanted = live_a_little(store)
    shutil.rmtree(roots[1] / "catalog")
    report = rebuild(roots)
    assert [(finding.kind, finding.drive) for finding in report.findings if finding.severity == "note"] == [
        ("catalog-kept", str(roots[0])),
        ("catalog-rebuilt", str(roots[1])),
    ]
    with Store.open(roots) as store:
        assert states(store) == wanted
    assert_sound(*roots)


def test_a_store_that_is_open_is_not_rebuilt(root: Path) -> None:
    with store_at(root) as store:
        put(store, "a", b"1")
        for _ in range(2):
            with pytest.raises(StoreLocked, match="this process"):
                rebuild([root], all_drives=True)
        put(store, "b", b"2")
    assert_sound(root)


def test_a_reader_follows_to_the_new_catalog(root: Path) -> None:
    with store_at(root) as store:
        put(store, "a", b"1")
    with Store.open([root], mode="r") as reader:
        assert read(reader, "a") == b"1"
        rebuild([root], all_drives=True)
        with Store.open([root]) as store:
            put(store, "b", b"2")
            assert read(reader, "b") == b"2"


def test_a_folder_that_never_was_a_drive_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    for path in (tmp_path / "letters", tmp_path / "nothing"):
        with pytest.raises(StoreNotFound):
            rebuild([path])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "letters"]


def test_files_that_say_nothing_cannot_be_rebuilt_from(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(root) as store:
        put(store, "a", b"1")
        os.removexattr(file_of(store, "a"), fmt.XATTR_NAME)
    shutil.rmtree(root / "catalog")
    monkeypatch.setattr("storage_node.store.fsck.file_identity.keeps_identity", lambda files: False)
    with pytest.raises(StoreFormatError, match="none of its 1 files says what it is"):
        rebuild([root])
    assert len(object_files(root)) == 1


# -- drive.json and record.json


def test_the_identity_of_a_single_drive_comes_back_from_its_record(root: Path) -> None:
    with store_at(root) as store:
        wanted, store_uuid = live_a_little(store), store.store_uuid
    before = (root / "drive.json").read_bytes()
    for damage in (None, b"{}"):
        (root / "drive.json").write_bytes(damage) if damage is not None else (root / "drive.json").unlink()
        report = rebuild([root])
        assert kinds(report) == ["identity-lost"] and report.healthy
        assert (root / "drive.json").read_bytes() == before
    with Store.open([root]) as store:
        assert (states(store), store.store_uuid) == (wanted, store_uuid)
    assert_sound(root)


def test_the_identity_of_one_drive_of_several_comes_back_from_the_others(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in "abc"]
    with store_at(*roots) as store:
        wanted = live_a_little(store)
    before = (roots[1] / "drive.json").read_bytes()
    (roots[1] / "drive.json").unlink()
    (roots[1] / "record.json").unlink()
    with pytest.raises(StoreFormatError, match=r"drive\.json is missing"):
        Store.open(roots)
    assert rebuild(roots).healthy
    assert (roots[1] / "drive.json").read_bytes() == before
    with Store.open(roots) as store:
        assert states(store) == wanted
    assert_sound(*roots)


def test_two_lost_identities_cannot_be_told_apart(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in "abc"]
    with store_at(*roots):
        pass
    for root in roots[:2]:
        (root / "drive.json").unlink()
    for given in (roots, roots[:1]):
        with pytest.raises(StoreFormatError, match="cannot be told which drive"):
            rebuild(given)
    assert not (roots[0] / "drive.json").exists()


@pytest.mark.parametrize("catalog", ["kept", "lost"])
def test_a_lost_record_is_made_anew_with_its_buckets_under_new_names(tmp_path: Path, catalog: str) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        wanted = {name: data for name, (data, _, _) in live_a_little(store).items()}
        bucket_uuid, drives = store.bucket(BUCKET).uuid, store.record.current.drives
    for root in roots:
        (root / "record.json").unlink()
        if catalog == "lost":
            shutil.rmtree(root / "catalog")
    shutil.copytree(roots[0], tmp_path / "other", symlinks=True, copy_function=copy_with_attributes)
    other = tmp_path / "other" / "drive.json"
    other.write_text(other.read_text().replace(drives[0], "0" * 32))  # as if a third drive were the one left out
    with pytest.raises(StoreFormatError, match="does not belong there in a store of these 2 drives"):
        rebuild([tmp_path / "other", roots[1]])
    report = rebuild(roots)
    assert report.healthy and "record-lost" in kinds(report)
    with Store.open(roots) as store:
        assert sorted(store.record.current.drives) == sorted(drives)
        assert contents(store, f"recovered-{bucket_uuid}") == wanted
    assert_sound(*roots)


def test_a_drive_with_nothing_left_but_its_objects_is_made_into_a_store(root: Path) -> None:
    with store_at(root) as store:
        wanted = {name: data for name, (data, _, _) in live_a_little(store).items()}
        bucket_uuid = store.bucket(BUCKET).uuid
    for path in root.iterdir():
        if path.name != "objects":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    report = rebuild([root])
    assert report.healthy
    with Store.open([root]) as store:
        assert contents(store, f"recovered-{bucket_uuid}") == wanted
    assert_sound(root)


def test_the_old_catalogs_of_several_rebuilds_are_kept_side_by_side(root: Path) -> None:
    with store_at(root) as store:
        put(store, "a", b"1")
    for _ in range(3):
        rebuild([root], all_drives=True)
    assert {path.name for path in root.iterdir() if path.name.startswith("catalog.")} == {
        "catalog.lost-1",
        "catalog.lost-2",
        "catalog.lost-3",
    }
    assert_sound(root)
