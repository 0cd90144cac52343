"""Reads are spread over copies by load: evenly where one holder is behind, not at all where none is."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.wire.gather.hedging import BURST_ENTRIES, HedgeBudget, Silences
from ais_loader.wire.gather.replica_choice import CLEARLY, SLACK_S, Load, NodeLoads, choose


def key(at: int) -> int:
    return xxhash.xxh3_64_intdigest(str(at).encode())


def rows(n: int, nodes: int = 3, copies: int = 2) -> list[list[int]]:
    return [[(key(at) + copy) % nodes for copy in range(copies)] for at in range(n)]


def test_nothing_moves_while_no_node_is_behind() -> None:
    holders = rows(1000)
    loads = {node: Load(0.001 * node, 1e-5) for node in range(3)}
    assert choose(holders, loads, key) is holders


@given(
    backlogs=st.lists(st.floats(0, 2), min_size=4, max_size=4),
    costs=st.lists(st.floats(1e-5, 1e-2), min_size=4, max_size=4),
    n=st.integers(0, 200),
    suspected=st.sets(st.integers(0, 3)),
    stay=st.sets(st.integers(0, 3)),
)
def test_the_overflow_goes_to_other_holders_until_nobody_is_clearly_behind_them(
    backlogs: list[float], costs: list[float], n: int, suspected: set[int], stay: set[int]
) -> None:
    holders = rows(n, nodes=4, copies=3)
    loads = {node: Load(backlogs[node], costs[node], node in suspected) for node in range(4)}
    chosen = choose(holders, loads, key, stay)
    assert [sorted(row) for row in chosen] == [sorted(row) for row in holders]
    before, after = Counter(row[0] for row in holders), Counter(row[0] for row in chosen)

    def load_s(node: int, counts: Counter[int]) -> float:
        return backlogs[node] + counts[node] * costs[node]

    for was, now in zip(holders, chosen, strict=True):
        if was[0] == now[0]:
            assert was == now
            continue
        assert now[0] not in suspected and not {was[0], now[0]} & stay
        # Whoever takes something over is not made the last to be done by it.
        assert load_s(now[0], after) <= max(load_s(node, before) for node in range(4)) + 1e-9
    if before != after:
        least_s = min(load_s(node, before) for node in range(4) if node not in suspected | stay)
        assert any(load_s(node, before) > CLEARLY * least_s + SLACK_S for node in range(4) if node not in stay)


def test_a_slow_node_gets_the_share_that_it_can_do_in_the_time_of_the_others() -> None:
    holders = rows(3000)
    loads = {0: Load(0.0, 0.010), 1: Load(0.0, 0.001), 2: Load(0.0, 0.001)}
    counts = Counter(row[0] for row in choose(holders, loads, key))
    done_s = [loads[node].entry_s * counts[node] for node in range(3)]
    assert max(done_s) < 2.0  # 10 s before
    assert max(done_s) <= CLEARLY * min(done_s) + SLACK_S
    assert counts[0] > 0


def test_every_reader_moves_the_same_objects() -> None:
    holders = rows(500)
    loads = {0: Load(1.0, 0.01), 1: Load(0.0, 0.01), 2: Load(0.0, 0.01)}
    light = {at for at, row in enumerate(choose(holders, loads, key)) if row != holders[at]}
    heavier = loads | {0: Load(1.2, 0.01)}
    heavy = {at for at, row in enumerate(choose(holders, heavier, key)) if row != holders[at]}
    assert light and light < heavy


def test_placing_ten_thousand_entries_hashes_those_alone_that_may_move_each_once_for_each_holder() -> None:
    holders = rows(10_000)
    loads = {0: Load(0.5, 0.002), 1: Load(0.0, 0.001), 2: Load(0.0, 0.001)}
    hashed: Counter[int] = Counter()

    def counted(at: int) -> int:
        hashed[at] += 1
        return key(at)

    assert choose(holders, loads, counted) is not holders
    assert {holders[at][0] for at in hashed} == {0} and max(hashed.values()) == 1


def test_a_node_that_answers_slowly_is_given_less_and_after_a_while_another_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    loads = NodeLoads[str]()
    for waits_s in ({"a": 0.01, "b": 7.0, "c": 0.01}, *[{"a": 1.0, "b": 0.01, "c": 0.01}] * 2):
        for node, waited_s in waits_s.items():
            loads.requested(node, 10)
            loads.over(node, 10, 10, waited_s)
    loads.requested("b", 10)
    found = loads.of("abc")
    assert found["a"] == Load(0.0, 0.1) and found["b"].backlog_s == pytest.approx(0.01)
    assert found["c"] == Load(0.0, 0.001)
    now += 60.0
    assert loads.of("a")["a"].entry_s == pytest.approx(0.001, rel=0.1)
    loads.rejected("c", 3.0)
    loads.report_wait("b", 0.5)
    loads.suspect("a")
    found = loads.of("abc")
    assert found["c"].backlog_s == 3.0 and found["b"].backlog_s > 0.5 and found["a"].suspected
    now += 60.0
    assert loads.of("c")["c"].backlog_s == 0.0 and not loads.of("a")["a"].suspected


# -- hedging


def test_the_budget_is_a_share_of_what_is_asked_for_and_may_be_spent_in_one_go() -> None:
    budget = HedgeBudget(0.05)
    most = int(0.05 * BURST_ENTRIES)
    assert budget.take(10 * most) == most
    assert budget.take(1) == 0
    budget.requested(100)
    assert [budget.take(3), budget.take(3)] == [3, 2]
    budget.requested(1 << 40)
    assert budget.take(10 * most) == most
    assert budget.hedged == 2 * most + 5


def test_without_a_budget_nothing_is_hedged() -> None:
    budget = HedgeBudget(0.0)
    budget.requested(1 << 40)
    assert budget.take(1) == 0


def test_a_long_silence_is_one_beyond_what_is_usual() -> None:
    silences = Silences(0.1, 1.0)
    assert silences.limit_s(last=True) == 1.0
    for _ in range(200):
        silences.note(0.2)
    assert silences.limit_s(last=True) == pytest.approx(0.3)
    assert silences.limit_s(last=False) == pytest.approx(0.6)
    for _ in range(1000):
        silences.note(0.001)
    assert silences.limit_s(last=False) == 0.1
