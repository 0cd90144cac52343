"""Accelerate: a BatchLoader that is saved and loaded with the rest of the state, in the middle of an epoch.

Differs: `prepare` returns a BatchLoader as it is. States are local folders; `Bucket.put_folder` stores one.
"""

import os
import sys

import torch
from accelerate import Accelerator

from ais_loader import BatchLoader, MapDataset, ShufflePlan

PACKAGES = ("accelerate",)
STORE = os.environ["AIS_LOADER_URL"]


def begun() -> tuple[Accelerator, BatchLoader, torch.nn.Module]:
    accelerator = Accelerator(cpu=True)
    samples = MapDataset(STORE, "ais://speech/", lambda item: torch.tensor([len(item.data) / 1e5]))  # change
    loader = BatchLoader(samples, ShufflePlan(len(samples), 8, seed=1), collate=torch.stack)  # change
    torch.manual_seed(1)
    model, loader = accelerator.prepare(torch.nn.Linear(1, 1), loader)
    accelerator.register_for_checkpointing(loader)  # change
    return accelerator, loader, model


accelerator, loader, model = begun()
seen = []
for step, batch in enumerate(loader):
    seen.append(batch.flatten().tolist())
    if step == 4:
        accelerator.save_state(f"{sys.argv[1]}/state")
accelerator, loader, model = begun()
accelerator.load_state(f"{sys.argv[1]}/state")
assert [batch.flatten().tolist() for batch in loader] == seen[5:]
