"""Bridge between an event loop, which communicates, and the threads that transform."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
MAX_THREADS = 256
"""Most of these threads wait: for their turn, for a node, or for input."""


async def in_thread(threads: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)


async def each_in_thread(threads: ThreadPoolExecutor, items: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator that runs in threads, one after another."""
    done: Any = object()
    while (item := await in_thread(threads, next, items, done)) is not done:
        yield item


def from_loop(items: AsyncIterator[T]) -> Iterator[T]:
    """Return an iterator, for a thread, over items that arrive on the caller's event loop."""
    loop = asyncio.get_running_loop()

    async def following() -> T:
        return await anext(items)

    def each() -> Iterator[T]:
        while True:
            wanted: Coroutine[Any, Any, T] = following()
            try:
                item = asyncio.run_coroutine_threadsafe(wanted, loop).result()
            except StopAsyncIteration:
                return
            yield item

    return each()
