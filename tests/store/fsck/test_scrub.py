"""Objects whose bytes are not what was put: readers note those they meet, the scrub all, mending keeps the version."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import CorruptObject
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store import scrub as scrubs
from storage_node.store.drive.preconditions import Condition
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.fsck.fsck import check
from storage_node.store.scrub import DriveScrub, is_whole
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.snapshot_kit import retained_file
from tests.store.store_kit import BUCKET, drive_of, file_of, flip_a_byte, kinds, put, read, store_at
from tests.table import table

DATA = {f"k{at}": os.urandom(size) for at, size in enumerate([0, 1, 900, BLOCK_BYTES, BLOCK_BYTES + 1, 700_000])}
DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flip_a_byte,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "gone": Path.unlink,
}


def filled(store: Store) -> Store:
    for name, data in DATA.items():
        put(store, name, data)
    return store


def damaged(store: Store) -> set[str]:
    return set(store.damaged.by_bucket().get(store.bucket(BUCKET).uuid_bytes, {}))


def whole_pass(scrub: DriveScrub, step_bytes: int = 1 << 30) -> int:
    """One pass; how many steps it took."""
    steps, finished_s = 0, scrub.progress.finished_s
    while scrub.progress.finished_s == finished_s:
        scrub.step(step_bytes)
        steps += 1
    return steps


@table("harm", DAMAGES)
@table("name", ["k2", "k4", "k5"])
def test_a_scrub_finds_what_is_damaged_and_nothing_else(tmp_path: Path, name: str, harm: str) -> None:
    with store_at(tmp_path / "drive") as store:
        filled(store)
        DAMAGES[harm](file_of(store, name))
        scrub = DriveScrub(drive_of(store), store.damaged)
        whole_pass(scrub)
        assert damaged(store) == {name}
        assert (scrub.progress.objects, scrub.progress.damaged) == (len(DATA), 1)
        if harm == "flipped":
            assert scrub.progress.bytes >= sum(map(len, DATA.values())) - len(DATA[name])


def test_a_scrub_reads_no_more_at_once_than_it_is_told_to(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        filled(store)
        scrub = DriveScrub(drive_of(store), store.damaged)
        assert scrub.step(BLOCK_BYTES) <= 2 * BLOCK_BYTES
        assert 3 <= 1 + whole_pass(scrub, BLOCK_BYTES) <= 12
        assert scrub.progress.bytes == sum(map(len, DATA.values()))
        assert damaged(store) == set()


def test_a_scrub_goes_on_where_it_was_when_the_store_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubs, "_SAVE_INTERVAL_S", 0.0)
    with store_at(tmp_path / "drive") as store:
        filled(store)
        scrub = DriveScrub(drive_of(store), store.damaged)
        assert not scrub.is_due(3600) and not scrub.is_due(0)
        scrub.step(BLOCK_BYTES + 1000)
        objects = scrub.progress.objects
        assert 0 < objects < len(DATA)
    with store_at(tmp_path / "drive") as store:
        scrub = DriveScrub(drive_of(store), store.damaged)
        assert scrub.is_due(0), "it is under way"
        whole_pass(scrub)
        assert scrub.progress.objects == len(DATA), "the object that was being read is read again"
        assert not scrub.is_due(3600)
    assert kinds(check([tmp_path / "drive"])) == []
    with store_at(tmp_path / "drive") as store:
        found = DriveScrub(drive_of(store), store.damaged).progress
        assert found.finished_s > found.began_s > time.time() - 60 and not found.after


def test_a_scrub_that_began_while_the_clock_was_ahead_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(tmp_path / "drive") as store:
        scrub = DriveScrub(drive_of(filled(store)), store.damaged)
        with monkeypatch.context() as ahead:
            ahead.setattr(scrubs.time, "time", lambda: 4e9)
            whole_pass(scrub)
            assert not scrub.is_due(3600)
        assert scrub.is_due(3600)
        whole_pass(scrub)
        assert not scrub.is_due(3600)


def test_what_is_replaced_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        filled(store)
        scrub = DriveScrub(drive_of(store), store.damaged)
        scrub.step(1)
        for name in DATA:
            DAMAGES["gone"](file_of(store, name)) if len(DATA[name]) > 1 else None
            put(store, name, DATA[name])
        whole_pass(scrub)
        assert damaged(store) == set()


@table("harm", ["flipped", "cut", "gone"])
@table("name", ["k2", "k5"])
def test_a_reader_notes_the_damage_that_it_meets(tmp_path: Path, name: str, harm: str) -> None:
    with store_at(tmp_path / "drive") as store:
        filled(store)
        DAMAGES[harm](file_of(store, name))
        with pytest.raises(CorruptObject):
            read(store, name)
        assert damaged(store) == {name}
    with store_at(tmp_path / "drive") as store:
        assert batch(store, [name]) == [(pb.CORRUPT, b"")]
        assert damaged(store) == {name}


def test_damaged_bytes_give_way_to_the_same_version_only_where_they_are_to_be_mended(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        filled(store)
        drive, before = store.locate(BUCKET, "k5")
        flip_a_byte(file_of(store, "k5"))

        def copy(data: bytes, *, mends: bool) -> None:
            with store.begin_put(BUCKET, "k5") as upload:
                upload.write(data)
                upload.assign(before.version, before.modified_ns)
                upload.require(Condition(mends=mends))
                upload.commit()

        copy(DATA["k5"], mends=False)
        assert not is_whole(drive, store.head(BUCKET, "k5"))
        copy(os.urandom(len(DATA["k5"])), mends=True)
        assert not is_whole(drive, store.head(BUCKET, "k5")), "other bytes are not what was put"
        copy(DATA["k5"], mends=True)
        after = store.head(BUCKET, "k5")
        assert read(store, "k5") == DATA["k5"] and after.version == before.version
        assert after.path != before.path and after.modified_ns == before.modified_ns
        put(store, "k5", b"new")
        copy(DATA["k5"], mends=True)
        assert read(store, "k5") == b"new"


def test_a_scrub_finds_damage_in_what_only_snapshots_see(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"old")
        put(store, "b", b"old")
        store.snapshots.create(BUCKET, "s")
        put(store, "a", b"new")
        put(store, "b", b"new")
        flip_a_byte(retained_file(store, "a"))
        scrub = DriveScrub(drive_of(store), store.damaged)
        whole_pass(scrub, step_bytes=1)
        assert (scrub.progress.objects, scrub.progress.damaged) == (4, 1)
        assert drive_of(store).faults.checksum_errors == 1 and "only snapshots see" in caplog.text
        assert not damaged(store) and read(store, "a") == b"new"
