"""split_steps: every step is delivered by exactly one rank, and ranks take turns."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.errors import InvalidRequest
from ais_loader.training.plan import Position, first_difference, parse_state, position_state, split_steps
from tests.table import table

COUNTS = st.integers(1, 7)


def round_robin(parts: list[list[int]]) -> list[int]:
    """One of each part in turn, as a DataLoader collects from its workers, until all are empty."""
    longest = max(map(len, parts))
    return [part[at] for at in range(longest) for part in parts if at < len(part)]


@settings(deadline=None)
@given(steps=st.integers(0, 80), start=st.integers(0, 90), world_size=COUNTS)
def test_ranks_in_turn_give_every_step_from_start_on_in_order(steps: int, start: int, world_size: int) -> None:
    ranks = [
        list(split_steps(steps, start=start, rank=rank, world_size=world_size, tail="uneven"))
        for rank in range(world_size)
    ]
    assert round_robin(ranks) == list(range(start, steps))
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1


@settings(deadline=None)
@given(steps=st.integers(0, 80), start=st.integers(0, 90), world_size=COUNTS)
def test_by_default_ranks_have_equally_many_steps_and_repeat_the_first_ones_of_the_epoch(
    steps: int, start: int, world_size: int
) -> None:
    ranks = [list(split_steps(steps, start=start, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert len(set(map(len, ranks))) == 1
    delivered = round_robin(ranks)
    left = len(range(start, steps))
    assert delivered[:left] == list(range(start, steps))
    assert [step % steps for step in delivered[left:]] == [at % steps for at in range(-left % world_size)]


@settings(deadline=None)
@given(steps=st.integers(0, 80), start=st.integers(0, 90), world_size=COUNTS)
def test_with_a_dropped_tail_ranks_have_equally_many_steps_and_lose_less_than_a_round(
    steps: int, start: int, world_size: int
) -> None:
    ranks = [
        list(split_steps(steps, start=start, rank=rank, world_size=world_size, tail="drop"))
        for rank in range(world_size)
    ]
    assert len(set(map(len, ranks))) == 1
    left = len(range(start, steps))
    assert round_robin(ranks) == list(range(start, steps))[: left - left % world_size]


@settings(deadline=None)
@given(steps=st.integers(0, 60), rounds=st.integers(0, 12), worlds=st.lists(COUNTS, min_size=2, max_size=4))
def test_a_run_cut_after_any_round_and_resumed_under_other_world_sizes_loses_and_repeats_nothing(
    steps: int, rounds: int, worlds: list[int]
) -> None:
    delivered: list[int] = []
    start = 0
    for world_size in worlds:
        ranks = [
            list(split_steps(steps, start=start, rank=rank, world_size=world_size, tail="uneven"))
            for rank in range(world_size)
        ]
        delivered += round_robin([rank[:rounds] for rank in ranks])
        start += rounds * world_size
    assert delivered == list(range(min(start, steps)))


def test_a_plan_without_an_end_is_divided_without_an_end() -> None:
    mine = split_steps(None, start=10, rank=1, world_size=3)
    assert list(islice(mine, 3)) == [11, 14, 17]
    assert len(mine) > 10**18


@table(
    "arguments",
    [
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"world_size": 0},
        {"start": -1},
        {"tail": "even"},
    ],
)
def test_impossible_divisions_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        split_steps(10, **arguments)


class TestState:
    """A position as it stands in a checkpoint."""

    def test_a_state_reads_back_as_what_was_written(self) -> None:
        plan = {"kind": "ShufflePlan", "group": 8}
        assert parse_state(position_state(Position(3, 17), 4, plan)) == (Position(3, 17), plan)

    @table(
        "saved, own, told",
        [
            ({"kind": "A", "n": 1}, {"kind": "A", "n": 1}, None),
            ({"n": 1, "batch_size": 32, "seed": 0}, {"n": 1, "batch_size": 64, "seed": 1}, "batch_size 32, and has 64"),
            ({"sources": {"a": {"n": 1}}}, {"sources": {"a": {"n": 2}}}, "sources.a.n 1, and has 2"),
            ({"n": 1}, {"n": 1, "without": [[0, 1, 2]]}, r"without None, and has \[\[0, 1, 2\]\]"),
        ],
    )
    def test_the_first_difference_is_told_in_words(self, saved: Any, own: Any, told: str | None) -> None:
        found = first_difference(saved, own)
        assert found is None if told is None else re.fullmatch(f"was saved with {told}", str(found))

    @table(
        "change",
        [{"version": 1}, {"epoch": -1}, {"step": -3}, {"step": "4"}, {"epoch": None}, {"plan": 3}, {"world_size": 0}],
    )
    def test_what_is_no_state_of_this_plan_is_refused(self, change: dict[str, object]) -> None:
        state = position_state(Position(1, 2), 1, {})
        with pytest.raises(InvalidRequest):
            parse_state(state | change)

    @table("key", ["version", "epoch", "step", "world_size", "plan"])
    def test_a_state_with_a_part_missing_is_refused(self, key: str) -> None:
        state = position_state(Position(1, 2), 1, {})
        del state[key]
        with pytest.raises(InvalidRequest, match="not a state"):
            parse_state(state)
