"""Slots of calls: bounded, shared between tenants, and taken back only from those that stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.errors import AccessDenied, LoaderError
from storage_node.limits.call_slots import PROGRESS_BYTES, CallSlot, CallSlots, Received, Streams


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def taken(slots: CallSlots, tenant: str, evicted: list[str]) -> CallSlot | None:
    return slots.take(tenant, lambda: evicted.append(tenant))


def test_one_tenant_cannot_take_the_last_places() -> None:
    slots, evicted = CallSlots(16, 5.0, now_s=Clock()), list[str]()
    assert [taken(slots, "greedy", evicted) is not None for _ in range(16)] == [True] * 14 + [False] * 2
    assert taken(slots, "modest", evicted) is not None
    assert (slots.held, evicted) == (15, [])


def test_a_tenant_at_its_limit_takes_only_from_itself() -> None:
    clock, evicted = Clock(), list[str]()
    slots = CallSlots(4, 5.0, now_s=clock, tenant_limit=2)
    held = [taken(slots, tenant, evicted) for tenant in ("a", "b", "a")]
    assert taken(slots, "a", evicted) is None
    for slot in held:
        assert slot is not None
        slot.begin_waiting()
    clock.now_s = 6.0
    assert taken(slots, "a", evicted) is not None
    assert (evicted, slots.held) == (["a"], 3)


def test_a_call_that_stands_still_gives_way_and_one_that_moves_does_not() -> None:
    clock, evicted = Clock(), list[str]()
    slots = CallSlots(2, 5.0, now_s=clock)
    first, second = taken(slots, "a", evicted), taken(slots, "a", evicted)
    assert first is not None and second is not None
    with first.waiting():
        clock.now_s = 4.9
        assert taken(slots, "a", evicted) is None
        clock.now_s = 5.0
        third = taken(slots, "a", evicted)
        assert third is not None and (first.evicted, second.evicted, evicted) == (True, False, ["a"])
    first.give_back()  # as its call ends
    assert slots.held == 2
    clock.now_s = 1000.0  # neither waits for its client: nobody's fault but the node's
    assert taken(slots, "a", evicted) is None
    second.give_back()
    assert taken(slots, "a", evicted) is not None


def test_a_byte_now_and_then_is_no_progress() -> None:
    clock, evicted = Clock(), list[str]()
    slots = CallSlots(1, 5.0, now_s=clock)
    slot = taken(slots, "a", evicted)
    assert slot is not None
    for _ in range(6):
        with slot.waiting():
            clock.now_s += 1.0
        slot.moved(1)
    with slot.waiting():
        assert slot.stalled_s() == 6.0
    with slot.waiting():
        slot.moved(PROGRESS_BYTES)
        clock.now_s += 1.0
        assert slot.stalled_s() == 1.0


def test_a_tenant_below_its_share_takes_from_one_above_it_and_not_the_other_way_round() -> None:
    clock, evicted = Clock(), list[str]()
    slots, waits = CallSlots(4, 1.0, now_s=clock), ExitStack()
    greedy = [taken(slots, "greedy", evicted) for _ in range(3)]
    modest = taken(slots, "modest", evicted)
    assert modest is not None and all(greedy)
    for one in (*greedy, modest):
        assert one is not None
        waits.enter_context(one.waiting())
    clock.now_s = 2.0
    assert taken(slots, "modest", evicted) is not None
    assert evicted == ["greedy"]
    assert taken(slots, "greedy", evicted) is not None  # of its own
    assert evicted == ["greedy"] * 2
    assert not modest.evicted


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=60), st.integers(1, 9))
def test_there_are_never_more_than_the_limit_and_none_is_lost(steps: list[tuple[str, bool, bool]], limit: int) -> None:
    clock = Clock()
    slots, evicted, held = CallSlots(limit, 1.0, {"a": 3.0}, now_s=clock), list[str](), list[CallSlot]()
    waiting = ExitStack()
    for tenant, waits, ends in steps:
        clock.now_s += 0.4
        slot = taken(slots, tenant, evicted)
        if slot is not None:
            held.append(slot)
            if waits:
                waiting.enter_context(slot.waiting())
        if ends and held:
            held.pop(0).give_back()
        held = [one for one in held if not one.evicted]
        assert slots.held == len(held) <= limit
    for one in held:
        one.give_back()
    assert slots.held == 0


def test_a_message_that_may_not_be_sent_gives_back_the_room_that_it_has_taken_as_it_came() -> None:
    async def scenario() -> None:
        streams = Streams(4, 5.0, 60.0, message_bytes=1 << 20)
        await streams.acquire(300 << 10, tenant="a")

        async def came() -> AsyncGenerator[Received[str], None]:
            yield Received("denied", 300 << 10, 300 << 10)

        def look(message: str) -> None:
            raise AccessDenied(message)

        with streams.open("a") as stream:
            messages = stream.messages(came(), look=look)
            with pytest.raises(AccessDenied):
                await anext(messages)
        assert streams.messages.held_bytes == 0

    asyncio.run(scenario())


def test_a_call_takes_the_slot_of_one_whose_deadline_has_just_passed() -> None:
    """Its step takes a moment to end, such as a task of its own that it waits for."""

    async def scenario() -> None:
        streams = Streams(1, 0.0, 0.001, message_bytes=1 << 20)
        is_ending, may_end = asyncio.Event(), asyncio.Event()

        async def step() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                is_ending.set()
                await may_end.wait()

        with streams.open("a") as first:
            stalled = asyncio.create_task(first.waiting(step()))
            await is_ending.wait()
            with streams.open("a"):
                may_end.set()
                with pytest.raises(LoaderError):
                    await stalled

    asyncio.run(scenario())
