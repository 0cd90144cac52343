"""Ranks compare the states that they load, and the one that differs is named on all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 120
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


print(json.dumps([told(6), told(6 + 3 * (rank == 1)), told(6, 2 + (rank == 2))]), flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_the_rank_with_another_state_is_named_on_all_ranks(tmp_path: Path) -> None:
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
    refused = "the state belongs to another plan: it was saved with batch_size 3, and has 2"
    others = f"InvalidRequest: rank 2 refuses the state: {refused}"
    assert [told[2] for told in found] == [others, others, f"InvalidRequest: {refused}"]
