"""MixPlan: every source within one draw of its share, in its own order, whatever the position."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans_kit import loaders

from ais_loader.errors import InvalidRequest
from ais_loader.plans import BucketPlan, MixPlan, ShufflePlan
from ais_loader.plans.mix_order import SCALE, MixOrder
from tests.example_count import examples

SIZES = st.integers(1, 40)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    weights=st.lists(st.one_of(st.floats(1e-3, 1), st.integers(1, 5).map(float), st.just(1.0)), min_size=1, max_size=8),
    first=st.sampled_from([0, 0, 64, 10**6, 10**9, 2**50]),
)
def test_counts_stay_within_one_draw_of_the_share(weights: list[float], first: int) -> None:
    order = MixOrder(0, weights, [0] * len(weights), [0] * len(weights))
    counts = order.counts(first)
    for draw, source in enumerate(order.sources(first, first + 400), first):
        assert sum(counts) == draw
        counts[source] += 1
        dues = order.dues(draw + 1)
        assert all(abs(count * SCALE - due) < SCALE for count, due in zip(counts, dues, strict=True))
        share = weights[source] / sum(weights) * (draw + 1)
        assert abs(counts[source] - share) < 1 + 1e-9 * (draw + 1)
    assert counts == order.counts(first + 400)


def test_rare_sources_too() -> None:
    drawing = random.Random(3)
    weights = [drawing.random() ** 8 for _ in range(12)]
    order = MixOrder(0, weights, [0] * 12, [0] * 12)
    counts = [0] * 12
    for source in order.sources(0, 800):
        counts[source] += 1
    assert counts == order.counts(800)
    assert all(abs(count - due / SCALE) < 2 for count, due in zip(counts, order.dues(800), strict=True))


@st.composite
def mixtures(draw: Any) -> tuple[MixPlan, dict[str, int]]:
    sizes = {name: draw(SIZES) for name in "abc"}
    names = st.sampled_from("abc")
    weights = st.dictionaries(names, st.floats(0.05, 4), min_size=1)
    steps = [0, *sorted(draw(st.sets(st.integers(1, 12), max_size=2)))]
    schedule = [(step, draw(weights)) for step in steps]
    at_end = draw(st.sampled_from(["repeat", "stop", "leave"]))
    return MixPlan(sizes, schedule, batch_size=draw(st.integers(1, 8)), seed=4, at_end=at_end), sizes


@pytest.mark.slow
@settings(max_examples=12)
@given(mixture=mixtures(), epoch=st.integers(0, 2))
def test_a_source_comes_in_its_own_order(mixture: tuple[MixPlan, dict[str, int]], epoch: int) -> None:
    plan, sizes = mixture
    offsets = dict(zip(sizes, itertools.accumulate([0, *sizes.values()]), strict=False))
    steps = plan.steps(epoch)
    assert (steps is None) == (plan.at_end == "repeat")
    had: dict[str, list[int]] = {name: [] for name in sizes}
    for step in range(20 if steps is None else steps):
        batch = plan.batch(epoch, step).tolist()
        names = plan.sources(epoch, step)
        assert len(names) == len(batch)
        for name, number in zip(names, batch, strict=True):
            had[name].append(number - offsets[name])
    for name, numbers in had.items():
        for first in range(0, len(numbers), sizes[name]):
            turn = numbers[first : first + sizes[name]]
            assert len(set(turn)) == len(turn)
            assert set(turn) <= set(range(sizes[name]))
    if plan.at_end == "stop":
        assert any(len(numbers) == sizes[name] for name, numbers in had.items())
    if plan.at_end != "repeat":
        assert all(len(numbers) <= sizes[name] for name, numbers in had.items())


def test_leave_reads_everything_once() -> None:
    plan = MixPlan({"a": 50, "b": 30, "c": 7}, {"a": 1, "b": 5, "c": 1}, batch_size=8, at_end="leave")
    for epoch in range(2):
        numbers = [one for step in range(plan.steps(epoch) or 0) for one in plan.batch(epoch, step).tolist()]
        assert sorted(numbers) == list(range(87))
    assert plan.batch(0, 0).tolist() != plan.batch(1, 0).tolist()
    assert (plan.n, plan.steps(0)) == (87, 11)


def test_sources_appear_and_disappear() -> None:
    plan = MixPlan(
        {"a": 1000, "b": 1000, "c": 1000}, [(0, {"a": 1}), (5, {"a": 1, "b": 1}), (9, {"c": 3, "b": 1})], batch_size=4
    )
    found = ["".join(sorted(plan.sources(0, step))) for step in range(12)]
    assert found == ["aaaa"] * 5 + ["aabb"] * 4 + ["bccc"] * 3


def test_shuffle_plans_keep_their_own_order() -> None:
    own = ShufflePlan(20, 5, seed=9, block=4)
    plan = MixPlan({"x": 3, "own": own}, {"own": 1}, batch_size=5)
    assert [one - 3 for one in plan.batch(0, 1).tolist()] == own.batch(0, 1).tolist()
    assert [one - 3 for one in plan.batch(0, 4).tolist()] == own.batch(1, 0).tolist()


def test_a_mixture_of_buckets_keeps_all_ranks_in_one_source() -> None:
    sources = {
        "short": BucketPlan([1 + at % 9 for at in range(200)], [5, 9], [8, 4], block=50),
        "long": BucketPlan([20 + at % 9 for at in range(100)], [25, 29], [3, 2], block=50),
    }
    plan = MixPlan(sources, {"short": 2, "long": 1}, group=4)
    names = [set(plan.sources(0, step)) for step in range(120)]
    updates = [set().union(*names[first : first + 4]) for first in range(0, 120, 4)]
    assert all(len(update) == 1 for update in updates)
    assert [update == {"long"} for update in updates].count(True) == 10
    assert all(
        (number >= 200) == ("long" in names[step]) for step in range(120) for number in plan.batch(0, step).tolist()
    )


class TestStates:
    def test_a_later_change_of_weights_or_sources_is_accepted(self) -> None:
        sizes: dict[str, Any] = {"a": 100, "b": 50}
        plan = MixPlan(sizes, {"a": 2, "b": 1}, batch_size=4, seed=1)
        state = position(plan, 10)
        later = MixPlan(
            {**sizes, "c": 9}, [(0, {"a": 2, "b": 1}), (10, {"c": 1}), (12, {"a": 1})], batch_size=4, seed=1
        )
        resumed = iter(loaders(later, 1, state)[0])
        assert [one >= 150 for one in next(resumed)] == [True] * 4
        loaders(plan, 1, position(later, 10))
        with pytest.raises(InvalidRequest, match="another plan"):
            loaders(plan, 1, position(later, 11))

    def test_another_past_is_refused(self) -> None:
        plan = MixPlan({"a": 100, "b": 50}, {"a": 2, "b": 1}, batch_size=4)
        state = position(plan, 10)
        for other in (
            MixPlan({"a": 100, "b": 50}, [(0, {"a": 2, "b": 1}), (9, {"a": 1})], batch_size=4),
            MixPlan({"a": 100, "b": 51}, {"a": 2, "b": 1}, batch_size=4),
            MixPlan({"b": 100, "a": 50}, {"a": 2, "b": 1}, batch_size=4),
            MixPlan({"a": 100, "b": 50}, {"a": 2, "b": 1}, batch_size=4, seed=1),
            MixPlan({"a": 100, "b": 50}, {"a": 2, "b": 1}, batch_size=4, at_end="leave"),
        ):
            with pytest.raises(InvalidRequest, match="another plan"):
                loaders(other, 1, state)


def position(plan: MixPlan, steps: int) -> dict[str, Any]:
    loader = loaders(plan, 1)[0]
    for _ in itertools.islice(loader, steps):
        pass
    return loader.state_dict()


def test_a_position_of_a_thousand_million_needs_little_memory() -> None:
    plan = MixPlan({"a": 10**9, "b": 10**6, "c": 1000}, {"a": 7, "b": 2, "c": 1}, batch_size=128)
    tracemalloc.start()
    assert len(plan.batch(0, 8_000_000)) == 128
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
