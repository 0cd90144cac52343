"""Bursts: what waits together goes together, shared out to the workers; each run ends alone, whoever gives up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from ais_loader.errors import LoaderError, TransformFailed
from storage_node.etl.run.bursts import Bursts
from storage_node.etl.values import Content, Origin
from tests.node.loop_kit import settle, until


class Workers:
    """Upper-case what they are given, a burst at a time each; bursts of a list are recorded, and may be held up."""

    def __init__(self, workers: int = 2, size: int = 64) -> None:
        self.turns = asyncio.Semaphore(workers)
        self.bursts: list[list[str]] = []
        self.ended: list[str] = []
        self.made: list[Content] = []
        self.going = asyncio.Event()
        self.fails: Exception | None = None
        self.idle = 0
        self.size = size
        self.all = Bursts(workers, lambda: self.size, self.turn, self.run_many, self.now_idle)

    def now_idle(self) -> None:
        self.idle += 1

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        async with self.turns:
            yield

    async def run_many(self, inputs: Sequence[tuple[Origin, Content]]) -> Sequence[Content | LoaderError]:
        self.bursts.append([origin.name for origin, _ in inputs])
        try:
            await self.going.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        if self.fails is not None:
            raise self.fails
        made: list[Content | LoaderError] = []
        for origin, content in inputs:
            assert content.data is not None
            if origin.name == "bad":
                made.append(TransformFailed("bad"))
                continue
            one = Content.of(bytes(content.data).upper())
            self.made.append(one)
            made.append(one)
        return made

    def start(self, *names: str) -> list[asyncio.Task[bytes]]:
        return [asyncio.create_task(self.one(name)) for name in names]

    async def one(self, name: str) -> bytes:
        mine = Content.of(name.encode())
        try:
            made = await self.all.run(Origin("b", name, "1"), mine)
        finally:
            mine.close()
        try:
            assert made.data is not None
            return bytes(made.data)
        finally:
            made.close()

    async def until(self, bursts: int) -> None:
        await until(lambda: len(self.bursts) >= bursts)


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(180):
            await test

    asyncio.run(bounded())


def test_what_waits_together_is_shared_out_and_what_comes_later_waits_for_the_next_turn() -> None:
    async def test() -> None:
        workers = Workers()
        first = workers.start(*"abcdefg")
        await workers.until(2)
        assert [len(burst) for burst in workers.bursts] == [4, 2]  # half of what waits, and half of the rest
        later = workers.start(*"hi")
        await settle()
        workers.going.set()
        assert await asyncio.gather(*first, *later) == [one.upper().encode() for one in "abcdefghi"]
        assert sorted(name for burst in workers.bursts for name in burst) == list("abcdefghi")
        assert workers.bursts[2][0] == "g"
        await settle()
        assert workers.idle == 1

    run(test())


def test_a_burst_is_no_larger_than_the_stage_is_soon_done_with() -> None:
    async def test() -> None:
        workers = Workers(workers=1, size=3)
        workers.going.set()
        await asyncio.gather(*workers.start(*"abcdefgh"))
        assert [len(burst) for burst in workers.bursts] == [3, 3, 2]

    run(test())


def test_what_goes_wrong_with_one_is_its_alone_and_a_defect_is_everybodys() -> None:
    async def test() -> None:
        workers = Workers(workers=1)
        workers.going.set()
        found = await asyncio.gather(*workers.start("a", "bad", "c"), return_exceptions=True)
        assert found[::2] == [b"A", b"C"] and isinstance(found[1], TransformFailed)
        workers.fails = RuntimeError("ours")
        assert [str(one) for one in await asyncio.gather(*workers.start("d", "e"), return_exceptions=True)] == [
            "ours"
        ] * 2
        workers.fails = None
        assert await asyncio.gather(*workers.start("f")) == [b"F"]

    run(test())


def test_one_that_is_given_up_takes_none_of_the_others_along() -> None:
    async def test() -> None:
        workers = Workers(workers=1)
        given_up, *others = workers.start(*"abc")
        await workers.until(1)
        waiting = workers.start("d", "e")
        await settle()
        given_up.cancel()
        waiting[0].cancel()
        await asyncio.wait([given_up, waiting[0]])
        workers.going.set()
        assert await asyncio.gather(*others, waiting[1]) == [b"B", b"C", b"E"]
        assert workers.bursts == [["a", "b", "c"], ["e"]] and not workers.ended
        assert all(one.data is None for one in workers.made)  # closed, that of nobody too

    run(test())


def test_a_burst_that_nobody_waits_for_is_ended_and_the_next_begins() -> None:
    async def test() -> None:
        workers = Workers(workers=1)
        gone = workers.start(*"ab")
        await workers.until(1)
        stays = workers.start("c")
        await settle()
        for one in gone:
            one.cancel()
        await asyncio.wait(gone)
        await workers.until(2)
        assert workers.ended == ["cancelled"]
        workers.going.set()
        assert await asyncio.gather(*stays) == [b"C"]

    run(test())


def test_what_is_made_in_the_moment_of_giving_up_is_closed() -> None:
    async def test() -> None:
        workers = Workers(workers=1)
        (one,) = workers.start("a")
        await workers.until(1)
        workers.going.set()
        await until(lambda: workers.made)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        assert all(made.data is None for made in workers.made)

    run(test())


def test_those_that_wait_are_told_when_there_will_be_no_turn() -> None:
    async def test() -> None:
        workers = Workers(workers=1)
        await workers.turns.acquire()
        waiting = workers.start(*"ab")
        await settle()
        assert workers.all._next is not None
        workers.all._next.task.cancel()
        done, _ = await asyncio.wait(waiting)
        assert all(one.cancelled() for one in done)
        workers.turns.release()
        workers.going.set()
        assert await asyncio.gather(*workers.start("c")) == [b"C"]

    run(test())
