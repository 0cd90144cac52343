"""Trainers that are stopped at any of ten places, and resumed, train on the batches of a run that never stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from ais_loader import BatchLoader, BatchSampler, MapDataset, ShufflePlan
from ais_loader.errors import InvalidRequest
from ais_loader.testing import throwaway_store

PROGRAM = Path(__file__).with_name("stopped_runs.py")
SAMPLES = 40
TIMEOUT_S = 1800
CASES = {"lightning": 8, "transformers": 7, "accelerate": 6}


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with throwaway_store({f"{at:03d}": str(at).encode() for at in range(SAMPLES)}, bucket="b") as client:
        yield client.url


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("framework", CASES)
def test_a_run_stopped_at_ten_places_has_the_batches_of_one_that_never_stopped(
    framework: str, processes: int, store: str, tmp_path: Path
) -> None:
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*launcher, str(PROGRAM), framework, str(tmp_path), store],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.count("resumes at 10 places") == CASES[framework] * processes


def test_lightning_tells_of_a_loader_without_a_length(store: str) -> None:
    program = """
import logging, sys, lightning
from ais_loader import BatchLoader, MapDataset
from ais_loader.plans import MixPlan
logging.basicConfig(format="%(levelname)s %(message)s")
dataset = MapDataset(sys.argv[1], "ais://b/")
for _ in range(2):
    loader = BatchLoader(dataset, MixPlan({"a": 40}, {"a": 1}, batch_size=4))
    try:
        len(loader)
    except TypeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, store], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout.count("no length; epoch_steps=N gives it one") == 2, done.stderr
    assert done.stderr.count("WARNING a loader without a length: Lightning fetches one batch ahead") == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torchdata's, of what did not begin
@pytest.mark.parametrize("saved, resumed", [(2, 0), (0, 2), (2, 1)])
def test_a_stateful_loader_of_another_number_of_workers_is_refused_in_words(
    store: str, saved: int, resumed: int
) -> None:
    def loader(workers: int) -> Any:
        plan = ShufflePlan(SAMPLES, 4)
        samples = MapDataset(store, "ais://b/")
        return StatefulDataLoader(samples, batch_sampler=BatchSampler(plan), num_workers=workers, collate_fn=list)

    first = loader(saved)
    running = iter(first)
    had = list(islice(running, 3))
    state = first.state_dict()
    other = loader(resumed)
    other.load_state_dict(state)
    with pytest.raises(InvalidRequest, match=f"num_workers={resumed}, and its state is one of num_workers={saved}"):
        next(iter(other))
    same = loader(saved)
    same.load_state_dict(state)
    assert had + list(same) == list(BatchLoader(MapDataset(store, "ais://b/"), ShufflePlan(SAMPLES, 4)))
    del running


def test_a_state_of_other_entries_is_refused_by_a_stateful_loader(store: str) -> None:
    def loader(prefix: str) -> Any:
        samples = MapDataset(store, prefix)
        return StatefulDataLoader(samples, batch_sampler=BatchSampler(ShufflePlan(10, 2)), collate_fn=list)

    first = loader("ais://b/00")
    next(iter(first))
    other = loader("ais://b/01")
    other.load_state_dict(first.state_dict())
    with pytest.raises(InvalidRequest, match="another plan: it was saved with entries"):
        next(iter(other))
