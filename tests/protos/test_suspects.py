"""A node that did not answer is suspect for as long as was said, longer each time, until it answers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from ais_loader.wire.backoff import Backoff, Suspects


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()


def test_a_node_is_suspect_until_its_time_is_over_or_it_answers(clock: Clock) -> None:
    suspects: Suspects[str] = Suspects(clock)
    assert not suspects
    assert "a" not in suspects
    suspects.failed("a", Backoff(2.0, 2.0))
    suspects.failed("b", Backoff(5.0, 5.0))
    assert "a" in suspects
    assert suspects.among({"a", "b", "c"}) == {"a", "b"}
    clock.now_s += 2.0
    assert "a" not in suspects
    assert suspects.among({"a", "b", "c"}) == {"b"}
    suspects.answered("b")
    assert "b" not in suspects
    suspects.answered("a")
    suspects.answered("never heard of")
    assert not suspects


def test_one_that_goes_on_failing_is_suspect_for_longer_each_time(clock: Clock) -> None:
    suspects: Suspects[str] = Suspects(clock)
    pause = Backoff(2.0, 16.0, jitter=0)
    for expected_s in (2.0, 4.0, 8.0, 16.0, 16.0):
        suspects.failed("a", pause)
        clock.now_s += expected_s - 0.001
        assert "a" in suspects
        clock.now_s += 0.001
        assert "a" not in suspects
    suspects.answered("a")
    suspects.failed("a", pause)
    clock.now_s += 2.0
    assert "a" not in suspects


def test_the_last_failure_says_for_how_long(clock: Clock) -> None:
    suspects: Suspects[str] = Suspects(clock)
    suspects.failed("a", Backoff(5.0, 5.0))
    suspects.failed("a", Backoff(0.5, 0.5))
    clock.now_s += 0.5
    assert "a" not in suspects


def test_how_long_it_has_been_failing_counts_from_the_first_failure(clock: Clock) -> None:
    suspects: Suspects[str] = Suspects(clock)
    assert suspects.failing_s("a") == 0.0
    for _ in range(3):
        suspects.failed("a", Backoff(math.inf, math.inf, jitter=0))
        clock.now_s += 1e6
    assert "a" in suspects
    assert suspects.failing_s("a") == 3e6
    suspects.answered("a")
    assert suspects.failing_s("a") == 0.0
