"""Writes wait while a snapshot of their bucket is made, and a snapshot waits for those that have begun to commit."""

from __future__ import annotations

import asyncio

import pytest

from storage_node.cluster.replication import commit as commit_module
from storage_node.cluster.replication.commit import SnapshotBarrier
from storage_node.context.errors import TooFewCopies
from tests.node.loop_kit import run, settle

B, OTHER, FIRST, SECOND = b"b" * 16, b"o" * 16, b"1" * 16, b"2" * 16


class Write:
    """One that passes until `end` is called."""

    def __init__(self, barrier: SnapshotBarrier, *buckets: bytes) -> None:
        self.passing = False
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._run(barrier, buckets))

    async def _run(self, barrier: SnapshotBarrier, buckets: tuple[bytes, ...]) -> None:
        async with barrier.passing(buckets):
            self.passing = True
            await self._ended.wait()

    async def end(self) -> None:
        self._ended.set()
        await self._task


def test_a_hold_waits_for_the_writes_that_pass_and_the_others_for_its_release() -> None:
    async def test() -> None:
        barrier = SnapshotBarrier()
        before, elsewhere = Write(barrier, B, OTHER), Write(barrier, OTHER)
        await settle()
        holding = asyncio.create_task(barrier.hold(B, FIRST))
        await settle()
        after, beside = Write(barrier, B, OTHER), Write(barrier, OTHER)
        await settle()
        assert [one.passing for one in (before, elsewhere, after, beside)] == [True, True, False, True]
        assert not holding.done()
        await before.end()
        await holding
        assert barrier.holds(B, FIRST) and not barrier.holds(B, SECOND) and not after.passing
        with pytest.raises(TooFewCopies, match="another snapshot"):
            await barrier.hold(B, SECOND)
        assert not barrier.release(B, SECOND)
        assert barrier.release(B, FIRST) and not barrier.holds(B, FIRST) and not barrier.release(B, FIRST)
        await settle()
        assert after.passing
        for one in (elsewhere, after, beside):
            await one.end()
        await barrier.hold(B, SECOND)
        assert barrier.release(B, SECOND)

    run(test())


def test_a_hold_ends_by_itself_and_gives_up_on_writes_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        barrier = SnapshotBarrier()
        monkeypatch.setattr(commit_module, "DRAIN_S", 0.02)
        slow = Write(barrier, B)
        await settle()
        with pytest.raises(TooFewCopies, match=r"under way for 0\.02 s"):
            await barrier.hold(B, FIRST)
        next_one = Write(barrier, B)
        await settle()
        assert next_one.passing
        await slow.end()
        await next_one.end()
        monkeypatch.setattr(commit_module, "HOLD_S", 0.02)
        await barrier.hold(B, FIRST)
        waiting = Write(barrier, B)
        await waiting.end()
        assert not barrier.holds(B, FIRST) and not barrier.release(B, FIRST)

    run(test())
