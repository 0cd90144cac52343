"""Faults of worker processes: no sample is lost, repeated or reordered, and nothing is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing.connection
import multiprocessing.process
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from process_kit import (
    EXPECTED,
    Samples,
    collate,
    first_time,
    kill_always,
    kill_before,
    kill_during,
    kill_soon,
    loader,
    nothing_left,
    numbers_of,
    processes_of,
    sleep_in_fault,
)

from ais_loader import BatchLoader
from ais_loader.errors import LoaderError, SilenceTimeout
from ais_loader.loading import process_workers
from ais_loader.loading.engine import Engine, StallWatch
from ais_loader.loading.process_workers import error_of, hang_up, packed_error
from ais_loader.loading.workers import FetchedBatch
from ais_loader.testing import eventually

EXIT_TIMEOUT_S = 180
STALLS_S = (2.0, 30.0)
"""In which a worker has begun; the latter also on a busy machine."""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fault", [kill_before, kill_during])
def test_a_killed_worker_loses_and_repeats_nothing(tmp_path: Path, fault: Any, workers: int) -> None:
    with nothing_left():
        assert numbers_of(loader(tmp_path, fault, workers=workers)) == EXPECTED
    assert (tmp_path / "fault").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kill_s", ["0.0001", "0.0003", "0.001", "0.003", "0.01"])
def test_a_worker_killed_while_it_delivers(tmp_path: Path, kill_s: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILL_S", kill_s)
    with nothing_left():
        assert numbers_of(loader(tmp_path, kill_soon)) == EXPECTED
        assert numbers_of(loader(tmp_path, kill_soon, collate=collate)) == EXPECTED


@pytest.mark.slow
def test_a_trainer_that_ignores_the_ends_of_children_loses_nothing_either(tmp_path: Path) -> None:
    """The kernel then reaps them, and their status is not known."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert numbers_of(loader(tmp_path, kill_during)) == EXPECTED
        with pytest.raises(LoaderError, match=r"worker 0 \(pid \d+\) ended, at epoch 0, step"):
            numbers_of(loader(tmp_path, kill_always, workers=1, max_restarts=0))
    finally:
        signal.signal(signal.SIGCHLD, before)
        multiprocessing.process._children.clear()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_killed_worker_with_other_start_methods(tmp_path: Path, context: str) -> None:
    assert numbers_of(loader(tmp_path, kill_during, context=context)) == EXPECTED


@pytest.mark.slow
def test_workers_killed_by_others_at_any_time(tmp_path: Path) -> None:
    with nothing_left():
        batches = loader(tmp_path, max_restarts=20)
        got = []
        for number, batch in enumerate(batches):
            got.append(batch)
            process = processes_of(batches)[number % 2]
            if number % 2:
                with contextlib.suppress(ValueError):  # it has just been found dead, and is being replaced
                    process.kill()
        assert numbers_of(got) == EXPECTED
        del got, batch


@pytest.mark.slow
def test_a_batch_that_always_kills_its_worker_is_an_error(tmp_path: Path) -> None:
    with nothing_left():
        running = iter(loader(tmp_path, kill_always, workers=1))
        before = []
        step = next(step for step, numbers in enumerate(EXPECTED) if 50 in numbers)
        told = rf"killed by SIGKILL, at epoch 0, step {step}, sample {EXPECTED[step][0]}, …, and may not"
        with pytest.raises(LoaderError, match=told) as raised:
            for batch in running:
                before += numbers_of([batch])
        assert before == EXPECTED[:step]
        del raised, running, batch


def pause_in_collate(samples: list[Any]) -> Any:
    threading.Event().wait()


IN_STAGE = r"worker \d \(pid \d+\) is in stage"


def assert_raised(told: str, folder: Path, fault: Any = None, **options: Any) -> None:
    """The loader raises this stall, and nothing is left. A slow worker may not have come to it after the first time."""
    for stall_s in STALLS_S:
        with nothing_left():
            with pytest.raises(SilenceTimeout) as raised:
                numbers_of(loader(folder, fault, stall_s=stall_s, on_stall="raise", **options))
            text = str(raised.value)
            del raised
        if re.search(told.format(f"{stall_s:g}"), text):
            return
        (folder / "fault").unlink(missing_ok=True)
    raise AssertionError(text)


class Unwritable:
    def __reduce__(self) -> Any:
        threading.Event().wait()


def pause_in_transfer(samples: list[Any]) -> Any:
    return Unwritable()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["collate", "transfer"])
def test_the_stage_that_stalls_is_named(tmp_path: Path, stage: str) -> None:
    pause = {"collate": pause_in_collate, "transfer": pause_in_transfer}[stage]
    assert_raised(f"rank 0, epoch 0, step 0: no batch for {{}} s; {IN_STAGE} '{stage}' since ", tmp_path, collate=pause)


def leave(folder: Path, when: str) -> None:
    os._exit(3)


@pytest.mark.slow
def test_a_worker_that_exits_is_named_with_its_status(tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match="ended with status 3"):
        numbers_of(loader(tmp_path, leave, max_restarts=0))


def hold_the_gil(folder: Path, when: str) -> None:
    if first_time(folder):
        ctypes.PyDLL(None).sleep(1000)  # PyDLL, unlike CDLL, keeps it


@pytest.mark.slow
@pytest.mark.parametrize("fault", [sleep_in_fault, hold_the_gil])
def test_a_stalled_worker_is_ended_and_its_stack_told(
    tmp_path: Path, fault: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_workers, "_DUMP_S", 180)
    for stall_s in STALLS_S:
        caplog.clear()
        with caplog.at_level(logging.WARNING), nothing_left():
            numbers = numbers_of(loader(tmp_path, fault, stall_s=stall_s, on_stall="restart", max_restarts=99))
        assert numbers == EXPECTED
        if caplog.text.count("no batch for") == 1:  # and no slow worker was taken for one that stalls
            break
        (tmp_path / "fault").unlink()
    assert f"in {fault.__name__}" in caplog.text
    assert "is in stage 'decode' since" in caplog.text


@pytest.mark.slow
def test_a_stall_is_raised_and_its_worker_ended(tmp_path: Path) -> None:
    assert_raised(f"{IN_STAGE} 'decode'", tmp_path, sleep_in_fault)


@pytest.mark.slow
def test_an_abandoned_iteration_ends_a_worker_that_sleeps(tmp_path: Path) -> None:
    with nothing_left():
        batches = loader(tmp_path, sleep_in_fault)
        running = iter(batches)
        for _ in range(next(step for step, numbers in enumerate(EXPECTED) if 50 in numbers) - 1):
            next(running)
        eventually((tmp_path / "fault").exists)
        batches.close()
        del running


class Elsewhere(Exception):
    """It can be unpickled in the process that raises it alone."""

    def __init__(self, what: Callable[[], Any]) -> None:
        super().__init__("number 50 is not good")
        self.what = what

    def __reduce__(self) -> Any:
        return _elsewhere, (os.getpid(), self.what)


def _elsewhere(pid: int, what: Callable[[], Any]) -> Any:
    return Elsewhere(what) if os.getpid() == pid else what()


def _no_module() -> Any:
    raise ModuleNotFoundError("No module named 'of_the_worker'")


def raise_without_module(folder: Path, when: str) -> None:
    raise Elsewhere(_no_module)


def raise_exit(folder: Path, when: str) -> None:
    raise Elsewhere(sys.exit)


@pytest.mark.parametrize(
    "fault, problem",
    [
        (raise_without_module, "ModuleNotFoundError"),
        (raise_exit, "SystemExit"),
    ],
)
def test_an_error_that_the_trainer_cannot_unpickle_is_told_in_its_place(
    tmp_path: Path, fault: Any, problem: str
) -> None:
    step = next(step for step, numbers in enumerate(EXPECTED) if 50 in numbers)
    before = []
    with nothing_left():
        running = iter(loader(tmp_path, fault))
        with pytest.raises(RuntimeError, match=rf"cannot be unpickled here \({problem}\)") as raised:
            for batch in running:
                before += numbers_of([batch])
        assert before == EXPECTED[:step]
        assert fault.__name__ in "".join(raised.value.__notes__)  # the worker's traceback
        del raised, running, batch


def test_an_error_without_a_text_is_an_error() -> None:
    class Mute(Exception):  # local, and so not pickled
        def __str__(self) -> str:
            raise ValueError("no text")

    assert "Mute" in str(error_of(packed_error(Mute()), "worker 0"))


class Stiff(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"it takes no {name}")


def test_an_error_that_takes_no_notes_is_an_error() -> None:
    assert isinstance(error_of(packed_error(Stiff("50")), "worker 0"), Stiff)


class Id:
    """A number that only the process that has made it can unpickle."""

    def __init__(self, number: int) -> None:
        self.number, self.pid = number, os.getpid()

    def __index__(self) -> int:
        return self.number

    def __reduce__(self) -> Any:
        return (Id if self.number != 50 else _only_in), (self.number if self.number != 50 else self.pid,)


def _only_in(pid: int) -> Any:
    if os.getpid() != pid:
        raise ModuleNotFoundError("No module named 'of_the_trainer'")
    return Id(50)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_numbers_that_a_worker_cannot_unpickle_are_an_error_of_their_batch(tmp_path: Path, context: Any) -> None:
    batches = [[Id(number) for number in numbers] for numbers in EXPECTED]
    step = next(step for step, numbers in enumerate(EXPECTED) if 50 in numbers)
    before = []
    running = iter(BatchLoader(Samples(tmp_path), batches, workers=2, collate=collate, context=context))
    with pytest.raises(ModuleNotFoundError, match="of_the_trainer"):
        for batch in running:
            before.append([int(number) for number in batch["numbers"]])
    assert before == EXPECTED[:step]


class Nameless(Samples):
    def name_of(self, work: Any) -> str:
        raise LookupError("it has no name")


def test_an_error_where_a_worker_is_replaced_fails_all_batches(tmp_path: Path) -> None:
    batches = BatchLoader(Nameless(tmp_path, kill_always), EXPECTED, workers=1, max_restarts=0, stall_s=None)
    with pytest.raises(LookupError, match="it has no name") as raised:
        list(batches)
    assert "cannot be served: LookupError" in str(raised.value.__context__)


def end_by_a_nameless_signal(folder: Path, when: str) -> None:
    os.kill(os.getpid(), signal.SIGRTMIN + 3)


def test_a_worker_that_a_signal_without_a_name_ends(tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match=f"was killed by signal {signal.SIGRTMIN + 3}, at epoch 0"):
        numbers_of(loader(tmp_path, end_by_a_nameless_signal, max_restarts=0))


def die_within_a_message(folder: Path, when: str) -> None:
    """The process dies after half of a message, and leaves a child with what it has open."""
    if when == "before" or not first_time(folder):
        return
    child = os.fork()
    if not child:
        signal.pause()
    (folder / "child").write_text(str(child))

    def half(conn: Any, data: Any, write: Any = os.write) -> None:
        write(conn._handle, bytes(data)[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = half  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:This process")  # which forks, and has threads
def test_a_worker_that_dies_within_a_message_while_its_child_lives(tmp_path: Path) -> None:
    try:
        assert numbers_of(loader(tmp_path, die_within_a_message)) == EXPECTED
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # it has lived until now


def test_a_message_for_which_there_is_no_memory_is_sent_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, recv, failed = os.getpid(), Connection.recv, []

    def recv_once(conn: Any) -> Any:
        found = recv(conn)
        if os.getpid() == pid and not failed:
            failed.append(found)
            raise MemoryError
        return found

    monkeypatch.setattr(Connection, "recv", recv_once)
    assert numbers_of(loader(tmp_path)) == EXPECTED
    assert failed


def test_a_batch_that_comes_when_it_is_about_to_be_missed_is_delivered() -> None:
    fetched = FetchedBatch(["a batch"], "worker 0")

    class Late(Future[FetchedBatch]):
        def result(self, timeout: float | None = None) -> FetchedBatch:
            if not self.done():
                self.set_result(fetched)
                raise TimeoutError  # of the wait, and not of the batch
            return super().result(timeout)

    run: Any = SimpleNamespace(batches=lambda: [(0, [1], 1)], named=str, seed=lambda step, work: 0)
    workers: Any = SimpleNamespace(submit=lambda *args: Late(), progress=str, close=lambda wait: None)
    engine = Engine(run, workers, 1, str, StallWatch(60, "wait", 0))
    taken = engine.take()
    engine.close()
    assert taken is not None and taken[1] is fetched


def test_a_connection_is_ended_without_another_descriptor() -> None:
    one, other = multiprocessing.connection.Pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        hang_up(one)
        with pytest.raises(EOFError):
            other.recv()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        one.close(), other.close()


TRAINER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from process_kit import loader
import test_worker_faults, process_kit

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    fault = getattr(test_worker_faults, sys.argv[3])
    batches = loader(folder, fault, context=sys.argv[4])
    held = []
    for batch in batches:
        held.append(batch)
        if len(held) == 2:
            print(*[process.pid for process in process_kit.processes_of(batches)], flush=True)
"""


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("fault", [sleep_in_fault, hold_the_gil])
def test_workers_end_soon_after_a_killed_trainer_that_holds_views(tmp_path: Path, fault: Any, context: str) -> None:
    program = tmp_path / "trainer.py"
    program.write_text(TRAINER)
    command = [sys.executable, "-W", "ignore", str(program), str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen([*command, fault.__name__, context], stdout=subprocess.PIPE, text=True) as trainer:
        try:
            assert trainer.stdout is not None
            workers = [psutil.Process(int(pid)) for pid in trainer.stdout.readline().split()]
            assert len(workers) == 2
            eventually((tmp_path / "fault").exists)
        finally:
            trainer.send_signal(signal.SIGKILL)
    eventually(lambda: not any(map(_lives, workers)), EXIT_TIMEOUT_S)
    pids = [str(process.pid) for process in (trainer, *workers)]
    assert not [name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in pids)]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
