"""Plans in several threads at the same time: of two loaders, or of a loader and a trainer that asks what a step has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ais_loader.plans import BucketPlan, MixPlan, NumberPlan, PackPlan

LENGTHS = [1 + at * 7 % 23 for at in range(60)]


def bucket_plan() -> NumberPlan:
    return BucketPlan(LENGTHS, [12, 24], [3, 2], group=2, block=20)


def pack_plan() -> NumberPlan:
    return PackPlan(LENGTHS, 16, 2, group=2, block=20)


def mix_plan() -> NumberPlan:
    return MixPlan({"a": 40, "b": 20}, {"a": 1, "b": 1}, batch_size=4, group=2, at_end="leave")


def beside(plan: NumberPlan, name: str, ask: Callable[[], object]) -> None:
    """Have another thread ask, once, whenever an attribute of the plan has just been set: the worst moments."""
    busy = threading.Lock()

    class Watched(type(plan)):  # type: ignore[misc]
        def __setattr__(self, key: str, value: Any) -> None:
            object.__setattr__(self, key, value)
            if key == name and busy.acquire(blocking=False):
                other = threading.Thread(target=ask)
                other.start()
                other.join()
                busy.release()

    plan.__class__ = Watched


@pytest.mark.parametrize("kept", ["_last", "_formed"])
@pytest.mark.parametrize("new", [bucket_plan, pack_plan])
def test_a_step_is_the_same_while_another_thread_asks_for_other_steps(new: Callable[[], NumberPlan], kept: str) -> None:
    steps = new().steps(0) or 0
    alone = [new().at(epoch, step) for epoch in range(2) for step in range(steps)]
    plan = new()
    turn = iter(range(10**6))
    beside(plan, kept, lambda: plan.at(1, (7 * next(turn) + 3) % steps))
    assert [plan.at(epoch, step) for epoch in range(2) for step in range(steps)] == alone


@pytest.mark.parametrize("kept", ["_orders", "_draws"])
def test_a_mixture_is_the_same_while_another_thread_prepares_it(kept: str) -> None:
    alone = mix_plan()
    plan = mix_plan()
    found: list[Any] = []
    beside(plan, kept, lambda: found.append((plan.steps(0), plan.at(0, 3))))
    assert (plan.steps(0), plan.at(0, 3)) == (alone.steps(0), alone.at(0, 3))
    assert found and {repr(one) for one in found} == {repr((alone.steps(0), alone.at(0, 3)))}
