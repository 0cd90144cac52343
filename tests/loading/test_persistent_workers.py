"""Persistent workers: kept from one epoch to the next, with the same batches, and nothing left after the loader."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from process_kit import BATCH, COUNT, EXPECTED, PLAN, loader, nothing_left, numbers_of, processes_of

from ais_loader.errors import InvalidRequest
from ais_loader.loading.batch_loader import BatchLoader

EPOCHS = [[list(map(int, PLAN.batch(epoch, step))) for step in range(COUNT // BATCH)] for epoch in range(3)]


def pids_of(batches: BatchLoader) -> list[int]:
    return [process.pid for process in processes_of(batches)]


def epoch_of(batches: BatchLoader) -> tuple[list[list[int]], list[int]]:
    """The numbers of the next epoch, and the processes that fetched it."""
    running = iter(batches)
    found = numbers_of([next(running)])
    pids = pids_of(batches)
    return found + numbers_of(running), pids


@pytest.mark.slow
def test_epochs_have_the_same_processes_and_the_batches_of_the_plan(tmp_path: Path) -> None:
    with nothing_left():
        batches = loader(tmp_path, persistent_workers=True)
        epochs = [epoch_of(batches) for _ in range(3)]
        assert [numbers for numbers, _ in epochs] == EPOCHS
        assert len({tuple(pids) for _, pids in epochs}) == 1
        batches.close()
        assert numbers_of(batches) != EPOCHS[0]  # a closed loader starts workers for the next epoch
        del batches


@pytest.mark.slow
def test_an_abandoned_iteration_ends_its_workers(tmp_path: Path) -> None:
    with nothing_left():
        batches = loader(tmp_path, persistent_workers=True)
        running = iter(batches)
        next(running)
        before = pids_of(batches)
        del running
        numbers, after = epoch_of(batches)
        assert numbers == EXPECTED
        assert not set(before) & set(after)
        batches.close()


@pytest.mark.slow
def test_workers_killed_between_epochs_are_replaced(tmp_path: Path) -> None:
    with nothing_left(), loader(tmp_path, persistent_workers=True, max_restarts=2) as batches:
        for expected in EPOCHS:  # each iteration has its own restarts
            assert numbers_of(batches) == expected
            assert batches._kept is not None
            pids = [worker.process.pid for worker in batches._kept._workers]
            for pid in pids:  # one of them may not have been replaced, for lack of work
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class Scaled:
    """Samples that depend on what the trainer sets."""

    factor = 1

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, numbers: list[int]) -> list[int]:
        return [number * self.factor for number in numbers]


@pytest.mark.slow
@pytest.mark.parametrize("persistent, factor", [(False, 2), (True, 1)])
def test_only_kept_workers_miss_what_the_trainer_changes(persistent: bool, factor: int) -> None:
    dataset = Scaled()
    with BatchLoader(dataset, PLAN, workers=1, persistent_workers=persistent) as batches:
        assert list(batches) == EPOCHS[0]
        dataset.factor = 2
        assert list(batches) == [[number * factor for number in batch] for batch in EPOCHS[1]]


@pytest.mark.slow
def test_a_forked_child_leaves_the_workers_to_its_parent(tmp_path: Path) -> None:
    with nothing_left(), loader(tmp_path, persistent_workers=True) as batches:
        _, pids = epoch_of(batches)
        if not (child := os.fork()):
            batches.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert epoch_of(batches) == (EPOCHS[1], pids)


@pytest.mark.slow
def test_a_loader_that_is_dropped_ends_its_workers(tmp_path: Path) -> None:
    with nothing_left():
        batches: Any = loader(tmp_path, persistent_workers=True)
        assert numbers_of(batches) == EXPECTED
        del batches


def test_threads_cannot_be_persistent(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="persistent_workers=True: it needs worker processes"):
        loader(tmp_path, workers=0, persistent_workers=True)
