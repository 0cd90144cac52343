"""ShufflePlan over numbers: an order by (seed, epoch), in constant time and memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans_kit import finished, shuffled_batches

from ais_loader.plans import ShufflePlan


def epoch_of(plan: ShufflePlan, epoch: int) -> list[list[int]]:
    return [plan.batch(epoch, step).tolist() for step in range(plan.steps(epoch) or 0)]


@pytest.mark.slow
@settings(max_examples=50)
@given(
    n=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
    block=st.integers(1, 20),
    group=st.integers(1, 4),
    tail=st.sampled_from(["repeat", "drop", "uneven"]),
)
def test_epochs_are_those_of_the_slow_way(
    n: int, batch_size: int, seed: int, epoch: int, block: int, group: int, tail: str
) -> None:
    plan = ShufflePlan(n, batch_size, seed=seed, block=block, group=group, tail=tail)  # type: ignore[arg-type]
    expected = shuffled_batches(n, batch_size, seed, epoch, block)
    assert sorted(one for batch in expected for one in batch) == list(range(n))
    assert epoch_of(plan, epoch) == finished(expected, group, tail)


def test_neighbours_stay_together_and_batches_stay_full() -> None:
    numbers = np.concatenate(epoch_of(ShufflePlan(1003, 10, block=50), 0))
    assert np.count_nonzero(np.diff(numbers) != 1) <= 21
    assert sorted(numbers.tolist()) == list(range(1003))
    assert {len(batch) for batch in epoch_of(ShufflePlan(1003, 10, drop_last=True), 0)} == {10}
    assert epoch_of(ShufflePlan(10, 4, shuffle=False), 5) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_epochs_and_seeds_differ() -> None:
    orders = {str(epoch_of(ShufflePlan(40, 4, seed=seed), epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    fingerprints = {
        ShufflePlan(40, 4).fingerprint,
        ShufflePlan(41, 4).fingerprint,
        ShufflePlan(40, 5).fingerprint,
        ShufflePlan(40, 4, seed=1).fingerprint,
        ShufflePlan(40, 4, shuffle=False).fingerprint,
        ShufflePlan(40, 4, drop_last=True).fingerprint,
        ShufflePlan(40, 4, block=2).fingerprint,
        ShufflePlan(40, 4, group=2).fingerprint,
        ShufflePlan(40, 4, tail="drop").fingerprint,
    }
    assert len(fingerprints) == 9


def test_a_batch_of_a_thousand_million_needs_no_memory() -> None:
    plan = ShufflePlan(10**9, 128)
    tracemalloc.start()
    plan.batch(3, 7_000_000)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
