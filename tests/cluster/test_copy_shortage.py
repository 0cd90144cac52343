"""Which objects have too few copies, who looks after each, and who stands in for owners that cannot take theirs."""

from __future__ import annotations

import itertools

from storage_node.cluster.repair.plan import UNKNOWN, Answer, NamePage, State
from storage_node.cluster.repair.shortage import ShortObjects, StandIns, may_be_replaced, shortages
from storage_node.store.format import Version
from tests.table import table

OWNERS = [0, 1, 2]


def state(counter: int, *, dead: bool = False) -> State:
    return State(Version(1, counter), dead, 10)


def page(mine: State, owners: list[int] = OWNERS) -> NamePage:
    return NamePage(["a"], [mine], [owners], [False])


def short_at(here: int, mine: State, answers: dict[int, Answer]) -> dict[str, int]:
    return shortages(page(mine), here, answers)


def test_what_owners_lack_have_older_or_do_not_tell_of_is_missing() -> None:
    assert short_at(0, state(5), {1: {"a": None}, 2: {"a": state(4)}}) == {"a": 2}
    assert short_at(0, state(5), {1: {"a": UNKNOWN}}) == {"a": 2}
    assert short_at(0, state(5), {1: {"a": state(5)}, 2: {"a": state(5)}}) == {}
    assert short_at(0, state(5, dead=True), {}) == {}, "a deletion is no object"
    assert short_at(0, state(5), {1: {"a": state(6)}}) == {}, "whoever has the newer one counts it"


@table("having", [set(found) for size in (1, 2) for found in itertools.combinations(range(4), size)])
def test_whatever_nodes_have_an_object_one_of_them_counts_it(having: set[int]) -> None:
    """Node 3 is no owner."""
    counts = []
    for here in having:
        answers: dict[int, Answer] = {
            node: {"a": state(5) if node in having else None} for node in range(4) if node != here
        }
        if found := short_at(here, state(5), answers):
            counts.append(found)
    copies = len(having & set(OWNERS))
    assert len(counts) <= 1
    if copies:
        assert counts == [{"a": 3 - copies}]


def test_only_an_owner_that_answers_and_lacks_the_object_is_replaced() -> None:
    assert may_be_replaced(page(state(5)), 0, {1: {"a": UNKNOWN}, 2: {"a": state(5)}}, ["a"]) == {"a"}
    assert may_be_replaced(page(state(5)), 0, {1: {"a": None}, 2: {"a": state(5)}}, ["a"]) == {"a"}
    assert may_be_replaced(page(state(5)), 0, {2: {"a": state(5)}}, ["a"]) == set()


def test_as_many_hosts_are_asked_as_copies_are_missing_and_the_next_ones_where_they_cannot() -> None:
    stand_ins = StandIns({"a": 2, "b": 1}, {"a": [3, 0, 4, 5, 6], "b": [4, 5]}, local=0)
    assert stand_ins.next_nodes() == {3: ["a"], 4: ["a", "b"]}
    stand_ins.have(["a", "b"])
    assert stand_ins.next_nodes() == {5: ["a"]}
    assert stand_ins.next_nodes() == {6: ["a"]}
    assert stand_ins.next_nodes() == {}
    assert stand_ins.missing == {"a": 1}


def test_what_is_short_is_counted_once_until_it_is_mended() -> None:
    short = ShortObjects()
    short.note(b"1", ["a", "b"])
    short.begin_pass()
    short.count(b"1", ["a", "c"])
    assert short.counts() == {b"1": 2}, "a pass counts when it is over"
    short.end_pass()
    assert short.counts() == {b"1": 3}
    short.mended(b"1", ["a", "b"], short.notes)
    assert short.counts() == {b"1": 1} and not short.urgent()
    short.begin_pass()
    short.end_pass()
    assert short.counts() == {}
