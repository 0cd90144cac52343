"""Attempts of one write: the write id that they share, and whether one of them may have taken effect.

An attempt is in doubt when it was sent completely and not answered. An attempt that failed earlier, or never left, has
had no effect. The next attempt then counts as the first one, which costs a store nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator

from ais_loader import errors

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
        lost = isinstance(error, errors.NodeUnavailable | errors.SilenceTimeout | errors.WriteTooLate)
        if lost and self._all_sent and getattr(error, "reached", True) and self._doubtful_since_s is None:
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
    def told(self) -> Iterator[None]:
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


def of_a_repeat(error: errors.LoaderError) -> errors.LoaderError:
    """Return the error that a caller gets for a write with attempts in doubt, the last of which failed with `error`."""
    return error if isinstance(error, _OF_ALL_TRIES) else unknown(error)


def unknown(error: errors.LoaderError) -> errors.OutcomeUnknown:
    """Return the error for a write that was sent and may have taken effect."""
    return errors.OutcomeUnknown(
        f"{error}; it may have been done, or may yet be: read what there is before you repeat it"
    )
