"""The samples of each update are the same for every number of ranks, and after any number of stops."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plans_kit import Numbers, divisors, finished, loaders, samplers, shuffled_batches, tokens_of

from ais_loader.errors import InvalidRequest
from ais_loader.plans import BucketPlan, MixPlan, NumberPlan, PackPlan, ShufflePlan
from tests.table import table

TAILS = st.sampled_from(["repeat", "drop"])
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=120)
WEIGHTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0.01, 9), min_size=1)


@st.composite
def shuffle_plans(draw: Any, group: int | None) -> ShufflePlan:
    return ShufflePlan(
        draw(st.integers(1, 90)),
        draw(st.integers(1, 7)),
        seed=draw(st.integers(0, 3)),
        shuffle=draw(st.booleans()),
        drop_last=draw(st.booleans()),
        block=draw(st.sampled_from([1, 4])),
        group=group,
        tail=draw(TAILS),
    )


@st.composite
def bucket_plans(draw: Any, group: int | None) -> BucketPlan:
    return BucketPlan(
        draw(LENGTHS),
        [10, 20, 40],
        draw(st.lists(st.integers(1, 6), min_size=3, max_size=3)),
        balance=draw(st.sampled_from(["linear", "quadratic"])),
        block=draw(st.sampled_from([15, 50])),
        seed=draw(st.integers(0, 3)),
        group=group,
        tail=draw(TAILS),
    )


@st.composite
def pack_plans(draw: Any, group: int | None) -> PackPlan:
    return PackPlan(
        draw(LENGTHS),
        draw(st.integers(30, 64)),
        draw(st.integers(1, 3)),
        whole=draw(st.booleans()),
        balance=draw(st.sampled_from(["linear", "quadratic"])),
        block=draw(st.sampled_from([15, 50])),
        group=group,
        tail=draw(TAILS),
    )


@st.composite
def schedules(draw: Any) -> Any:
    if draw(st.booleans()):
        return {"a": 1.0, "b": 2.5}
    steps = [0, *sorted(draw(st.sets(st.integers(1, 60), max_size=3)))]
    return [(step, draw(WEIGHTS)) for step in steps]


@st.composite
def mix_plans(draw: Any, group: int | None) -> MixPlan:
    at_end = draw(st.sampled_from(["repeat", "stop", "leave"]))
    sources = {name: draw(st.integers(1, 50)) for name in "abc"}
    return MixPlan(
        sources, draw(schedules()), batch_size=draw(st.integers(1, 9)), at_end=at_end, group=group, tail=draw(TAILS)
    )


@st.composite
def mixtures_of_buckets(draw: Any, group: int | None) -> MixPlan:
    sources = {name: BucketPlan(draw(LENGTHS), [10, 40], [3, 2], block=30, seed=2) for name in "abc"}
    return MixPlan(sources, draw(schedules()), at_end=draw(st.sampled_from(["repeat", "stop", "leave"])), group=group)


KINDS = [shuffle_plans, bucket_plans, pack_plans, mix_plans, mixtures_of_buckets]


def drawn(data: st.DataObject, kind: Any, group: int | None) -> NumberPlan:
    return data.draw(kind(group))  # type: ignore[no-any-return]


def as_lists(batch: Any) -> list[Any]:
    return [list(map(tuple, pack)) if isinstance(pack, list) else int(pack) for pack in batch]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_stops_and_other_world_sizes_change_no_update(kind: Any, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([1, 2, 4, 6]))
    given_group = data.draw(st.sampled_from([group, None]))
    plan = drawn(data, kind, given_group)
    bound = plan.with_group(group)
    steps = bound.steps(0)
    assume(steps != 0 or not plan.n)  # a plan without a batch is refused
    expected = [
        sorted(str(part) for step in range(first, first + group) for part in as_numbers(bound.batch(0, step)))
        for first in range(0, 48 if steps is None else steps, group)
    ]
    # The first run decides the group of a plan without one.
    world_sizes = [group, *data.draw(st.lists(st.sampled_from(divisors(group)), max_size=3))]
    found: list[list[str]] = []
    state: dict[str, Any] | None = None
    for number, world_size in enumerate(world_sizes):
        ranks = data.draw(st.sampled_from([loaders, samplers]))(plan, world_size, state)
        updates = data.draw(st.integers(0, 4)) if number < len(world_sizes) - 1 else len(expected) - len(found)
        updates = min(updates, len(expected) - len(found))
        got = [list(islice(iter(rank), updates * group // world_size)) for rank in ranks]
        assert {len(batches) for batches in got} == {updates * group // world_size}
        for update in range(updates):
            span = slice(update * group // world_size, (update + 1) * group // world_size)
            found.append(sorted(str(part) for batches in got for batch in batches[span] for part in flat(batch)))
        states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
        assert state is not None
        assert json.loads(state["plan"])["group"] == group
        if found and len(found) == len(expected) and steps is not None:
            assert (state["epoch"], state["step"]) == (1, 0)
            break
    assert found == expected


def as_numbers(batch: Any) -> list[Any]:
    """What the loader yields for a batch of numbers or packs of them."""
    return [token for pack in batch for token in tokens_of(pack)] if isinstance(batch, list) else batch.tolist()


def flat(batch: list[Any]) -> list[Any]:
    if batch and isinstance(batch[0], list):
        return [token for pack in batch for piece in pack for token in piece]
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_batches_depend_on_epoch_and_step_alone(kind: Any, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([1, 3, 4]))
    plan = drawn(data, kind, group)
    steps = plan.steps(0)
    places = [(epoch, step) for epoch in range(2) for step in range(16 if steps is None else min(steps, 16))]
    expected = {place: as_lists(plan.batch(*place)) for place in places}
    other = drawn_again(plan)
    for place in data.draw(st.permutations(places)):
        assert as_lists(other.batch(*place)) == expected[place]
    assert other.fingerprint == plan.fingerprint
    if steps is not None:
        assert steps % group == 0
        for step in (-1, steps):
            with pytest.raises(IndexError):
                plan.batch(0, step)


def drawn_again(plan: NumberPlan) -> NumberPlan:
    """The plan as a spawned worker gets it."""
    import pickle

    return pickle.loads(pickle.dumps(plan))  # type: ignore[no-any-return]


def test_other_world_sizes_are_refused_by_name() -> None:
    plan = ShufflePlan(100, 4, group=6)
    with pytest.raises(InvalidRequest, match=r"world_size=4: 6 steps .* possible world sizes are 1, 2, 3, 6$"):
        list(loaders(plan, 4)[0])
    with pytest.raises(InvalidRequest, match="possible world sizes are 1, 2, 3, 6"):
        len(loaders(plan, 5)[0])


def test_the_group_of_the_first_run_is_kept() -> None:
    plan = ShufflePlan(100, 4)
    ranks = loaders(plan, 4)
    for rank in ranks:
        next(iter(rank))
    state = ranks[0].state_dict()
    assert (json.loads(state["plan"])["group"], state["step"]) == (4, 4)
    with pytest.raises(InvalidRequest, match="possible world sizes are 1, 2, 4"):
        loaders(plan, 3, state)
    resumed = loaders(plan, 2, state)
    assert [len(list(rank)) for rank in resumed] == [12, 12]
    assert resumed[0].state_dict() == state | {"epoch": 1, "step": 0, "world_size": 2}
    with pytest.raises(InvalidRequest, match="saved with group 4, and has 2"):
        loaders(ShufflePlan(100, 4, group=2), 2, state)


def test_a_position_inside_an_update_needs_ranks_that_divide_the_rest() -> None:
    plan = ShufflePlan(100, 4, group=6)
    rank = loaders(plan, 1)[0]
    for _ in islice(rank, 3):
        pass
    state = rank.state_dict()
    loaders(plan, 3, state)
    with pytest.raises(InvalidRequest, match="inside an update of 6 steps"):
        loaders(plan, 2, state)


@table("tail, steps", [("repeat", 8), ("drop", 4), ("uneven", 5)])
def test_the_tail(tail: Any, steps: int) -> None:
    from ais_loader import BatchLoader

    plan = ShufflePlan(9, 2, group=4, tail=tail)
    assert plan.steps(0) == steps
    assert [plan.batch(0, step).tolist() for step in range(steps)] == finished(shuffled_batches(9, 2, 0, 0), 4, tail)
    ranks = [list(rank) for rank in loaders(plan, 2)]
    assert [len(rank) for rank in ranks] == ([3, 2] if tail == "uneven" else [steps // 2] * 2)
    with pytest.raises(InvalidRequest, match="the plan has tail="):
        BatchLoader(Numbers(9), plan, tail="drop" if tail == "repeat" else "repeat")


@table(
    "change", [{"version": 1}, {"plan": {"group": "x"}}, {"plan": "x"}, {"step": -1}, {"plan": 5}, {"world_size": 0}]
)
def test_states_of_another_plan_version_or_rank_are_refused(change: dict[str, Any]) -> None:
    state = loaders(ShufflePlan(10, 2), 1)[0].state_dict()
    with pytest.raises(InvalidRequest):
        loaders(ShufflePlan(10, 2), 1, state | change)


class TestWithout:
    def test_a_span_is_left_out_and_later_updates_stay(self) -> None:
        plan = ShufflePlan(48, 2, group=4)
        shorter = plan.without(range(8, 16))
        assert (shorter.steps(0), shorter.steps(1)) == (16, 24)
        expected = [plan.batch(0, step).tolist() for step in [*range(8), *range(16, 24)]]
        assert [shorter.batch(0, step).tolist() for step in range(16)] == expected
        twice = shorter.without(range(4, 12))
        assert [twice.batch(0, step).tolist() for step in range(8)] == expected[:4] + expected[12:]
        ranks = [list(rank) for rank in loaders(shorter, 2)]
        assert [batch for pair in zip(*ranks, strict=True) for batch in pair] == expected

    def test_a_state_before_the_span_is_accepted_and_one_behind_it_is_not(self) -> None:
        plan = ShufflePlan(48, 2, group=2)
        shorter = plan.without(range(6, 8))
        for batches, accepted in ((3, True), (4, False)):
            ranks = loaders(plan, 2)
            for rank in ranks:
                for _ in islice(rank, batches):
                    pass
            state = ranks[0].state_dict()
            if accepted:
                rest = list(loaders(shorter, 2, state)[0])
                assert rest == [plan.batch(0, step).tolist() for step in range(8, 24, 2)]
            else:
                with pytest.raises(InvalidRequest, match="another plan"):
                    loaders(shorter, 2, state)

    @table("steps", [range(3, 5), range(4, 4), range(0, 8, 2), range(-2, 2), range(20, 26)])
    def test_bad_spans_are_refused(self, steps: range) -> None:
        with pytest.raises(InvalidRequest, match="without"):
            ShufflePlan(48, 2, group=2).without(steps)


@pytest.mark.slow  # the import takes seconds
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("saved_at, resumed_at", [(1, 0), (9, 0), (9, 1)])
def test_torch_checkpoints_resume_with_a_source_that_appears_and_steps_that_are_left_out(
    saved_at: int, resumed_at: int, tmp_path: Path
) -> None:
    from torch.distributed import checkpoint

    from ais_loader import BatchLoader

    def loader(*more: str, without: range | None = None) -> BatchLoader:
        sizes = dict.fromkeys(("a", "b", *more), 20)
        plan = MixPlan(sizes, [(0, {"a": 1}), (6, {"a": 1, "b": 1}), (12, {"b": 1})], batch_size=3)
        return BatchLoader(Numbers(plan.n), plan if without is None else plan.without(without))

    first = loader(without=range(2, 4))
    list(islice(first, saved_at))
    checkpoint.save({"loader": first.state_dict()}, checkpoint_id=tmp_path / "saved", no_dist=True)
    resumed = loader("new", without=range(2, 4)) if saved_at > 1 else loader("new")
    list(islice(resumed, resumed_at))
    state = {"loader": resumed.state_dict()}
    checkpoint.load(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    resumed.load_state_dict(state["loader"])
    assert next(iter(resumed)) == resumed.batches.batch(0, saved_at).tolist()


def test_the_keys_of_a_state_are_the_same_at_every_position() -> None:
    plan = MixPlan({"a": 20, "b": 20}, [(0, {"a": 1}), (3, {"b": 1})], batch_size=2)
    [sampler] = samplers(plan.without(range(1, 2)), 1)
    for _ in islice(sampler, 6):
        types = {name: type(value) for name, value in sampler.state_dict().items()}
        assert types == {"version": int, "epoch": int, "step": int, "world_size": int, "plan": str}
