"""Blocking calls: functions that wait for something, in threads, for an event loop.

An executor of the library takes several locks for each call, and wakes the loop for each result. Here a call is one
entry of a queue, and results that come while the loop is busy wake it once.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from storage_node.limits.tasks import settled

T = TypeVar("T")
_Ended: TypeAlias = "tuple[BlockingCall[Any], Any, BaseException | None]"
_EXIT_S = 1.0


class BlockingCall(Generic[T]):
    """A call that waits for a thread, or is in one. Belongs to its event loop, except `turn`."""

    __slots__ = ("_late", "outcome", "turn")

    def __init__(self, function: Callable[[], T]) -> None:
        self.turn = [function]
        """The function, until it is taken out: to be run, or because the call is withdrawn."""
        self.outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        """The result. To cancel it leaves the call to its thread."""
        self._late: tuple[T | None, BaseException | None] | None = None

    def end(self, result: T | None, error: BaseException | None) -> None:
        """Deliver the outcome, or keep it for `settled` if a cancellation has come first."""
        if self.outcome.cancelled():
            self._late = result, error
        elif error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(cast("T", result))

    async def settled(self) -> T:
        """Return the result.

        If cancelled, it still returns only when the function has ended, or will never run: what it works on may be
        closed. A result that can be closed is then closed.
        """
        try:
            return await self.outcome
        except asyncio.CancelledError:
            try:
                self.turn.pop()
            except IndexError:  # it runs, or has run
                if self.outcome.cancelled():
                    self.outcome = asyncio.get_running_loop().create_future()
                if self._late is not None:  # it has ended since the cancellation
                    self.end(*self._late)
                try:
                    with contextlib.suppress(Exception):  # of a function for which nobody waits any more
                        await settled(self.outcome)
                finally:
                    if self.outcome.exception() is None and (close := getattr(self.outcome.result(), "close", None)):
                        close()
            raise
        finally:
            del self  # an error knows this frame, which must not know the error


class BlockingCalls:
    """Threads of one process, which are daemons. Thread-safe. `most`: largest number of calls at a time."""

    def __init__(self, most: int, name: str = "remote-call") -> None:
        self._most, self._name, self._free = most, name, 0
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[BlockingCall[Any] | None] = SimpleQueue()
        self._ended: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[_Ended]] = WeakKeyDictionary()
        """Calls that have ended, for each loop, which is woken for the first of them."""
        self._lock = threading.Lock()
        atexit.register(self.close, _EXIT_S)

    def begin(self, function: Callable[[], T]) -> BlockingCall[T] | None:
        """Make a call for the running loop. None if all threads are busy."""
        return self.submit(function) if self._free > 0 or len(self._threads) < self._most else None

    def submit(self, function: Callable[[], T]) -> BlockingCall[T]:
        """Make a call for the running loop, once a thread is free. Raises RuntimeError after `close`."""
        call = BlockingCall(function)
        with self._lock:
            if not self._most:
                raise RuntimeError(f"the threads {self._name!r} have ended")
            if self._free <= 0 and len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._threads.append(thread)
                self._free += 1
            self._free -= 1
        self._calls.put(call)
        return call

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.turn.pop()()  # of a call that was withdrawn, nobody awaits the IndexError
            except BaseException as raised:  # noqa: BLE001 - raised by whoever awaits it
                error = raised
            loop = call.outcome.get_loop()
            with self._lock:
                self._free += 1
                ended = self._ended.setdefault(loop, deque())
                ended.append((call, result, error))
                is_first = len(ended) == 1
            if is_first:
                with contextlib.suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(_deliver, ended)
            del call, result, error, loop  # lest the content lives until the next call

    def close(self, wait_s: float = 1e9) -> None:
        """End the threads, and wait for their calls: one must not return to an interpreter that has ended."""
        ends_s = time.monotonic() + wait_s
        self._most = 0  # without the lock, which a forked child may have inherited
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            atexit.unregister(self.close)


def _deliver(ended: deque[_Ended]) -> None:
    try:
        while ended:
            call, result, error = ended.popleft()
            call.end(result, error)
    finally:
        if ended:  # an outcome that no future takes, such as a StopIteration, holds up no other
            asyncio.get_running_loop().call_soon(_deliver, ended)
