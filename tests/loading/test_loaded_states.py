"""Ranks compare the states that they load and the plans that they begin, and all of them name the one that differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 180
RANK = """
import json, os, sys
import torch
from ais_loader import BatchLoader, ShufflePlan

folder, rank, world_size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.distributed.init_process_group("gloo", f"file://{folder}/ranks", rank=rank, world_size=world_size)


class Numbers:
    def __len__(self):
        return 24

    def __getitems__(self, indices):
        return list(indices)


def told(step, batch_size=2):
    loader = BatchLoader(Numbers(), ShufflePlan(24, batch_size, group=3))
    state = loader.state_dict() | {"step": step}
    try:
        BatchLoader(Numbers(), ShufflePlan(24, 2, group=3)).load_state_dict(state)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def begun(seed=0, n=24, step=0, **place):
    class Fewer(Numbers):
        def __len__(self):
            return n

    loader = BatchLoader(Fewer(), ShufflePlan(n, 2, seed=seed, group=3), **place)
    if step:
        loader.set_epoch(step)
    try:
        return len(list(loader))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


states = [told(6), told(6 + 3 * (rank == 1)), told(6, 2 + (rank == 2))]
own = {"rank": rank, "world_size": world_size}
runs = [begun(), begun(seed=rank), begun(n=24 + rank // 2), begun(step=rank), begun(seed=rank, **own)]
empty = begun(n=24 - 24 * (rank == 1))
alone = begun(seed=rank, rank=0, world_size=1)
print(json.dumps([*states, runs, empty, alone]), flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_the_rank_with_another_state_or_plan_is_named_on_all_ranks(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path)],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        found = [json.loads(rank.communicate(timeout=TIMEOUT_S)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(TIMEOUT_S)
    assert [told[0] for told in found] == ["loaded"] * 3
    assert [told[1] for told in found] == ["InvalidRequest: rank 1 loads another state than rank 0"] * 3
    differs = "InvalidRequest: rank {} reads another plan, other entries or another part than rank 0: rank 0 has {}"
    seed = differs.format(1, "seed 0, and rank 1 1")
    n = differs.format(2, "n 24, and rank 2 25")
    epoch = differs.format(1, "epoch 0, and rank 1 1")
    assert [told[3] for told in found] == [[4, seed, n, epoch, seed]] * 3
    assert [told[4] for told in found] == [differs.format(1, "n 24, and rank 1 0")] * 3
    assert [told[5] for told in found] == [12] * 3  # a part of its own is nobody's to compare
    refused = "the state belongs to another plan: it was saved with batch_size 3, and has 2"
    others = f"InvalidRequest: rank 2 refuses the state: {refused}"
    assert [told[2] for told in found] == [others, others, f"InvalidRequest: {refused}"]
