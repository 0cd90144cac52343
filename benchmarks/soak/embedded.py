"""Embedded part of the soak: writers in processes that are killed at any moment, and readers in processes beside them.

A life is a process that opens the store for writing, runs clients in threads, and is ended by `kill -9` after some
hundredths or tenths of a second; one of ten ends in good order. Forty lives share their names, which are then judged.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ais_loader import connect
from benchmarks.soak.checker import Rules
from benchmarks.soak.clients import READS, WRITES, SoakClient, run_all
from benchmarks.soak.outcome import Outcome, judge
from benchmarks.soak.processes import context, recording, start, stop
from benchmarks.soak.register import Violation

BUCKET = "soak"
LIVES_A_ROUND = 40
NAMES = 60
THREADS = 3
READERS = 2
LIFE_S = 0.25
OPEN_TIMEOUT_S = 60.0
DEADLINE_S = 60.0
IN_GOOD_ORDER = 0.1
WHILE_OPENING = 0.15
RULES = Rules("atomic", deadline_s=DEADLINE_S, slack_s=2.0)
"""Readers of other processes look for changes once a second."""


@dataclass(frozen=True, slots=True)
class Task:
    """Task of a process."""

    store: str
    folder: str
    """Where its history goes."""
    name: str
    seed: str
    prefix: str

    def keys(self) -> list[str]:
        return [f"{self.prefix}/{at:03}" for at in range(NAMES)]


def write(task: Task) -> None:
    """The life of a writer."""
    with recording(Path(task.folder), task.name) as (recorder, stopping):
        opened = recorder.begin(task.name, "open", mode="a")
        client = connect(task.store)
        recorder.end(opened, "ok")
        with client:
            mix = {**READS, **WRITES}
            run_all(
                [
                    SoakClient(f"{task.name}.{at}", client, BUCKET, recorder, task.keys, f"{task.seed}.{at}", mix)
                    for at in range(THREADS)
                ],
                stopping,
                Path(task.folder) / f"{task.name}.stacks",
                DEADLINE_S,
            )


def read(task: Task) -> None:
    """A reader beside the writers, for as long as a round takes."""
    with recording(Path(task.folder), task.name) as (recorder, stopping):
        opened = recorder.begin(task.name, "open", mode="r")
        client = connect(task.store, mode="r")
        recorder.end(opened, "ok")
        with client:
            one = SoakClient(
                task.name, client, BUCKET, recorder, task.keys, task.seed, READS, beside=True, pause_s=0.01
            )
            run_all([one], stopping, Path(task.folder) / f"{task.name}.stacks", DEADLINE_S)


def read_all(task: Task) -> None:
    """Read all objects in a process that opens the store for writing, then in a new reader."""
    with recording(Path(task.folder), task.name) as (recorder, _):
        for mode in ("a", "r"):
            opened = recorder.begin(task.name, "open", mode=mode)
            client = connect(task.store, mode=mode)  # type: ignore[arg-type]
            recorder.end(opened, "ok")
            with client:
                SoakClient(task.name, client, BUCKET, recorder, task.keys, task.seed, READS).read_all()


class EmbeddedSoak:
    """Lives over one store, a round after another."""

    def __init__(self, root: Path, seed: int, say: Callable[[str], None]) -> None:
        self._store = root / "store"
        self._root = root
        self._draw = random.Random(f"embedded {seed}")
        self._seed = seed
        self._say = say
        self._context = context()
        self._rounds: list[tuple[Path, set[str], str]] = []
        self.outcome = Outcome("embedded", seed)
        with connect(self._store) as client:
            client.create_bucket(BUCKET)

    def run(self, lives: int, duration_s: float) -> Outcome:
        begin = time.monotonic()
        done = 0
        while done < lives and time.monotonic() - begin < duration_s and self.outcome.clean:
            done += self._round(min(LIVES_A_ROUND, lives - done), begin + duration_s)
            self._say(
                f"{done} lives, {self.outcome.operations:,} operations, {len(self.outcome.violations)} violations"
            )
        if self.outcome.clean:
            self._final()
        self.outcome.duration_s = time.monotonic() - begin
        return self.outcome

    def _round(self, lives: int, until: float) -> int:
        number = len(self._rounds)
        folder = self._root / f"round-{number:03}"
        folder.mkdir()
        prefix, killed = f"r{number}", set[str]()
        self._rounds.append((folder, killed, prefix))
        readers = [self._start(read, folder, f"r{number}-{at}", prefix) for at in range(READERS)]
        done = 0
        try:
            while done < lives and time.monotonic() < until:
                self._life(folder, f"w{number}-{done}", prefix, killed)
                done += 1
        finally:
            for reader in readers:
                stop(reader)
        self._run(read_all, folder, f"end{number}", prefix)
        self.outcome.take(judge(folder, RULES, killed))
        return done

    def _life(self, folder: Path, name: str, prefix: str, killed: set[str]) -> None:
        process = self._start(write, folder, name, prefix)
        history = folder / f"{name}.jsonl"
        if self._draw.random() < WHILE_OPENING:
            process.join(self._draw.uniform(0, 0.1))
        else:
            deadline = time.monotonic() + OPEN_TIMEOUT_S
            while process.is_alive() and not _opened(history) and time.monotonic() < deadline:
                process.join(0.005)
            process.join(self._draw.uniform(0, LIFE_S))
        if self._draw.random() < IN_GOOD_ORDER:
            stop(process)
            self.outcome.events["ended in good order"] += 1
            return
        killed.update([name, *(f"{name}.{at}" for at in range(THREADS))])
        process.kill()
        process.join()
        self.outcome.events["kill -9"] += 1

    def _final(self) -> None:
        """All names of all rounds once more, and what the doctor says."""
        for folder, killed, prefix in self._rounds:
            self._run(read_all, folder, "last", prefix)
            verdict = judge(folder, RULES, killed)
            self.outcome.violations += verdict.violations
        command = [sys.executable, "-m", "ais_loader.cli", "doctor", "--checksums", str(self._store)]
        done = subprocess.run(command, capture_output=True, text=True)
        (self._root / "doctor.txt").write_text(done.stdout + done.stderr)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-1000:]
            self.outcome.violations.append(Violation("the doctor finds something", str(self._store), said))

    def _run(self, target: Callable[[Task], None], folder: Path, name: str, prefix: str) -> None:
        process = self._start(target, folder, name, prefix)
        process.join(DEADLINE_S * 2)
        if process.is_alive():
            process.kill()
            process.join()

    def _start(self, target: Callable[[Task], Any], folder: Path, name: str, prefix: str) -> BaseProcess:
        task = Task(str(self._store), str(folder), name, f"{self._seed} {name}", prefix)
        return start(self._context, target, task)


def _opened(history: Path) -> bool:
    try:
        return history.stat().st_size > 200
    except OSError:
        return False
