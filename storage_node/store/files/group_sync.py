"""Group sync: makes many files durable at the same time.

A file system's journal commit covers every sync that is waiting at that moment. Sixteen parallel syncs take hardly
longer than one; in sequence they take sixteen times as long.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

SYNCS_AT_ONCE = 16


class Syncs:
    """Pool of threads for syncing, created when several files are synced for the first time. Thread-safe."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None  # guarded by _lock
        self._closed = False  # guarded by _lock

    def run(self, syncs: Sequence[Callable[[], None]]) -> None:
        """Run all syncs and wait for them. Raises the error of one of them; none is running then."""
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
        """Submit helper threads. Returns an empty list if none are useful or the pool is closed: the caller then does
        all of it."""
        if helpers < 1:
            return []
        with self._lock:
            if self._closed:
                return []
            if self._pool is None:
                self._pool = ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="sync")
            return [self._pool.submit(_do, todo) for _ in range(helpers)]

    def close(self) -> None:
        """Shut the threads down. Harmless in a process that inherited this through fork and has none of the threads."""
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
