"""What bounds a node's memory: budgets that are granted in order, credit that can be overdrawn by one frame."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.limits.memory_budget import Credit, MemoryBudget
from storage_node.settings.config import ServerConfig
from tests.node.loop_kit import run, settle
from tests.table import table


def test_a_budget_is_never_exceeded_and_granted_in_order() -> None:
    async def check() -> None:
        budget = MemoryBudget(10)
        await budget.acquire(6)
        order: list[str] = []

        async def take(name: str, size: int) -> None:
            await budget.acquire(size)
            order.append(name)

        waiting = [asyncio.create_task(take("large", 9)), asyncio.create_task(take("small", 1))]
        await settle()
        assert (order, budget.held_bytes) == ([], 6)  # the small one would fit, and does not overtake
        assert not budget.acquire_now(1)
        budget.release(6)
        await settle()
        assert (order, budget.held_bytes) == (["large", "small"], 10)
        budget.release(10)
        assert budget.held_bytes == 0
        await asyncio.gather(*waiting)

    run(check())


def test_a_request_that_acquires_its_bytes_as_they_arrive_can_be_larger_than_the_whole_budget() -> None:
    async def check() -> None:
        budget = MemoryBudget(10)
        assert budget.acquire_now(8)
        assert not budget.acquire_now(8)
        await budget.acquire(8, own_bytes=8)  # nobody else holds anything
        assert budget.held_bytes == 16
        waiting = asyncio.create_task(budget.acquire(1))
        await settle()
        assert not waiting.done()
        budget.release(16)
        await waiting
        assert not budget.acquire_now(10, own_bytes=0)

    run(check())


def test_a_request_that_waits_for_the_rest_of_its_bytes_is_granted_once_nobody_else_holds_any() -> None:
    async def check() -> None:
        budget = MemoryBudget(10)
        assert budget.acquire_now(8) and budget.acquire_now(1)
        without = asyncio.create_task(budget.acquire(5))
        await settle()
        rest = asyncio.create_task(budget.acquire(8, own_bytes=8))
        await settle()
        assert not rest.done()
        budget.release(1)
        await settle()
        assert (rest.done(), without.done(), budget.held_bytes) == (True, False, 16)
        budget.release(16)
        await without
        assert budget.held_bytes == 5

    run(check())


def test_more_than_the_whole_budget_is_granted_when_nothing_else_is_held() -> None:
    async def check() -> None:
        budget = MemoryBudget(10)
        assert budget.acquire_now(50)
        assert not budget.acquire_now(1)
        budget.release(50)
        await budget.acquire(50)
        assert budget.held_bytes == 50

    run(check())


def test_who_is_cancelled_while_waiting_holds_nothing_and_blocks_nobody() -> None:
    async def check() -> None:
        budget = MemoryBudget(10)
        await budget.acquire(8)
        large = asyncio.create_task(budget.acquire(10))
        small = asyncio.create_task(budget.acquire(2))
        await settle()
        large.cancel()
        await settle()
        assert large.cancelled()
        assert small.done()
        assert budget.held_bytes == 10

    run(check())


def test_who_is_cancelled_in_the_moment_of_the_grant_gives_it_back() -> None:
    async def check() -> None:
        budget = MemoryBudget(10)
        await budget.acquire(10)
        waiting = asyncio.create_task(budget.acquire(10))
        await settle()
        budget.release(10)  # granted now
        waiting.cancel()  # before the task could see it
        await settle()
        assert waiting.cancelled()
        assert budget.held_bytes == 0

    run(check())


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 15), st.booleans()), max_size=30), st.randoms(use_true_random=False))
def test_whatever_is_acquired_released_and_cancelled_adds_up(steps: list[tuple[int, bool]], random: Any) -> None:
    async def check() -> None:
        budget = MemoryBudget(10)
        tasks: dict[asyncio.Task[None], int] = {}
        held: list[int] = []

        def collect() -> None:
            for task in [task for task in tasks if task.done()]:
                size = tasks.pop(task)
                if not task.cancelled():
                    held.append(size)

        for size, cancel in steps:
            tasks[asyncio.create_task(budget.acquire(size))] = size
            if random.random() < 0.5:
                await settle()
                collect()
            if cancel and tasks:
                random.choice(list(tasks)).cancel()
            if held and random.random() < 0.4:
                budget.release(held.pop(random.randrange(len(held))))
            await settle()
            collect()
            assert budget.held_bytes == sum(held)
            assert budget.held_bytes <= 10 or len(held) == 1
        while tasks:
            while held:
                budget.release(held.pop())
            await settle()
            collect()
        assert budget.held_bytes == sum(held)

    run(check())


def test_credit_can_be_overdrawn_by_one_frame_and_no_more() -> None:
    async def check() -> None:
        credit = Credit(1)
        await credit.spend(1000)
        second = asyncio.create_task(credit.spend(1))
        await settle()
        assert not second.done()
        credit.add(999)
        await settle()
        assert not second.done()
        credit.add(1)
        await second

    run(check())


def test_without_credit_nothing_goes() -> None:
    async def check() -> None:
        credit = Credit(0)
        spending = asyncio.create_task(credit.spend(0))
        await settle()
        assert not spending.done()
        credit.add(5)
        await spending

    run(check())


@table(
    "setting",
    [
        {"read_threads": 0},
        {"memory_bytes": 0},
        {"max_active_batches": 0},
        {"max_buffered_bytes": 0},
        {"reject_retry_after_ms": 0},
        {"port": -1},
        {"port": 65536},
    ],
    ids=str,
)
def test_a_configuration_that_cannot_work_is_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        ServerConfig(**setting)  # type: ignore[arg-type]
