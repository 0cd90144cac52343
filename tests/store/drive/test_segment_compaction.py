"""Segments that are mostly dead: their living objects move, and nobody notices anything but the room."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import CorruptObject, DriveFull, ObjectNotFound
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store import format as fmt
from storage_node.store.drive.upkeep import Upkeep
from storage_node.store.files import staged_file
from storage_node.store.files.segment_format import HEAD_BYTES, decode_head
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry
from storage_node.store.fsck import fsck as doctor
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.segment_kit import lose_begin, lose_end, put_group, rebuilt
from tests.store.snapshot_kit import at, reap, retained
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    drive_of,
    file_of,
    flip_a_byte,
    kinds,
    no_new_threads,
    object_files,
    put,
    read,
    store_at,
)

NAMES = [f"{number:04d}" for number in range(400)]


def small(name: str, round_number: int = 0, size: int = 500) -> bytes:
    return random.Random(f"{name} {round_number}").randbytes(size)


def put_all(store: Store, names: list[str], round_number: int = 0, *, size: int = 500, group: int = 100) -> None:
    for first in range(0, len(names), group):
        put_group(store, {name: small(name, round_number, size) for name in names[first : first + group]})


def used_bytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in object_files(root))


def compact(store: Store) -> None:
    """Compact until nothing is sparse, without waiting for the grace period."""
    reap(store)
    for drive in store.drives:
        assert drive is not None
        while len(drive.sparse):
            drive.compact_segments()
            drive.reap(everything=True)


def make_sparse(root: Path, *, left: int = 8) -> dict[str, bytes]:
    """A closed store with one segment, of which so many objects are alive; what it holds."""
    with store_at(root) as store:
        put_all(store, NAMES, group=len(NAMES))
        kept = NAMES[:: len(NAMES) // left]
        store.delete_many(BUCKET, [name for name in NAMES if name not in kept])
        reap(store)
        [drive] = store.drives
        assert drive is not None and len(drive.sparse) == 1
    return {name: small(name) for name in kept}


def entries_of(store: Store) -> dict[str, CatalogEntry]:
    return dict(store.objects(BUCKET))


# -- what it is for


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 500, 3_000])
def test_ten_rounds_of_random_overwrites_take_little_more_than_a_fresh_store(tmp_path: Path, size: int) -> None:
    draw = random.Random(size)
    rounds = dict.fromkeys(NAMES, 0)
    with store_at(tmp_path) as store:
        put_all(store, NAMES, size=size)
        fresh_bytes = used_bytes(tmp_path)
        for round_number in range(1, 11):
            names = sorted({draw.choice(NAMES) for _ in NAMES})
            draw.shuffle(names)
            put_all(store, names, round_number, size=size)
            rounds.update(dict.fromkeys(names, round_number))
            compact(store)
            assert used_bytes(tmp_path) <= 1.6 * fresh_bytes, round_number
        assert contents(store) == {name: small(name, rounds[name], size) for name in NAMES}
    assert_sound(tmp_path)


def test_what_a_random_delete_leaves_takes_little_more_than_it_would_fresh(tmp_path: Path) -> None:
    draw = random.Random(7)
    left = sorted(draw.sample(NAMES, len(NAMES) // 10))
    with store_at(tmp_path) as store:
        put_all(store, NAMES)
        fresh_bytes = used_bytes(tmp_path)
        store.delete_many(BUCKET, [name for name in NAMES if name not in left])
        reap(store)
        before = used_bytes(tmp_path)
        compact(store)
        assert used_bytes(tmp_path) <= 1.6 * fresh_bytes / 10 < before / 3
        assert len(object_files(tmp_path)) == 1
        assert contents(store) == {name: small(name) for name in left}
    assert_sound(tmp_path)


def test_segments_that_are_half_alive_or_untouched_stay(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_all(store, NAMES)
        before = object_files(tmp_path)
        store.delete_many(BUCKET, NAMES[::3])
        compact(store)
        assert object_files(tmp_path) == before
        put_group(store, {"two": b"small", "objects": b"only"})
        compact(store)
        assert len(object_files(tmp_path)) == len(before) + 1


def test_a_single_object_that_is_left_gets_a_file_of_its_own(tmp_path: Path) -> None:
    left = make_sparse(tmp_path, left=1)
    with store_at(tmp_path) as store:
        compact(store)
        assert contents(store) == left
        assert [entry.offset for entry in entries_of(store).values()] == [0]
        assert len(object_files(tmp_path)) == 1
    assert_sound(tmp_path)


# -- what does not change


@pytest.mark.slow
def test_a_move_changes_where_the_bytes_are_and_nothing_else(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    with store_at(tmp_path) as store:
        before = entries_of(store)
        cuts = {name: store.head(BUCKET, name) for name in left}
        compact(store)
        after = entries_of(store)
        assert {entry.path for entry in before.values()}.isdisjoint({entry.path for entry in after.values()})
        moved = {name: entry._replace(path=b"", offset=0) for name, entry in after.items()}
        assert moved == {name: entry._replace(path=b"", offset=0) for name, entry in before.items()}
        for name, data in left.items():
            assert store.head(BUCKET, name)._replace(path=b"", offset=0) == cuts[name]._replace(path=b"", offset=0)
            assert read(store, name, version=str(before[name].version)) == data
            assert read(store, name, start=3, length=9) == data[3:12]
        assert batch(store, list(left)) == [(pb.OK, data) for data in left.values()]
    rebuilt(tmp_path)
    with store_at(tmp_path) as store:
        assert contents(store) == left and store.head(BUCKET, next(iter(left))).metadata == {"of": next(iter(left))}


def test_what_only_a_snapshot_sees_stays_and_the_rest_moves(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_all(store, NAMES, group=len(NAMES))
        store.delete_many(BUCKET, NAMES[40:])
        store.snapshots.create(BUCKET, "s")
        seen = contents(store)
        put_all(store, NAMES[:4], 1)
        compact(store)
        now = contents(store)
        assert (contents(store, at("s")), retained(store)) == (seen, NAMES[:4])
        assert now == {name: small(name, int(name < NAMES[4])) for name in NAMES[:40]}
        store.snapshots.delete(BUCKET, "s")
        compact(store)
        assert contents(store) == now
        assert len(object_files(tmp_path)) == 2
    assert_sound(tmp_path)


# -- what comes in between


def between(store: Store, act: Callable[[], None]) -> None:
    """Compact one group, and do something after its objects were read and before they are committed."""
    drive = drive_of(store)

    def stage() -> StagedFile:
        act()
        return drive.stage()

    drive._compaction.step(lambda: drive.stage(held=True), stage)


def test_what_is_overwritten_or_deleted_meanwhile_stays_so(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    overwritten, grouped, deleted, *_ = left

    with store_at(tmp_path) as store:

        def act() -> None:
            put(store, overwritten, b"newer")
            put_group(store, {grouped: b"newer, too", "another": b"new"})
            store.delete(BUCKET, deleted)

        between(store, act)
        now = {**left, overwritten: b"newer", grouped: b"newer, too", "another": b"new"}
        del now[deleted]
        assert contents(store) == now
        with pytest.raises(ObjectNotFound):
            read(store, deleted)
        reap(store)
        assert contents(store) == now
    assert_sound(tmp_path)
    rebuilt(tmp_path)
    with store_at(tmp_path) as store:
        assert contents(store) == now


def test_an_object_that_was_put_again_with_the_same_bytes_is_not_replaced_by_the_old_one(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    name = next(iter(left))
    with store_at(tmp_path) as store:
        between(store, lambda: put_group(store, {name: left[name], "x": b"x"}) and None)
        assert store.head(BUCKET, name).version > entries_of(store)[NAMES[50]].version
        assert contents(store) == {**left, "x": b"x"}
    assert_sound(tmp_path)


def test_a_bucket_that_is_deleted_meanwhile_is_gone(tmp_path: Path) -> None:
    make_sparse(tmp_path)
    with store_at(tmp_path) as store:
        between(store, lambda: store.delete_bucket(BUCKET, force=True) and None)
        assert not store.buckets()
        reap(store)
        assert not object_files(tmp_path)
    assert_sound(tmp_path)


def test_a_snapshot_that_is_made_meanwhile_sees_what_moves(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    with store_at(tmp_path) as store:
        between(store, lambda: store.snapshots.create(BUCKET, "s") and None)
        reap(store)
        assert contents(store, at("s")) == left == contents(store)
        assert not retained(store)
        put_all(store, list(left), 1)
        reap(store)
        assert contents(store, at("s")) == left
        assert len(retained(store)) == len(left)
    assert_sound(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("reader_of", ["the same store", "a store open for reading"])
def test_readers_read_the_right_bytes_all_the_time(tmp_path: Path, reader_of: str) -> None:
    with store_at(tmp_path) as store, Store.open([tmp_path], mode="r") as other:
        put_all(store, NAMES, group=len(NAMES))
        kept = NAMES[::27]
        reading = store if reader_of == "the same store" else other
        over = threading.Event()
        wrong: list[str] = []
        reads = [0, 0, 0]

        def look(worker: int) -> None:
            draw = random.Random(worker)
            while not over.is_set():
                names = draw.sample(kept, 8)
                for name, (status, data) in zip(names, batch(reading, names), strict=True):
                    if status != pb.OK or data != small(name):
                        wrong.append(f"{name} in a batch: {status}")
                if read(reading, names[0]) != small(names[0]):
                    wrong.append(names[0])
                reads[worker] += 1

        def is_read_again() -> None:
            done = list(reads)
            eventually(lambda: all(now > then for now, then in zip(reads, done, strict=True)))

        threads = [threading.Thread(target=look, args=(worker,)) for worker in range(len(reads))]
        for thread in threads:
            thread.start()
        try:
            for step in (3, 9, 27):
                is_read_again()
                before = entries_of(store)
                store.delete_many(BUCKET, sorted(before.keys() - set(NAMES[::step])))
                compact(store)
                after = entries_of(store)
                assert all(after[name].path != before[name].path for name in kept)
            is_read_again()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not wrong
    assert_sound(tmp_path)


READER = """
import sys
from storage_node.store.store import Store
from tests.store.store_kit import contents
with Store.open(sys.argv[1:], mode="r") as store:
    for line in sys.stdin:
        found = contents(store)
        print(*(f"{name}={data.hex()}" for name, data in found.items()), flush=True)
"""


@pytest.mark.slow
def test_a_reader_in_another_process_follows_every_move(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_all(store, NAMES, group=len(NAMES))
        command = [sys.executable, "-c", READER, str(tmp_path)]
        with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdin is not None and reader.stdout is not None
            for step in (1, 3, 9, 27):
                before = entries_of(store)
                store.delete_many(BUCKET, sorted(before.keys() - set(NAMES[::step])))
                compact(store)
                after = entries_of(store)
                assert step == 1 or not {entry.path for entry in before.values()} & {e.path for e in after.values()}
                print(file=reader.stdin, flush=True)
                line = reader.stdout.readline().split()
                assert line == [f"{name}={small(name).hex()}" for name in NAMES[::step]], step
            reader.stdin.close()
            assert reader.wait(180) == 0


# -- damage


def test_a_damaged_object_stays_where_it_is_and_is_reported(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    bad, *good = left
    with store_at(tmp_path) as store:
        drive, entry = store.locate(BUCKET, bad)
        segment = object_files(tmp_path)[0]
        flip_a_byte(segment, entry.offset)
        reap(store)
        done = drive.compact_segments()
        assert [(one.name, one.version) for one in done.damaged] == [(bad, entry.version)]
        assert (done.objects, done.bytes) == (len(good), 500 * len(good))
        assert drive.faults.checksum_errors == 1
        compact(store)
        assert store.locate(BUCKET, bad)[1] == entry and segment.exists()
        with pytest.raises(CorruptObject):
            read(store, bad)
        assert {name: read(store, name) for name in good} == {name: left[name] for name in good}
        assert drive.faults.checksum_errors < 10, "it is not tried again and again"
    assert kinds(doctor.check([tmp_path], checksums=True)) == ["corrupt"]
    with store_at(tmp_path) as store:
        flip_a_byte(segment, entry.offset)
        assert read(store, bad) == left[bad]
        compact(store)
        assert not segment.exists() and contents(store) == left
    assert_sound(tmp_path)


def test_the_upkeep_notes_damage_with_the_stores(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    bad = next(iter(left))
    with store_at(tmp_path) as store:
        entry = store.locate(BUCKET, bad)[1]
    flip_a_byte(object_files(tmp_path)[0], entry.offset)
    with store_at(tmp_path, compact_bytes_per_s=1 << 30) as store:
        eventually(lambda: len(store.damaged) == 1)
        assert store.damaged.version_of(store.bucket(BUCKET).uuid_bytes, bad) == entry.version


@pytest.mark.parametrize("copy", ["begin", "end"])
def test_one_damaged_copy_of_the_index_is_enough(tmp_path: Path, copy: str) -> None:
    left = make_sparse(tmp_path)
    [segment] = object_files(tmp_path)
    (lose_begin if copy == "begin" else lose_end)(segment)
    with store_at(tmp_path) as store:
        compact(store)
        assert contents(store) == left and not segment.exists()
    assert_sound(tmp_path)


def test_without_any_index_nothing_moves_and_everything_is_read(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    [segment] = object_files(tmp_path)
    before = segment.read_bytes()
    lose_begin(segment)
    begin = segment.read_bytes()[:64]
    segment.write_bytes(before)
    lose_end(segment)
    with segment.open("r+b") as file:
        file.write(begin)
    with store_at(tmp_path) as store:
        compact(store)
        assert contents(store) == left and object_files(tmp_path) == [segment]


def test_a_segment_that_cannot_be_read_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_at(tmp_path) as store:
        for group in ("a", "b", "c"):
            put_group(store, {f"{group}/{name}": small(name) for name in NAMES[:100]})
        segments = object_files(tmp_path)
        assert len(segments) == 3
        store.delete_many(BUCKET, [name for name in entries_of(store) if int(name[2:]) % 20])
        reap(store)
        assert len(drive_of(store).sparse) == 3
        bad, really = segments[1].stat().st_ino, os.pread

        def pread(fd: int, size: int, offset: int) -> bytes:
            if os.fstat(fd).st_ino == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return really(fd, size, offset)

        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", pread)
            done = drive_of(store).compact_segments()
        assert done.objects == 10 and not len(drive_of(store).sparse)
        reap(store)
        assert segments[1].exists() and not segments[0].exists() and not segments[2].exists()
        expected = {f"{group}/{name}": small(name) for group in "abc" for name in NAMES[:100:20]}
        assert contents(store) == expected
    with store_at(tmp_path) as store:
        compact(store)
        assert not segments[1].exists() and contents(store) == expected
    assert_sound(tmp_path)


def test_a_rebuild_prefers_the_moved_bytes_to_what_a_power_loss_brings_back_of_the_old_ones(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    [segment] = object_files(tmp_path)
    old = segment.read_bytes()
    with store_at(tmp_path) as store:
        compact(store)
        assert not segment.exists()
        offsets = [entry.offset for entry in entries_of(store).values()]
        assert all(offsets)
    # The states of the old segment are as before, but its bytes are freed.
    head_bytes = decode_head(old[:HEAD_BYTES]).index_bytes
    segment.write_bytes(old)
    with segment.open("r+b") as file:
        file.seek(head_bytes)
        file.write(bytes(len(old) - 2 * head_bytes - 4096))
    rebuilt(tmp_path)
    with store_at(tmp_path) as store:
        assert contents(store) == left


# -- who does it, and when


def test_a_start_goes_on_where_the_last_writer_ended(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    [segment] = object_files(tmp_path)
    with store_at(tmp_path) as store:
        assert segment.exists() and [len(drive.sparse) for drive in store.drives if drive] == [1]
    with store_at(tmp_path, compact_bytes_per_s=1 << 30) as store:
        counts = store.upkeep.counts
        eventually(lambda: (counts.moved_objects, counts.moved_bytes) == (len(left), 500 * len(left)))
        assert contents(store) == left
    assert not segment.exists()
    with store_at(tmp_path) as store:
        drive = drive_of(store)
        assert not len(drive.sparse) and not list(drive.catalog.scan(fmt.SPARSE_PREFIX))
    assert_sound(tmp_path)


def test_an_idle_writer_removes_what_is_dead(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        drive_of(store)._garbage._grace_s = 0.01
        put(store, "a", b"old")
        old = file_of(store, "a")
        put(store, "a", b"new")
        eventually(lambda: not old.exists())
        assert read(store, "a") == b"new"
        eventually(lambda: not list(drive_of(store).catalog.scan(fmt.GARBAGE_PREFIX)))  # after the file


def test_upkeep_that_waits_for_a_dead_file_hears_that_there_is_more_to_do(tmp_path: Path) -> None:
    """Such as a denial whose names could not be compacted."""
    with store_at(tmp_path) as store:
        drive_of(store)._garbage._grace_s = 3600.0
        put(store, "a", b"old")
        put(store, "a", b"new")
        looked, look = threading.Event(), store.upkeep._look_after_all
        store.upkeep._look_after_all = lambda: (look(), looked.set())[0]  # type: ignore[method-assign]
        for _ in range(2):
            looked.clear()
            store.upkeep.wake()
            assert looked.wait(60.0)


@pytest.mark.slow
def test_an_idle_writer_compacts_what_its_deletions_have_left(tmp_path: Path) -> None:
    with store_at(tmp_path, compact_bytes_per_s=1 << 30) as store:
        drive_of(store)._garbage._grace_s = 0.01
        put_all(store, NAMES, group=len(NAMES))
        [segment] = object_files(tmp_path)
        store.delete_many(BUCKET, NAMES[9:])
        eventually(lambda: not segment.exists())
        assert contents(store) == {name: small(name) for name in NAMES[:9]}
        sparse = drive_of(store).sparse
        eventually(lambda: sparse.removed == 1 and sparse.removed_bytes > 100_000)
    assert_sound(tmp_path)


def test_the_thread_ends_when_there_is_nothing_left_and_with_the_store(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        drive_of(store)._garbage._grace_s = 0.01
        put(store, "a", b"1")
        assert store.upkeep.is_idle
        put(store, "a", b"2")
        eventually(lambda: store.upkeep.is_idle)
        drive_of(store)._garbage._grace_s = 3600.0
        put(store, "a", b"3")
        thread = store.upkeep._thread
        assert thread is not None and thread.is_alive()
    assert not thread.is_alive()


def test_a_write_is_done_although_no_thread_can_be_started_for_what_it_replaced(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        drive_of(store)._garbage._grace_s = 3600.0
        put(store, "a", b"1")
        with no_new_threads():
            put(store, "a", b"2")
            assert store.upkeep.is_idle
        assert read(store, "a") == b"2"
        put(store, "a", b"3")
        assert not store.upkeep.is_idle
    with store_at(tmp_path) as store, no_new_threads():
        put(store, "a", b"4")
    assert_sound(tmp_path)


@pytest.mark.slow
def test_a_rate_of_zero_compacts_nothing_and_reaps_all_the_same(tmp_path: Path) -> None:
    make_sparse(tmp_path)
    [segment] = object_files(tmp_path)
    with store_at(tmp_path) as store:
        drive_of(store)._garbage._grace_s = 0.01
        put(store, "a", b"old")
        old = file_of(store, "a")
        put(store, "a", b"new")
        eventually(lambda: not old.exists())
        assert segment.exists()


def test_the_rate_is_kept(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    with store_at(tmp_path) as store:
        upkeep = Upkeep(store.damaged.note, 1.0)
        upkeep.add(drive_of(store))
        eventually(lambda: upkeep.counts.moved_objects == len(left))
        eventually(lambda: upkeep._compacts_at_s > time.monotonic() + 3600)
        upkeep.stop()


@pytest.mark.slow
def test_the_doctor_compacts_segments(tmp_path: Path) -> None:
    left = make_sparse(tmp_path)
    with store_at(tmp_path) as store:  # as earlier releases have left it
        drive = drive_of(store)
        drive.sparse.take()
        for key, _ in list(drive.catalog.scan(fmt.SPARSE_PREFIX)):
            del drive.catalog._db[key]
    before = used_bytes(tmp_path)
    report = doctor.compact([tmp_path])
    assert not report.errors
    assert used_bytes(tmp_path) < before / 4
    with store_at(tmp_path) as store:
        assert contents(store) == left
    assert_sound(tmp_path)


def test_a_full_drive_keeps_its_segments_and_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = make_sparse(tmp_path)
    [segment] = object_files(tmp_path)
    with store_at(tmp_path) as store:
        drive = drive_of(store)
        with monkeypatch.context() as patched:
            patched.setattr(staged_file, "require_space", refuse)
            with pytest.raises(DriveFull):
                drive.compact_segments()
        assert len(drive.sparse) == 1 and contents(store) == left
        assert not os.listdir(tmp_path / "staging")
        compact(store)
        assert not segment.exists() and contents(store) == left
    assert_sound(tmp_path)


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
