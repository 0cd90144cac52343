"""Stream pool: streams that one caller uses at a time, reused, watched for deadlines, and closed together."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable

from ais_loader.transport.session.raw_stream import Stream

MAX_IDLE = 16
_TICK_S = 0.25


class PooledStream:
    """A stream on loan. Its user holds `lock` meanwhile."""

    __slots__ = ("batch_ids", "deadline", "last_use", "lock", "overdue", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.lock = threading.Lock()
        self.batch_ids = itertools.count(1)
        self.deadline = float("inf")
        """Monotonic time at which the stream is cancelled and marked as `overdue`."""
        self.overdue = False
        self.last_use = False


class StreamPool:
    """Pool of streams. Thread-safe; belongs to the process that made it."""

    def __init__(self, open_stream: Callable[[], Stream]) -> None:
        self._open_stream = open_stream
        self._lock = threading.Lock()
        self._idle: list[PooledStream] = []  # guarded by _lock
        self._busy: set[PooledStream] = set()  # guarded by _lock
        self._watchdog: threading.Thread | None = None

    def take(self, deadline: float = float("inf")) -> PooledStream:
        """Take an idle stream, or open one. Raises ValueError, which is gRPC's error for a channel that another thread
        has just closed."""
        with self._lock:
            pooled = self._idle.pop() if self._idle else PooledStream(self._open_stream())
            pooled.deadline = deadline
            self._busy.add(pooled)
            if self._watchdog is None:
                # A weak reference: the watchdog ends when the pool is freed.
                self._watchdog = threading.Thread(
                    target=_watch, args=(weakref.ref(self),), name="ais-loader watchdog", daemon=True
                )
                self._watchdog.start()
        return pooled

    def release(self, pooled: PooledStream, *, keep: bool) -> None:
        """Return a stream. The caller holds its lock, or has just released it. `keep`: it can be used again."""
        with self._lock:
            self._busy.discard(pooled)
            keep = keep and not pooled.last_use and len(self._idle) < MAX_IDLE
            if keep:
                self._idle.append(pooled)
        if not keep:
            pooled.stream.close()

    def cancel_overdue(self) -> None:
        """Cancel the streams that have been silent for too long; threads that wait for them are woken."""
        now = time.monotonic()
        with self._lock:
            overdue = [pooled for pooled in self._busy if pooled.deadline < now]
        for pooled in overdue:
            pooled.overdue = True
            pooled.stream.cancel()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
            for pooled in busy:
                pooled.last_use = True
        for pooled in idle:
            pooled.stream.close()
        for pooled in busy:
            pooled.stream.cancel()
            if pooled.lock.acquire(blocking=False):  # otherwise the thread that waits there wakes up and closes it
                try:
                    pooled.stream.close()
                finally:
                    pooled.lock.release()


def _watch(reference: weakref.ref[StreamPool]) -> None:
    while (pool := reference()) is not None:
        pool.cancel_overdue()
        del pool
        time.sleep(_TICK_S)
