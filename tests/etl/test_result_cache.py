"""Kept results: made once however many ask, given up when there is no room, and never closed under a reader."""

from __future__ import annotations

import asyncio
import functools

import pytest

from ais_loader.errors import TransformFailed
from storage_node.etl.run.result_cache import ResultCache, Shared
from storage_node.etl.values import Content
from tests.node.loop_kit import settle


class Maker:
    """Makes contents of this size, when it is let."""

    def __init__(self, size_bytes: int = 10, error: Exception | None = None) -> None:
        self.made: list[Content] = []
        self.calls = 0
        self.let = asyncio.Event()
        self._size_bytes, self._error = size_bytes, error

    async def __call__(self) -> Content:
        self.calls += 1
        await self.let.wait()
        if self._error is not None:
            raise self._error
        self.made.append(Content.of(bytes(self._size_bytes)))
        return self.made[-1]


def is_open(content: Content) -> bool:
    return content.data is not None


def test_many_who_ask_at_a_time_have_one_made() -> None:
    async def run() -> None:
        cache, make = ResultCache(1000), Maker()
        asking = [asyncio.ensure_future(cache.get("k", make)) for _ in range(5)]
        await settle()
        make.let.set()
        shared = await asyncio.gather(*asking)
        assert make.calls == 1 and len({id(one) for one in shared}) == 1
        assert (cache.hits, cache.held_bytes) == (4, 10)
        for one in shared:
            one.release()
        assert is_open(make.made[0])  # kept
        again = await cache.get("k", make)
        assert make.calls == 1
        again.release()
        cache.clear()
        assert not is_open(make.made[0]) and cache.held_bytes == 0

    asyncio.run(run())


def test_who_gives_up_takes_nothing_from_the_others_and_the_last_one_ends_it() -> None:
    async def run() -> None:
        cache, make, done = ResultCache(1000), Maker(), []
        first, second = (
            asyncio.ensure_future(cache.get("k", make, functools.partial(done.append, who))) for who in "12"
        )
        await settle()
        first.cancel()
        await settle()
        assert done == ["2"]  # the other's input is still being used
        make.let.set()
        (await second).release()
        assert make.calls == 1 and done == ["2", "1"]
        other = Maker()
        only = asyncio.ensure_future(cache.get("other", other))
        await settle()
        only.cancel()
        with pytest.raises(asyncio.CancelledError):
            await only
        other.let.set()
        assert not other.made
        (await cache.get("other", other)).release()
        assert other.calls == 2
        cache.clear()

    asyncio.run(run())


def test_what_fails_is_not_kept() -> None:
    async def run() -> None:
        cache, make = ResultCache(1000), Maker(error=TransformFailed("no"))
        make.let.set()
        for _ in range(2):
            with pytest.raises(TransformFailed):
                await cache.get("k", make)
        assert make.calls == 2 and cache.held_bytes == 0

    asyncio.run(run())


def test_the_least_recently_used_goes_but_not_under_its_reader() -> None:
    async def run() -> None:
        cache = ResultCache(100)
        held: list[tuple[Shared, Content]] = []
        for name in "abcde":
            make = Maker(25)
            make.let.set()
            held.append((await cache.get(name, make), make.made[0]))
        assert cache.held_bytes == 100 and cache.touched("a") is None
        assert is_open(held[0][1])  # its reader has it
        held[0][0].release()
        assert not is_open(held[0][1])
        large = Maker(26)  # more than a quarter
        large.let.set()
        (await cache.get("large", large)).release()
        assert not is_open(large.made[0]) and cache.touched("b") is not None
        cache.clear()

    asyncio.run(run())


def test_an_empty_result_is_kept_and_without_room_nothing_is() -> None:
    async def run() -> None:
        for limit_bytes, calls in ((100, 1), (0, 2)):
            cache, make = ResultCache(limit_bytes), Maker(0)
            make.let.set()
            for _ in range(2):
                (await cache.get("k", make)).release()
            assert make.calls == calls
            cache.clear()

    asyncio.run(run())
