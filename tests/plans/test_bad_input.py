"""Arguments that make no plan are refused with a message that says what is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from plans_kit import Numbers

from ais_loader import BatchLoader
from ais_loader.errors import InvalidRequest
from ais_loader.plans import BucketPlan, MixPlan, PackPlan, ShufflePlan
from tests.table import table

SIZES = {"a": 10, "b": 5}


@table(
    "make, message",
    [
        (lambda: ShufflePlan(-1, 2), "ShufflePlan: n=-1: need at least 0"),
        (lambda: ShufflePlan(5, 0), "batch_size=0: need at least 1"),
        (lambda: ShufflePlan(5, 2, block=0), "block=0"),
        (lambda: ShufflePlan(5, 2, seed=-1), "seed=-1: need 0 to"),
        (lambda: ShufflePlan(5, 2, group=0), "group=0"),
        (lambda: ShufflePlan(5, 2, tail="x"), "tail='x'"),  # type: ignore[arg-type]
        (lambda: MixPlan({}, {}, batch_size=2), "one or more sources"),
        (lambda: MixPlan(SIZES, {}, batch_size=2), "need one above 0"),
        (lambda: MixPlan(SIZES, {"a": 0}, batch_size=2), "need one above 0"),
        (lambda: MixPlan(SIZES, {"a": math.nan}, batch_size=2), "weight of 'a' is nan"),
        (lambda: MixPlan(SIZES, {"a": math.inf}, batch_size=2), "weight of 'a' is inf"),
        (lambda: MixPlan(SIZES, {"a": -1}, batch_size=2), "weight of 'a' is -1"),
        (lambda: MixPlan(SIZES, {"a": "1"}, batch_size=2), "weight of 'a' is '1'"),
        (lambda: MixPlan(SIZES, {"x": 1}, batch_size=2), "weight of 'x': the sources are a, b"),
        (lambda: MixPlan(SIZES, [], batch_size=2), "no weights"),
        (lambda: MixPlan(SIZES, [(3, {"a": 1})], batch_size=2), "begin with 0"),
        (lambda: MixPlan(SIZES, [(0, {"a": 1}), (0, {"b": 1})], batch_size=2), "increasing steps"),
        (lambda: MixPlan(SIZES, [{"a": 1}], batch_size=2), "pairs of"),
        (lambda: MixPlan({"a": 0}, {"a": 1}, batch_size=2), "source 'a' is empty"),
        (lambda: MixPlan(SIZES, {"a": 1}, batch_size=2, at_end="x"), "at_end='x'"),  # type: ignore[arg-type]
        (lambda: MixPlan({"a": ShufflePlan(9, 2, tail="uneven")}, {"a": 1}), "tail='uneven'"),
        (lambda: MixPlan({"a": ShufflePlan(9, 2, tail="drop")}, {"a": 1}, group=8).steps(0), "fewer steps than its"),
        (lambda: MixPlan({"a": ShufflePlan(9, 2, group=2)}, {"a": 1}, group=4).steps(0), "group=2, where 4"),
        (lambda: BucketPlan([1, math.nan], [2], [1]), "length of sample 1"),
        (lambda: BucketPlan([1, -2], [2], [1]), "length of sample 1"),
        (lambda: BucketPlan([1, math.inf], [2], [1]), "length of sample 1"),
        (lambda: BucketPlan([[[1]]], [2], [1]), r"lengths of shape \(1, 1, 1\)"),
        (lambda: BucketPlan([[1, 2, 3]], [2], [1]), r"lengths of shape \(1, 3\)"),
        (lambda: BucketPlan([1], [3, 2], [1, 1]), "ascending"),
        (lambda: BucketPlan([1], [2, 2], [1, 1]), "ascending"),
        (lambda: BucketPlan([1], [0, 2], [1, 1]), "above 0"),
        (lambda: BucketPlan([1], [math.nan], [1]), "above 0"),
        (lambda: BucketPlan([1], [], []), "bins of shape"),
        (lambda: BucketPlan([1], [[1, 2]], [1]), "dimensions"),
        (lambda: BucketPlan([1], [2], [1, 2]), "2 batch sizes for 1 bins"),
        (lambda: BucketPlan([1], [2], [0]), "a batch size=0"),
        (lambda: BucketPlan([1], [2]), "either batch_sizes or max_total"),
        (lambda: BucketPlan([1], [2], [1], max_total=3), "either batch_sizes or max_total"),
        (lambda: BucketPlan([1], [2], max_total=math.nan), "max_total=nan"),
        (lambda: BucketPlan([1], [2], [1], block=0), "block=0"),
        (lambda: BucketPlan([1], [2], [1], balance="x"), "balance='x'"),  # type: ignore[arg-type]
        (lambda: PackPlan([1, -1], 5, 2), "the count of document 1 is -1"),
        (lambda: PackPlan([[1]], 5, 2), r"counts of shape \(1, 1\)"),
        (lambda: PackPlan([1], 0, 2), "tokens=0"),
        (lambda: PackPlan([1], 5, 0), "batch_size=0"),
        (lambda: PackPlan([1], 5, 2, balance="x"), "balance='x'"),  # type: ignore[arg-type]
        (lambda: BatchLoader(Numbers(4), ShufflePlan(5, 2)), "n=5 numbers, for 4 samples"),
        (lambda: BatchLoader(Numbers(4), BucketPlan([1, 1, 1], [2], [1])), "n=3 numbers, for 4 samples"),
        (lambda: BatchLoader(Numbers(4), PackPlan([1] * 5, 5, 2)), "n=5 numbers, for 4 samples"),
        (lambda: BatchLoader(Numbers(4), MixPlan(SIZES, {"a": 1}, batch_size=2)), "n=15 numbers, for 4 samples"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()


@table(
    "make",
    [
        lambda: ShufflePlan(2.0, 2),  # type: ignore[arg-type]
        lambda: ShufflePlan(True, 2),
        lambda: ShufflePlan(5, "2"),  # type: ignore[arg-type]
        lambda: MixPlan({"a": 5}, {"a": 1}),
        lambda: MixPlan({"a": "x"}, {"a": 1}, batch_size=2),  # type: ignore[dict-item]
        lambda: MixPlan({"a": BucketPlan([1], [2], [1])}, {"a": 1}, batch_size=2),
        lambda: BucketPlan(["a"], [2], [1]),
        lambda: PackPlan([1.5], 5, 2),
    ],
)
def test_another_type_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match=r"need|numbers"):
        make()


@table(
    "plan, steps",
    [
        (ShufflePlan(0, 2), 0),
        (ShufflePlan(0, 2, group=4), 0),
        (ShufflePlan(3, 2, group=4), 4),
        (ShufflePlan(3, 2, group=4, tail="drop"), 0),
        (ShufflePlan(1, 2, block=5, group=4), 4),
        (BucketPlan([], [2], [1]), 0),
        (BucketPlan(np.zeros((0, 2)), [[2, 2]], [1]), 0),
        (BucketPlan([1, 1], [2], [3], group=4), 4),
        (BucketPlan([9, 9], [2], [3], group=4), 0),
        (BucketPlan([9, 9], [10], max_total=5), 0),
        (PackPlan([], 5, 2), 0),
        (PackPlan([0, 0], 5, 2, group=3), 0),
        (PackPlan([9], 5, 2, group=4), 4),
    ],
)
def test_few_samples_or_none(plan: Any, steps: int) -> None:
    assert plan.steps(0) == steps
    assert all(len(plan.batch(0, step)) for step in range(steps))
    loader = BatchLoader(Numbers(plan.n, getattr(plan, "_counts", None)), plan)
    if steps or not plan.n:
        assert len(list(loader)) == steps
        return
    for use in (len, list):
        with pytest.raises(InvalidRequest, match="has no batch; it leaves out: "):
            use(loader)
