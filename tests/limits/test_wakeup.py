"""Background work goes on when it is woken, by any thread, and otherwise at ticks that all of it shares."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.limits.wakeup import TICK_S, Wakeup, last_tick_s

TIMEOUT_S = 180.0


async def _every_change_of_another_thread_is_seen() -> None:
    wakeup, changes = Wakeup(), 0

    def change() -> None:
        nonlocal changes
        for _ in range(10_000):
            changes += 1
            wakeup.set()

    thread = threading.Thread(target=change)
    thread.start()
    while changes < 10_000:
        await wakeup.wait()
    thread.join()


async def _what_was_set_before_ends_the_next_wait() -> None:
    wakeup = Wakeup()
    wakeup.set("any", "arguments")
    await wakeup.wait()
    wakeup.set()
    await wakeup.wait_for_tick(3600.0)


async def _others_run_while_it_is_set_all_the_time() -> None:
    wakeup = Wakeup()
    other = asyncio.create_task(asyncio.sleep(0))
    while not other.done():
        wakeup.set()
        await wakeup.wait()


@pytest.mark.parametrize(
    "story",
    [
        _every_change_of_another_thread_is_seen,
        _what_was_set_before_ends_the_next_wait,
        _others_run_while_it_is_set_all_the_time,
    ],
)
def test_no_wake_up_is_lost(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), TIMEOUT_S))


def test_one_that_is_set_after_its_loop_has_ended_harms_nobody() -> None:
    wakeup = Wakeup()
    asyncio.run(wakeup.wait(0.0))
    wakeup.set()


@given(now_s=st.floats(0, 1e6), period_s=st.floats(0, 1e4))
def test_a_wait_ends_at_a_tick_within_its_period_if_there_is_one(now_s: float, period_s: float) -> None:
    ends_s = last_tick_s(now_s, period_s)
    assert now_s <= ends_s <= now_s + period_s
    assert ends_s % TICK_S == 0 or ends_s == now_s + period_s < (now_s // TICK_S + 1) * TICK_S
    if ends_s % TICK_S == 0:  # from then on, ticks follow each other
        assert last_tick_s(ends_s, TICK_S) == ends_s + TICK_S
