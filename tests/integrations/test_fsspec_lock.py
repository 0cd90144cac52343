"""When a file system holds an embedded store for writing, and when it does not; the others are real processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

import ais_loader
from ais_loader import errors
from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.testing import eventually
from ais_loader.transport.embedded import writing_mark

ELSEWHERE = """
import sys, fsspec, ais_loader
from storage_node.store.drive import ended_versions
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


class Elsewhere:
    """Another process: evaluates expressions, one at a time; `said` is their repr or their error."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def said(self, expression: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n")

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as process:
        yield process


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store with b/a."""
    AISFileSystem.clear_instance_cache()
    with ais_loader.connect(tmp_path / "store") as client:
        client.create_bucket("b").put("a", b"one")
    yield tmp_path / "store"
    fsspec.filesystem("ais", store=tmp_path / "store").release_lock()
    AISFileSystem.clear_instance_cache()


def opened(store: Path, lock_wait_s: float = 0) -> AISFileSystem:
    return fsspec.filesystem("ais", store=store, lock_wait_s=lock_wait_s)


def writing(store: Path) -> str:
    """An expression that holds the store for writing, in a process where it is named `c`."""
    return f"globals().update(c=ais_loader.connect({str(store)!r})) or c.bucket('b').put('other', b'2').size_bytes"


# -- readers


def test_a_process_that_has_read_does_not_keep_another_one_from_writing(store: Path, elsewhere: Elsewhere) -> None:
    reading = f"fsspec.filesystem('ais', store={str(store)!r})"
    assert elsewhere.said(f"{reading}.cat_file('b/a')") == "b'one'"
    assert elsewhere.said(f"globals().update(f={reading}.open('b/a')) or f.read(1)") == "b'o'"
    with ais_loader.connect(store) as client:  # would raise StoreLocked
        client.bucket("b").put("b", b"two")
        assert elsewhere.said(f"{reading}.cat_file('b/b')") == "b'two'"
        assert elsewhere.said("f.read()") == "b'ne'"


def test_pandas_and_pyarrow_read_without_locking(store: Path, elsewhere: Elsewhere) -> None:
    import pandas as pd
    import pyarrow.dataset

    frame = pd.DataFrame({"a": range(100)})
    options = {"store": str(store)}
    frame.to_parquet("ais://b/t.parquet", storage_options=options)
    opened(store).release_lock()
    summed = f"int(__import__('pandas').read_parquet('ais://b/t.parquet', storage_options={options!r})['a'].sum())"
    assert elsewhere.said(summed) == "4950"
    with ais_loader.connect(store):
        assert pd.read_parquet("ais://b/t.parquet", storage_options=options).equals(frame)
    dataset = pyarrow.dataset.dataset("b/t.parquet", filesystem=opened(store), format="parquet")
    assert dataset.count_rows() == 100
    assert elsewhere.said(writing(store)) == "1"


def test_reading_makes_no_store_and_the_first_write_does(tmp_path: Path) -> None:
    AISFileSystem.clear_instance_cache()
    files = opened(tmp_path / "new")
    assert not files.exists("b") and not files.exists("b/a") and files.find("b") == []
    for read in (files.ls, files.cat, files.open, files.info):
        with pytest.raises(FileNotFoundError, match="no store at"):
            read("b/a")
    assert not (tmp_path / "new").exists()
    files.mkdir("b")
    files.pipe_file("b/a", b"1")
    assert files.cat("b/a") == b"1"
    files.release_lock()


def test_a_reader_lags_behind_another_process_until_it_refreshes(
    store: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.store.drive.drive.READER_STALENESS_S", 3600.0)
    monkeypatch.setattr("storage_node.store.record_keeper.READER_STALENESS_S", 3600.0)
    # This process may stand still for longer than replaced files usually stay.
    assert elsewhere.said("setattr(ended_versions, 'GRACE_S', 3600.0)") == "None"
    files = opened(store)
    with ais_loader.connect(store, mode="r") as reader:
        for number, refresh in enumerate((reader.refresh, files.invalidate_cache)):
            before = files.cat_file("b/a")
            assert reader.bucket("b").get("a") == before  # and both remember it
            assert elsewhere.said(writing(store)) == "1"
            assert elsewhere.said(f"c.bucket('b').put('a', b'new %d' % {number}).size_bytes") == "5"
            assert reader.bucket("b").get("a") == files.cat_file("b/a") == before
            refresh()
            reading = files.cat_file("b/a") if number else reader.bucket("b").get("a")
            assert reading == b"new %d" % number
            for other in (reader.refresh, files.invalidate_cache):
                other()
            assert elsewhere.said("c.close()") == "None"
        assert elsewhere.said(writing(store)) == "1"
        assert elsewhere.said("c.delete_bucket('b', force=True)") == "2"
        assert reader.bucket("b").info().name == "b"
        reader.refresh()
        with pytest.raises(errors.BucketNotFound):
            reader.bucket("b").info()
    with pytest.raises(errors.Closed):
        reader.refresh()


# -- writers


@pytest.mark.slow
def test_a_write_beside_another_process_says_who_writes_and_works_when_it_is_free(
    store: Path, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    files = opened(store)
    (tmp_path / "local").write_bytes(b"x")
    assert elsewhere.said(writing(store)) == "1"
    for write in (
        lambda: files.open("b/new", "wb"),  # before anything is written
        lambda: files.pipe_file("b/new", b"1"),
        lambda: files.pipe({"b/new": b"1"}),
        lambda: files.put_file(str(tmp_path / "local"), "b/new"),
        lambda: files.cp_file("b/a", "b/new"),
        lambda: files.rm("b/a"),
        lambda: files.rm("b", recursive=True),
        lambda: files.mkdir("new"),
        lambda: files.makedirs("new"),
        lambda: files.rmdir("b"),
    ):
        with pytest.raises(PermissionError, match=f"by process {elsewhere.pid}"):
            write()
    gc.collect()  # files that could not be opened leave nothing to be complained of
    assert files.find("b") == ["b/a", "b/other"]
    assert elsewhere.said("c.close()") == "None"
    files.pipe_file("b/new", b"1")
    assert files.cat_file("b/new") == b"1"


def test_a_write_waits_for_another_process_and_readers_do_not(
    store: Path, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ais_loader.integrations.shared_store._NOTE_AFTER_S", 0.0)
    files = opened(store, lock_wait_s=60)
    assert elsewhere.said(writing(store)) == "1"
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(files.pipe_file, "b/new", b"1")
        eventually(lambda: f"by process {elsewhere.pid}" in caplog.text)
        assert files.cat_file("b/a") == b"one"
        assert not written.done() and not files.exists("b/new")
        assert elsewhere.said("c.close()") == "None"
        written.result(timeout=180)
    assert files.cat_file("b/new") == b"1"
    files.release_lock()
    assert caplog.text.count("waiting to write, for up to 60 s") == 1


def test_a_wait_for_another_process_has_an_end(store: Path, elsewhere: Elsewhere) -> None:
    files = opened(store, lock_wait_s=0.3)
    assert elsewhere.said(writing(store)) == "1"
    with pytest.raises(PermissionError, match=rf"by process {elsewhere.pid};.*waited 0\.3 s.*lock_wait_s=0\.3"):
        files.pipe_file("b/new", b"1")
    assert elsewhere.said("c.close()") == "None"
    files.pipe_file("b/new", b"1")
    assert files.cat_file("b/new") == b"1"
    for wrong in (-1, float("inf")):
        with pytest.raises(ValueError, match="lock_wait_s"):
            opened(store, lock_wait_s=wrong)


@pytest.mark.slow
def test_a_write_waits_longer_for_another_process_as_long_as_that_gets_on(store: Path, elsewhere: Elsewhere) -> None:
    filesystem = f"fsspec.filesystem('ais', store={str(store)!r})"
    for wait_s in (4.0, 30.0):
        files = opened(store, lock_wait_s=wait_s)
        assert elsewhere.said(f"globals().update(w={filesystem}.open('b/large', 'wb')) or 0") == "0"
        with ThreadPoolExecutor(1) as threads:
            written = threads.submit(files.pipe_file, "b/new", b"1")
            started_s, pieces = time.monotonic(), 0
            while time.monotonic() - started_s < 2.5 * wait_s and not written.done():
                assert elsewhere.said("w.write(b'0123456789')") == "10"  # which is in memory there, and nowhere else
                pieces += 1
            assert not files.exists("b/large")
            assert elsewhere.said(f"w.close() or {filesystem}.release_lock()") == "None"
            if isinstance(written.exception(timeout=180), PermissionError) and wait_s < 30:
                continue  # the other process itself has stood still
            written.result()
        assert files.cat(["b/new", "b/large"]) == {"b/new": b"1", "b/large": b"0123456789" * pieces}
        return


@pytest.mark.parametrize("write", ["c.bucket('b').put('small', b'1').size_bytes", "f.write(b'1')"])
def test_commits_and_bytes_that_are_not_stored_yet_are_progress_and_reading_is_not(
    write: str, store: Path, elsewhere: Elsewhere
) -> None:
    def mark() -> object:
        return writing_mark([str(store)])

    assert elsewhere.said(writing(store)) == "1"
    opening = f"globals().update(f=fsspec.filesystem('ais', store={str(store)!r}).open('b/piece', 'wb')) or 0"
    assert elsewhere.said(opening) == "0"
    before = mark()
    assert elsewhere.said("c.bucket('b').get('a')") == "b'one'"
    assert opened(store).cat_file("b/a") == b"one"
    assert mark() == before
    eventually(lambda: elsewhere.said(write) == "1" and mark() != before)


def test_a_killed_writer_keeps_nobody_waiting(store: Path) -> None:
    files = opened(store)
    with Elsewhere() as process:
        assert process.said(writing(store)) == "1"
        with pytest.raises(PermissionError):
            files.pipe_file("b/new", b"1")
    files.pipe_file("b/new", b"1")
    assert files.cat_file("b/new") == b"1"


def test_the_lock_is_held_while_a_file_is_open_for_writing_and_let_go_of_afterwards(
    store: Path, elsewhere: Elsewhere
) -> None:
    files = opened(store)
    with files.open("b/x", "wb") as file:
        file.write(b"12")
        files.release_lock()
        assert f"StoreLocked: {store} is open for writing by process {os.getpid()}" in elsewhere.said(writing(store))
    files.release_lock()
    assert elsewhere.said(writing(store)) == "1"
    assert elsewhere.said("c.bucket('b').get('x')") == "b'12'"


def test_the_lock_is_let_go_of_by_itself_when_nothing_is_written_any_more(store: Path, elsewhere: Elsewhere) -> None:
    files = opened(store)
    for number in range(5):
        files.pipe_file(f"b/{number}", b"1")
    eventually(lambda: elsewhere.said(writing(store)) == "1")
    with pytest.raises(PermissionError):
        files.pipe_file("b/5", b"1")


def test_a_file_that_is_given_up_lets_go_of_the_lock(store: Path, elsewhere: Elsewhere) -> None:
    files = opened(store)
    file = files.open("b/x", "wb")
    file.write(b"12")
    del file
    gc.collect()
    files.release_lock()
    assert elsewhere.said(writing(store)) == "1"
    assert not files.exists("b/x")


def test_a_transaction_holds_the_lock_until_its_files_are_written(store: Path, elsewhere: Elsewhere) -> None:
    files = opened(store)
    with files.transaction:
        with files.open("b/x", "wb") as file:
            file.write(b"1")
        files.release_lock()
        assert "StoreLocked" in elsewhere.said(writing(store))
    assert files.cat_file("b/x") == b"1"
    files.release_lock()
    assert elsewhere.said(writing(store)) == "1"


def test_threads_write_side_by_side_with_one_lock(store: Path, elsewhere: Elsewhere) -> None:
    together = threading.Barrier(8)

    def write(number: int) -> bytes:
        files = opened(store)  # one for each thread
        together.wait(180)
        for round_number in range(5):
            files.pipe_file(f"b/{number}", b"%d" % round_number)
            files.release_lock()
            assert files.cat_file(f"b/{number}") == b"%d" % round_number
        return files.cat_file(f"b/{number}")

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(write, range(8))) == [b"4"] * 8
    opened(store).release_lock()
    assert elsewhere.said(writing(store)) == "1"


def test_modes_that_are_asked_for_are_kept(store: Path, elsewhere: Elsewhere) -> None:
    reader = AISFileSystem(store, connect_options={"mode": "r"})
    with pytest.raises(PermissionError, match="reading"):
        reader.pipe_file("b/x", b"1")
    writer = AISFileSystem(store, connect_options={"mode": "a"})
    writer.release_lock()
    assert "StoreLocked" in elsewhere.said(writing(store))
    writer._client.close()


# -- one process


def test_what_was_written_here_is_read_here_at_once(store: Path) -> None:
    files = opened(store)
    for number in range(1, 30):
        with files.open("b/a", "wb") as file:
            file.write(b"x" * number)
        if number % 10 == 0:
            files.release_lock()
        assert files.info("b/a")["size"] == number
        assert files.cat_file("b/a") == b"x" * number
        with files.open("b/a") as file:
            assert file.read() == b"x" * number
    files.rm("b", recursive=True)
    assert not files.exists("b/a") and not files.exists("b")
    files.mkdir("b")
    assert files.find("b") == []


def test_a_client_of_this_process_that_writes_is_read_at_once_and_written_through(
    store: Path, elsewhere: Elsewhere
) -> None:
    files = opened(store)
    assert files.cat_file("b/a") == b"one"
    with ais_loader.connect(store) as client:
        client.bucket("b").put("a", b"two")
        assert files.cat_file("b/a") == b"two"
        files.pipe_file("b/a", b"three")
        assert client.bucket("b").get("a") == files.cat_file("b/a") == b"three"
        left_open = files.open("b/late", "wb")
        left_open.write(b"1")
        assert "StoreLocked" in elsewhere.said(writing(store))
    assert elsewhere.said(writing(store)) == "1"  # closed by whom it belongs to
    with pytest.raises(PermissionError):
        left_open.close()
    assert elsewhere.said("c.close()") == "None"
    with files.open("b/late", "wb") as file, ais_loader.connect(store, mode="r"):
        file.write(b"2")
    assert files.cat_file("b/late") == b"2"


def test_a_client_of_this_process_may_write_as_soon_as_nothing_is_written_through_fsspec(store: Path) -> None:
    files = opened(store)
    files.pipe_file("b/a", b"two")
    with ais_loader.connect(f"file://{store}") as client:
        assert client.bucket("b").get("a") == b"two"
    with files.open("b/a", "wb") as file:
        file.write(b"three")
        with pytest.raises(errors.StoreLocked):
            ais_loader.connect(store)
    ais_loader.connect(store).close()


# -- forks


def in_a_fork(work: Any) -> None:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(180)
    assert child.exitcode == 0


@pytest.mark.slow
@pytest.mark.fresh_process
def test_a_forked_child_reads_and_writes_with_the_file_system_that_it_inherits(store: Path) -> None:
    files = opened(store)
    files.pipe_file("b/a", b"two")  # the lock is still held when the fork begins

    def child() -> None:
        assert files.cat_file("b/a") == b"two"
        files.pipe_file("b/a", b"child")
        assert files.cat_file("b/a") == b"child"

    in_a_fork(child)
    files.pipe_file("b/b", b"parent")
    eventually(lambda: files.cat_file("b/a") == b"child")


@pytest.mark.slow
@pytest.mark.fresh_process
def test_a_child_that_is_forked_while_its_parent_writes_reads_and_is_refused_to_write(store: Path) -> None:
    files = opened(store)
    with files.open("b/x", "wb") as file:
        file.write(b"1")

        def child() -> None:
            assert files.cat_file("b/a") == b"one"
            with pytest.raises(PermissionError, match="forked from"):
                files.pipe_file("b/a", b"child")
            with pytest.raises(PermissionError):
                file.close()

        in_a_fork(child)
        files.pipe_file("b/a", b"parent")
    assert files.cat(["b/a", "b/x"]) == {"b/a": b"parent", "b/x": b"1"}
