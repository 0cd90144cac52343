"""Blocking calls of obstore, in threads: a GET with its content costs less than half of two answers on the event loop.

obstore hands each answer to the loop by a thread of its own, which waits for the interpreter. A blocking call returns
in the thread that made it. Nobody can cancel such a call. It ends by obstore's limits, and the threads are daemons: a
storage that is silent delays neither its readers nor the end of the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from storage_node.limits.tasks import deliver

T = TypeVar("T")
_EXIT_S = 1.0


class BlockingCalls:
    """Threads of one process. Thread-safe. `most`: largest number of calls at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._threads, self._free = most, 0, 0
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        atexit.register(self._end)

    def begin(self, call: Callable[[], T]) -> asyncio.Future[T] | None:
        """Make a call and return its outcome, for the running loop. None if all threads are busy."""
        with self._lock:
            if not self._free:
                if self._threads >= self._most:
                    return None
                threading.Thread(target=self._work, name="remote-call", daemon=True).start()
                self._threads, self._free = self._threads + 1, 1
            self._free -= 1
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((call, outcome))
        return outcome

    def _work(self) -> None:
        while True:
            call, outcome = self._calls.get()
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 - raised by whoever awaits it
                error = raised
            with self._lock:
                self._free += 1
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                outcome.get_loop().call_soon_threadsafe(deliver, outcome, result, error)
            del call, outcome, result, error  # lest the content lives until the next call

    def _end(self) -> None:
        """Wait for calls: a thread must not return to an interpreter that has ended."""
        self._most, ends_s = 0, time.monotonic() + _EXIT_S
        while self._free < self._threads and time.monotonic() < ends_s:
            time.sleep(0.01)


CALLS = BlockingCalls(64)
"""Those of this process."""
