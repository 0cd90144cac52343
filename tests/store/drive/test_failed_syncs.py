"""A sync that failed is not repeated and trusted: the kernel tells of it once, and drops what it could not write."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import DriveFailed
from storage_node.store.drive import clean_shutdown
from storage_node.store.files.error_counters import ErrorCounters
from storage_node.store.store import Store
from tests.store.drives_kit import WANTED, move_all, store_with
from tests.store.store_kit import assert_sound, contents, drive_of, put, read, store_at


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wanted: Any = lambda *_: True) -> None:
    """As the kernel does: the first sync says that something was lost, the next one that all is well."""
    whole = getattr(owner, name)
    failed = False

    def sync(*args: Any) -> None:
        nonlocal failed
        if not failed and wanted(*args):
            failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        whole(*args)

    monkeypatch.setattr(owner, name, sync)


def is_folder(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode) and "objects" in os.readlink(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize("of", ["a file", "a folder"])
def test_a_drive_that_failed_to_sync_takes_nothing_more_until_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    with store_at(tmp_path / "drive", durability="power") as store:
        put(store, "before", b"1")
        with monkeypatch.context() as patched:
            fail_once(patched, os, "fsync", lambda fd: is_folder(fd) is (of == "a folder"))
            for _ in range(2):
                with pytest.raises(DriveFailed):
                    put(store, "lost", b"2")
        with pytest.raises(DriveFailed, match="may be lost"):
            put(store, "after", b"3")
        assert contents(store) == {"before": b"1"} and drive_of(store).faults.io_errors
    with Store.open([tmp_path / "drive"]) as store:
        put(store, "after", b"3")
        assert read(store, "after") == b"3" and read(store, "before") == b"1"


def test_what_moved_to_a_drive_whose_sync_failed_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_with(WANTED, *roots) as store:
        store.pool.add_drive(tmp_path / "c")
        with monkeypatch.context() as patched:
            fail_once(patched, clean_shutdown, "sync_file_system")
            for _ in range(10):
                store.pool.move_some(20, 1 << 20)
        new = store.drive_set.at(store.drive_set.slot(store.record.current.drives[2]))
        assert list(new.entries())
        # Each of them is still where it came from: should the new drive have lost it, nothing is lost.
        old = {key for drive in store.drives[:2] if drive is not None for key, _ in drive.entries()}
        assert {key for key, _ in new.entries()} <= old and len(old) == len(WANTED)
    with Store.open([*roots, tmp_path / "c"]) as store:
        move_all(store)
        assert contents(store) == WANTED
    assert_sound(*roots, tmp_path / "c")


def test_too_many_open_files_do_not_count_against_a_drive() -> None:
    faults = ErrorCounters()
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOSPC):
        said = f"IO error: While open a file for appending: /d/catalog/000009.sst: {os.strerror(number)}"
        faults.note_catalog(f"committing to the catalog: {said}")
        faults.note_number(number, said)
    assert (faults.io_errors, faults.last_io_error) == (0, "")
    faults.note_catalog(f"committing to the catalog: IO error: {os.strerror(errno.EIO)}")
    assert faults.io_errors == 1
