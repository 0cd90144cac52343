"""Retries: growing pauses with jitter, until failures have continued for too long; and the attempts of one write.

A `RetryBudget` is for streams, which make progress between failures. A call that succeeds or fails has a deadline
instead. All attempts of one write share its id. An attempt is in doubt when it was sent completely and not answered. An
attempt that failed earlier, or never left, has had no effect. The next attempt then counts as the first one, which
costs a store nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator

from ais_loader import errors
from ais_loader.errors import LoaderError
from ais_loader.wire.backoff import Backoff

NO_RETRY_S = -1.0
"""Gives up at the first failure."""
_BACKOFF = Backoff(0.05, 1.0)


class RetryBudget:
    """Gives up when failures have continued for `retry_s` without progress. Threads may share one.

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


_ID_BYTES = 16
_OF_ALL_TRIES = (
    errors.NotFound,
    errors.InvalidRequest,
    errors.VersionConflict,
    errors.OutcomeUnknown,
    errors.SilenceTimeout,
    errors.Closed,
)
"""Answers that a store gives after it has checked for earlier attempts, and errors that leave the outcome open."""


class WriteTries:
    """Attempts of one write or deletion, on any nodes. Belongs to one thread at a time."""

    __slots__ = ("_all_sent", "_began_s", "_depth", "_doubtful_since_s", "_write_id")

    def __init__(self, write_id: bytes = b"", doubtful_since_s: float | None = None) -> None:
        """Args:

        doubtful_since_s: start of the first attempt that may have taken effect, in the time of `time.monotonic`.
        """
        self._write_id = write_id
        self._doubtful_since_s = doubtful_since_s
        self._began_s = 0.0
        self._all_sent = False
        self._depth = 0

    @property
    def write_id(self) -> bytes:
        """16 random bytes, drawn once."""
        if not self._write_id:
            self._write_id = os.urandom(_ID_BYTES)
        return self._write_id

    @property
    def in_doubt(self) -> bool:
        """Whether an attempt may have taken effect."""
        return self._doubtful_since_s is not None

    @property
    def repeat_ms(self) -> int:
        """Milliseconds since the start of the first attempt that may have taken effect; 0 if there is none."""
        if self._doubtful_since_s is None:
            return 0
        return max(1, math.ceil((time.monotonic() - self._doubtful_since_s) * 1000))

    def begin(self, *, all_sent: bool = True) -> None:
        """Note the start of an attempt. `all_sent`: it may take effect from its first byte on; otherwise from `sent`
        on."""
        self._began_s, self._all_sent = time.monotonic(), all_sent

    def sent(self) -> None:
        """Note that the last message is about to be sent."""
        self._all_sent = True

    def failed(self, error: errors.LoaderError) -> None:
        """Note that the attempt failed with `error`."""
        if self._all_sent and leaves_doubt(error) and self._doubtful_since_s is None:
            self._doubtful_since_s = self._began_s

    def judged(self, error: errors.LoaderError) -> errors.LoaderError:
        """Translate the error of an attempt into its meaning for the write.

        A full or broken drive that could not store the object again says nothing about an earlier attempt, which may be
        on other drives. Such a write is repeated once more.
        """
        if self.in_doubt and isinstance(error, errors.StoreError):
            return errors.NodeUnavailable(str(error))
        return error

    @contextlib.contextmanager
    def raise_if_unknown(self) -> Iterator[None]:
        """Context of all attempts of one call. The outermost one raises OutcomeUnknown if no store has decided whether
        the write took effect."""
        self._depth += 1
        try:
            yield
        except errors.LoaderError as error:
            if self._depth == 1 and self.in_doubt and (found := of_a_repeat(error)) is not error:
                raise found from error
            raise
        finally:
            self._depth -= 1


def leaves_doubt(error: errors.LoaderError) -> bool:
    """Return whether a write that was sent, and failed with `error`, may have taken effect."""
    lost = isinstance(error, errors.NodeUnavailable | errors.SilenceTimeout | errors.WriteTooLate)
    return lost and getattr(error, "reached", True)


def may_pass(error: errors.LoaderError | None) -> bool:
    """Return whether one of many writes that failed with `error` may succeed if it is sent again."""
    lost = isinstance(error, errors.NodeUnavailable) and error.retryable
    return lost or isinstance(error, errors.Overloaded | errors.WriteTooLate)


def of_a_repeat(error: errors.LoaderError) -> errors.LoaderError:
    """Return the error that a caller gets for a write with attempts in doubt, the last of which failed with `error`."""
    if isinstance(error, _OF_ALL_TRIES):
        return error
    return errors.OutcomeUnknown(
        f"{error}; it may have been done, or may yet be: read what there is before you repeat it"
    )
