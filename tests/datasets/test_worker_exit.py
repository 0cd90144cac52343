"""Workers of a trainer that was killed: they end soon, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from ais_loader.testing import eventually, throwaway_store

pytestmark = pytest.mark.slow
START_TIMEOUT_S = 180
EXIT_TIMEOUT_S = 180
TRAINER = """
import ctypes, multiprocessing, os, sys, threading, time
from pathlib import Path
from torch.utils.data import DataLoader
from ais_loader import MapDataset

FOLDER, STORE, START_METHOD, DECODE, THREAD = sys.argv[1:]


def decode(item):
    (Path(FOLDER) / f"worker-{os.getpid()}").touch()
    if DECODE == "holds the GIL":
        ctypes.PyDLL(None).sleep(1000)  # PyDLL, unlike CDLL, keeps it
    elif DECODE == "sleeps":
        time.sleep(1000)
    elif item.index == 7:
        time.sleep(1)
    return 0


def loop():
    urls = [f"ais://b/{at}" for at in range(16)]
    options = {"num_workers": 2, "multiprocessing_context": START_METHOD}
    loader = DataLoader(MapDataset(STORE, urls, decode), batch_size=8, **options)
    if THREAD == "thread that ends":
        opened = []
        thread = threading.Thread(target=lambda: opened.append(iter(loader)))
        thread.start()
        thread.join()
        # A process that inherits the pipes of the workers, and keeps them open.
        bystander = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
        bystander.start()
        (Path(FOLDER) / f"bystander-{bystander.pid}").touch()
        print(sum(len(batch) for batch in opened[0]), flush=True)
    else:
        for batch in loader:
            pass


if __name__ == "__main__":
    loop()
"""


@contextmanager
def trainer(
    tmp_path: Path, decode: str, start_method: str = "fork", thread: str = "main"
) -> Iterator[subprocess.Popen[str]]:
    program = tmp_path / "trainer.py"
    program.write_text(TRAINER)
    with throwaway_store({str(at): b"data" for at in range(16)}, bucket="b") as client:
        arguments = [str(tmp_path), client.url, start_method, decode, thread]
        command = [sys.executable, "-W", "ignore", str(program), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()
                for pid in [*pids(tmp_path, "bystander"), *pids(tmp_path, "worker")]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def pids(folder: Path, kind: str) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob(f"{kind}-*")]


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill_in_decode(process: subprocess.Popen[str], folder: Path) -> None:
    """Kill the trainer once both workers decode. Raises AssertionError unless they end."""
    eventually(lambda: len(pids(folder, "worker")) == 2, START_TIMEOUT_S)
    process.kill()
    process.wait()
    eventually(lambda: not any(map(runs, pids(folder, "worker"))), EXIT_TIMEOUT_S)


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("decode", ["holds the GIL", pytest.param("sleeps", marks=pytest.mark.exhaustive)])
def test_a_worker_whose_trainer_was_killed_ends_within_five_seconds_in_the_middle_of_decode(
    tmp_path: Path, decode: str, start_method: str
) -> None:
    with trainer(tmp_path, decode, start_method) as process:
        kill_in_decode(process, tmp_path)


def test_workers_that_a_thread_started_outlive_that_thread_and_not_their_trainer(tmp_path: Path) -> None:
    with trainer(tmp_path, "returns", thread="thread that ends") as process:
        assert process.communicate(timeout=START_TIMEOUT_S)[0] == "16\n"
        assert process.returncode == 0
    for path in tmp_path.glob("*-*"):
        path.unlink()
    with trainer(tmp_path, "sleeps", thread="thread that ends") as process:
        eventually(lambda: pids(tmp_path, "bystander"), START_TIMEOUT_S)
        kill_in_decode(process, tmp_path)
        assert all(map(runs, pids(tmp_path, "bystander")))
