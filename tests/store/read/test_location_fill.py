"""Locations that a commit or a scan of the catalog has added: they show what the catalog shows, whatever happens."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store import format as fmt
from storage_node.store.drive import entry_cache
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.drive.drive import Drive
from storage_node.store.read.batch import StoreBatch
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.segment_kit import put_group
from tests.store.store_kit import BUCKET, drive_of, file_of, no_new_threads, put, store_at

NAMES = [f"o{at:02d}" for at in range(40)]
GROUP = {name: name.encode() * (1 + at * 30) for at, name in enumerate(NAMES)}
TIMEOUT_S = 180


def due(*names: str, **other: bytes) -> list[tuple[int, bytes]]:
    return [(pb.OK, (GROUP | other)[name]) for name in names]


def is_known(store: Store, *names: str) -> bool:
    return StoreBatch.of_known(store, pb.BatchRequest(bucket=[BUCKET], name=list(names))) is not None


def filled(store: Store) -> None:
    """Wait for the fill that the first look-up starts."""
    assert batch(store, NAMES[:1]) == due(NAMES[0])
    for drive in store.drives:
        assert drive is not None and drive.fill.wait(TIMEOUT_S)


def test_what_was_written_is_known_without_a_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        put(store, "alone", b"a" * 200_000)
        put(store, "gone", b"gone")
        store.delete(BUCKET, "gone")
        monkeypatch.setattr(Drive, "learn", None)
        assert is_known(store, "alone", *NAMES)
        assert batch(store, ["alone", *NAMES]) == due("alone", *NAMES, alone=b"a" * 200_000)
        put(store, "o03", b"again")
        assert is_known(store, *NAMES)
        assert batch(store, ["o03"]) == [(pb.OK, b"again")]
        assert not is_known(store, "gone")


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_batch_is_read_although_no_thread_can_be_started_for_the_scan(tmp_path: Path, mode: Any) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
    with Store.open([tmp_path], mode=mode) as store:
        with no_new_threads():
            assert batch(store, NAMES[:1]) == due(NAMES[0])
            assert all(drive is not None and drive.fill.wait(0) for drive in store.drives)
        assert drive_of(store)._cache._changed is None
        for at in range(1, len(NAMES)):  # until another scan is due
            assert batch(store, NAMES[: at + 1]) == due(*NAMES[: at + 1])
            assert all(drive is not None and drive.fill.wait(TIMEOUT_S) for drive in store.drives)
        assert is_known(store, *NAMES)


def test_a_batch_is_read_whole_although_no_thread_can_be_started_to_help(tmp_path: Path) -> None:
    with store_at(tmp_path) as store, ThreadPoolExecutor(1) as helpers:
        put_group(store, GROUP)
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=NAMES))
        with no_new_threads():
            assert reading.read_all(helpers, 2) == list(GROUP.values())
        assert reading.read_all(helpers, 2) == list(GROUP.values())
        helpers.shutdown()
        assert reading.read_all(helpers, 2) == list(GROUP.values())


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("drives", [1, 3])
def test_a_scan_finds_every_object_in_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, drives: int
) -> None:
    monkeypatch.setattr(entry_cache, "_PART", 7)
    roots = [tmp_path / str(at) for at in range(drives)]
    with store_at(*roots) as store:
        put_group(store, GROUP)
        store.delete(BUCKET, "o05")
    rest = [name for name in NAMES if name != "o05"]
    with Store.open(roots, mode=mode) as store:
        while not is_known(store, *rest):  # a look-up on each drive starts its scan
            for name in rest:
                assert batch(store, [name]) == due(name)
            assert all(drive is not None and drive.fill.wait(TIMEOUT_S) for drive in store.drives)
        assert not is_known(store, "o05")
        assert batch(store, ["o05", *rest]) == [(pb.NOT_FOUND, b""), *due(*rest)]


def test_an_entry_on_a_drive_that_does_not_own_it_is_not_known(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        put_group(store, GROUP)
        put(store, "alone", b"a" * 200_000)
        slots = store.drive_set.placement.slots
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
        key = fmt.object_key(bucket_uuid, "alone")
        owner = store.drive_set.placement.owner(bucket_uuid, "alone")
        (other,) = {*slots} - {owner}
        value = store.drive_set.at(owner).catalog.get(key)
        assert value is not None
        misplaced = WriteBatch(raw_mode=True)
        misplaced.put(key, value)
        drives = [store.drive_set.at(slot) for slot in (owner, other)]
        drives[1].catalog.write(misplaced, sync=False)
        path = fmt.decode_entry(value).path.decode()
        there = drives[1].root / "objects" / path
        assert not there.exists()
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(drives[0].root / "objects" / path, there)
        store.delete(BUCKET, "alone")
    with store_at(*roots) as store:
        for name in ["alone", *NAMES]:
            batch(store, [name])
        assert all(drive is not None and drive.fill.wait(TIMEOUT_S) for drive in store.drives)
        assert batch(store, ["alone", "o08"]) == [(pb.NOT_FOUND, b""), *due("o08")]


def test_changes_between_the_scan_and_its_addition_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog has been read when an object is overwritten, deleted, or moved by a compaction."""
    scanned, go_on = threading.Event(), threading.Event()
    keeps = entry_cache.LocationFill._add_part

    def held(self: entry_cache.LocationFill, owns: entry_cache.Owns, after: bytes) -> bytes | None:
        def read(keys: list[bytes]) -> Any:
            scanned.set()
            assert go_on.wait(TIMEOUT_S)
            return owns(keys)

        return keeps(self, read, after)

    monkeypatch.setattr(entry_cache.LocationFill, "_add_part", held)
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
    with store_at(tmp_path) as store:
        drive = drive_of(store)
        before = file_of(store, "o20").parent
        assert batch(store, ["o00"]) == due("o00")
        assert scanned.wait(TIMEOUT_S)
        put(store, "o01", b"new")
        store.delete(BUCKET, "o02")
        put(store, "added", b"added")
        store.delete(BUCKET, "added")
        for name in NAMES[3:20]:
            store.delete(BUCKET, name)
        for name in NAMES[24:]:
            store.delete(BUCKET, name)
        drive.reap(everything=True)
        while drive.compact_segments().segments:
            pass
        drive.reap(everything=True)
        assert not before.exists()
        go_on.set()
        assert drive.fill.wait(TIMEOUT_S)
        gone = (pb.NOT_FOUND, b"")
        assert is_known(store, "o00", "o01", *NAMES[20:24])
        for name in ["o02", "added", *NAMES[3:20], *NAMES[24:]]:
            assert not is_known(store, name)
        expected = [*due("o00"), (pb.OK, b"new"), gone, *due(*NAMES[20:24]), gone, gone]
        assert batch(store, ["o00", "o01", "o02", *NAMES[20:24], NAMES[24], "added"]) == expected


def test_a_reader_forgets_what_it_has_scanned_when_the_writer_has_committed(tmp_path: Path) -> None:
    with store_at(tmp_path) as store, Store.open([tmp_path], mode="r") as reader:
        put_group(store, GROUP)
        filled(reader)
        assert is_known(reader, *NAMES)
        put(store, "o03", b"new")
        store.delete(BUCKET, "o04")
        drive_of(store).reap(everything=True)
        assert batch(reader, ["o03", "o04", "o05"]) == [(pb.OK, b"new"), (pb.NOT_FOUND, b""), *due("o05")]
        put_group(store, {name: data + b"!" for name, data in GROUP.items()})
        drive_of(store).reap(everything=True)
        assert batch(reader, NAMES) == [(pb.OK, data + b"!") for data in GROUP.values()]


def test_a_store_is_closed_while_it_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_cache, "_PART", 1)
    monkeypatch.setattr(entry_cache, "_PAUSE_S", 3600)
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
    with store_at(tmp_path) as store:
        assert batch(store, ["o00"]) == due("o00")
        assert not drive_of(store).fill.wait(0.0)
    monkeypatch.setattr(entry_cache, "_PAUSE_S", 0.0001)
    with store_at(tmp_path) as store:  # its lock is free
        filled(store)
        assert is_known(store, *NAMES)


def test_a_damaged_catalog_ends_the_scan_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
    with store_at(tmp_path) as store:

        def fail(*arguments: object) -> Any:
            raise LoaderError("a damaged block")

        monkeypatch.setattr(Catalog, "scan", fail)
        filled(store)
        assert not is_known(store, *NAMES)
        assert batch(store, NAMES) == due(*NAMES)
