"""Readers-writer lock: shared by object writes, exclusive for placement changes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from types import TracebackType

from ais_loader.errors import Closed


class PlacementLock:
    """Readers-writer lock. Not reentrant, in either mode. Thread-safe. In a forked child it raises Closed."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0  # guarded by _lock
        self._closed = False  # guarded by _lock
        self._shared = _Shared(self)

    def shared(self) -> _Shared:
        """Return a context manager, the same one for all. Entering it raises Closed in a process that inherited the
        lock."""
        return self._shared

    def _enter(self) -> None:
        self._require_own_process()
        with self._lock:
            while self._closed:
                self._changed.wait()
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed and not self._inside:
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for all holders, and exclude new ones. Raises Closed as `shared` does."""
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


class _Shared:
    """Context manager of the shared mode. A class, because a generator for every write would be slower."""

    def __init__(self, lock: PlacementLock) -> None:
        self._placement_lock = lock

    def __enter__(self) -> None:
        self._placement_lock._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._placement_lock._leave()
