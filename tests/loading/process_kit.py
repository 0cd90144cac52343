"""Datasets and decoders that go wrong once, in a worker process, and what a loader may leave behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ais_loader.loading.batch_loader import BatchLoader
from ais_loader.plans import ShufflePlan
from ais_loader.testing import eventually

COUNT, BATCH = 96, 8
PLAN = ShufflePlan(COUNT, BATCH, seed=3)
WIDTH = 4096
"""Numbers in a sample: batches are large enough for slots."""


class Samples:
    """Sample n is an array of the number n. Something goes wrong once at number 50: see the functions below."""

    def __init__(self, folder: Path, fault: Any = None) -> None:
        self.folder, self.fault = folder, fault

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        at_fault = self.fault is not None and 50 in numbers
        if at_fault:
            self.fault(self.folder, "before")
        samples = [np.full(WIDTH, number, np.int32) for number in numbers]
        if at_fault:
            self.fault(self.folder, "during")
        return samples


def collate(samples: list[Any]) -> Any:
    return {"x": torch.from_numpy(np.stack(samples)), "numbers": [int(sample[0]) for sample in samples]}


def first_time(folder: Path) -> bool:
    try:
        (folder / "fault").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_before(folder: Path, when: str) -> None:
    if when == "before" and first_time(folder):
        os.kill(os.getpid(), signal.SIGKILL)


def kill_during(folder: Path, when: str) -> None:
    if when == "during" and first_time(folder):
        os.kill(os.getpid(), signal.SIGKILL)


def kill_always(folder: Path, when: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_soon(folder: Path, when: str) -> None:
    """The process dies a few milliseconds later: while it writes, sends, has sent, or has begun the next batch."""
    if when == "during" and first_time(folder):
        threading.Timer(float(os.environ["KILL_S"]), os.kill, (os.getpid(), signal.SIGKILL)).start()


def sleep_in_fault(folder: Path, when: str) -> None:
    if first_time(folder):
        threading.Event().wait()


def raise_lookup(folder: Path, when: str) -> None:
    raise LookupError("number 50 is not here")


def raise_unpicklable(folder: Path, when: str) -> None:
    class Local(Exception):
        pass

    raise Local("of a local class")


def limit_memory(folder: Path, when: str) -> None:
    """No file of this process, and so no slot, may become larger than it is."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def loader(folder: Path, fault: Any = None, **options: Any) -> BatchLoader:
    dataset = Samples(folder, fault)
    return BatchLoader(dataset, PLAN, **{"workers": 2, "in_flight": 4, "collate": collate} | options)


def numbers_of(batches: Any) -> list[list[int]]:
    """The numbers of each batch, whose arrays must be theirs."""
    found = []
    for batch in batches:
        assert batch["x"].shape == (len(batch["numbers"]), WIDTH)
        assert torch.equal(batch["x"], torch.tensor(batch["numbers"], dtype=torch.int32)[:, None].expand(-1, WIDTH))
        found.append(batch["numbers"])
    return found


EXPECTED = [list(map(int, PLAN.batch(0, step))) for step in range(COUNT // BATCH)]


def processes_of(batches: BatchLoader) -> list[Any]:
    assert batches._running is not None
    return [worker.process for worker in batches._running.start()._workers._workers]  # type: ignore[attr-defined]


@contextmanager
def nothing_left() -> Iterator[None]:
    """No process, thread, descriptor or shared memory of this process is left by what runs here."""
    gc.collect()
    before = _descriptors()
    yield
    gc.collect()
    assert not multiprocessing.active_children()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ais-loader-worker")]
    # The error of a batch and its future refer to each other: slots beside it live until garbage is collected.
    eventually(lambda: gc.collect() >= 0 and _descriptors() <= before)
    eventually(lambda: gc.collect() >= 0 and "ais-loader-slot" not in Path("/proc/self/maps").read_text())


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
