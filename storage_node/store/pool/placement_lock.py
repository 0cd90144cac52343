"""Readers-writer lock: object writes share it, placement changes take it alone."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from ais_loader.errors import Closed


class PlacementLock:
    """A thread that is inside must not enter again, by neither way. Thread-safe; useless after a fork, and says so."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0  # guarded by _changed
        self._closed = False  # guarded by _changed

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Raises Closed in a process that inherited the lock."""
        self._require_own_process()
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if self._closed and not self._inside:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits for all that are inside, and keeps the others out. Raises Closed as `shared` does."""
        self._require_own_process()
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._closed = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()

    @property
    def is_inherited(self) -> bool:
        """Whether this process has it through a fork."""
        return self._pid != os.getpid()

    def _require_own_process(self) -> None:
        if self.is_inherited:
            raise Closed("the store was opened before a fork; open it again in the child")
