"""A catalog whose log was damaged after a kill: refused with words, and made anew from the files without any loss."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import StoreFormatError
from storage_node.store.drive import clean_shutdown
from storage_node.store.format import Version
from storage_node.store.fsck.fsck import check, rebuild, repair
from storage_node.store.store import Store
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    copy_with_attributes,
    drive_of,
    flip_a_byte,
    kinds,
    put,
    store_at,
)
from tests.store.test_store_restart import after_another_start_of_the_machine


def newest_log(root: Path) -> Path:
    return max((root / "catalog").glob("*.log"), key=lambda path: path.name)


def cut_in_the_middle(log: Path) -> None:
    os.truncate(log, log.stat().st_size // 2)


def cut_by_a_byte(log: Path) -> None:
    os.truncate(log, log.stat().st_size - 1)


def a_hole(log: Path) -> None:
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // 3)
        file.write(bytes(4096))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped byte": lambda log: flip_a_byte(log, log.stat().st_size // 2),
    "a flipped byte in the last commit": lambda log: flip_a_byte(log, log.stat().st_size - 5),
    "cut in the middle": cut_in_the_middle,
    "cut by one byte": cut_by_a_byte,
    "a hole": a_hole,
    "removed": Path.unlink,
    "empty": lambda log: os.truncate(log, 0),
}


def killed_after_work(root: Path) -> dict[str, bytes]:
    """A drive as a kill leaves it: objects in tables, and the log says that they were replaced or deleted.

    Returns what was acknowledged.
    """
    with store_at(root) as store:
        for number in range(50):
            put(store, f"replaced/{number}", b"old %d" % number)
            put(store, f"deleted/{number}", b"deleted %d" % number)
    working = root.with_name("working")
    root.rename(working)
    with Store.open([working]) as store:
        drive_of(store)._garbage._grace_s = 3600.0  # a machine that stands still removes no file before the kill
        for number in range(50):
            put(store, f"replaced/{number}", b"new %d" % number)
            store.delete(BUCKET, f"deleted/{number}")
            put(store, f"added/{number}", b"added %d" % number)
        acknowledged = contents(store)
        shutil.copytree(working, root, symlinks=True, copy_function=copy_with_attributes)
    assert len(acknowledged) == 100
    return acknowledged


def test_without_damage_everything_is_there(tmp_path: Path) -> None:
    acknowledged = killed_after_work(tmp_path / "drive")
    with Store.open([tmp_path / "drive"], mode="r") as store:
        assert contents(store) == acknowledged
    with Store.open([tmp_path / "drive"]) as store:
        assert contents(store) == acknowledged
    assert_sound(tmp_path / "drive")


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.sampled(3)
def test_a_damaged_log_is_refused_and_the_files_bring_back_what_was_acknowledged(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "drive"
    acknowledged = killed_after_work(root)
    DAMAGES[damage](newest_log(root))
    for _ in range(2):  # the first try must not make it look whole
        with pytest.raises(StoreFormatError, match="doctor --rebuild"):
            Store.open([root], mode="r")
        with pytest.raises(StoreFormatError, match="doctor --rebuild"):
            Store.open([root])
        with pytest.raises(StoreFormatError, match="doctor --rebuild"):
            repair([root])
    assert [finding.kind for finding in check([root]).errors] == ["drive-unusable"]
    report = rebuild([root])
    assert not report.errors and "catalog-kept" not in [finding.kind for finding in report.findings]
    with Store.open([root]) as store:
        assert contents(store) == acknowledged
        put(store, "later", b"later")
    repair([root])
    assert_sound(root)


def test_a_commit_that_was_cut_by_the_kill_before_it_was_acknowledged_is_no_damage(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    acknowledged = killed_after_work(root)
    with newest_log(root).open("ab") as log:
        log.write(b"\x12\x34\x56\x78\x40\x00\x01 half of a rec")
    with Store.open([root]) as store:
        assert contents(store) == acknowledged
    assert_sound(root)


def test_after_a_power_cut_a_log_that_lost_what_was_not_synced_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "drive"
    killed_after_work(root)
    cut_in_the_middle(newest_log(root))
    after_another_start_of_the_machine(monkeypatch)
    with Store.open([root]) as store:
        found = contents(store)
    for number in range(50):
        assert found[f"replaced/{number}"] in (b"old %d" % number, b"new %d" % number)


@pytest.mark.slow
def test_after_a_power_cut_a_log_that_lost_what_was_synced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "drive"
    with store_at(tmp_path / "working", durability="power") as store:
        for number in range(20):
            put(store, f"{number}", b"%d" % number)
        acknowledged = contents(store)
        shutil.copytree(tmp_path / "working", root, symlinks=True, copy_function=copy_with_attributes)
    cut_in_the_middle(newest_log(root))
    after_another_start_of_the_machine(monkeypatch)
    with pytest.raises(StoreFormatError, match="lost commits"):
        Store.open([root])
    rebuild([root])
    with Store.open([root]) as store:
        assert contents(store) == acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["a flipped byte", "a flipped byte in the last commit"])
def test_tombstones_survive_a_rebuild_wherever_in_the_log_the_damage_is(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "drive"
    with store_at(tmp_path / "working") as store:
        deleted = {"a": Version(1, put(store, "a", b"1").counter + 1, 3)}
        store.delete(BUCKET, "a", deleted["a"], keep_tombstone=True)
        for number in range(500):
            put(store, f"{number}", b"")
        deleted["b"] = Version(1, put(store, "b", b"2").counter + 1, 3)
        store.delete(BUCKET, "b", deleted["b"], keep_tombstone=True)
        put(store, "last", b"3")
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
        shutil.copytree(tmp_path / "working", root, symlinks=True, copy_function=copy_with_attributes)
    DAMAGES[damage](newest_log(root))
    rebuild([root])
    with Store.open([root]) as store:
        for name, record in zip(deleted, drive_of(store).newest(bucket_uuid, list(deleted)), strict=True):
            assert record is not None and record.is_tombstone and record.version == deleted[name]
        assert put(store, "c", b"").counter > deleted["b"].counter


def test_a_catalog_that_was_replaced_by_an_older_one_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "a", b"1")
    shutil.copytree(root / "catalog", tmp_path / "older", symlinks=True)
    with store_at(root) as store:
        put(store, "a", b"2")
    shutil.copy(root / "catalog" / clean_shutdown.FILE_NAME, tmp_path / "older")
    shutil.rmtree(root / "catalog")
    (tmp_path / "older").rename(root / "catalog")
    with pytest.raises(StoreFormatError, match="lost commits"):
        Store.open([root])
    rebuild([root])
    with Store.open([root]) as store:
        assert contents(store) == {"a": b"2"}


def test_a_drive_without_room_for_the_mark_opens_to_be_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a file system writes nothing in its place."""
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "a", b"1")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with Store.open([root]) as store:
            store.delete(BUCKET, "a")
    with Store.open([root]) as store:
        assert contents(store) == {}
    assert_sound(root)


def test_a_mark_that_is_damaged_itself_is_said(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "a", b"1")
    flip_a_byte(root / "catalog" / clean_shutdown.FILE_NAME, 20)
    with pytest.raises(StoreFormatError, match="doctor --rebuild"):
        Store.open([root])
    assert "drive-unusable" in kinds(check([root]))
    rebuild([root])
    assert_sound(root)
