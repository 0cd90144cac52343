"""Forks and gRPC: what has to be quiet while the process forks.

A child inherits gRPC's locks and none of its threads. While gRPC runs, its own fork handlers leave a child in a hundred
or a thousand that hangs in them or aborts at its first call, whatever its streams are doing. So before a fork short
calls are waited for, channels are closed, and gRPC is given the time to shut down: the end of its threads shows that
its handlers have nothing to do. The first of a row of forks pays some hundredths of a second for it.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

WAIT_S = 5.0
"""Longest wait for running calls before a fork: a call to a node that is silent must not stall the trainer."""

SHUTDOWN_S = 4.0
"""Longest wait for gRPC to shut down before a fork; it takes some hundredths of a second where only we use it and the
machine is not overloaded."""

_GRPC_THREADS = {"grpc_global_tim", "event_engine", "lifeguard", "grpc_shutdown"}
"""Names of gRPC's own threads, as Linux cuts them."""
_TICK_S = 0.005
_COLLECT_AFTER_S = 0.25


class ForkGate:
    """Keeps short calls and forks apart. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._forking = False  # guarded by _changed
        self._calls = 0  # guarded by _changed

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

    def close(self) -> bool:
        """Before a fork: let nobody in any more, and wait for who is inside. False when somebody stays in too long."""
        with self._changed:
            self._forking = True
            return self._changed.wait_for(lambda: not self._calls, WAIT_S)

    def open(self) -> None:
        """After a fork, in the parent."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def open_in_child(self) -> None:
        """After a fork, in the child: whoever was inside is not here."""
        self.__init__()  # type: ignore[misc]


def wait_for_shutdown(timeout_s: float) -> bool:
    """Wait until gRPC has shut down in this process; False when it has not in time, as when others use it too.

    It does so by itself, in a thread of its own, when the last of its objects is gone. Where threads have no names to
    look up, there is nothing to wait for.
    """
    deadline = time.monotonic() + timeout_s
    collected = False
    while _GRPC_THREADS & _thread_names():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK_S)
        if not collected and time.monotonic() > deadline - timeout_s + _COLLECT_AFTER_S:
            gc.collect()  # a call that is kept by a cycle, such as an exception's, keeps gRPC
            collected = True
    return True


def _thread_names() -> set[str]:
    names = set()
    try:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
                names.add(file.read().rstrip())
    except OSError:
        pass
    return names
