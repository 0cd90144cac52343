"""Ledger: the exact samples of any step, from a plan and a saved position. No data is read."""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Mapping
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.plans.permutation import ORDER
from ais_loader.plans.shuffle_plan import ShufflePlan
from ais_loader.training.batch_sampler import BatchSampler
from ais_loader.training.datasets import BatchIterableDataset
from ais_loader.training.sample_parts import flat_entries, mapped, parts_of
from ais_loader.values.entry import Entry, to_entry


def ledger(loader: Any, state: Mapping[str, Any], step: int, epoch: int | None = None) -> list[dict[str, Any]]:
    """Return one mapping for each entry of a step's samples, in the order of the batch.

    Args:
        loader: A BatchLoader, a BatchIterableDataset, or a DataLoader with a BatchSampler.
        state: A position of the run. Steps before it are exactly those that the run has had.
        step: A step of the plan.
        epoch: Its epoch. By default, that of the position.

    The keys are `step`, `rank`, `number`, `source` (of a mixture), `piece` ([start, length] that a pack has of the
    sample), and `bucket`, `name`, `member`, `version`, `start`, `length` as in an Entry, in bytes. Those without a
    value are left out. A version is known if the dataset's entries have one.

    Raises InvalidRequest, for instance if the position belongs to another plan, and IndexError for a step that the
    epoch does not have.
    """
    dataset = _dataset(loader)
    if str(state.get("plan")).endswith(" entries="):  # of a BatchSampler, which does not know the dataset
        plan_alone, dataset._digests = dataset._digests, []
        dataset.load_state_dict(state)
        dataset._digests = plan_alone
    else:
        dataset.load_state_dict(state)
    epoch = state["epoch"] if epoch is None else epoch
    plan = dataset._plan()
    if not isinstance(plan, NumberPlan):
        entries = flat_entries(plan.batch(epoch, step))
        return [{"step": step} | _fields(to_entry(entry, dataset._bucket)) for entry in entries]
    lines = []
    for number, source, piece in plan.at(epoch, step):
        line = {"step": step, "rank": step % state["world_size"], "number": number, "source": source, "piece": piece}
        known = {key: value for key, value in line.items() if value is not None}
        lines += [known | _fields(entry) for entry in parts_of(_sample(dataset, number))]
    return lines


def plan_of(state: Mapping[str, Any]) -> ShufflePlan:
    """Return the ShufflePlan that a state describes. Raises InvalidRequest if it is that of another plan."""
    text = str(state.get("plan"))
    if not text.startswith(f"ShufflePlan order={ORDER} "):
        kind = text.split(" ")[0]
        raise InvalidRequest(f"the state of {kind} does not hold all that its plan was made of: pass --loader")
    found = dict(re.findall(r"(\w+)=(\w+)", text))
    plan = ShufflePlan(
        int(found["n"]),
        int(found["batch_size"]),
        seed=int(found["seed"]),
        shuffle=found["shuffle"] == "True",
        drop_last=found["drop_last"] == "True",
        block=int(found["block"]),
        group=int(found["group"]),
        tail=found["tail"],
    )
    if spans := re.search(r"without=(\[.*?\])", text):
        plan._spans = tuple(ast.literal_eval(spans[1]))
    return plan


def _dataset(loader: Any) -> BatchIterableDataset:
    dataset = loader if isinstance(loader, BatchIterableDataset) else getattr(loader, "dataset", None)
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchSampler):
        return BatchIterableDataset(dataset, sampler._steps.plan, rank=0, world_size=1)
    if not isinstance(dataset, BatchIterableDataset):
        raise InvalidRequest(f"need a BatchLoader, or a DataLoader with a BatchSampler; got {type(loader).__name__}")
    return dataset


def _sample(dataset: BatchIterableDataset, number: int) -> Any:
    """Return the entry or entries of a sample, or None for a dataset of other things."""
    if dataset._entries is not None:
        return mapped(dataset._entries[number], lambda entry: to_entry(entry, dataset._bucket))
    samples = dataset._samples
    if ends := getattr(samples, "cumulative_sizes", None):
        part = bisect.bisect_right(ends, number)
        samples, number = samples.datasets[part], number - (ends[part - 1] if part else 0)
    find = getattr(samples, "_entry", None)
    return None if find is None else find(number)


def _fields(entry: Entry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    fields = {key: getattr(entry, key) for key in ("bucket", "name", "member", "version", "start", "length")}
    return {key: value for key, value in fields.items() if value is not None and (key, value) != ("start", 0)}
