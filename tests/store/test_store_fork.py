"""A fork with a store open: the child cannot use it and cannot hurt it, and ends without hanging."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import Closed, StoreLocked
from ais_loader.testing import eventually
from ais_loader.transport import fork_safety
from storage_node.store.drive import catalog
from storage_node.store.read.object_reader import open_object
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, names, put, read, store_at

pytestmark = pytest.mark.fresh_process


def in_a_child(work: Callable[[], None], timeout_s: float = 180.0) -> None:
    """Run `work` in a forked child that ends as an interpreter ends, and fail if it fails or hangs."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            gc.collect()
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - the border of a process
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + timeout_s
    done, status = os.waitpid(pid, os.WNOHANG)
    while not done and time.monotonic() < deadline:
        threading.Event().wait(0.005)
        done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert done, "the child hangs"
    assert status == 0, f"the child ended with status {status}"


def fork_waits(
    pool: ThreadPoolExecutor, inside: threading.Event, go_on: threading.Event, work: Callable[[], None]
) -> None:
    """Run `work` in a forked child, and fail if the fork does not wait for a thread that is `inside` until it may
    `go_on`."""
    assert inside.wait(180)
    forking = pool.submit(in_a_child, work)
    eventually(lambda: fork_safety.GATE._forker is not None)
    assert not forking.done()
    go_on.set()
    forking.result(180)


def refused(action: Callable[[], object]) -> None:
    with pytest.raises(Closed, match="fork"):
        action()


@pytest.mark.slow
def test_a_child_is_refused_everything_and_the_parent_goes_on(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1")
        assert read(store, "a") == b"1"  # from now on a look-up of it needs no catalog
        upload = store.stage(BUCKET, "b", [b"2"], {})

        def child() -> None:
            for action in (
                lambda: store.head(BUCKET, "a"),
                lambda: put(store, "c", b""),
                lambda: store.delete(BUCKET, "a"),
                lambda: names(store),
                lambda: drive_of(store).reap(everything=True),
                upload.commit,
            ):
                refused(action)
            upload.abort()

        in_a_child(child)
        upload.commit()
        assert contents(store) == {"a": b"1", "b": b"2"}
    assert_sound(tmp_path / "drive")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_child_may_close_or_drop_what_it_inherited(tmp_path: Path, mode: str) -> None:
    with store_at(tmp_path / "drive") as store:
        for number in range(100):
            put(store, f"{number}", b"%d" % number)
        store.delete(BUCKET, "0")
    held = [Store.open([tmp_path / "drive"], mode=mode)]  # type: ignore[arg-type]
    if mode == "a":
        drive_of(held[0])._garbage._grace_s = 3600.0
        put(held[0], "1", b"new")  # leaves garbage, which a close would remove
    listings = [held[0].objects(BUCKET)]
    next(listings[0])

    def close() -> None:
        held[0].close()

    def drop() -> None:
        listings.clear()
        held.clear()

    in_a_child(close)
    in_a_child(drop)
    assert len(list(listings[0])) == 98
    assert len(contents(held[0])) == 99
    if mode == "a":
        assert drive_of(held[0]).reap(everything=True) == 1
    held[0].close()
    assert_sound(tmp_path / "drive")


@pytest.mark.slow
def test_a_child_reads_on_what_it_had_open_and_opens_its_own_reader(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        data = os.urandom(3 << 20)
        put(store, "a", data)
        reader = open_object(store, BUCKET, "a")
        first = next(reader)

        def child() -> None:
            assert first + b"".join(reader) == data
            with Store.open([tmp_path / "drive"], mode="r") as own:
                assert read(own, "a") == data
            with pytest.raises(StoreLocked, match="this process, or the one that it was forked from"):
                Store.open([tmp_path / "drive"])

        in_a_child(child)
        put(store, "b", b"")


@pytest.mark.slow
def test_a_fork_while_others_write_stops_neither(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"x")
        stop, failures = threading.Event(), []

        def write(name: str) -> None:
            number = 0
            while not stop.is_set():
                try:
                    put(store, f"{name}{number % 10}", bytes(300))
                    number += 1
                except Exception as error:
                    failures.append(error)
                    raise

        threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()

        def child() -> None:
            refused(lambda: put(store, "child", b""))
            with Store.open([tmp_path / "drive"], mode="r") as own:
                assert read(own, "a") == b"x"
            store.close()

        for _ in range(5):
            in_a_child(child)
        stop.set()
        for thread in threads:
            thread.join(timeout=180)
        assert not failures and "child" not in names(store)
    assert_sound(tmp_path / "drive")


@pytest.mark.slow
def test_an_interpreter_that_ends_with_an_inherited_store_does_not_hang(tmp_path: Path) -> None:
    code = f"""
import os, sys
from storage_node.store.store import Store
store = Store.open([{str(tmp_path / "drive")!r}])
store.create_bucket("b", exist_ok=True)
if os.fork() == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
with store.begin_put("b", "after") as upload:
    upload.commit()
"""
    import subprocess

    subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=180, check=True)
    with Store.open([tmp_path / "drive"]) as store:
        assert names(store, bucket="b") == ["after"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["open", "close"])
def test_a_fork_waits_for_a_thread_that_opens_or_closes_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """RocksDB holds locks of the whole process meanwhile, which a child would inherit for ever."""
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1")
    inside, go_on = threading.Event(), threading.Event()

    def held_up(*given: Any, **named: Any) -> Any:
        inside.set()
        assert go_on.wait(180)
        return done(*given, **named)

    done = getattr(catalog, {"open": "_open_rocksdb", "close": "_close_rocksdb"}[step])

    def child() -> None:
        monkeypatch.undo()
        with Store.open([tmp_path / "drive"], mode="r") as own:
            assert read(own, "a") == b"1"

    own = Store.open([tmp_path / "drive"], mode="r") if step == "close" else None
    monkeypatch.setattr(catalog, done.__name__, held_up)
    with ThreadPoolExecutor(2) as pool:
        opened = pool.submit(own.close if own is not None else lambda: Store.open([tmp_path / "drive"], mode="r"))
        fork_waits(pool, inside, go_on, child)
        if (store := opened.result(180)) is not None:
            store.close()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["flush", "compact_range"])
def test_a_fork_waits_for_a_thread_that_flushes_or_compacts_a_catalog(tmp_path: Path, step: str) -> None:
    """RocksDB holds the lock of its threads at times meanwhile."""
    inside, go_on = threading.Event(), threading.Event()

    class HeldUp:
        def __init__(self, db: object) -> None:
            self._db = db

        def __getattr__(self, name: str) -> Any:
            if name == step:
                inside.set()
                assert go_on.wait(180)
            return getattr(self._db, name)

    with store_at(tmp_path / "drive") as store, ThreadPoolExecutor(2) as pool:
        put(store, "a", b"1")
        [drive] = store.drives
        assert drive is not None
        db = drive.catalog._db
        drive.catalog._db = HeldUp(db)
        compacting = pool.submit(drive.compact)
        fork_waits(pool, inside, go_on, lambda: None)
        compacting.result(180)
        drive.catalog._db = db


@pytest.mark.slow
def test_a_fork_waits_for_threads_that_are_about_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(state: str, used_ns: int, thread: str = "a (b) c") -> None:
        task.mkdir(exist_ok=True)
        for name, content in (("stat", f"77 ({thread}) {state} 1 1"), ("schedstat", f"{used_ns} 0 1")):
            (tmp_path / name).write_text(content)
            (tmp_path / name).replace(task / name)  # a reader sees it whole, as in /proc

    def waits() -> bool:
        return not fork_safety.wait_for_ending_threads(0.01)

    tasks = tmp_path / "tasks"
    task, known = tasks / "77", tasks / str(threading.get_native_id())
    known.mkdir(parents=True)  # without a state: nobody looks at it
    monkeypatch.setattr(fork_safety, "_THREADS", str(tasks))
    assert not waits()
    seen("R", 1_000_000)
    assert waits()
    seen("S", 1_000_000)
    assert not waits()
    seen("D", 1_000_000)
    assert waits()
    first_ns = dict[str, int]()
    for used_ns, may_end in ((1_000_000, True), (1_500_000, True), (9_000_000, False)):  # so long takes no end
        seen("R", used_ns)
        assert fork_safety._may_end("77", first_ns) == may_end
    for state, is_waited_for in (("R", True), ("S", False)):  # it may hold a lock that the child needs
        seen(state, 9_500_000, "rocksdb:low")
        assert fork_safety._may_end("77", first_ns) == is_waited_for
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fork_safety.wait_for_ending_threads, 60.0)
        shutil.rmtree(task)
        assert waiting.result(180)


@pytest.mark.slow
def test_a_child_frees_nothing_that_its_parent_has_dropped(tmp_path: Path) -> None:
    class Handle:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            (tmp_path / f"freed by {os.getpid()}").touch()

    gc.collect()
    gc.disable()
    try:
        Handle()
        in_a_child(lambda: None)  # which collects garbage
    finally:
        gc.enable()
    assert not list(tmp_path.iterdir())
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [f"freed by {os.getpid()}"]
