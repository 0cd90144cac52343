"""A mixture reads each source under its own name, whatever order the datasets come in."""

from __future__ import annotations

from typing import Any

import pytest
from datasets_kit import URLS, contents
from torch.utils.data import ConcatDataset, DataLoader

from ais_loader import BatchLoader, BatchSampler, Client, MapDataset, concat
from ais_loader.errors import InvalidRequest
from ais_loader.plans import MixPlan
from ais_loader.training.ledger import ledger
from tests.table import table

PARTS = {"web": URLS[:15], "code": URLS[15:30]}


@table("use", ["loader", "loader of a sampler", "sampler"])
def test_weights_apply_to_the_named_datasets_in_any_order(local_store: Client, use: str) -> None:
    datasets = {name: MapDataset(local_store, part) for name, part in PARTS.items()}
    plan = MixPlan(datasets, {"web": 9, "code": 1}, batch_size=5, epoch_steps=4)
    swapped = {name: datasets[name] for name in ("code", "web")}
    batches = BatchSampler(plan) if use != "loader" else plan
    if use == "sampler":
        loader: Any = DataLoader(concat(datasets), batch_sampler=batches, collate_fn=list)
    else:
        loader = BatchLoader(swapped, batches)
    state = {"version": 2, "epoch": 0, "step": 0, "world_size": 1, "plan": {}}
    for step, batch in enumerate(loader):
        parts = [PARTS[name] for name in plan.sources(0, step)]
        assert all(sample in contents(part) for sample, part in zip(batch, parts, strict=True))
        lines = ledger(loader, state, step)
        assert [line["source"] for line in lines] == plan.sources(0, step)
        assert [f"ais://{line['bucket']}/{line['name']}" for line in lines] == [URLS[line["number"]] for line in lines]
    if use == "sampler":
        with pytest.raises(InvalidRequest, match="need the same order"):
            next(iter(DataLoader(concat(swapped), batch_sampler=BatchSampler(plan), collate_fn=list)))


def test_other_orders_sizes_and_names_are_refused(local_store: Client) -> None:
    def data(count: int) -> MapDataset:
        return MapDataset(local_store, URLS[:count])

    plan = MixPlan({"web": 6, "code": 4}, {"web": 9, "code": 1}, batch_size=2)
    BatchLoader(concat([data(2), data(4), data(4)]), plan)
    for wrong in ([data(4), data(6)], [data(10)]):
        for join in (concat, ConcatDataset):
            with pytest.raises(InvalidRequest, match="the dataset parts that end at"):
                BatchLoader(join(wrong), plan)
    for named in ({"web": data(6), "text": data(4)}, {"web": data(4), "code": data(6)}, {"web": data(10)}):
        with pytest.raises(InvalidRequest, match="need the same order"):
            BatchLoader(named, plan)
    equal = MixPlan({"web": 5, "code": 5}, {"web": 9, "code": 1}, batch_size=2)
    with pytest.raises(InvalidRequest, match="equally many samples"):
        BatchLoader(concat([data(5), data(5)]), equal)
