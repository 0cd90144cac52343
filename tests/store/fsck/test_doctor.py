"""What the doctor finds, and what a repair does about it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ais_loader.errors import CorruptObject, InvalidRequest, ObjectNotFound, StoreFormatError, StoreNotFound
from storage_node.store import format as fmt
from storage_node.store import store_record as records
from storage_node.store.drive import identity as identities
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.fsck import report as report_module
from storage_node.store.fsck.fsck import check, repair
from storage_node.store.fsck.report import KINDS
from storage_node.store.store import Store
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
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


@pytest.fixture(autouse=True)
def private() -> Iterator[None]:
    """Files that tests put into a store are closed to others, as its own are."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with store_at(tmp_path / "drive") as store:
        for number in range(30):
            put(store, f"{number}", b"%d" % number * 100, metadata={"number": f"{number}"})
        put(store, "large", os.urandom(3 * BLOCK_BYTES))
    return tmp_path / "drive"


def test_a_sound_store_has_no_findings_and_is_counted(root: Path) -> None:
    report = check([root])
    assert report.healthy and not report.findings and not report.in_motion
    (drive,) = report.drives
    assert (drive.objects, drive.files, drive.waiting, drive.staged, drive.held_by) == (31, 31, 0, 0, None)
    assert drive.object_bytes == sum(len(f"{n}") * 100 for n in range(30)) + 3 * BLOCK_BYTES
    assert drive.keeps_identity == (not report.of("no-xattr"))


def test_a_report_is_json(root: Path) -> None:
    flip_a_byte(object_files(root)[0])
    report = check([root], checksums=True)
    loaded = json.loads(json.dumps(report.to_json()))
    assert (loaded["healthy"], loaded["findings"][0]["severity"], loaded["drives"][0]["objects"]) == (
        False,
        "error",
        31,
    )


def test_progress_is_told_as_objects_and_files_go_by(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.store.fsck.scan.PROGRESS_EVERY", 10)
    told: list[tuple[str, int]] = []
    check([root], progress=lambda doing, done: told.append((doing, done)))
    assert told == [(f"{root}: comparing {what}", done) for what in ("objects", "files") for done in (10, 20, 30)]


def test_there_must_be_a_store(tmp_path: Path) -> None:
    for examine in (check, repair):
        with pytest.raises(StoreNotFound):
            examine([tmp_path / "nothing"])
        with pytest.raises(InvalidRequest):
            examine([])
    assert not list(tmp_path.iterdir())


def test_checking_changes_nothing(root: Path) -> None:
    (root / "staging" / "left").write_bytes(b"x")
    flip_a_byte(object_files(root)[0])

    def state() -> dict[str, tuple[int, int, int]]:
        found = {path: path.lstat() for path in root.rglob("*")}
        return {str(path): (stat.st_mtime_ns, stat.st_size, stat.st_ino) for path, stat in found.items()}

    before = state()
    assert not check([root], checksums=True).healthy
    assert state() == before


# -- findings and remedies


def test_orphans_are_found_and_removed(root: Path) -> None:
    with Store.open([root]) as store:
        old = file_of(store, "3")
        data, identity = old.read_bytes(), os.getxattr(old, fmt.XATTR_NAME)
        put(store, "3", b"new")
    old.write_bytes(data)  # an old version that came back
    os.setxattr(old, fmt.XATTR_NAME, identity)
    nameless = root / "objects" / "00" / "00" / ("ab" * 14 + ".7")
    nameless.parent.mkdir(parents=True, exist_ok=True)
    nameless.write_bytes(b"x")
    report = check([root])
    assert kinds(report) == ["orphan", "orphan"]
    assert {finding.path for finding in report.findings} == {str(path.relative_to(root)) for path in (old, nameless)}
    mended = repair([root])
    assert [finding.repaired for finding in mended.of("orphan")] == ["removed"] * 2 and mended.healthy
    assert not old.exists() and not nameless.exists()
    assert_sound(root)


def test_foreign_files_are_reported_and_left_alone(root: Path) -> None:
    (root / "objects" / "notes.txt").write_text("mine")
    (root / "objects" / "7f").mkdir()
    (root / "objects" / "7f" / "x").write_text("mine")
    for report in (check([root]), repair([root])):
        assert kinds(report) == ["foreign-file"] * 2
        assert sorted(finding.path for finding in report.findings) == ["objects/7f/x", "objects/notes.txt"]
    assert (root / "objects" / "notes.txt").read_text() == "mine"


def test_leftover_staging_is_reported_and_removed(root: Path) -> None:
    (root / "staging" / "1f").write_bytes(b"half")
    assert kinds(check([root])) == ["staging"]
    assert [finding.repaired for finding in repair([root]).findings] == ["removed"]
    assert_sound(root)


def test_a_file_newer_than_the_catalog_is_taken_back(root: Path) -> None:
    """As when the end of the catalog's log is lost: the object was acknowledged, and its file is whole."""
    with Store.open([root]) as store:
        put(store, "3", b"newer")
        put(store, "fresh", os.urandom(2 * BLOCK_BYTES))
        wanted = contents(store)
        old, drive = store.locate(BUCKET, "4")[1], drive_of(store)
        with drive.quiet():
            batch = WriteBatch(raw_mode=True)
            for name in ("3", "fresh"):
                batch.delete(fmt.object_key(store.bucket(BUCKET).uuid_bytes, name))
            drive.catalog.write(batch, sync=True)
        assert old.size_bytes
    report = check([root])
    assert kinds(report) == ["recoverable"] * 2
    assert sorted(finding.name for finding in report.findings) == ["3", "fresh"]
    mended = repair([root])
    assert mended.healthy and all(finding.repaired for finding in mended.of("recoverable"))
    with Store.open([root]) as store:
        assert contents(store) == wanted
        assert read(store, "fresh", start=BLOCK_BYTES + 1, verify=True) == wanted["fresh"][BLOCK_BYTES + 1 :]
        assert put(store, "3", b"newest").version > old.version
    assert_sound(root)


def test_a_recoverable_file_whose_bytes_are_damaged_is_left_alone(root: Path) -> None:
    with Store.open([root]) as store:
        path, drive = file_of(store, "3"), drive_of(store)
        batch = WriteBatch(raw_mode=True)
        batch.delete(fmt.object_key(store.bucket(BUCKET).uuid_bytes, "3"))
        drive.catalog.write(batch, sync=True)
    flip_a_byte(path)
    report = repair([root])
    assert [(finding.kind, finding.repaired) for finding in report.findings] == [("recoverable", None)]
    assert path.exists()


@pytest.mark.parametrize("damage", ["missing-file", "wrong-size", "corrupt"])
def test_a_damaged_object_is_reported_and_only_dropped_on_demand(root: Path, damage: str) -> None:
    with Store.open([root]) as store:
        path = file_of(store, "7")
        rest = {name: data for name, data in contents(store).items() if name != "7"}
    if damage == "missing-file":
        path.unlink()
    elif damage == "wrong-size":
        os.truncate(path, 5)
    else:
        flip_a_byte(path)
    assert kinds(check([root], checksums=True)) == [damage]
    kept = repair([root], checksums=True)
    assert [(finding.kind, finding.name, finding.repaired) for finding in kept.errors] == [(damage, "7", None)]
    with Store.open([root]) as store, pytest.raises(CorruptObject):
        read(store, "7")
    dropped = repair([root], checksums=True, drop_damaged=True)
    assert dropped.healthy and dropped.of(damage)[0].repaired == "dropped"
    with Store.open([root]) as store:
        with pytest.raises(ObjectNotFound):
            read(store, "7")
        assert contents(store) == rest
    assert_sound(root)


def test_sizes_are_compared_without_reading_and_bytes_only_on_demand(root: Path) -> None:
    with Store.open([root]) as store:
        flip_a_byte(file_of(store, "7"))
    assert check([root]).healthy
    assert kinds(check([root], checksums=True)) == ["corrupt"]


def test_lost_block_checksums_are_computed_from_intact_bytes_only(root: Path) -> None:
    with Store.open([root]) as store:
        path, drive = file_of(store, "large"), drive_of(store)
        whole = read(store, "large")
        record = store.head(BUCKET, "large")
        batch = WriteBatch(raw_mode=True)
        batch.delete(fmt.blocks_key(record.generation, 0))
        drive.catalog.write(batch, sync=True)
        with pytest.raises(CorruptObject, match="block checksums"):
            read(store, "large")
    assert kinds(check([root])) == ["missing-blocks"]
    flip_a_byte(path)
    assert repair([root]).of("missing-blocks")[0].repaired is None
    flip_a_byte(path)
    assert repair([root]).healthy
    with Store.open([root]) as store:
        assert read(store, "large", start=3, verify=True) == whole[3:]
    assert_sound(root)


def test_an_entry_that_cannot_be_understood_is_reported_and_dropped_on_demand(root: Path) -> None:
    with Store.open([root]) as store:
        key = fmt.object_key(store.bucket(BUCKET).uuid_bytes, "7")
        drive = drive_of(store)
        batch = WriteBatch(raw_mode=True)
        batch.put(key, b"\x09garbage")
        drive.catalog.write(batch, sync=True)
    found = check([root]).of("bad-entry")
    assert [finding.name for finding in found] == ["7"]
    assert [finding.kind for finding in repair([root]).errors] == ["bad-entry"]
    report = repair([root], drop_damaged=True)
    assert report.of("bad-entry")[0].repaired == "dropped"
    repair([root])  # now its file is one that the catalog does not know
    assert_sound(root)


def test_a_retained_entry_that_cannot_be_understood_hides_nothing_else(root: Path) -> None:
    with Store.open([root]) as store:
        store.snapshots.create(BUCKET, "kept")
        put(store, "1", b"new")
        drive = drive_of(store)
        [(key, value)] = drive.catalog.scan(fmt.RETAINED_PREFIX)
        retained = root / "objects" / os.fsdecode(fmt.decode_entry(value).path)
        batch = WriteBatch(raw_mode=True)
        batch.put(key, b"damaged")
        drive.catalog.write(batch, sync=True)
        orphan = root / "objects" / os.fsdecode(fmt.file_path(store.bucket(BUCKET).uuid_bytes, "none", 1 << 40))
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"")
    assert kinds(check([root])) == ["bad-entry", "orphan"]
    assert [finding.kind for finding in repair([root]).errors] == ["bad-entry"]
    assert retained.exists() and not orphan.exists()
    assert repair([root], drop_damaged=True).healthy
    assert not retained.exists()
    assert_sound(root)


@pytest.mark.parametrize("how", ["lost", "of another object"])
def test_a_file_that_does_not_say_what_it_is_is_labelled_anew(root: Path, how: str) -> None:
    with Store.open([root]) as store:
        path, other = file_of(store, "7"), file_of(store, "8")
    if how == "lost":
        os.removexattr(path, fmt.XATTR_NAME)
    else:
        os.setxattr(path, fmt.XATTR_NAME, os.getxattr(other, fmt.XATTR_NAME))
    assert kinds(check([root], checksums=True)) == ["file-identity"]
    assert repair([root], checksums=True).healthy
    assert_sound(root)


def test_objects_of_an_unknown_bucket_get_a_name_back(root: Path) -> None:
    with Store.open([root]) as store:
        wanted = contents(store)
        bucket_uuid = store.bucket(BUCKET).uuid
        store.record.change(lambda record: record.without_bucket(BUCKET).purged(bucket_uuid))
    report = check([root])
    assert kinds(report) == ["unknown-bucket"] and "31 objects" in report.findings[0].message
    assert repair([root]).healthy
    with Store.open([root]) as store:
        assert list(store.buckets()) == [f"recovered-{bucket_uuid}"]
        assert contents(store, f"recovered-{bucket_uuid}") == wanted
    assert_sound(root)


def test_entries_of_a_later_epoch_than_the_record_raise_the_record(root: Path) -> None:
    with Store.open([root]) as store:
        old = store.record.current
        store.record.change(lambda record: record.next_epoch())
    with Store.open([root]) as store:
        put(store, "3", b"of epoch 2")
    (root / "record.json").write_bytes(records.encode(old))
    assert kinds(check([root])) == ["later-epoch"]
    with Store.open([root]) as store, pytest.raises(StoreFormatError, match=r"later epoch .*--repair"):
        put(store, "3", b"x")
    assert repair([root]).healthy
    with Store.open([root]) as store:
        put(store, "3", b"goes again")
    assert_sound(root)


def test_records_that_differ_are_made_equal(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        put(store, "a", b"1")
        old = (roots[1] / "record.json").read_bytes()
        store.create_bucket("later")
    (roots[1] / "record.json").write_bytes(old)
    for damage in (old, b"{", None):
        (roots[1] / "record.json").write_bytes(damage) if damage is not None else (roots[1] / "record.json").unlink()
        report = check(roots)
        assert kinds(report) == ["record-differs"] and report.findings[0].drive == str(roots[1])
        assert [finding.repaired for finding in repair(roots).findings] == ["written anew"]
        assert records.read(roots[0]) == records.read(roots[1])
    assert_sound(*roots)


def test_a_missing_drive_is_an_error_and_the_other_is_examined(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        for number in range(20):
            put(store, f"{number}", b"x")
    for given in (roots[:1], roots):
        if given is roots:
            shutil.move(roots[1], tmp_path / "away")
        report = check(given)
        assert kinds(report) == ["drive-missing"] and len(report.drives) == 1 and report.drives[0].objects
    assert [finding.kind for finding in repair(roots).errors] == ["drive-unusable"]


def test_objects_on_a_drive_where_nobody_looks_are_reported(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        put(store, "name", b"x")
        owner = drive_of(store, "name")
        other = next(drive for drive in store.drives if drive is not owner and drive is not None)
        key = fmt.object_key(store.bucket(BUCKET).uuid_bytes, "name")
        batch = WriteBatch(raw_mode=True)
        batch.put(key, owner.catalog.get(key))
        other.catalog.write(batch, sync=True)
    assert [(finding.kind, finding.name) for finding in check(roots).errors] == [("misplaced", "name")]


def test_objects_on_a_drive_where_nobody_looks_are_listed_nowhere_and_brought_to_their_owner(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        for number in range(20):
            put(store, f"{number}", b"%d" % number)
        wanted = contents(store)
        # Of the two owners of these names, neither knows what it has: as if it had been forgotten to move anything.
        drives = [drive for drive in store.drives if drive is not None]
        record = store.record.current
        swapped = dict(zip(record.drives, reversed(record.drives), strict=True))
    for root, drive in zip(roots, drives, strict=True):
        identity = identities.read(root)
        assert identity is not None and identity.drive_uuid == drive.identity.drive_uuid
        identities.write(root, replace(identity, drive_uuid=swapped[identity.drive_uuid]))
    with Store.open(roots) as store:
        assert names(store) == []
        with pytest.raises(ObjectNotFound):
            read(store, "3")
        put(store, "3", b"new")
        assert contents(store) == {"3": b"new"}
    found = check(roots).errors
    assert [finding.kind for finding in found] == ["misplaced"] * 20
    assert not repair(roots).errors
    with Store.open(roots) as store:
        assert contents(store) == {**wanted, "3": b"new"} and not store.pool.moving
    assert_sound(*roots)


def test_identities_that_are_lost_are_told_apart_from_folders_that_never_were_a_store(root: Path) -> None:
    (root / "drive.json").unlink()
    report = check([root])
    assert kinds(report) == ["identity-lost"] and "--rebuild" in report.findings[0].message


def test_every_finding_in_the_source_is_of_a_known_kind() -> None:
    folder = Path(report_module.__file__).parent
    source = "".join((folder / name).read_text() for name in ("fsck.py", "scan.py", "rebuild.py"))
    used = set(re.findall(r'(?:Finding|_suspect|_find)\(\s*"([a-z-]+)"', source))
    assert len(used) > 15 and used <= set(KINDS)
