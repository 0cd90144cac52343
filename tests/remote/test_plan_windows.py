"""Windows of loaders on their plans, without I/O; and the order of requests with and without a reader that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ais_loader.errors import InvalidRequest, Overloaded
from storage_node.limits.single_flight import SingleFlight, Urgency, current_urgency
from storage_node.remote.ahead.plans import PlannedKey, Plans
from storage_node.remote.location.host_limiter import HostLimiter
from tests.node.loop_kit import settle

BUCKET = b"1" * 16
ONE, OTHER = b"a" * 16, b"b" * 16


def keys(*names: str, bucket: bytes = BUCKET) -> list[PlannedKey]:
    return [PlannedKey(bucket, "bucket", name) for name in names]


def expect(
    plans: Plans,
    loader: bytes,
    position: int,
    first_step: int,
    *steps: list[PlannedKey],
    lifetime_s: float = 30,
    now_s: float = 0,
) -> bool:
    return plans.expect(loader, position, first_step, steps, tenant="t", lifetime_s=lifetime_s, now_s=now_s)


def taken(plans: Plans, count: int, *paused: bytes) -> list[str]:
    return [one.key.name for one in plans.take(count, paused)]


def test_keys_are_taken_once_in_the_order_of_need() -> None:
    plans = Plans()
    assert expect(plans, ONE, 0, 0, keys("a", "b"), keys("c"))
    assert taken(plans, 2) == ["a", "b"]
    assert expect(plans, ONE, 1, 2, keys("d"))
    assert taken(plans, 10) == ["c", "d"] and taken(plans, 10) == []
    assert [plans.needed_at(BUCKET, name) for name in "abcd"] == [None, None, 0, 1]


def test_loaders_take_turns_at_equal_distances() -> None:
    plans = Plans()
    expect(plans, ONE, 100, 100, keys("a0", "a1"), keys("a2"))
    expect(plans, OTHER, 0, 0, keys("b0", "b1"), keys("b2"))
    assert taken(plans, 6) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_the_nearest_need_of_several_loaders_counts() -> None:
    plans = Plans()
    expect(plans, ONE, 0, 0, keys(), keys(), keys("a"), keys("a"))
    expect(plans, OTHER, 7, 7, keys(), keys("a"))
    assert plans.needed_at(BUCKET, "a") == 1
    plans.forget(OTHER)
    assert plans.needed_at(BUCKET, "a") == 2
    expect(plans, ONE, 3, 4)
    assert plans.needed_at(BUCKET, "a") == 0
    assert plans.needed_at(b"2" * 16, "a") is None


def test_what_a_loader_is_past_is_not_taken() -> None:
    plans = Plans()
    expect(plans, ONE, 0, 0, keys("a"), keys("b"), keys("c"))
    assert expect(plans, ONE, 2, 3)
    assert taken(plans, 3) == ["c"]


def test_steps_that_do_not_follow_are_refused_until_the_whole_window_comes() -> None:
    plans = Plans()
    assert not expect(plans, ONE, 5, 7, keys("c"))
    assert len(plans) == 0
    assert expect(plans, ONE, 5, 5, keys("a"), keys("b"))
    assert not expect(plans, ONE, 5, 8, keys("d"))
    assert not expect(plans, ONE, 20, 21, keys("z"))  # it is past all that is known
    assert expect(plans, ONE, 20, 20, keys("y")) and taken(plans, 9) == ["y"]


def test_a_window_expires_unless_it_is_renewed() -> None:
    plans = Plans()
    expect(plans, ONE, 0, 0, keys("a"), lifetime_s=10, now_s=0)
    expect(plans, OTHER, 0, 0, keys("b"), lifetime_s=10, now_s=1)
    assert plans.next_expiry_s == 10
    expect(plans, ONE, 0, 1, lifetime_s=10, now_s=9)
    plans.expire(11)
    assert plans.needed_at(BUCKET, "a") == 0 and plans.needed_at(BUCKET, "b") is None
    plans.expire(19)
    assert len(plans) == 0 and plans.next_expiry_s is None


def test_a_bucket_that_is_paused_holds_up_its_loader_only() -> None:
    plans = Plans()
    expect(plans, ONE, 0, 0, keys("a"), keys("c", bucket=b"2" * 16))
    expect(plans, OTHER, 0, 0, keys("b", bucket=b"2" * 16))
    assert taken(plans, 9, BUCKET) == ["b"]
    assert taken(plans, 9) == ["a", "c"]


def test_windows_are_bounded() -> None:
    plans = Plans(max_window_keys=4, max_windows=2, max_bytes=10_000)
    with pytest.raises(InvalidRequest, match="5 keys in 1 steps: at most 4"):
        expect(plans, ONE, 0, 0, keys(*"abcde"))
    with pytest.raises(InvalidRequest, match="0 keys in 5 steps"):
        expect(plans, ONE, 0, 0, [], [], [], [], [])
    with pytest.raises(InvalidRequest, match="before position"):
        expect(plans, ONE, 3, 2, keys("a"))
    assert len(plans) == 0
    expect(plans, ONE, 0, 0, keys("a", "b", "c"))
    with pytest.raises(InvalidRequest):
        expect(plans, ONE, 0, 1, keys("d", "e"))
    assert expect(plans, ONE, 0, 1, keys("d"))  # it was left as it was
    expect(plans, OTHER, 0, 0)
    with pytest.raises(Overloaded, match="2 loaders"):
        expect(plans, b"c" * 16, 0, 0)
    with pytest.raises(Overloaded, match="bytes"):
        expect(plans, OTHER, 0, 0, keys("n" * 5000))
    assert taken(plans, 9) == ["a", "b", "c", "d"]


class PlansMachine(RuleBasedStateMachine):
    """Windows beside a model that keeps every step as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.plans = Plans(max_bytes=1 << 40)
        self.model: dict[bytes, tuple[int, dict[int, list[str]]]] = {}
        self.taken: list[str] = []

    @rule(
        loader=st.sampled_from([ONE, OTHER]),
        steps=st.lists(st.lists(st.sampled_from("abcd"), max_size=3, unique=True), max_size=4),
        position=st.integers(0, 5),
    )
    def replace(self, loader: bytes, steps: list[list[str]], position: int) -> None:
        assert expect(self.plans, loader, position, position, *(keys(*step) for step in steps))
        self.model[loader] = position, {position + at: step for at, step in enumerate(steps)}

    @precondition(lambda self: self.model)
    @rule(
        data=st.data(),
        steps=st.lists(st.lists(st.sampled_from("abcd"), max_size=3, unique=True), max_size=3),
        advance=st.integers(0, 3),
        gap=st.integers(0, 1),
    )
    def advance(self, data: st.DataObject, steps: list[list[str]], advance: int, gap: int) -> None:
        loader = data.draw(st.sampled_from(sorted(self.model)))
        position, known = self.model[loader]
        following = max(known, default=position - 1) + 1
        position = min(position + advance, following)
        first = following + gap
        if first == position:
            return  # a replacement
        assert expect(self.plans, loader, position, first, *(keys(*step) for step in steps)) is not bool(gap)
        known = {step: names for step, names in known.items() if step >= position}
        if not gap:
            known |= {first + at: step for at, step in enumerate(steps)}
        self.model[loader] = position, known

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        loader = data.draw(st.sampled_from(sorted(self.model)))
        self.plans.forget(loader)
        del self.model[loader]

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        found = self.plans.take(count)
        distances = [self.plans.needed_at(BUCKET, one.key.name) for one in found]
        assert None not in distances  # only what a loader still needs

    @invariant()
    def agrees(self) -> None:
        assert len(self.plans) == sum(len(names) for _, known in self.model.values() for names in known.values())
        for name in "abcd":
            found = [
                step - position
                for position, known in self.model.values()
                for step, names in known.items()
                if name in names
            ]
            assert self.plans.needed_at(BUCKET, name) == min(found, default=None)


TestPlansMachine = PlansMachine.TestCase
TestPlansMachine.settings = settings(max_examples=30, stateful_step_count=12)


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 30), max_size=5, unique=True), max_size=20), st.integers(1, 7))
def test_one_loader_gets_all_keys_in_order_however_many_are_taken(steps: list[list[int]], count: int) -> None:
    plans = Plans()
    expect(plans, ONE, 0, 0, *(keys(*map(str, step)) for step in steps))

    def groups() -> Iterator[str]:
        while found := taken(plans, count):
            yield from found

    assert list(groups()) == [str(number) for step in steps for number in step]


# -- urgency


async def waiting(limiter: HostLimiter, log: list[str], name: str, urgency: Urgency) -> asyncio.Task[None]:
    """Return a task that takes a turn, once it waits for one."""

    async def turn() -> None:
        current_urgency.set(urgency)
        async with limiter.turn():
            log.append(name)

    task = asyncio.create_task(turn())
    await settle()
    return task


def test_requests_that_a_reader_waits_for_come_first() -> None:
    async def run() -> None:
        limiter, log = HostLimiter(1), list[str]()
        async with limiter.turn():
            later = Urgency(False)
            tasks = [
                await waiting(limiter, log, "ahead", Urgency(False)),
                await waiting(limiter, log, "joined", later),
                await waiting(limiter, log, "reader", Urgency(True)),
            ]
            later.is_urgent = True  # a reader has joined
        await asyncio.gather(*tasks)
        assert log == ["joined", "reader", "ahead"]

    asyncio.run(run())


def test_requests_ahead_leave_places_for_readers() -> None:
    async def run() -> None:
        limiter, log = HostLimiter(3, most_ahead=1), list[str]()
        current_urgency.set(Urgency(False))
        async with limiter.turn():
            second = await waiting(limiter, log, "ahead", Urgency(False))
            await (await waiting(limiter, log, "reader", Urgency(True)))
            assert log == ["reader"] and limiter.in_flight == 1
        await second
        assert log == ["reader", "ahead"] and limiter.in_flight == 0

    asyncio.run(run())


def test_a_waiter_that_is_cancelled_gives_its_place_back() -> None:
    async def run() -> None:
        limiter, log = HostLimiter(1, most_ahead=1), list[str]()
        async with limiter.turn():
            gone = await waiting(limiter, log, "gone", Urgency(False))
            last = await waiting(limiter, log, "last", Urgency(False))
            gone.cancel()
        await asyncio.wait([gone, last])
        assert log == ["last"] and limiter.in_flight == 0

    asyncio.run(run())


def test_a_reader_makes_the_flight_that_it_joins_urgent() -> None:
    async def run() -> None:
        flights, urgency, landed = SingleFlight(0), Urgency(False), asyncio.Event()

        async def fly() -> None:
            assert current_urgency.get() is urgency
            await landed.wait()

        async def join(with_urgency: Urgency) -> None:
            current_urgency.set(with_urgency)
            await flights.join("a", fly)

        first = asyncio.create_task(join(urgency))
        await settle()
        other = asyncio.create_task(join(Urgency(False)))
        await settle()
        assert not urgency.is_urgent
        reader = asyncio.create_task(join(Urgency(True)))
        await settle()
        assert urgency.is_urgent
        landed.set()
        await asyncio.gather(first, other, reader)

    asyncio.run(run())
