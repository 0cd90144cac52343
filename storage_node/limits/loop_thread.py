"""Loop thread: an event loop in a thread of its own, on which an embedded store runs the code of a node."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from ais_loader.errors import Closed
from storage_node.limits.blocking_calls import BlockingCalls
from storage_node.limits.tasks import cancel_others

T = TypeVar("T")
STOP_S = 20.0
"""Time for what runs on the loop to end, and then for what runs off it."""


class LoopThread:
    """Used from any thread. Must not be used in a forked child.

    Args:
        set_up: Runs on the loop before `__init__` returns.
        end: Runs on the loop before it is closed.
        readers: Number of threads that wait for drives.
    """

    def __init__(
        self,
        name: str,
        set_up: Callable[[LoopThread], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        *,
        readers: int,
    ) -> None:
        self._end = end
        self._loop = asyncio.new_event_loop()
        self._readers = BlockingCalls(readers, f"{name}-read")
        self.is_closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        self.run(_awaited(set_up(self)))

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(cancel_others(STOP_S))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that may wait for a drive, off the loop."""
        return await self._readers.submit(lambda: function(*arguments)).settled()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work` on the loop. Raises Closed."""
        if self.is_closed:
            work.close()
            raise Closed("the store has been closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result. Raises Closed."""
        running = self.begin(work)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over what an asynchronous iterator yields on the loop."""

        async def following() -> tuple[T, ...]:
            async for item in items:
                return (item,)
            return ()

        while found := self.run(following()):
            yield from found

    def close(self) -> None:
        """Stop the loop; return when nothing runs on it. May be called again."""
        if self.is_closed:
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_awaited(self._end()), self._loop).result(STOP_S)
        self.is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        self._readers.close(STOP_S)


async def _awaited(work: Awaitable[T]) -> T:
    return await work
