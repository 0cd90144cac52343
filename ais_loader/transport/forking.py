"""Forks and gRPC: what has to be quiet while the process forks.

A child inherits gRPC's locks and none of its threads: when one of them, or a thread of the caller's, is inside gRPC at
that moment, the child hangs or aborts at its first call. Sessions are ended before a fork, and short calls waited for;
the channel stays, because closing it there makes gRPC's own fork handler wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_S = 5.0
"""Longest wait for running calls before a fork: a call to a node that is silent must not stall the trainer."""


class ForkGate:
    """Keeps short calls and forks apart. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._forking = False  # guarded by _changed
        self._calls = 0  # guarded by _changed

    def wait(self) -> None:
        """Return when no fork is under way."""
        if self._forking:
            with self._changed:
                self._changed.wait_for(lambda: not self._forking, WAIT_S)

    @contextmanager
    def call(self) -> Iterator[None]:
        """A fork waits for the end of this block, and this block for the end of a fork."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking, WAIT_S)
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Before a fork: let nobody in any more, and wait for who is inside."""
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: not self._calls, WAIT_S)

    def open(self) -> None:
        """After a fork, in the parent."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def open_in_child(self) -> None:
        """After a fork, in the child: whoever was inside is not here."""
        self.__init__()  # type: ignore[misc]
