"""What a start finds out about the end before it: a close, a killed process, or a machine that went down."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_node.store import format as fmt
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, object_files, put, store_at

ORPHAN = "objects/00/00/" + "ab" * 14 + ".7"


def let_go(store: Store) -> None:
    """End as a killed process does, as far as the drive can tell: nothing is tidied up."""
    for drive in store.drives:
        assert drive is not None
        drive.catalog.close()
        drive.files.close()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A drive whose writer was killed, with a file that nothing names."""
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "a", b"1")
    let_go(Store.open([root]))
    (root / ORPHAN).parent.mkdir(parents=True, exist_ok=True)
    (root / ORPHAN).write_bytes(b"renamed, and its intent lost")
    return root


def after_another_start_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.store.drive.clean_shutdown.boot_id", lambda: b"another start")


def test_after_the_machine_went_down_files_that_nothing_names_go(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after_another_start_of_the_machine(monkeypatch)
    with Store.open([killed]) as store:
        assert contents(store) == {"a": b"1"}
    assert not (killed / ORPHAN).exists()
    assert_sound(killed)


def test_after_a_killed_process_only_what_was_in_flight_is_looked_at(killed: Path) -> None:
    with Store.open([killed]) as store:
        assert contents(store) == {"a": b"1"}
    assert (killed / ORPHAN).exists()


def test_after_an_orderly_close_a_restart_of_the_machine_costs_nothing(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open([killed]):
        pass
    after_another_start_of_the_machine(monkeypatch)
    with Store.open([killed]):
        pass
    assert (killed / ORPHAN).exists()


def test_with_an_entry_that_cannot_be_read_no_file_is_taken_for_an_orphan(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open([killed]) as store:
        batch = WriteBatch(raw_mode=True)
        batch.put(fmt.object_key(store.bucket(BUCKET).uuid_bytes, "damaged"), b"\x09")
        drive_of(store).catalog.write(batch, sync=True)
    let_go(Store.open([killed]))
    after_another_start_of_the_machine(monkeypatch)
    with Store.open([killed]) as store:
        assert drive_of(store).lookup(store.bucket(BUCKET).uuid_bytes, ["a"])[0] is not None
    assert (killed / ORPHAN).exists()


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    store = store_at(root)
    with store as opened:
        put(opened, "a", b"1")
    opened = Store.open([root])
    drive_of(opened)._garbage._grace_s = 3600.0
    put(opened, "a", os.urandom(3 * fmt.BLOCK_BYTES))
    put(opened, "a", b"3")
    unfinished = opened.stage(BUCKET, "b", [b"x"], {})
    assert unfinished.size_bytes == 1
    assert len(object_files(root)) == 3 and len(list((root / "staging").iterdir())) == 1
    let_go(opened)
    with Store.open([root]) as again:
        assert contents(again) == {"a": b"3"}
        assert len(object_files(root)) == 1 and not list((root / "staging").iterdir())
        catalog = drive_of(again).catalog
        assert [key for prefix in (b"i", b"g", b"b") for key, _ in catalog.scan(prefix)] == []
    assert_sound(root)


def test_a_store_that_is_closed_with_power_durability_is_on_the_disk_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("storage_node.store.drive.clean_shutdown.sync_file_system", synced.append)
    with store_at(tmp_path / "a") as store:
        put(store, "a", b"1")
    assert not synced
    with store_at(tmp_path / "b", durability="power") as store:
        put(store, "a", b"1")
        objects_fd = drive_of(store).files.objects_fd
    assert synced == [objects_fd]
