"""Trainers that drive a loader of their own accord see every sample once per epoch, in another order each time.

Each is a program as its users write it (trainers.py), in one process and in two, ended in the middle of an epoch and
resumed from its own checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import throwaway_store

PROGRAM = Path(__file__).with_name("trainers.py")
SAMPLES = 40
STEPS = SAMPLES // 4
EPOCHS = 3
TIMEOUT_S = 200


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with throwaway_store({f"{at:03d}": str(at).encode() for at in range(SAMPLES)}, bucket="b") as client:
        yield client.url


def run(framework: str, data: str, folder: Path, store: str, processes: int, stop_after: int = 0) -> None:
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    arguments = [framework, data, str(folder), store, str(stop_after)]
    done = subprocess.run(
        [*launcher, str(PROGRAM), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout


def epochs(folder: Path, processes: int) -> dict[int, list[list[int]]]:
    """Per epoch, the samples of each rank, in the order in which it was trained on them."""
    seen: dict[int, list[list[int]]] = defaultdict(lambda: [[] for _ in range(processes)])
    for rank in range(processes):
        for line in (folder / f"seen-{rank}.jsonl").read_text().splitlines():
            epoch, samples = json.loads(line)
            seen[epoch][rank] += samples
    return seen


def check(folder: Path, processes: int) -> None:
    seen = epochs(folder, processes)
    assert sorted(seen) == list(range(EPOCHS))
    for ranks in seen.values():
        assert sorted(sample for rank in ranks for sample in rank) == list(range(SAMPLES))
        assert {len(rank) for rank in ranks} == {SAMPLES // processes}
    assert len({json.dumps(ranks) for ranks in seen.values()}) == EPOCHS


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "framework, data",
    [
        ("lightning", "plan"),
        ("lightning", "sampler"),
        ("accelerate", "plan"),
        ("accelerate", "sampler"),
        ("accelerate", "map"),
        ("transformers", "plan"),
        ("transformers", "sampler"),
        ("transformers", "map"),
    ],
)
def test_a_run_ended_in_the_middle_of_an_epoch_and_resumed_has_every_sample_once_per_epoch(
    framework: str, data: str, processes: int, store: str, tmp_path: Path
) -> None:
    run(framework, data, tmp_path, store, processes, stop_after=STEPS // processes + 2)
    begun = epochs(tmp_path, processes)
    assert sorted(begun) == [0, 1]
    assert {len(rank) for rank in begun[1]} == {8}
    run(framework, data, tmp_path, store, processes)
    check(tmp_path, processes)


@pytest.mark.parametrize("processes", [1, 2])
def test_lightning_has_every_sample_of_a_map_dataset_once_per_epoch(processes: int, store: str, tmp_path: Path) -> None:
    run("lightning", "map", tmp_path, store, processes)
    check(tmp_path, processes)
