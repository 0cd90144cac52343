"""Blocking calls: each outcome reaches its caller, a withdrawn call never runs, and nothing waits for the garbage
collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from storage_node.limits.blocking_calls import BlockingCalls

TIMEOUT_S = 180.0


class Content:
    """What a call holds on to."""


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_every_outcome_reaches_its_caller() -> None:
    def work(number: int) -> int:
        if number % 3 == 0:
            raise ValueError(str(number))
        return number

    async def all_() -> list[int | BaseException]:
        calls = [threads.submit(lambda number=number: work(number)) for number in range(200)]  # type: ignore[misc]
        return await asyncio.gather(*(call.settled() for call in calls), return_exceptions=True)

    with contextlib.closing(threads := BlockingCalls(4)):
        found = asyncio.run(all_())
        again = asyncio.run(all_())  # on another loop
    for outcomes in (found, again):
        assert [str(one) for one in outcomes] == [str(number) for number in range(200)]
        assert [isinstance(one, ValueError) for one in outcomes] == [number % 3 == 0 for number in range(200)]


def test_a_call_that_is_cancelled_before_its_turn_never_runs() -> None:
    ran: list[str] = []
    held, began = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        held.wait(TIMEOUT_S)

    async def check() -> None:
        first = threads.submit(hold)
        await asyncio.to_thread(began.wait, TIMEOUT_S)
        waiting = asyncio.create_task(threads.submit(lambda: ran.append("withdrawn")).settled())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting  # at once: the thread is still held
        held.set()
        await first.settled()
        await threads.submit(lambda: ran.append("later")).settled()

    with contextlib.closing(threads := BlockingCalls(1)):
        asyncio.run(check())
    assert ran == ["later"]


def test_no_call_is_begun_while_all_threads_are_busy_and_none_after_the_end() -> None:
    held = threading.Event()

    async def check() -> None:
        first = threads.begin(lambda: held.wait(TIMEOUT_S))
        assert first is not None
        assert threads.begin(lambda: None) is None
        held.set()
        assert await first.settled()
        last = threads.begin(lambda: 7)
        assert last is not None
        assert await last.settled() == 7
        threads.close()
        with pytest.raises(RuntimeError, match="remote-call"):
            threads.submit(lambda: None)

    threads = BlockingCalls(1)
    asyncio.run(check())


def test_a_thread_that_cannot_start_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def check() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="new thread"):
                    threads.submit(lambda: None)
        assert await threads.submit(lambda: 7).settled() == 7
        threads.close()

    threads = BlockingCalls(1)
    asyncio.run(check())


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_call_held_is_freed_without_a_collection(*, fails: bool) -> None:
    async def check() -> None:
        def work(content: Content) -> int:
            if fails:
                raise ValueError(str(content))
            return 1

        freed = weakref.ref(content := Content())
        call = threads.submit(partial(work, content))
        del content
        with contextlib.suppress(ValueError):
            await call.settled()
        del call
        await threads.submit(lambda: None).settled()  # its thread has dropped the first call
        assert freed() is None

    with contextlib.closing(threads := BlockingCalls(1)), without_collections():
        asyncio.run(check())
