"""A process that has too many files open for a while: its drives take writes again as soon as it has not."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import DriveFailed, DriveFull, LoaderError
from storage_node.store import format as fmt
from storage_node.store.scrub import DriveScrub, is_whole
from storage_node.store.store import Store
from tests.store.segment_kit import put_group
from tests.store.snapshot_kit import reap
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, object_files, put, read, store_at

OBJECTS = {f"{at:03}": bytes([at]) * 500 for at in range(200)}


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """None is left, for anybody in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 64, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def stop_it(store: Store) -> None:
    """The catalog finds no descriptor for what it is about to write."""
    with no_descriptors(), pytest.raises(DriveFailed, match="Too many open files"):
        drive_of(store).catalog.flush()


def test_a_drive_takes_writes_again_once_there_are_descriptors(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "before", b"1")
        stop_it(store)
        assert read(store, "before") == b"1"
        put(store, "after", b"2")
        assert contents(store) == {"before": b"1", "after": b"2"}
        assert drive_of(store).faults.io_errors == 0
    with Store.open([tmp_path / "drive"]) as store:
        assert contents(store) == {"before": b"1", "after": b"2"}
    assert_sound(tmp_path / "drive")


def test_what_is_being_listed_meanwhile_is_listed_to_its_end(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        for number in range(5):
            put(store, f"n{number}", b"1")
        listing = store.objects(BUCKET)
        first, _ = next(listing)
        stop_it(store)
        with pytest.raises(DriveFailed, match="Too many open files"):
            put(store, "while it is listed", b"2")
        assert [first, *(name for name, _ in listing)] == [f"n{number}" for number in range(5)]
        put(store, "after", b"2")
        assert read(store, "after") == b"2"


def test_readers_and_writers_notice_nothing_of_a_catalog_that_is_opened_anew(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1")
        problems: list[LoaderError] = []
        stop = threading.Event()

        def go_on(number: int) -> None:
            while not stop.is_set():
                try:
                    assert read(store, "a") == b"1"
                    drive_of(store).catalog.get(b"no such key")
                    if number:
                        put(store, f"w{number}", b"2")
                except LoaderError as error:
                    problems.append(error)

        stop_it(store)
        threads = [threading.Thread(target=go_on, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            put(store, "b", b"3")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert drive_of(store).catalog._openings == 1
        assert not problems and read(store, "b") == b"3"


def test_what_was_not_removed_because_there_were_none_is_removed_later(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        [segment] = object_files(tmp_path)
        drive = drive_of(store)
        drive._garbage._grace_s = 3600.0
        store.delete_many(BUCKET, list(OBJECTS))
        with no_descriptors(), pytest.raises(DriveFailed, match="removing a dead file: Too many open files"):
            drive._garbage.reap(everything=True)
        assert segment.exists() and drive.due_in_s() is not None
        reap(store)
        assert not segment.exists() and not list(drive.catalog.scan(fmt.GARBAGE_PREFIX))
        assert drive.due_in_s() is None


def test_it_is_removed_later_too_if_the_catalog_cannot_be_written_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        put(store, "alone", b"1")
        [segment] = [path for path in object_files(tmp_path) if path.parent.parent.name == "segments"]
        drive = drive_of(store)
        drive._garbage._grace_s = 3600.0
        store.delete_many(BUCKET, [*OBJECTS, "alone"])

        def refuse(*_: object, **__: object) -> None:
            raise DriveFull("no space left")

        with monkeypatch.context() as patched, no_descriptors(), pytest.raises(DriveFull):
            patched.setattr(drive.catalog, "write", refuse)
            drive._garbage.reap(everything=True)
        assert segment.exists() and object_files(tmp_path) == [segment]
        reap(store)
        assert not segment.exists()


def test_objects_that_cannot_be_opened_are_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = dict(list(OBJECTS.items())[::20])
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        store.delete_many(BUCKET, [name for name in OBJECTS if name not in left])
        reap(store)
        drive = drive_of(store)
        scrub, really = DriveScrub(drive, store.damaged), drive.files.open

        def out_of_them(path: bytes) -> int:
            with no_descriptors():
                return really(path)

        with monkeypatch.context() as patched:
            patched.setattr(drive.files, "open", out_of_them)
            with pytest.raises(DriveFailed, match="Too many open files"):
                drive.compact_segments()
            with pytest.raises(DriveFailed, match="Too many open files"):
                scrub.step(1 << 30)
            with pytest.raises(DriveFailed, match="Too many open files"):
                is_whole(drive, store.locate(BUCKET, "000")[1])
        with no_descriptors(), pytest.raises(DriveFailed, match="Too many open files"):
            drive.compact_segments()
        assert len(drive.sparse) == 1 and drive.faults.checksum_errors == len(store.damaged) == 0
        scrub.step(1 << 30)
        assert (scrub.progress.objects, scrub.progress.damaged) == (len(left), 0)
        assert drive.compact_segments().objects == len(left)
        assert contents(store) == left
    assert_sound(tmp_path)
