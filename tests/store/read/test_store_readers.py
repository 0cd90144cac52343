"""Readers beside a writer: they lock nothing, write nothing, and see what was committed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from ais_loader.errors import BucketNotFound, DriveFailed, ObjectNotFound, StoreReadOnly
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.store_kit import BUCKET, contents, drive_of, names, put, read, store_at

READER = """
import sys
from storage_node.store.store import Store
from tests.store.store_kit import contents
store = Store.open(sys.argv[1:], mode="r")
for line in sys.stdin:
    found = contents(store)
    print(len(found), sum(map(len, found.values())), flush=True)
store.close()
"""


def within(seconds: float, wanted: object, look: Callable[[], object]) -> None:
    """Wait until `look()` gives `wanted`, no longer than a reader may lag."""
    deadline = time.monotonic() + seconds
    found = look()
    while found != wanted and time.monotonic() < deadline:
        found = look()
    assert found == wanted


def test_a_reader_finds_what_the_writer_has_just_put(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        for number in range(50):
            put(writer, f"{number}", b"%d" % number)
            assert read(reader, f"{number}") == b"%d" % number
        assert names(reader) == names(writer)
        assert batch(reader, ["7", "none", "49"]) == [(pb.OK, b"7"), (pb.NOT_FOUND, b""), (pb.OK, b"49")]


def test_a_reader_sees_overwrites_deletes_and_buckets_within_its_staleness(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        put(writer, "a", b"1")
        assert read(reader, "a") == b"1"
        put(writer, "a", b"2")
        within(30, b"2", lambda: read(reader, "a"))
        writer.create_bucket("new")
        put(writer, "b", b"3", bucket="new")
        assert read(reader, "b", bucket="new") == b"3"
        writer.delete(BUCKET, "a")

        def looked_up() -> str:
            try:
                return read(reader, "a").decode()
            except ObjectNotFound:
                return "gone"

        within(30, "gone", looked_up)
        writer.delete_bucket("new", force=True)

        def listed() -> str:
            try:
                return str(names(reader, bucket="new"))
            except BucketNotFound:
                return "gone"

        within(30, "gone", listed)


def test_a_reader_whose_object_was_replaced_and_removed_reads_the_new_one(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        for round_number in range(20):
            data = b"%d" % round_number * BLOCK_BYTES
            put(writer, "a", data)
            drive_of(writer).reap(everything=True)
            assert read(reader, "a") == data
            assert batch(reader, ["a"]) == [(pb.OK, data)]
        writer.delete(BUCKET, "a")
        drive_of(writer).reap(everything=True)
        with pytest.raises(ObjectNotFound):
            read(reader, "a")
        assert batch(reader, ["a"]) == [(pb.NOT_FOUND, b"")]


def test_a_reader_outlives_its_writer_and_follows_the_next_ones(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer:
        put(writer, "0", b"0")
    with Store.open([tmp_path / "drive"], mode="r") as reader:
        for number in range(1, 6):
            with store_at(tmp_path / "drive") as writer:
                for other in range(50):
                    put(writer, f"{number}/{other}", b"%d" % number)
                drive_of(writer).catalog.flush()
            assert read(reader, f"{number}/49") == b"%d" % number
            assert len(names(reader)) == 1 + 50 * number


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flush", "close"])
def test_what_a_reader_has_read_of_the_log_does_not_hide_what_was_flushed_since(tmp_path: Path, how: str) -> None:
    writer = Store.open([tmp_path / "drive"])
    writer.create_bucket(BUCKET)
    put(writer, "a", b"")
    with Store.open([tmp_path / "drive"], mode="r") as reader:
        for number in range(1, 10):
            put(writer, "a", b"old")
            drive_of(reader).catch_up()
            assert read(reader, "a") == b"old"
            put(writer, "a", b"%d" % number)
            drive_of(writer).catalog.flush()
            if how == "close":
                writer.close()
                writer = Store.open([tmp_path / "drive"])
            drive_of(reader).catch_up()
            assert read(reader, "a") == b"%d" % number
    writer.close()


def test_a_catch_up_that_failed_in_the_middle_hides_nothing_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        put(writer, "a", b"old")
        drive_of(reader).catch_up()
        assert read(reader, "a") == b"old"
        put(writer, "a", b"new")
        drive_of(writer).catalog.flush()
        with monkeypatch.context() as patch:
            patch.setattr(drive_of(reader).catalog, "_open", fails)
            with pytest.raises(DriveFailed):
                drive_of(reader).catch_up()
        drive_of(reader).catch_up()
        assert read(reader, "a") == b"new"


@pytest.mark.slow
def test_a_reader_keeps_up_with_a_catalog_that_is_flushed_and_compacted(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        for number in range(400):
            put(writer, f"{number % 40}", b"%d" % number)
            if number % 20 == 0:
                drive_of(writer).catalog.flush()
            if number % 50 == 0:
                drive_of(writer).catalog._db.compact_range(None, None)
                put(writer, f"new {number}", b"x")
                assert read(reader, f"new {number}") == b"x"
        assert len(names(reader)) == 48


@pytest.mark.slow
def test_every_reader_opens_whatever_the_writer_is_doing(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer:
        for number in range(20):
            put(writer, f"{number}", b"x")
        stop, failures = threading.Event(), []

        def churn() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                put(writer, f"{number % 20}", b"x")
                drive_of(writer).catalog.flush()
                if number % 3 == 0:
                    drive_of(writer).catalog._db.compact_range(None, None)

        def open_often() -> None:
            for _ in range(25):
                try:
                    with Store.open([tmp_path / "drive"], mode="r") as reader:
                        assert len(names(reader)) == 20
                except Exception as error:
                    failures.append(error)
                    raise

        writing = threading.Thread(target=churn)
        opening = [threading.Thread(target=open_often) for _ in range(4)]
        for thread in (writing, *opening):
            thread.start()
        for thread in opening:
            thread.join(timeout=180)
        stop.set()
        writing.join(timeout=180)
        assert not failures


@pytest.mark.slow
def test_threads_of_a_reader_see_whole_states_while_it_reopens_its_catalog(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        for number in range(20):
            put(writer, f"{number}", b"x")
        stop, wrong = threading.Event(), []

        def look() -> None:
            while not stop.is_set():
                found = names(reader)
                if found != sorted(map(str, range(20))) or any(read(reader, name) != b"x" for name in found):
                    wrong.append(found)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        catalog = drive_of(reader).catalog
        for _ in range(30):
            catalog._folder_inode = -1  # as after a rebuild
            catalog.catch_up()
        stop.set()
        for thread in threads:
            thread.join(timeout=180)
        assert not wrong


def test_a_reader_refuses_to_write(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        put(writer, "a", b"1")
        for action in (lambda: put(reader, "b", b""), lambda: reader.delete(BUCKET, "a")):
            with pytest.raises(StoreReadOnly, match='mode="a"'):
                action()
        assert contents(reader) == {"a": b"1"}


def test_a_reader_changes_nothing_on_the_drive(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer:
        put(writer, "a", b"1")

    def state() -> dict[str, tuple[int, int]]:
        found = {path: path.stat() for path in (tmp_path / "drive").rglob("*")}
        return {str(path): (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}

    before = state()
    with Store.open([tmp_path / "drive"], mode="r") as reader:
        assert contents(reader) == {"a": b"1"}
        assert state() == before
    assert state() == before


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_many_reader_processes_follow_one_writer(tmp_path: Path, count: int) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as writer:
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, *map(str, roots)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        try:
            for round_number in range(1, 4):
                uploads = [writer.stage(BUCKET, f"{round_number}/{n}", [bytes(n)], {}) for n in range(50)]
                assert all(not isinstance(result, Exception) for result in writer.commit_many(uploads))
                for reader in readers:
                    assert reader.stdin is not None and reader.stdout is not None
                    reader.stdin.write("\n")
                    reader.stdin.flush()
                for reader in readers:
                    assert reader.stdout is not None
                    assert reader.stdout.readline() == f"{50 * round_number} {1225 * round_number}\n"
        finally:
            for reader in readers:
                reader.communicate(timeout=180)
        assert [reader.returncode for reader in readers] == [0] * count


@pytest.mark.slow
def test_a_reader_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with store_at(tmp_path / "drive") as writer:
        put(writer, "a", b"1")
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, str(tmp_path / "drive")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        with reader:
            assert reader.stdin is not None and reader.stdout is not None
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "1 1\n"
            reader.kill()
            reader.wait(timeout=180)
        assert not list(scratch.iterdir())
