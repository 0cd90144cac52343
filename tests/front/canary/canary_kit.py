"""Runs of the Canary-style example, as somebody who types them would start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ais_loader.testing import eventually
from examples.canary.checkpoint import read_lines

ROOT = Path(__file__).resolve().parents[3]
SPEECH = ROOT / "tests" / "data" / "speech"
RUN_S = 250.0


def command(*options: object) -> list[str]:
    return [sys.executable, "-m", "examples.canary.train", *map(str, options)]


def finished(*options: object) -> subprocess.CompletedProcess[str]:
    """A run to its end, whatever that is."""
    return subprocess.run(command(*options), cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)


def steps_done(output: Path) -> int:
    return len(read_lines(output / "getbatch" / "batches-0.jsonl"))


@contextmanager
def killed_at_the_end(output: Path, *options: object) -> Iterator[Callable[[int], None]]:
    """A run that is ended with all its processes as `kill -9` does. Handed in: waits until that many steps are done."""
    process = subprocess.Popen(
        command(*options, "--output", output),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def until(steps: int) -> None:
        eventually(lambda: steps_done(output) >= steps, timeout_s=RUN_S)

    try:
        yield until
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=180)


def cuts_and_losses(output: Path, rank: int = 0) -> list[tuple[int, list[str], float]]:
    """Of each step: the cuts of its batch, in order, and the loss."""
    rows = read_lines(output / "getbatch" / f"batches-{rank}.jsonl")
    return [(row["step"], row["cuts"], row["loss"]) for row in rows]
