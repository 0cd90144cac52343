"""A rank of a job that trains on every plan at once: python ddp_trainer.py FOLDER STORE ATTEMPT UPDATES

RANK and WORLD_SIZE say which rank it is. In each update, it takes its share of a group of steps of every plan.
It writes these to FOLDER/had-ATTEMPT-RANK.jsonl. Rank 0 then replaces FOLDER/checkpoint.json. The job begins at the
checkpoint, and ends after UPDATES updates, or never if that is 0.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ais_loader import BatchLoader, MapDataset, decoders
from ais_loader.plans import BucketPlan, MixPlan, NumberPlan, PackPlan, ShufflePlan

GROUP = 4
SIGNALS = {2: {"b": 1.0}, 5: {"a": 3.0, "b": 1.0}, 6: {"a": 1.0, "b": 2.0}, 11: {"a": 1.0}}
"""Weights that the trainer sets after so many updates of the steered mixture."""
LENGTHS = [1 + 11 * at % 30 for at in range(60)]


def tokens(number: int) -> list[int]:
    """Return the sample with a number: every element is another one."""
    return [1000 * number + at for at in range(LENGTHS[number])]


def plans() -> dict[str, NumberPlan]:
    """Return every kind of plan. The group is that of the run that begins, 4 ranks."""
    bins, sizes = [10, 20, 30], [4, 3, 2]
    return {
        "shuffle": ShufflePlan(60, 3, seed=1),
        "mix": MixPlan({"a": 25, "b": 35}, [(0, {"a": 2, "b": 1}), (20, {"a": 1, "b": 3})], batch_size=3, seed=2),
        "buckets": BucketPlan(LENGTHS, bins, sizes, seed=3, block=30),
        "packs": PackPlan(LENGTHS, 40, 2, seed=4, block=30),
        "packs of whole documents": PackPlan(LENGTHS, 40, 2, seed=4, whole=True),
        "shuffle without a span": ShufflePlan(60, 3, seed=5, block=6, group=GROUP).without(range(8, 16)),
        "steered mix": MixPlan({"a": 25, "b": 35}, {"a": 2, "b": 1}, batch_size=3, seed=6),
        "mix of buckets": MixPlan(
            {"a": BucketPlan(LENGTHS[:30], bins, sizes), "b": BucketPlan(LENGTHS[30:], bins, sizes)}, {"a": 1, "b": 2}
        ),
    }


def flat(batch: Any) -> list[int]:
    return [one for part in batch for one in flat(part)] if isinstance(batch, list) else [batch]


def endless(loader: BatchLoader) -> Iterator[Any]:
    while True:
        yield from loader


def main(folder: Path, store: str, attempt: str, updates: int) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", f"file://{folder}/ranks-{attempt}", rank=rank, world_size=world_size)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    samples = MapDataset(store, "ais://b/", decoders.json)
    loaders = {name: BatchLoader(samples, plan) for name, plan in plans().items()}
    checkpoint, update = folder / "checkpoint.json", 0
    if checkpoint.exists():
        update, states = json.loads(checkpoint.read_text())
        for name, loader in loaders.items():
            loader.load_state_dict(states[name])
    batches = {name: endless(loader) for name, loader in loaders.items()}
    with (folder / f"had-{attempt}-{rank}.jsonl").open("w") as had:
        while not updates or update < updates:
            for name in loaders:
                for _ in range(GROUP // world_size):
                    ids = flat(next(batches[name]))
                    had.write(json.dumps([update, name, ids]) + "\n")
                    model(torch.tensor([[float(len(ids))]])).sum().backward()
            had.flush()
            torch.distributed.barrier()
            update += 1
            if update in SIGNALS:
                loaders["steered mix"].steer(SIGNALS[update])
            if rank == 0:
                new = checkpoint.with_suffix(".new")
                new.write_text(json.dumps([update, {name: loader.state_dict() for name, loader in loaders.items()}]))
                new.replace(checkpoint)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
