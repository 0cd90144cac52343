"""Idle watchdog: ends a call without progress, because gRPC's own deadline applies to the call as a whole."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

LOOK_S = 2.0
"""Interval of the checks whether a silent node is alive."""


class Watchdog:
    """Cancels a call after `timeout_s` without activity, until it is stopped. A context manager.

    Args:
        is_alive: called every `LOOK_S` of silence, in the watchdog's thread. If it returns False, the call is
            cancelled.
    """

    def __init__(self, timeout_s: float, is_alive: Callable[[], bool] | None = None) -> None:
        self.timeout_s = timeout_s
        self.fired = False
        self.silent_s = 0.0
        """Duration of the silence when it fired."""
        self._is_alive = is_alive
        self._seen_at = time.monotonic()
        self._stopped = threading.Event()

    def guard(self, cancel: Callable[[], object]) -> Watchdog:
        """Start watching. `cancel` is called from another thread."""
        threading.Thread(target=self._watch, args=(cancel,), name="ais-loader watchdog", daemon=True).start()
        return self

    def seen(self) -> None:
        """Note activity."""
        self._seen_at = time.monotonic()

    def rest(self) -> None:
        """Suspend the limit until `seen` is called again."""
        self._seen_at = math.inf

    def _watch(self, cancel: Callable[[], object]) -> None:
        step_s = self.timeout_s if self._is_alive is None else min(LOOK_S, self.timeout_s)
        while (left_s := self._seen_at + self.timeout_s - time.monotonic()) > 0:
            if self._stopped.wait(min(left_s, step_s)):
                return
            if self._is_gone(step_s):
                break
        self.silent_s = time.monotonic() - self._seen_at
        self.fired = True
        cancel()

    def _is_gone(self, step_s: float) -> bool:
        def silent() -> bool:
            return time.monotonic() - self._seen_at >= step_s and not self._stopped.is_set()

        return self._is_alive is not None and silent() and not self._is_alive() and silent()

    def stop(self) -> None:
        self._stopped.set()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
