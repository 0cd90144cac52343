"""Whose clock is wrong, from what nodes' wall clocks show."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_node.context.node import FORGOTTEN_S, PeerClocks, Verdict, judge
from tests.table import table

MOST_MS = 60_000
HOUR_MS = 3_600_000
T = 1_800_000_000_000
A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))


@table(
    ("offsets_ms", "expected"),
    [
        ({}, Verdict(False, frozenset(), True)),
        ({A: MOST_MS, B: -MOST_MS}, Verdict(False, frozenset(), True)),
        ({A: HOUR_MS, B: 0}, Verdict(False, frozenset({A}), True)),
        ({A: HOUR_MS, B: HOUR_MS + 5}, Verdict(True, frozenset(), True)),
        ({A: -HOUR_MS, B: -HOUR_MS, C: 3}, Verdict(False, frozenset({A, B}), False)),
        ({A: HOUR_MS, B: HOUR_MS, C: HOUR_MS, D: 0}, Verdict(True, frozenset({D}), True)),
        ({A: HOUR_MS}, Verdict(False, frozenset({A}), False)),
        ({A: HOUR_MS, B: -HOUR_MS}, Verdict(False, frozenset({A, B}), False)),
    ],
)
def test_the_clocks_of_most_nodes_are_right(offsets_ms: Mapping[bytes, int], expected: Verdict) -> None:
    assert judge(offsets_ms, MOST_MS) == expected


@pytest.mark.slow
@example([1, -MOST_MS, MOST_MS + 1], MOST_MS)
@given(st.lists(st.integers(-3 * HOUR_MS, 3 * HOUR_MS), max_size=6), st.integers(0, HOUR_MS))
@settings(max_examples=1000)
def test_of_all_nodes_with_one_knowledge_no_two_that_differ_coordinate(clocks: list[int], most_ms: int) -> None:
    """However they differ: nodes that go on, with others who take part, are within reach of each other."""
    clocks = [0, *clocks]
    going = []
    for at, own in enumerate(clocks):
        others = {bytes([number]): clock - own for number, clock in enumerate(clocks) if number != at}
        verdict = judge(others, most_ms)
        if verdict.is_sure and not verdict.here:
            going.append(own)
    assert not going or max(going) - min(going) <= 2 * most_ms


def test_what_a_node_has_said_is_carried_on_by_a_clock_that_nobody_sets_and_forgotten_in_time() -> None:
    wall_ms, since_s = [T], [50.0]
    clocks = PeerClocks(lambda: wall_ms[0], lambda: since_s[0])
    clocks.note(A, T + 5)
    clocks.note(B, 0)
    clocks.note(C, 2**64 - 1)
    assert clocks.offsets_ms({A, B}) == {A: 5}
    assert clocks.offsets_ms({C})[C] > HOUR_MS
    since_s[0] += 10
    assert clocks.offsets_ms({A}) == {A: 10_005}
    wall_ms[0] += 10_000 - HOUR_MS  # set back meanwhile
    assert clocks.offsets_ms({A}) == {A: HOUR_MS + 5}
    since_s[0] += FORGOTTEN_S
    assert clocks.offsets_ms({A}) == {}


def test_both_clocks_are_named_and_what_is_to_be_done() -> None:
    text = PeerClocks(lambda: T, lambda: 0.0).describe("host:7480", -HOUR_MS, MOST_MS)
    assert text == (
        "the clock of host:7480 shows 2027-01-15 07:00:00.000+00:00, this node's 2027-01-15 08:00:00.000+00:00; they "
        "may differ by 60 s: set them right (NTP), or raise max_clock_offset_s on all nodes"
    )
