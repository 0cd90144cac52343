"""What a node sends so that a cut sees the same on all owners: pure functions."""

from __future__ import annotations

from storage_node.cluster.repair.plan import UNKNOWN, State
from storage_node.cluster.snapshots.plan import Unsettled, compare_seen, count_first, end_of
from storage_node.store.format import Version


def thing(counter: int, size_bytes: int = 1) -> State:
    return State(Version(1, counter, 1), False, size_bytes)


def tombstone(counter: int) -> State:
    return State(Version(1, counter, 1), True)


def compared(mine: State, owners: list[int], here: int, theirs: dict[int, State | None]) -> Unsettled:
    return compare_seen(["a"], [mine], [owners], here, {node: {"a": state} for node, state in theirs.items()})


def test_owners_that_see_nothing_or_something_older_are_sent_what_is_newer() -> None:
    assert compared(thing(5), [0, 1], 0, {1: thing(5)}).names == 0
    assert compared(thing(5), [0, 1, 2], 0, {1: None, 2: thing(4)}).push == {1: ["a"], 2: ["a"]}
    assert compared(thing(5), [1, 2], 0, {1: tombstone(4), 2: thing(6)}) == Unsettled({1: ["a"]}, 0, 0)
    assert compared(tombstone(5), [0, 1, 2], 0, {1: thing(4), 2: None}) == Unsettled({1: ["a"]}, 0, 0)


def test_an_owner_that_is_behind_or_cannot_be_asked_is_not_settled_and_another_node_need_not_be() -> None:
    assert compared(thing(5), [0, 1], 0, {1: thing(6)}) == Unsettled({}, 1, 0)
    assert compared(thing(5), [0, 1], 0, {1: tombstone(6)}) == Unsettled({}, 1, 0)
    assert compared(thing(5), [1, 2], 0, {1: thing(6), 2: thing(6)}).names == 0
    for unknown in ({}, {1: UNKNOWN}):
        assert compared(thing(5), [0, 1], 0, unknown) == Unsettled({}, 0, 1)  # type: ignore[arg-type]
    found = compare_seen(
        ["a", "b"],
        [thing(5), thing(5)],
        [[0, 1, 2], [0, 1, 2]],
        0,
        {1: {"a": None, "b": thing(6)}, 2: {"a": thing(6), "b": thing(4)}},
    )
    assert found == Unsettled({1: ["a"], 2: ["b"]}, 2, 0) and found.names == 4


def test_objects_are_counted_by_their_first_owners() -> None:
    states, owners = [thing(1, 10), thing(2, 20), tombstone(3), thing(4, 40)], [[0, 1], [1, 0], [0, 1], [0, 2]]
    assert [count_first(states, owners, here).size_bytes for here in range(3)] == [50, 20, 0]
    assert [count_first(states, owners, here).objects for here in range(3)] == [2, 1, 0]


def test_a_version_that_has_not_ended_here_ends_elsewhere_behind_all_cuts_that_see_it() -> None:
    assert end_of(70, 5, [10, 50]) == 70
    assert end_of(0, 5, [10, 50]) == 51
    assert end_of(0, 60, [10, 50]) == 61
