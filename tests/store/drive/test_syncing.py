"""Files synced at the same time: all of them, side by side, and none any more when the caller goes on."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.store.files.error_counters import ErrorCounters
from storage_node.store.files.object_files import SYNCS_AT_ONCE, ObjectFolders, Syncs


@pytest.fixture
def syncs() -> Iterator[Syncs]:
    made = Syncs()
    yield made
    made.close()


def test_many_are_done_side_by_side_and_each_one_once(syncs: Syncs) -> None:
    together = threading.Barrier(SYNCS_AT_ONCE)  # nobody passes before all are there
    done: list[int] = []

    def sync(number: int) -> None:
        together.wait(timeout=180)
        done.append(number)

    syncs.run([lambda number=number: sync(number) for number in range(2 * SYNCS_AT_ONCE)])  # type: ignore[misc]
    assert sorted(done) == list(range(2 * SYNCS_AT_ONCE))


def test_an_error_is_raised_when_none_is_running_any_more(syncs: Syncs) -> None:
    running = 0
    lock = threading.Lock()
    together = threading.Barrier(SYNCS_AT_ONCE)

    def sync(number: int) -> None:
        nonlocal running
        with lock:
            running += 1
        together.wait(timeout=180)
        with lock:
            running -= 1
        if number == 3:
            raise OSError(5, "the device is gone")

    with pytest.raises(OSError, match="the device is gone"):
        syncs.run([lambda number=number: sync(number) for number in range(SYNCS_AT_ONCE)])  # type: ignore[misc]
    assert running == 0


def test_the_caller_does_all_of_it_once_closed(syncs: Syncs) -> None:
    syncs.close()
    threads: list[int] = []
    syncs.run([lambda: threads.append(threading.get_ident())] * 5)
    assert threads == [threading.get_ident()] * 5


@pytest.mark.slow
@pytest.mark.fresh_process
def test_closing_in_a_forked_child_leaves_the_threads_of_the_parent(syncs: Syncs) -> None:
    syncs.run([lambda: None] * 4)
    pid = os.fork()
    if pid == 0:
        syncs.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    together = threading.Barrier(2)

    def sync() -> None:
        together.wait(timeout=180)

    syncs.run([sync] * 2)


def test_folders_that_somebody_removed_are_made_again_and_last(tmp_path: Path, syncs: Syncs) -> None:
    objects = os.open(tmp_path, os.O_RDONLY)
    try:
        folders = ObjectFolders(objects, syncs, ErrorCounters())
        folders.make_lasting([b"aa/bb/1", b"aa/cc/2", b"aa/bb/3"])
        assert {str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*")} == {"aa", "aa/bb", "aa/cc"}
        shutil.rmtree(tmp_path / "aa")
        folders.make(b"aa/bb/1")
        folders.make(b"dd/ee/4")
        assert {str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*")} == {"aa", "aa/bb", "dd", "dd/ee"}
        folders.sync_names([b"aa/bb/1"])
        with pytest.raises(FileNotFoundError):
            folders.sync_names([b"aa/cc/2"])
    finally:
        os.close(objects)
