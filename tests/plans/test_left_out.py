"""Samples that no epoch has are counted in one warning, and samples of another length than planned are refused."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from plans_kit import Numbers
from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from ais_loader import BatchLoader, BatchSampler, MapDataset, connect
from ais_loader.errors import InvalidRequest
from ais_loader.plans import BucketPlan, MixPlan, NumberPlan, PackPlan, ShufflePlan
from ais_loader.plans.groups import balanced
from tests.table import table


def test_more_bins_than_16_bits_count_leave_nothing_out() -> None:
    plan = BucketPlan([1, 33_000], range(1, 33_001), [1] * 33_000)
    assert not len(plan.left_out)
    assert plan.steps(0) == 2


@table(
    "plan, told",
    [
        (BucketPlan([1, 2, 9], [2], [1]), "of 3 samples, no epoch of the plan has these: 1 that fit in no bin "),
        (PackPlan([0, 3, 9], 5, 1, whole=True), "1 without tokens, 1 longer than a pack"),
        (
            MixPlan({"a": BucketPlan([1, 9], [2], [1]), "b": ShufflePlan(3, 1)}, {"a": 1}, at_end="stop"),
            "1 of 'a' that",
        ),
        (MixPlan({"a": 2, "b": 3}, {"a": 1}, batch_size=1, at_end="stop"), "3 of 'b', which has no weight"),
    ],
)
def test_one_warning_counts_what_no_epoch_has(caplog: Any, plan: NumberPlan, told: str) -> None:
    loader = BatchLoader(Numbers(plan.n, [0, 3, 9] if isinstance(plan, PackPlan) else None), plan)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            list(loader)
    (line,) = [record.getMessage() for record in caplog.records]
    assert told in line
    caplog.clear()
    list(BatchLoader(Numbers(4), ShufflePlan(4, 3)))
    assert not caplog.records


def test_lengths_in_other_units_are_refused() -> None:
    loader = BatchLoader(Numbers(2), BucketPlan([4000, 9000], [5, 10], [4, 2]))
    with pytest.raises(InvalidRequest, match=r"has no batch; it leaves out: 2 that fit in no bin .*same unit"):
        next(iter(loader))


@table("length", [4, 6])
@table("way", ["loader", "sampler", "mixture"])
def test_a_sample_of_another_length_than_planned_is_refused(way: str, length: int) -> None:
    plan: Any = PackPlan([5, 5, 5], 5, 1)
    if way == "mixture":
        plan = MixPlan({"a": ShufflePlan(0, 1), "b": plan}, {"b": 1}, at_end="stop")
    loader = BatchLoader(Numbers(3, [5, length, 5]), BatchSampler(plan) if way == "sampler" else plan)
    with pytest.raises(InvalidRequest, match=f"sample 1 has {length} tokens, and the plan's count of it is 5"):
        list(loader)


@pytest.mark.slow
def test_workers_refuse_or_skip_a_sample_of_another_length() -> None:
    samples, plan = Numbers(3, [5, 6, 5]), PackPlan([5, 5, 5], 10, 1)
    with pytest.raises(InvalidRequest, match="sample 1 has 6 tokens"):
        list(BatchLoader(samples, plan, workers=1))
    loader = BatchLoader(samples, PackPlan([5, 5, 5], 5, 3), on_bad="skip", workers=1)
    assert sorted(number for batch in loader for pack in batch for piece in pack for number, _ in piece) == (
        [0] * 5 + [2] * 5
    )
    assert loader.bad.counts == {"InvalidRequest": 1}


def test_an_object_replaced_by_a_longer_one_is_refused(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as client:
        bucket = client.create_bucket("b")
        for name in "xyz":
            bucket.put(name, b"four")
        loader = BatchLoader(MapDataset(client, bucket), PackPlan([4] * 3, 4, 3))
        assert len(list(loader)) == 1
        bucket.put("y", b"longer")
        with pytest.raises(InvalidRequest, match="sample 1 has 6 tokens"):
            list(loader)


@table("kind", [SequentialSampler, RandomSampler, lambda source: DistributedSampler(source, 1, 0)])
def test_a_sampler_over_another_number_of_samples_is_refused(kind: Any) -> None:
    batches = TorchBatchSampler(kind(range(3)), 1, drop_last=False)
    assert len(list(BatchLoader(Numbers(3), batches))) == 3
    for n in (2, 4):
        with pytest.raises(InvalidRequest, match=f"draws from 3 numbers, for {n} samples"):
            BatchLoader(Numbers(n), batches)
    assert len(list(BatchLoader(Numbers(3), TorchBatchSampler(SubsetRandomSampler([1]), 1, drop_last=False)))) == 1


def test_integers_of_numpy_are_accepted() -> None:
    one, two = np.int32(1), np.int64(2)
    plan = ShufflePlan(np.int32(12), two, seed=np.uint8(3), group=two)
    loader = BatchLoader(Numbers(12), plan, rank=one, world_size=two, threads=one, in_flight=two, expect_steps=two)
    loader.set_epoch(np.int16(2))
    assert list(loader) == [plan.batch(2, step).tolist() for step in (1, 3, 5)]
    sampler = BatchSampler(plan, np.int64(0), two)
    next(iter(sampler))
    assert json.loads(json.dumps(sampler.state_dict(two)))["step"] == 4
    mix = MixPlan({"a": np.int32(4)}, {"a": np.float32(1)}, batch_size=two)
    assert mix.batch(one, two).tolist() == mix.batch(1, 2).tolist()
    with pytest.raises(TypeError, match="rank or world_size is a float"):
        BatchLoader(Numbers(12), plan, rank=0.0, world_size=2)  # type: ignore[arg-type]


def test_a_world_size_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="world_size=4"):
        BatchLoader(Numbers(4), BatchSampler(ShufflePlan(4, 1)), world_size=4)


@pytest.mark.slow
def test_the_work_of_a_division_is_bounded() -> None:
    lengths = np.random.default_rng(0).pareto(1.2, 16 * 64) + 1
    compared = 0

    def count(frame: FrameType, event: str, function: Any) -> None:
        nonlocal compared
        compared += event == "c_call" and function.__name__ == "argmax"

    sys.setprofile(count)
    try:
        found = balanced(np.array([lengths, lengths**2]), 64)
    finally:
        sys.setprofile(None)
    assert sorted(np.concatenate(found).tolist()) == list(range(16 * 64))
    assert compared < 1200
