"""Pauses double up to their longest, and are drawn from no more than the share that is said."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.wire.backoff import Backoff


def test_pauses_double_up_to_the_longest_however_often_it_fails() -> None:
    backoff = Backoff(0.1, 1.0, jitter=0)
    assert [backoff.pause_s(failures) for failures in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff.pause_s(10**6) == 1.0


@pytest.mark.slow
@given(st.integers(0, 100), st.floats(0, 1), st.floats(0, 10), st.integers())
def test_a_pause_lies_between_what_is_fixed_of_it_and_its_whole(
    failures: int, jitter: float, at_least_s: float, seed: int
) -> None:
    backoff = Backoff(0.05, 2.0, jitter)
    whole_s = max(backoff.whole_s(failures), at_least_s)
    pause_s = backoff.pause_s(failures, at_least_s, random.Random(seed))
    assert (1 - jitter) * whole_s - 1e-9 <= pause_s <= whole_s + 1e-9


def test_those_who_failed_together_do_not_come_back_together() -> None:
    source = random.Random(7)
    pauses = sorted(Backoff(0.05, 1.0).pause_s(5, source=source) for _ in range(1_000))
    assert pauses[0] < 0.05
    assert pauses[-1] > 0.95
    assert 0.4 < pauses[500] < 0.6
