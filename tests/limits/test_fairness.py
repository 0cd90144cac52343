"""Tenants share a node by weight: the order alone, the slots that are granted in it, and a node under a greedy tenant.

Everything is counted in bytes and turns, nothing in seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader import ClusterOptions, connect, errors
from ais_loader.testing import eventually
from ais_loader.wire.frame import decode_response
from storage_node.limits.fair_scheduler import MIN_COST_BYTES, FrameSlot, FrameSlots, WeightedScheduler
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.node.loop_kit import run, settle
from tests.node.node_kit import RawSession, batch_of, bucket_of, serving
from tests.table import table

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 7.0}
costs = st.integers(1, 1000)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abcd"), costs),
        st.tuples(st.just("charge"), st.sampled_from("abcd"), costs),
        st.tuples(st.sampled_from(["pop", "discard"]), st.sampled_from("abcd"), st.just(0)),
    ),
    max_size=200,
)
Item = tuple[str, int, int]


class Waiting:
    """What a queue must hold, kept the plain way."""

    def __init__(self) -> None:
        self.queue: WeightedScheduler[Item] = WeightedScheduler(WEIGHTS)
        self.items: dict[str, list[Item]] = {name: [] for name in WEIGHTS}
        self.pushed = 0

    def push(self, name: str, cost: int) -> None:
        item = (name, cost, self.pushed)
        self.pushed += 1
        self.items[name].append(item)
        self.queue.push(name, cost, item)

    def pop(self) -> Item:
        item = self.queue.pop()
        assert item == self.items[item[0]].pop(0)  # first in, first out within a tenant
        return item

    @property
    def busy(self) -> set[str]:
        return {name for name, items in self.items.items() if items}


@given(st.lists(st.tuples(st.sampled_from("abcd"), costs), max_size=100), steps)
def test_two_tenants_that_both_wait_are_served_by_weight_to_within_one_item_of_each(
    backlog: list[tuple[str, int]], taken: list[tuple[str, str, int]]
) -> None:
    waiting = Waiting()
    taken = [*(("push", *one) for one in backlog), *taken, *[("pop", "", 0)] * len(backlog)]
    given_since: dict[tuple[str, str], Counter[str]] = {}
    largest: Counter[str] = Counter()
    for step, name, cost in taken:
        served: Item | None = None
        if step == "push":
            waiting.push(name, cost)
            largest[name] = max(largest[name], cost)
        elif step == "charge" and waiting.queue.may_pass(name):
            waiting.queue.charge(name, cost)
            largest[name] = max(largest[name], cost)
            served = (name, cost, -1)
        elif step == "discard" and waiting.items[name]:
            assert waiting.queue.discard(name, waiting.items[name].pop())
        elif step == "pop" and waiting.busy:
            assert len(waiting.queue) == sum(map(len, waiting.items.values()))
            served = waiting.pop()
        for a, b in given_since.copy():
            counted = given_since[a, b]
            if served is not None:
                counted[served[0]] += served[1]
            ahead = abs(counted[a] / WEIGHTS[a] - counted[b] / WEIGHTS[b])
            assert ahead <= largest[a] / WEIGHTS[a] + largest[b] / WEIGHTS[b] + 1e-6
        busy = waiting.busy
        given_since = {
            (a, b): given_since.get((a, b), Counter()) for a in busy for b in busy if a < b
        }  # since both have been waiting without a break


@pytest.mark.slow
@given(steps)
def test_what_waits_is_served_once_and_nothing_idles_while_something_waits(taken: list[tuple[str, str, int]]) -> None:
    waiting = Waiting()
    for step, name, cost in taken:
        if step == "push":
            waiting.push(name, cost)
        elif step == "charge":
            waiting.queue.charge(name, cost)
        elif step == "discard" and waiting.items[name]:
            waiting.queue.discard(name, waiting.items[name].pop(0))
        elif step == "pop" and waiting.busy:
            waiting.pop()
    while waiting.busy:
        waiting.pop()
    assert len(waiting.queue) == 0
    with pytest.raises(IndexError):
        waiting.queue.pop()


@given(st.lists(costs, min_size=1, max_size=50), st.lists(costs, max_size=50), costs)
def test_who_was_away_saved_nothing_up_and_does_not_starve(before: list[int], after: list[int], own: int) -> None:
    queue: WeightedScheduler[str] = WeightedScheduler(WEIGHTS)
    queue.charge("c", 1)
    for cost in before + after:
        queue.push("a", cost, "a")
    for _ in before:
        queue.pop()
    queue.push("c", own, "c")
    queue.push("c", own, "c")
    order = [queue.pop() for _ in range(len(queue))]
    assert "c" in order[:2]  # at most one of the other tenant goes before it
    second = [at for at, name in enumerate(order) if name == "c"][1]
    between = sum(after[: second - 1])
    # Its second one waits until the other has had as much by weight, or has nothing left.
    assert between >= own / WEIGHTS["c"] - max(before + after) or second == len(order) - 1


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 50)), min_size=4, max_size=80),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_tenants_whose_jobs_are_charged_while_they_run_differ_by_no_more_than_one_job_of_each_on_each_thread(
    backlog: list[tuple[str, int]], threads: int, spare: int
) -> None:
    """Time passes in units: each running job is charged one in each."""
    tenant_limit = max(1, threads - spare)
    queue: WeightedScheduler[tuple[str, int]] = WeightedScheduler(WEIGHTS, tenant_limit)
    left, largest, used = Counter[str](), Counter[str](), Counter[str]()
    for name, units in backlog:
        queue.push(name, 0, (name, units))
        left[name] += 1
        largest[name] = max(largest[name], units)
    running: list[list[Any]] = []
    while running or len(queue):
        while len(running) < threads and queue.head() is not None:
            name, units = queue.pop()
            left[name] -= 1
            running.append([name, units])
            assert sum(one == name for one, _ in running) <= tenant_limit
        queue.charge_running(1)
        for job in running:
            used[job[0]] += 1
            job[1] -= 1
        for job in [job for job in running if not job[1]]:
            running.remove(job)
            queue.end(job[0])
        wait = [name for name in largest if left[name]]
        for a, b in ((a, b) for a in wait for b in wait if a < b and tenant_limit == threads):
            ahead = abs(used[a] / WEIGHTS[a] - used[b] / WEIGHTS[b])
            assert ahead <= threads * (largest[a] / WEIGHTS[a] + largest[b] / WEIGHTS[b]) + 1e-6


@given(st.lists(st.sampled_from("abc"), min_size=3, max_size=80))
def test_tenants_with_equal_turns_that_wait_are_served_in_turn(backlog: list[str]) -> None:
    queue: WeightedScheduler[str] = WeightedScheduler({}, 1)
    for name in backlog:
        queue.push(name, 1, name)
    left, served = Counter(backlog), Counter[str]()
    while len(queue):
        name = queue.pop()
        queue.end(name)
        left[name] -= 1
        served[name] += 1
        turns = [served[name] for name in left if left[name]]
        assert not turns or max(turns) - min(turns) <= 1


def test_names_that_never_come_back_are_forgotten() -> None:
    queue: WeightedScheduler[int] = WeightedScheduler({})
    queue.push("waits", 1, 0)
    for number in range(20_000):
        queue.charge(f"tenant {number}", 1)
    assert len(queue._tenants) < 5000
    assert queue.pop() == 0


# -- slots


def test_a_tenant_alone_is_not_held_up_and_several_share_few_slots() -> None:
    async def check() -> None:
        slots = FrameSlots(MemoryBudget(1 << 30), {}, 3)
        alone = [await slots.acquire("a", 10) for _ in range(20)]
        later = asyncio.create_task(slots.acquire("b", 10))
        await settle()
        assert not later.done()  # two tenants from now on: three slots
        for slot in alone[:17]:
            slot.release()
            slot.release()  # harmless
        await settle()
        assert (later.done(), slots.in_use, slots.waiting) == (False, 3, 1)
        alone[17].release()
        (await later).release()
        assert slots.in_use == 2

    run(check())


def test_a_frame_that_nobody_takes_gives_its_slot_back() -> None:
    async def check() -> None:
        slots = FrameSlots(MemoryBudget(1 << 30), {}, 1)
        (await slots.acquire("b", 1)).release()
        stuck = await slots.acquire("a", 1)
        next_one = asyncio.create_task(slots.acquire("b", 1))
        await settle()
        assert not next_one.done()
        stuck.writing()
        (await next_one).release()
        stuck.release()
        assert slots.in_use == 0

    run(check())


def test_small_things_do_not_pass_others_unless_it_is_their_turn() -> None:
    async def check() -> None:
        slots = FrameSlots(MemoryBudget(1 << 30), {}, 1)
        slots.charge("b", 1)
        held = await slots.acquire("a", 1)
        assert slots.may_pass("a") and slots.may_pass("b")
        waiting = asyncio.create_task(slots.acquire("a", 10 * MIN_COST_BYTES))
        await settle()
        assert not slots.may_pass("a")
        assert slots.may_pass("b")
        for _ in range(3):
            slots.charge("b", 1)
        assert not slots.may_pass("b")
        held.release()
        (await waiting).release()

    run(check())


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.booleans()), max_size=40),
    st.randoms(use_true_random=False),
)
def test_whatever_is_taken_given_back_and_cancelled_adds_up(taken: list[tuple[str, int, bool]], random: Any) -> None:
    async def check() -> None:
        memory = MemoryBudget(10)
        slots = FrameSlots(memory, {"a": 3.0}, 2)
        tasks: dict[asyncio.Task[FrameSlot], int] = {}
        held: list[tuple[FrameSlot, int]] = []

        def collect() -> None:
            for task in [task for task in tasks if task.done()]:
                size = tasks.pop(task)
                if not task.cancelled():
                    held.append((task.result(), size))

        def give_back() -> None:
            slot, size = held.pop(random.randrange(len(held)))
            slot.release()
            slots.release_memory(size)

        for tenant, size, cancel in taken:
            tasks[asyncio.create_task(slots.acquire(tenant, size * 1000, size))] = size
            if held and random.random() < 0.4:
                give_back()
            if cancel and tasks:
                random.choice(list(tasks)).cancel()
            await settle()
            collect()
            assert memory.held_bytes == sum(size for _, size in held)
            assert slots.in_use == len(held)
            assert slots.waiting == len(tasks)
        while tasks or held:
            while held:
                give_back()
            await settle()
            collect()
        assert (memory.held_bytes, slots.in_use, slots.waiting) == (0, 0, 0)

    run(check())


# -- a node

SIZE_BYTES, PER_BATCH = 16 << 10, 4
BATCH_BYTES = SIZE_BYTES * PER_BATCH


def served_in_order(
    node: NodeServer, backlog: Mapping[str, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Tenants in the order in which their frames were read, all of them waiting from the start.

    `backlog`: of each tenant how many sessions it opens, and how many batches of one frame it asks for on each.
    """
    service, loop = node.batches, node._loop
    assert service is not None and loop is not None
    order: list[str] = []
    pop = WeightedScheduler.pop

    def logged(queue: WeightedScheduler[Any]) -> Any:
        item = pop(queue)
        if queue is service.resources.slots._scheduler:
            order.append(item.tenant)
        return item

    monkeypatch.setattr(WeightedScheduler, "pop", logged)
    limit = service.resources.budget.limit_bytes
    loop.call_soon_threadsafe(
        service.resources.budget.acquire_anyway, limit
    )  # nothing is read before this is given back
    eventually(lambda: service.resources.budget.held_bytes == limit)
    names = [f"{at}" for at in range(PER_BATCH)]
    with ExitStack() as open_sessions:
        sessions: list[tuple[RawSession, int]] = []
        for tenant, (count, batches) in backlog.items():
            for _ in range(count):
                session = open_sessions.enter_context(RawSession(node.url))
                for batch_id in range(batches):
                    session.send(batch_id, batch_of(names, tenant=tenant))
                sessions.append((session, batches))
        total = sum(count * batches for count, batches in backlog.values())
        eventually(lambda: service.resources.slots.waiting == total)
        loop.call_soon_threadsafe(service.resources.slots.release_memory, limit)
        for session, batches in sessions:
            received = ended = 0
            while ended < batches:
                response = decode_response(next(session.call))
                received += len(response.frame.payload) if response.frame is not None else 0
                ended += response.end is not None
            assert received == batches * BATCH_BYTES
    assert len(order) == total
    eventually(lambda: (service.resources.slots.in_use, service.resources.budget.held_bytes) == (0, 0))
    return order


def while_all_wait(order: list[str]) -> Counter[str]:
    """Bytes of each tenant, up to the first one's last."""
    last = min(len(order) - order[::-1].index(tenant) for tenant in set(order))
    return Counter({tenant: frames * BATCH_BYTES for tenant, frames in Counter(order[:last]).items()})


def fill(node: NodeServer) -> None:
    with bucket_of(node) as bucket:
        bucket.put_many((f"{at}", bytes([at]) * SIZE_BYTES) for at in range(PER_BATCH))


@pytest.mark.slow
def test_three_modest_tenants_keep_their_quarters_beside_a_greedy_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as node:
        fill(node)
        modest = {f"modest {at}": (1, 20) for at in range(3)}
        served = while_all_wait(served_in_order(node, {"greedy": (16, 10), **modest}, monkeypatch))
        total = sum(served.values())
        assert total >= 70 * BATCH_BYTES
        for tenant in modest:
            assert served[tenant] >= total / 4 / 2
            assert abs(served[tenant] - total / 4) <= 2 * BATCH_BYTES


@pytest.mark.slow
def test_tenants_are_served_by_the_weights_that_the_operator_gave_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, tenant_weights={"heavy": 2.0}) as node:
        fill(node)
        order = served_in_order(node, {"light": (8, 10), "heavy": (1, 60), "": (2, 30)}, monkeypatch)
        served = while_all_wait(order)
        assert abs(served["heavy"] - 2 * served["light"]) <= 3 * BATCH_BYTES
        assert abs(served["light"] - served[""]) <= 2 * BATCH_BYTES
        assert served["heavy"] == 60 * BATCH_BYTES


def test_a_name_that_is_no_name_is_refused(tmp_path: Path) -> None:
    for tenant in ("x" * 129, "\ud800"):
        with pytest.raises(errors.InvalidRequest, match="tenant"):
            connect("grpc://127.0.0.1:1", options=ClusterOptions(tenant=tenant))
    with serving(tmp_path) as node, RawSession(node.url) as session:
        _, end = session.ask(1, batch_of(["a", "b"], tenant="x" * 129))
        assert (end.error_kind, "128" in end.message) == ("invalid-request", True)


@table("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="tenant_weights: 'a'"):
        ServerConfig(tenant_weights={"a": weight})
