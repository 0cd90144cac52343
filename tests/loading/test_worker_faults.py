"""Faults of worker processes: no sample is lost, repeated or reordered, and nothing is left behind."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing.process
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_kit import (
    EXPECTED,
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

from ais_loader.errors import LoaderError, SilenceTimeout
from ais_loader.testing import eventually

EXIT_TIMEOUT_S = 60
STALL_S = 2.0
"""In which a worker has begun, also on a busy machine."""


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
            if number % 2 and process.is_alive():
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


class Unwritable:
    def __reduce__(self) -> Any:
        threading.Event().wait()


def pause_in_transfer(samples: list[Any]) -> Any:
    return Unwritable()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["collate", "transfer"])
def test_the_stage_that_stalls_is_named(tmp_path: Path, stage: str) -> None:
    pause = {"collate": pause_in_collate, "transfer": pause_in_transfer}[stage]
    told = rf"rank 0, epoch 0, step 0: no batch for 2 s; worker \d \(pid \d+\) is in stage '{stage}' since "
    with nothing_left(), pytest.raises(SilenceTimeout, match=told):
        numbers_of(loader(tmp_path, collate=pause, stall_s=STALL_S, on_stall="raise"))


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
    tmp_path: Path, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), nothing_left():
        assert numbers_of(loader(tmp_path, fault, stall_s=STALL_S, on_stall="restart")) == EXPECTED
    assert f"in {fault.__name__}" in caplog.text
    assert "is in stage 'decode' since" in caplog.text


@pytest.mark.slow
def test_a_stall_is_raised_and_its_worker_ended(tmp_path: Path) -> None:
    with nothing_left(), pytest.raises(SilenceTimeout, match=r"worker \d \(pid \d+\) is in stage 'decode'"):
        numbers_of(loader(tmp_path, sleep_in_fault, stall_s=STALL_S, on_stall="raise"))


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
