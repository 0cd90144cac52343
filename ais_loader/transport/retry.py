"""Retry limit: growing pauses with jitter, until failures have continued for too long without progress.

For streams, which make progress between failures. A call that either succeeds or fails has a deadline instead.
"""

from __future__ import annotations

import time

from ais_loader.errors import LoaderError
from ais_loader.wire.backoff import Backoff

NO_RETRY_S = -1.0
"""Gives up at the first failure."""
_BACKOFF = Backoff(0.05, 1.0)


class RetryBudget:
    """Gives up when failures have continued for `retry_s` without progress. Belongs to one thread.

    The clock starts at the first failure: the time before it belongs to the consumer, who may not have read the batch.
    """

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self.progress()

    def progress(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        """Note a failure that is not retried; the clock starts at the first one."""
        if not self._failures:
            self._failing_since = time.monotonic()
        self._failures += 1

    @property
    def is_over(self) -> bool:
        """Whether failures have continued for too long."""
        return bool(self._failures) and time.monotonic() - self._failing_since > self._retry_s

    def pause_plainly(self, error: LoaderError) -> None:
        """Like `pause`, but raise `error` itself when the limit has been exceeded. A limit of 0 s allows no retry."""
        if not self._retry_s or self.is_over:
            raise error
        self.pause(error)

    def pause(self, error: LoaderError, at_least_s: float = 0.0) -> None:
        """Sleep before the next attempt. Raises `error` if a retry cannot help, or if the limit has been exceeded."""
        if not error.retryable:
            raise error
        now = time.monotonic()
        if not self._failures:
            self._failing_since = now
        failing_s = now - self._failing_since
        if self._retry_s < 0:
            raise error
        if failing_s > self._retry_s:
            raise type(error)(f"{error}; gave up after {self._failures + 1} tries in {failing_s:.1f} s") from error
        # Clients that were all told the same long delay are spread over more of it.
        pause_s = at_least_s + _BACKOFF.pause_s(self._failures, at_least_s / 2)
        self._failures += 1
        time.sleep(pause_s)
