"""Group sync: many files made to survive a power cut at the same time.

A file system commits its journal for all who wait at that moment: sixteen syncs side by side take hardly longer than
one, where one after another takes sixteen times that.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

SYNCS_AT_ONCE = 16


class Syncs:
    """Threads for syncing, started when several files are to be synced first. Thread-safe."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None  # guarded by _lock
        self._closed = False  # guarded by _lock

    def run(self, syncs: Sequence[Callable[[], None]]) -> None:
        """Returns when all have been done. Raises what one of them raised; none is running then."""
        todo = deque(syncs)
        helpers = self._help(todo, min(SYNCS_AT_ONCE, len(syncs)) - 1)
        try:
            _do(todo)
        finally:
            todo.clear()
            wait([helper for helper in helpers if not helper.cancel()])
        for helper in helpers:
            if not helper.cancelled():
                helper.result()

    def _help(self, todo: deque[Callable[[], None]], helpers: int) -> list[Future[None]]:
        """None where there is nothing to help with, or not any more: the caller does all of it then."""
        if helpers < 1:
            return []
        with self._lock:
            if self._closed:
                return []
            if self._pool is None:
                self._pool = ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="sync")
            return [self._pool.submit(_do, todo) for _ in range(helpers)]

    def close(self) -> None:
        """Let the threads go; harmless in a process that inherited them through fork, and has none of them."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            if self._pool is not None:
                self._pool.shutdown(wait=False)


def _do(todo: deque[Callable[[], None]]) -> None:
    while True:
        try:
            sync = todo.popleft()
        except IndexError:
            return
        sync()
