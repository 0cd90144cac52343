"""Single flight: who shares an attempt that is in progress, and who gets a newer one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ais_loader.errors import DriveFull, LoaderError, RemoteUnavailable
from storage_node.limits import single_flight
from storage_node.limits.single_flight import SingleFlight
from tests.node.loop_kit import settle
from tests.table import table

LATER_S = 10 * single_flight.OLD_S


class _Cloud:
    """Attempts that fail or succeed as the test says."""

    def __init__(self) -> None:
        self.attempts: list[asyncio.Future[None]] = []

    async def attempt(self) -> None:
        self.attempts.append(asyncio.get_running_loop().create_future())
        await self.attempts[-1]


def run(test: Callable[[SingleFlight, _Cloud, list[float]], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop whose clock is as many seconds ahead as its list says, together."""

    async def main() -> None:
        loop, ahead_s = asyncio.get_running_loop(), list[float]()
        own_time = loop.time
        loop.time = lambda: own_time() + sum(ahead_s)  # type: ignore[method-assign]
        await test(SingleFlight(60.0), _Cloud(), ahead_s)

    asyncio.run(main())


async def joined(flights: SingleFlight, cloud: _Cloud) -> asyncio.Task[None]:
    task = asyncio.create_task(flights.join("a", cloud.attempt))
    await settle()
    return task


def test_who_comes_later_gets_no_failure_of_an_attempt_that_began_before() -> None:
    async def test(flights: SingleFlight, cloud: _Cloud, ahead_s: list[float]) -> None:
        first = await joined(flights, cloud)
        ahead_s.append(LATER_S)
        later = [await joined(flights, cloud) for _ in range(3)]
        cloud.attempts[0].set_exception(RemoteUnavailable("too old"))
        await settle()
        assert isinstance(first.exception(), RemoteUnavailable) and not any(task.done() for task in later)
        assert len(cloud.attempts) == 2  # one for all of them
        cloud.attempts[1].set_result(None)
        await asyncio.gather(*later)

    run(test)


def test_the_newer_attempt_answers_whatever_it_finds_and_is_the_last() -> None:
    async def test(flights: SingleFlight, cloud: _Cloud, ahead_s: list[float]) -> None:
        first = await joined(flights, cloud)
        ahead_s.append(LATER_S)
        later = await joined(flights, cloud)
        for attempt in range(2):
            cloud.attempts[attempt].set_exception(RemoteUnavailable(f"{attempt}"))
            await settle()
        assert [str(task.exception()) for task in (first, later)] == ["0", "1"]
        assert str((await joined(flights, cloud)).exception()) == "1"  # kept for the other holders' questions
        assert len(cloud.attempts) == 2

    run(test)


@table(
    ("later_s", "error"),
    [(0.0, RemoteUnavailable("at once")), (LATER_S, DriveFull("full"))],
)
def test_others_share_a_failure(later_s: float, error: LoaderError) -> None:
    async def test(flights: SingleFlight, cloud: _Cloud, ahead_s: list[float]) -> None:
        first = await joined(flights, cloud)
        ahead_s.append(later_s)
        other = await joined(flights, cloud)
        cloud.attempts[0].set_exception(error)
        await settle()
        assert first.exception() is other.exception() is error and len(cloud.attempts) == 1

    run(test)


def test_a_caller_that_leaves_begins_no_attempt() -> None:
    async def test(flights: SingleFlight, cloud: _Cloud, ahead_s: list[float]) -> None:
        first = await joined(flights, cloud)
        ahead_s.append(LATER_S)
        later = await joined(flights, cloud)
        later.cancel()
        with pytest.raises(asyncio.CancelledError):
            await later
        cloud.attempts[0].set_exception(RemoteUnavailable("too old"))
        await settle()
        assert isinstance(first.exception(), RemoteUnavailable) and len(cloud.attempts) == 1

    run(test)
