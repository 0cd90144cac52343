"""Tries of one write: the id under which a store knows all of them, and whether one of them may have been done.

A try is in doubt when all of it has been sent and no answer came. What was sent before, or never left, has not been
done: the next try is then the first one, which costs a store nothing.
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
"""What a store says after it has looked for earlier tries, and what leaves open what has become of them."""


class WriteTries:
    """Of one write or deletion, by whichever nodes. Belongs to one thread at a time."""

    __slots__ = ("_all_sent", "_began_s", "_depth", "_doubtful_since_s", "_write_id")

    def __init__(self, write_id: bytes = b"", doubtful_since_s: float | None = None) -> None:
        """`doubtful_since_s`: when the first try began that may have been done, as `time.monotonic` says it."""
        self._write_id = write_id
        self._doubtful_since_s = doubtful_since_s
        self._began_s = 0.0
        self._all_sent = False
        self._depth = 0

    @property
    def write_id(self) -> bytes:
        """16 bytes, drawn once."""
        if not self._write_id:
            self._write_id = os.urandom(_ID_BYTES)
        return self._write_id

    @property
    def in_doubt(self) -> bool:
        """Whether one of them may have been done."""
        return self._doubtful_since_s is not None

    @property
    def repeat_ms(self) -> int:
        """How long ago the first try began that may have been done; 0: none may."""
        if self._doubtful_since_s is None:
            return 0
        return max(1, math.ceil((time.monotonic() - self._doubtful_since_s) * 1000))

    def begin(self, *, all_sent: bool = True) -> None:
        """A try begins. `all_sent`: from its first byte on it may be done; otherwise from `sent` on."""
        self._began_s, self._all_sent = time.monotonic(), all_sent

    def sent(self) -> None:
        """The last message is about to leave."""
        self._all_sent = True

    def failed(self, error: errors.LoaderError) -> None:
        """The try has ended with this."""
        lost = isinstance(error, errors.NodeUnavailable | errors.SilenceTimeout | errors.WriteTooLate)
        if lost and self._all_sent and getattr(error, "reached", True) and self._doubtful_since_s is None:
            self._doubtful_since_s = self._began_s

    def judged(self, error: errors.LoaderError) -> errors.LoaderError:
        """What a try that ended with this means for the write.

        A drive that could not take it once more, full or broken, says nothing of an earlier try, which may be on other
        drives: that is one more to be repeated.
        """
        if self.in_doubt and isinstance(error, errors.StoreError):
            return errors.NodeUnavailable(str(error))
        return error

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """All tries of one call. OutcomeUnknown, when the outermost ends, for what nobody has told who could."""
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
    """What a caller is told of a write with tries in doubt, the last of which ended so."""
    return error if isinstance(error, _OF_ALL_TRIES) else unknown(error)


def unknown(error: errors.LoaderError) -> errors.OutcomeUnknown:
    """What a caller is told whose write was sent, and may have been done."""
    return errors.OutcomeUnknown(
        f"{error}; it may have been done, or may yet be: read what there is before you repeat it"
    )
