"""A job of four ranks is killed and goes on with two: each update has the samples that it would have had.

The job trains on every kind of plan at once: ddp_trainer.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from ddp_trainer import GROUP, LENGTHS, SIGNALS, flat, plans, tokens

import ais_loader.plans
from ais_loader.plans import MixPlan, NumberPlan
from ais_loader.testing import eventually, throwaway_store

PROGRAM = Path(__file__).with_name("ddp_trainer.py")
UPDATES = 20
TIMEOUT_S = 300


@contextmanager
def job(folder: Path, store: str, attempt: int, world_size: int, updates: int) -> Iterator[list[subprocess.Popen[str]]]:
    ranks = []
    for rank in range(world_size):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(PROGRAM), str(folder), store, str(attempt), str(updates)]
        with (folder / f"output-{attempt}-{rank}").open("w") as output:
            ranks.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output, text=True))
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
        for rank in ranks:
            rank.wait(TIMEOUT_S)


def updates_in(folder: Path) -> int:
    checkpoint = folder / "checkpoint.json"
    return json.loads(checkpoint.read_text())[0] if checkpoint.exists() else 0


def expected(plan: NumberPlan) -> list[list[int]]:
    """The elements of each update of a run that was never stopped."""
    plan, updates = plan.with_group(GROUP), []
    for epoch in count():
        steps = plan.steps(epoch)
        for first in range(0, GROUP * UPDATES if steps is None else steps, GROUP):
            batches = [plan.batch(epoch, step) for step in range(first, first + GROUP)]
            updates.append(sorted(one for batch in batches for one in elements(batch)))
            if len(updates) == UPDATES:
                return updates
    raise AssertionError


def elements(batch: Any) -> list[int]:
    if isinstance(batch, list):
        return flat([tokens(number)[start : start + length] for pack in batch for number, start, length in pack])
    return flat([tokens(number) for number in batch.tolist()])


def test_every_kind_of_plan_is_trained_on() -> None:
    kinds = {
        kind for kind in vars(ais_loader.plans).values() if isinstance(kind, type) and issubclass(kind, NumberPlan)
    }
    assert {type(plan) for plan in plans().values()} == kinds - {NumberPlan}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_update_is_that_of_a_run_that_was_never_stopped(tmp_path: Path) -> None:
    had: dict[tuple[int, str], list[int]] = {}
    objects = {f"{at:02}": json.dumps(tokens(at)).encode() for at in range(len(LENGTHS))}
    with throwaway_store(objects, bucket="b") as client:
        for attempt, (world_size, killed_after) in enumerate([(4, 7), (2, 0)]):
            first = updates_in(tmp_path)
            with job(tmp_path, client.url, attempt, world_size, 0 if killed_after else UPDATES) as ranks:
                eventually(
                    lambda ranks=ranks, last=killed_after: is_over(ranks) or 0 < last <= updates_in(tmp_path), 400
                )
                if not killed_after:
                    assert [rank.wait(TIMEOUT_S) for rank in ranks] == [0] * world_size
                assert killed_after == 0 or not is_over(ranks), output(tmp_path)
            kept = updates_in(tmp_path)
            assert kept >= killed_after
            found: dict[tuple[int, str], list[int]] = defaultdict(list)
            for rank in range(world_size):
                for line in (tmp_path / f"had-{attempt}-{rank}.jsonl").read_text().split("\n")[:-1]:
                    update, name, ids = json.loads(line)
                    found[update, name] += ids
            # The update that the kill interrupted is done anew; some of what it had may be in the files.
            had |= {key: sorted(ids) for key, ids in found.items() if first <= key[0] < kept}
    for name, plan in plans().items():
        if name == "steered mix":
            assert isinstance(plan, MixPlan)
            plan = plan.steered([((update + 4) * GROUP, weights) for update, weights in SIGNALS.items()])
        assert [had[update, name] for update in range(UPDATES)] == expected(plan)


def is_over(ranks: list[subprocess.Popen[str]]) -> bool:
    return any(rank.poll() is not None for rank in ranks)


def output(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("output-*")))
