"""Requests to one host: how many are in flight, and how all of them back off together."""

from __future__ import annotations

import asyncio
import random

from storage_node.remote.location.host_limiter import HostLimiter, HostLimiters
from tests.node.loop_kit import run, settle


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    async def check() -> None:
        limiter, most, ended = HostLimiter(3), 0, asyncio.Event()

        async def one() -> None:
            nonlocal most
            async with limiter.turn():
                most = max(most, limiter.in_flight)
                await ended.wait()

        tasks = [asyncio.ensure_future(one()) for _ in range(10)]
        await settle()
        assert limiter.in_flight == 3 and limiter.is_busy
        for task in tasks[5:]:
            task.cancel()
        tasks[0].cancel()
        await settle()
        assert limiter.in_flight == 3
        ended.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (most, limiter.in_flight, limiter.is_busy) == (3, 0, False)

    run(check())


def test_all_back_off_once_for_one_burst_and_recover() -> None:
    async def check() -> None:
        now_s = 100.0
        limiter = HostLimiter(8, lambda: now_s, random.Random(1))
        async with limiter.turn() as first, limiter.turn() as second:
            now_s += 1
            limiter.throttled(first)
            limiter.throttled(second)  # sent before the back-off: says nothing new
            assert limiter.limit == 4
            assert limiter.is_busy and limiter.is_backing_off
            limiter.answered(second)
            assert limiter.limit == 4
        now_s += 1
        assert not limiter.is_busy and not limiter.is_backing_off
        async with limiter.turn() as third:
            limiter.throttled(third)
            assert limiter.limit == 2
        for _ in range(100):
            now_s += 1
            async with limiter.turn() as turn:
                limiter.answered(turn)
        assert limiter.limit == 8

    run(check())


def test_pauses_grow_while_the_host_keeps_throttling() -> None:
    async def check() -> None:
        now_s, pauses = 0.0, []
        limiter = HostLimiter(8, lambda: now_s, random.Random(1))
        for _ in range(6):
            async with limiter.turn() as turn:
                limiter.throttled(turn)
            began_s = now_s
            while limiter.is_busy:
                now_s += 0.01
            pauses.append(now_s - began_s)
        assert limiter.limit == 1
        assert pauses[5] > 1 > 0.2 > pauses[0]

    run(check())


def test_buckets_share_the_limiter_of_a_host() -> None:
    limiters = HostLimiters(5)
    assert limiters.of("a") is limiters.of("a") is not limiters.of("b")
