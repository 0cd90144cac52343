"""`epoch_steps`: epochs of a chosen length, each of which continues where the one before ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from plans_kit import Numbers, loaders, samplers

from ais_loader import BatchLoader, BatchSampler
from ais_loader.errors import InvalidRequest
from ais_loader.plans import BucketPlan, MixPlan, NumberPlan, PackPlan, ShufflePlan
from ais_loader.training.ledger import plan_of
from tests.table import table

LENGTHS = [1 + at % 7 for at in range(60)]
SCHEDULE = [(0, {"a": 3, "b": 1}), (13, {"a": 1, "b": 2})]
KINDS: dict[str, Callable[..., NumberPlan]] = {
    "shuffle": lambda **own: ShufflePlan(60, 5, seed=1, **own),
    "shuffle that drops": lambda **own: ShufflePlan(60, 8, seed=1, tail="drop", **own),
    "endless mixture": lambda **own: MixPlan({"a": 40, "b": 20}, SCHEDULE, batch_size=4, **own),
    "mixture": lambda **own: MixPlan({"a": 40, "b": 20}, SCHEDULE, batch_size=4, at_end="leave", **own),
    "mixture of plans": lambda **own: MixPlan({"a": ShufflePlan(40, 2), "b": ShufflePlan(20, 2)}, SCHEDULE, **own),
    "buckets": lambda **own: BucketPlan(LENGTHS, [4, 7], [6, 4], block=20, **own),
    "packs": lambda **own: PackPlan(LENGTHS, 16, 2, block=20, **own),
}
EPOCHS = 4


def batches_of(plan: NumberPlan, count: int) -> list[str]:
    """The first batches of all epochs, end to end."""
    steps = plan.steps(0)
    places = ((epoch, step) for epoch in range(count) for step in range(count if steps is None else steps))
    return [str(plan.batch(*place)) for place in islice(places, count)]


@pytest.mark.slow
@table("epoch_steps", [4, 14])
@table("kind", KINDS)
def test_epochs_end_to_end_are_the_plan_without_epoch_steps(kind: str, epoch_steps: int) -> None:
    plan = KINDS[kind](group=2, epoch_steps=epoch_steps)
    assert [plan.steps(epoch) for epoch in range(3)] == [epoch_steps] * 3
    found = [str(plan.batch(epoch, step)) for epoch in range(EPOCHS) for step in range(epoch_steps)]
    assert found == batches_of(KINDS[kind](group=2), EPOCHS * epoch_steps)


@pytest.mark.slow
@table("make", [loaders, samplers])
@table("kind", KINDS)
def test_ranks_have_a_length_and_resume_in_any_epoch(kind: str, make: Any) -> None:
    plan = KINDS[kind](group=2, epoch_steps=4)
    ranks = make(plan, 2)
    assert [len(rank) for rank in ranks] == [2, 2]
    expected = [[list(rank) for rank in ranks] for _ in range(EPOCHS)]
    assert len({str(epoch) for epoch in expected}) == EPOCHS
    for epoch in range(EPOCHS - 1):
        for batches in (1, 2):
            begun = make(plan, 2)
            for rank in begun:
                rank.set_epoch(epoch)
                assert len(list(islice(rank, batches))) == batches
            state = json.loads(json.dumps(begun[0].state_dict()))
            resumed = [list(rank) for rank in make(plan, 2, state)]
            ended = batches == 2
            assert resumed == [rank[batches % 2 :] for rank in expected[epoch + ended]]


def test_a_part_of_an_epoch_is_another_one_in_each() -> None:
    loader = BatchLoader(Numbers(60), ShufflePlan(60, 5, epoch_steps=3))
    had = [sample for _ in range(4) for batch in loader for sample in batch]
    assert sorted(had) == list(range(60))


@pytest.mark.parametrize("make", [loaders, samplers])
def test_a_part_that_is_repeated_is_told_once_and_set_epoch_gives_others(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plan = ShufflePlan(60, 5)
    [repeats] = make(plan, 1)
    parts = [list(islice(repeats, 3)) for _ in range(3)]
    assert parts[0] == parts[1] == parts[2]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "epoch 0, step 0 once more" in told[0] and "set_epoch" in told[0] and "epoch_steps" in told[0]
    [moves] = make(plan, 1)
    for epoch in range(3):
        moves.set_epoch(epoch)
        assert next(iter(moves)) == plan.batch(epoch, 0).tolist()
    assert len(caplog.records) == 1


def test_steps_that_are_left_out_shorten_their_epoch_alone() -> None:
    plan = ShufflePlan(60, 5, group=2, epoch_steps=4)
    without = plan.without(range(2, 4), epoch=1)
    assert [without.steps(epoch) for epoch in range(3)] == [4, 2, 4]
    places = [(0, 0), (1, 1), (2, 0)]
    assert [without.batch(*place).tolist() for place in places] == [plan.batch(*place).tolist() for place in places]


def test_weights_that_come_later_in_a_later_epoch_may_change() -> None:
    def loader(later: dict[str, int]) -> BatchLoader:
        plan = MixPlan({"a": 40, "b": 20}, [(0, {"a": 1}), (6, later)], batch_size=2, epoch_steps=4)
        return BatchLoader(Numbers(60), plan)

    first = loader({"b": 1})
    list(first)
    list(islice(first, 2))
    loader({"a": 2, "b": 3}).load_state_dict(first.state_dict())
    first = loader({"b": 1})
    list(first)
    list(islice(first, 3))
    with pytest.raises(InvalidRequest, match="weights"):
        loader({"a": 2, "b": 3}).load_state_dict(first.state_dict())


def test_the_number_of_steps_is_part_of_the_state_and_of_the_plan_that_it_describes() -> None:
    plan = ShufflePlan(60, 5, epoch_steps=3)
    state = BatchSampler(plan).state_dict()
    with pytest.raises(InvalidRequest, match="was saved with epoch_steps 3, and has None"):
        BatchSampler(ShufflePlan(60, 5)).load_state_dict(state)
    assert plan_of(state).fingerprint == plan.with_group(1).fingerprint


@table(
    "make, message",
    [
        (lambda: ShufflePlan(60, 5, epoch_steps=0), "epoch_steps=0: need at least 1"),
        (lambda: ShufflePlan(60, 5, epoch_steps=3, tail="uneven"), "epoch_steps=3, tail='uneven'"),
        (lambda: ShufflePlan(60, 5, epoch_steps=3, group=2), "epoch_steps=3: need whole groups of 2 steps"),
        (lambda: len(loaders(ShufflePlan(60, 5, epoch_steps=3), 2)[0]), "epoch_steps=3: need whole groups of 2 steps"),
        (lambda: MixPlan({"a": ShufflePlan(9, 1, epoch_steps=3)}, {"a": 1}, batch_size=2), "'a' has epoch_steps"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()


def test_a_plan_of_nothing_has_no_steps() -> None:
    assert list(BatchLoader(Numbers(0), ShufflePlan(0, 5, epoch_steps=3))) == []
