"""BucketPlan: every sample once, within hard bounds, all ranks of a step in one group, and balanced."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans_kit import bucket_groups

from ais_loader.plans import BucketPlan
from ais_loader.plans.groups import balanced
from tests.example_count import examples
from tests.table import table

LENGTHS = st.lists(st.integers(0, 45), max_size=150)
BINS = [5, 12, 20, 40]


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    lengths=LENGTHS,
    sizes=st.lists(st.integers(1, 7), min_size=4, max_size=4),
    group=st.integers(1, 5),
    block=st.integers(5, 60),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
)
def test_epochs_are_those_of_the_slow_way(
    lengths: list[int], sizes: list[int], group: int, block: int, seed: int, epoch: int
) -> None:
    plan = BucketPlan(lengths, BINS, sizes, group=group, block=block, seed=seed, tail="uneven")
    groups, rest = bucket_groups(lengths, BINS, sizes, group, block, seed, epoch)
    assert plan.steps(epoch) == len(groups) * group + len(rest)
    batches = [plan.batch(epoch, step).tolist() for step in range(plan.steps(epoch) or 0)]
    of_groups = [
        sorted(one for batch in batches[first : first + group] for one in batch)
        for first in range(0, len(groups) * group, group)
    ]
    assert of_groups == [sorted(members) for members in groups]
    assert batches[len(groups) * group :] == rest
    # Bounds are hard: a bin that holds the batch allows its size. Every sample that fits comes once.
    for batch in batches:
        longest = max(lengths[one] for one in batch)
        assert 1 <= len(batch) <= max(size for size, bound in zip(sizes, BINS, strict=True) if longest <= bound)
    assert plan.left_out.tolist() == [at for at, length in enumerate(lengths) if length > 40]
    assert sorted([*(one for batch in batches for one in batch), *plan.left_out.tolist()]) == list(range(len(lengths)))


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    lengths=st.lists(st.tuples(st.integers(0, 22), st.integers(0, 22)), max_size=120),
    bins=st.sets(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=8),
    max_total=st.one_of(st.none(), st.integers(15, 60)),
    group=st.integers(1, 4),
    data=st.data(),
)
def test_two_dimensions(
    lengths: list[tuple[int, int]],
    bins: set[tuple[int, int]],
    max_total: int | None,
    group: int,
    data: st.DataObject,
) -> None:
    bounds = sorted(bins)
    sizes = sorted(data.draw(st.lists(st.integers(1, 6), min_size=len(bounds), max_size=len(bounds))), reverse=True)
    table = np.array(lengths, np.int64).reshape(-1, 2)
    options: dict[str, Any] = {"batch_sizes": sizes} if max_total is None else {"max_total": max_total}
    plan = BucketPlan(table, bounds, **options, group=group, block=40, tail="uneven")
    allowed = [(bound, sizes[at] if max_total is None else max_total // bound[0]) for at, bound in enumerate(bounds)]
    seen = plan.left_out.tolist()
    for step in range(plan.steps(0) or 0):
        batch = plan.batch(0, step).tolist()
        seen += batch
        longest = table[batch].max(axis=0)
        assert 1 <= len(batch) <= max(size for bound, size in allowed if (longest <= bound).all())
    assert sorted(seen) == list(range(len(lengths)))
    fits = [any(size and a <= x and b <= y for (x, y), size in allowed) for a, b in lengths]
    assert plan.left_out.tolist() == [at for at, does in enumerate(fits) if not does]


def speech(n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(7).lognormal(1.8, 0.7, n).clip(0.3, 40)


@table("balance", ["linear", "quadratic"])
@table("group", [2, 8])
def test_the_batches_of_a_group_weigh_the_same(balance: Any, group: int) -> None:
    lengths = speech(10_000)
    bins = np.quantile(lengths, np.linspace(0, 1, 21)[1:]).tolist()
    plan = BucketPlan(lengths, bins, max_total=200, balance=balance, group=group)
    spreads = []
    for first in range(0, (plan.steps(0) or 0) - plan.steps(0) % group, group):  # type: ignore[operator]
        batches = [lengths[plan.batch(0, step)] for step in range(first, first + group)]
        if len({*map(len, batches)}) > 1 or len(batches[0]) < 10:
            continue  # no division of so few may be equal
        powers = (1, 2) if balance == "quadratic" else (1,)
        for power in powers:
            totals = [float((batch**power).sum()) for batch in batches]
            spreads.append((max(totals) - min(totals)) / (sum(totals) / group))
    assert len(spreads) > 20
    assert max(spreads) <= 0.02


@given(
    costs=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    parts=st.integers(1, 8),
    quadratic=st.booleans(),
)
def test_a_division_has_every_unit_once_within_the_bound(costs: list[int], parts: int, quadratic: bool) -> None:
    parts = min(parts, len(costs))
    table = np.array([costs, [cost**2 for cost in costs]] if quadratic else [costs], np.float64)
    found = balanced(table, parts)
    assert sorted(int(place) for batch in found for place in batch) == list(range(len(costs)))
    assert all(1 <= len(batch) <= -(-len(costs) // parts) for batch in found)


def test_every_block_has_the_same_members_and_another_order_in_each_epoch() -> None:
    lengths = speech(3000)
    plan = BucketPlan(lengths, [5, 10, 40], [8, 4, 2], group=4, block=500)
    epochs = [[plan.batch(epoch, step).tolist() for step in range(plan.steps(epoch) or 0)] for epoch in range(2)]
    assert len(epochs[0]) == len(epochs[1])
    assert epochs[0] != epochs[1]
    assert any(sorted(one) != sorted(other) for one, other in pairwise(epochs[0][:2] + epochs[1][:2]))


def test_every_argument_is_in_the_fingerprint() -> None:
    def plan(lengths: Any = (1, 2, 3), bins: Any = (2, 4), sizes: Any = (2, 1), **options: Any) -> str:
        return BucketPlan(lengths, bins, sizes, **options).fingerprint

    fingerprints = {
        plan(),
        plan((1, 2, 4)),
        plan(bins=(2, 5)),
        plan(sizes=(3, 1)),
        plan(sizes=None, max_total=8),
        plan(balance="quadratic"),
        plan(block=9),
        plan(seed=2),
        plan(group=2),
        plan(tail="drop"),
    }
    assert len(fingerprints) == 10
    assert plan() == plan([1.0, 2.0, 3.0])
