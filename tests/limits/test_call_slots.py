"""Places of calls: bounded, shared between tenants, and taken back only from those that stand still."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from storage_node.limits.call_slots import PROGRESS_BYTES, Place, Places


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def taken(places: Places, tenant: str, evicted: list[str]) -> Place | None:
    return places.take(tenant, lambda: evicted.append(tenant))


def test_one_tenant_cannot_take_the_last_places() -> None:
    places, evicted = Places(16, 5.0, now_s=Clock()), list[str]()
    assert [taken(places, "greedy", evicted) is not None for _ in range(16)] == [True] * 14 + [False] * 2
    assert taken(places, "modest", evicted) is not None
    assert (places.held, evicted) == (15, [])


def test_a_tenant_at_its_limit_takes_only_from_itself() -> None:
    clock, evicted = Clock(), list[str]()
    places = Places(4, 5.0, now_s=clock, tenant_limit=2)
    held = [taken(places, tenant, evicted) for tenant in ("a", "b", "a")]
    assert taken(places, "a", evicted) is None
    for place in held:
        assert place is not None
        place.begin_waiting()
    clock.now_s = 6.0
    assert taken(places, "a", evicted) is not None
    assert (evicted, places.held) == (["a"], 3)


def test_a_call_that_stands_still_gives_way_and_one_that_moves_does_not() -> None:
    clock, evicted = Clock(), list[str]()
    places = Places(2, 5.0, now_s=clock)
    first, second = taken(places, "a", evicted), taken(places, "a", evicted)
    assert first is not None and second is not None
    with first.waiting():
        clock.now_s = 4.9
        assert taken(places, "a", evicted) is None
        clock.now_s = 5.0
        third = taken(places, "a", evicted)
        assert third is not None and (first.evicted, second.evicted, evicted) == (True, False, ["a"])
    first.give_back()  # as its call ends
    assert places.held == 2
    clock.now_s = 1000.0  # neither waits for its client: nobody's fault but the node's
    assert taken(places, "a", evicted) is None
    second.give_back()
    assert taken(places, "a", evicted) is not None


def test_a_byte_now_and_then_is_no_progress() -> None:
    clock, evicted = Clock(), list[str]()
    places = Places(1, 5.0, now_s=clock)
    place = taken(places, "a", evicted)
    assert place is not None
    for _ in range(6):
        with place.waiting():
            clock.now_s += 1.0
        place.moved(1)
    with place.waiting():
        assert place.still_s() == 6.0
    with place.waiting():
        place.moved(PROGRESS_BYTES)
        clock.now_s += 1.0
        assert place.still_s() == 1.0


def test_a_tenant_below_its_share_takes_from_one_above_it_and_not_the_other_way_round() -> None:
    clock, evicted = Clock(), list[str]()
    places, waits = Places(4, 1.0, now_s=clock), ExitStack()
    greedy = [taken(places, "greedy", evicted) for _ in range(3)]
    modest = taken(places, "modest", evicted)
    assert modest is not None and all(greedy)
    for one in (*greedy, modest):
        assert one is not None
        waits.enter_context(one.waiting())
    clock.now_s = 2.0
    assert taken(places, "modest", evicted) is not None
    assert evicted == ["greedy"]
    assert taken(places, "greedy", evicted) is not None  # of its own
    assert evicted == ["greedy"] * 2
    assert not modest.evicted


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=60), st.integers(1, 9))
def test_there_are_never_more_than_the_limit_and_none_is_lost(steps: list[tuple[str, bool, bool]], limit: int) -> None:
    clock = Clock()
    places, evicted, held = Places(limit, 1.0, {"a": 3.0}, now_s=clock), list[str](), list[Place]()
    waiting = ExitStack()
    for tenant, waits, ends in steps:
        clock.now_s += 0.4
        place = taken(places, tenant, evicted)
        if place is not None:
            held.append(place)
            if waits:
                waiting.enter_context(place.waiting())
        if ends and held:
            held.pop(0).give_back()
        held = [one for one in held if not one.evicted]
        assert places.held == len(held) <= limit
    for one in held:
        one.give_back()
    assert places.held == 0
