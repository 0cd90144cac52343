"""Processes of a soak: forked from one that has imported everything, so that a life costs hundredths of a second."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.soak.clients import kind_of
from benchmarks.soak.history import Recorder

STOP_TIMEOUT_S = 150.0
"""Longer than any call may take: whoever is told to stop ends the call that it is in."""


def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(
        [
            "benchmarks.soak.embedded",
            "benchmarks.soak.cluster",
            "ais_loader.transport.embedded",
            "ais_loader.transport.cluster.transport",
        ]
    )
    return made


def start(of: ForkServerContext, target: Callable[..., Any], *arguments: Any) -> BaseProcess:
    process = of.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def stop(*processes: BaseProcess) -> None:
    """In good order, all at once. One that does not end is killed: what it had under way has no end in its history."""
    for process in processes:
        with suppress(ProcessLookupError, AttributeError):
            process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def recording(folder: Path, name: str) -> Iterator[tuple[Recorder, threading.Event]]:
    """In a process: standard error to a file, a history, and a flag that SIGTERM sets. An error in here ends what is
    under way in the history, as failed.
    """
    log = os.open(folder / "processes.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 2)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    recorder = Recorder(folder / f"{name}.jsonl")
    try:
        yield recorder, stopping
    except Exception as error:
        for number in list(recorder.open):
            recorder.end(number, "failed", error=kind_of(error), text=str(error)[:500])
        raise
    finally:
        recorder.close()
