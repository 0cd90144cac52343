"""Fetches that fail or are cancelled between two of their steps: what they held is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ais_loader import errors
from ais_loader.wire.gather.hedging import HedgeBudget
from ais_loader.wire.reserved import REMOTE_ETAG
from storage_node.limits.single_flight import Urgency, current_urgency
from storage_node.remote.copies.cache_space import CacheSpace
from storage_node.remote.location.host_limiter import HostLimiters
from storage_node.remote.location.remote_requests import OpenedAnswer, RemoteRequests
from storage_node.remote.location.usage import Usage
from storage_node.settings.declarations import RemoteSettings
from storage_node.store.store import Store
from tests.remote.test_upload_races import Buckets, remote_bucket, within
from tests.store.store_kit import put, store_at

COPY = {REMOTE_ETAG: '"e"'}


def test_an_object_that_does_not_arrive_ahead_takes_no_room_ahead(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        bucket = remote_bucket(store, cache_bytes=1 << 20)
        space = CacheSpace(store, buckets=cast(Any, Buckets(bucket)), read=asyncio.to_thread, min_free_bytes=0)
        current_urgency.set(Urgency(False))
        try:
            with pytest.raises(errors.RemoteUnavailable):
                async with space.room(bucket, "a", 1000):
                    assert space._followed[bucket.uuid].ahead_bytes == 1000
                    raise errors.RemoteUnavailable("the connection broke")
            assert space._followed[bucket.uuid].ahead_bytes == 0 and not space._followed[bucket.uuid].ahead
        finally:
            await space.close()

    with store_at(tmp_path) as store:
        within(scenario(store))


def test_the_copy_of_an_object_that_is_being_fetched_does_not_go(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        bucket = remote_bucket(store, cache_bytes=1 << 20)
        space = CacheSpace(store, buckets=cast(Any, Buckets(bucket)), read=asyncio.to_thread, min_free_bytes=0)
        try:
            followed = space._follow(bucket)
            put(store, "a", bytes(100), metadata=COPY)
            space.loading = {(bucket.uuid, "a")}
            assert await space._evict(followed, 100, lambda name: True) == 0
            victims = followed.order.take(100)
            assert space._remove(followed, victims) == victims == [("a", 100)]  # it is fetched since a moment ago
            followed.order.add("a", 100)
            space.loading = ()
            assert await space._evict(followed, 100, lambda name: True) == 100
        finally:
            await space.close()

    with store_at(tmp_path) as store:
        within(scenario(store))


def test_a_copy_that_is_replaced_while_it_was_to_go_counts_with_its_own_size(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        bucket, replaced = remote_bucket(store, cache_bytes=1 << 20), [False]

        async def read(function: Callable[..., Any], *arguments: Any) -> Any:
            if function == space._remove:
                put(store, "a", bytes(300), metadata=COPY)
                replaced[0] = True
                space._readers[bucket.uuid].reading["a"] += 1  # its reader keeps it
            return await asyncio.to_thread(function, *arguments)

        space = CacheSpace(store, buckets=cast(Any, Buckets(bucket)), read=read, min_free_bytes=0)
        try:
            followed = space._follow(bucket)
            put(store, "a", bytes(100), metadata=COPY)
            assert followed.order.size_bytes == 100
            assert await space._evict(followed, 100, lambda name: True) == 0 and replaced[0]
            assert followed.order.size_bytes == 300
        finally:
            await space.close()

    with store_at(tmp_path) as store:
        within(scenario(store))


class Answer:
    """An answer to a GET."""

    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


def test_a_read_that_is_cancelled_as_its_hedge_is_given_up_gives_back_its_place() -> None:
    """The first request has an answer, the second is being ended, and the reader goes."""

    async def scenario() -> None:
        limiters = HostLimiters(4)
        limiter = limiters.of("host")
        requests = RemoteRequests(
            "s3://bucket",
            cast(Any, lambda: SimpleNamespace(host="host")),
            RemoteSettings(),
            limiters,
            Usage().of_bucket("b"),
            HedgeBudget(1.0),
        )
        requests._silences = cast(Any, SimpleNamespace(limit_s=lambda last: 0.0, note=lambda s: None))
        has_hedged, is_ending, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        answers, begun = list[Answer](), [0]

        async def begin(sent: Callable[[], None]) -> OpenedAnswer:
            begun[0] += 1
            is_first = begun[0] == 1
            turn = await limiter.turn().begin()
            sent()
            if is_first:
                await has_hedged.wait()
            else:
                has_hedged.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    is_ending.set()
                    await may_end.wait()
                    turn.end()
            answers.append(Answer())
            return OpenedAnswer(cast(Any, answers[-1]), [turn])

        requests._budget.requested(1000)
        reading = asyncio.create_task(requests._hedged(begin))
        await is_ending.wait()
        reading.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert [answer.is_closed for answer in answers] == [True]
        assert limiter.in_flight == 0

    within(scenario())
