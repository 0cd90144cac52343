"""Idle watchdog: ends a call on which nothing moves, since gRPC's own deadline is for a call as a whole."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


class Watchdog:
    """Cancels a call after `timeout_s` without a sign of life, until it is stopped. A context manager."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.fired = False
        self._seen_at = time.monotonic()
        self._stopped = threading.Event()

    def guard(self, cancel: Callable[[], object]) -> Watchdog:
        """Begin; `cancel` is called from another thread."""
        threading.Thread(target=self._watch, args=(cancel,), name="ais-loader watchdog", daemon=True).start()
        return self

    def seen(self) -> None:
        """Something has moved."""
        self._seen_at = time.monotonic()

    def rest(self) -> None:
        """Nothing is expected to move until `seen` is called again."""
        self._seen_at = math.inf

    def _watch(self, cancel: Callable[[], object]) -> None:
        while (left_s := self._seen_at + self.timeout_s - time.monotonic()) > 0:
            if self._stopped.wait(min(left_s, self.timeout_s)):
                return
        self.fired = True
        cancel()

    def stop(self) -> None:
        self._stopped.set()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
