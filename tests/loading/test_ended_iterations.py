"""An iteration that a call for another one has ended says so, instead of ending as if it had delivered all batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from loading_kit import LISTS, N, Numbers, Steps

from ais_loader import BatchLoader, ShufflePlan
from ais_loader.errors import Closed
from tests.table import table

KINDS: dict[str, Callable[[], Any]] = {
    "plan": lambda: ShufflePlan(N, 3, seed=5),
    "lists": lambda: LISTS,
    "state": lambda: Steps(LISTS),
}
ENDED_BY: dict[str, Callable[[BatchLoader], Any]] = {
    "iter(loader)": lambda loader: next(iter(loader)),
    "start_prefetch()": lambda loader: loader.start_prefetch(),
    "load_state_dict()": lambda loader: loader.load_state_dict(loader.state_dict()),
}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@table("call", ENDED_BY)
@table("kind", KINDS)
def test_the_next_batch_of_an_iteration_that_another_call_ended_raises(kind: str, call: str, workers: int) -> None:
    with BatchLoader(Numbers(N), KINDS[kind](), workers=workers) as loader:
        had = []
        with pytest.raises(Closed, match=f"{re.escape(call)}.*second BatchLoader"):
            for batch in loader:
                had.append(batch)
                if len(had) == 3:
                    ENDED_BY[call](loader)
        assert len(had) == 3


def test_two_iterations_in_step_are_refused() -> None:
    with BatchLoader(Numbers(N), LISTS) as loader, pytest.raises(Closed, match=r"iter\(loader\)"):
        list(zip(loader, loader, strict=True))


@table("call", ["iter(loader)", "start_prefetch()"])
@table("kind", KINDS)
def test_an_iteration_that_had_its_last_batch_ends_quietly(kind: str, call: str) -> None:
    with BatchLoader(Numbers(N), KINDS[kind]()) as loader:
        running = iter(loader)
        assert len(list(islice(running, len(LISTS)))) == len(LISTS)
        ENDED_BY[call](loader)
        assert list(running) == []


@table("kind", KINDS)
def test_closing_the_loader_ends_its_iterations_quietly(kind: str) -> None:
    loader = BatchLoader(Numbers(N), KINDS[kind]())
    running = iter(loader)
    next(running)
    loader.close()
    never_begun = iter(loader)
    loader.close()
    assert list(running) == list(never_begun) == []


def test_the_position_is_that_of_the_iteration_that_goes_on() -> None:
    plan = ShufflePlan(N, 3, seed=5)
    with BatchLoader(Numbers(N), plan) as loader:
        older = iter(loader)
        list(islice(older, 5))
        newer = iter(loader)
        list(islice(newer, 2))
        with pytest.raises(Closed):
            next(older)
        assert loader.state_dict()["step"] == 2
        assert [batch[0] for batch in newer] == [plan.batch(0, step)[0] for step in range(2, len(LISTS))]
