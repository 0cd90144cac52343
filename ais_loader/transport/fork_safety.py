"""Fork safety of gRPC: what must have ended before the process forks.

A child inherits gRPC's locks but none of its threads. Forked while gRPC runs, starts or shuts down, it may hang forever
at its first call, or in gRPC's own fork handlers. Before a fork, this module therefore closes a barrier: no thread of
ours enters gRPC until the fork is over. It waits for the threads inside, ends running calls and streams (which start
again after the fork), and gives gRPC the time to shut down, which is complete when gRPC's threads have ended. The first
of a series of forks takes some hundredths of a second for this. If other code in this process uses gRPC too, it cannot
be shut down, and a warning says so: gRPC's own handlers restart its threads in the child, and one of those crashed the
child in 12 of 120 such forks.

This module imports neither gRPC nor anything slow: a caller that imports it late does so inside the barrier.
"""

from __future__ import annotations

# Before a fork, logging and thread pools take a lock of their own, and fork handlers run in reverse order of their
# registration. Both have to be registered before this module. Otherwise a fork would hold their locks while it waits
# for the threads that need them.
import concurrent.futures.thread
import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

WAIT_S = 5.0
"""Longest wait for running calls before a fork, which then ends them: a silent node must not stall the trainer."""
LEAVE_S = 5.0
"""Time for the callers of those calls to notice."""
SHUTDOWN_S = 5.0
"""Longest wait for gRPC to shut down before a fork. It takes some hundredths of a second if only this module uses it,
and a second if fifty processes compete for the CPU."""
SHARED_S = 0.5
"""The same, if the last wait was in vain: each worker of a DataLoader is a fork."""

_GRPC_THREADS = {"grpc_global_tim", "event_engine", "lifeguard", "grpc_shutdown"}
"""Names of gRPC's own threads, truncated by Linux."""
_TICK_S = 0.005
_COLLECT_AFTER_S = 0.25
_CHECKS_PER_S = 50
"""A wait also performs at least this many checks per second: without CPU time for this process, gRPC has none either.
"""
_THREADS = "/proc/self/task"
_AWAKE = {"R", "D"}
"""States of a thread that runs, or waits for a CPU or a page."""


class ForkPart(Protocol):
    """An owner of gRPC connections."""

    def abandon(self, *, cut: bool) -> None:
        """Called before a fork, possibly several times: end what is running. `cut`: calls have had their time."""

    def start_and_end(self) -> None:
        """Start and end gRPC by creating and closing an object that needs it."""

    def forget_inherited(self) -> None:
        """Called in a forked child: connections are the parent's, and a lock may be held by a thread that does not
        exist here."""


class ForkBarrier:
    """Barrier between our threads in gRPC and forks. Thread-safe.

    A thread that is inside may enter again, and so may the forking thread: no other thread could finish what it runs on
    its way to the fork, such as a destructor.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._forker: int | None = None  # guarded by _changed, like the next two
        self._forks = 0
        """Number of forks that the forking thread has begun: a signal handler may fork during a fork."""
        self._inside: dict[int, int] = {}
        """Number of entries of each thread."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """A fork waits for the end of this block, and this block for the end of a fork."""
        me = threading.get_ident()
        with self._changed:
            if me not in self._inside:
                self._changed.wait_for(lambda: self._forker in (None, me))
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                times = self._inside.pop(me, 0) - 1  # 0 in a child that was forked in here
                if times > 0:
                    self._inside[me] = times
                self._changed.notify_all()

    def close(self) -> None:
        """Called before a fork: admit no other thread. Returns when no other thread is forking."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forker in (None, me))
            self._forker = me
            self._forks += 1

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until no other thread is inside. Returns False after `timeout_s`."""
        me = threading.get_ident()
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside.keys() - {me}, timeout_s)

    def open(self) -> None:
        """Called after a fork, in the parent."""
        with self._changed:
            if self._forker != threading.get_ident():
                return  # the fork began before the barrier existed
            self._forks -= 1
            if not self._forks:
                self._forker = None
                self._changed.notify_all()

    def open_in_child(self) -> None:
        """Called after a fork, in the child: the threads that were inside do not exist here."""
        self.__init__()  # type: ignore[misc]


GATE = ForkBarrier()
_parts: list[ForkPart] = []
_running = False
"""Whether this module may have started gRPC since it was last seen to be shut down."""
_shared = _warned = False


def register_part(part: ForkPart) -> None:
    """Register a part for the lifetime of the process."""
    _parts.append(part)


def grpc_begins() -> None:
    """Called inside the barrier, before any gRPC object is created."""
    global _running
    _running = True


def wait_for_shutdown(timeout_s: float) -> bool:
    """Wait until gRPC has shut down in this process. Returns False if it has not in time, as when other code uses it
    too.

    It shuts down by itself, in a thread of its own, when the last of its objects is freed. Where threads cannot be
    listed, there is nothing to wait for.
    """
    began_s, checks, quiet_checks = time.monotonic(), 0, 0
    collected = False
    while True:
        quiet_checks = 0 if _grpc_may_run() else quiet_checks + 1
        if quiet_checks == 2:  # a new thread may have slept, waiting for a lock, before it had its name
            return True
        waited_s, checks = time.monotonic() - began_s, checks + 1
        if not quiet_checks and waited_s > timeout_s and checks > timeout_s * _CHECKS_PER_S:
            return False
        time.sleep(_TICK_S)
        if not collected and waited_s > _COLLECT_AFTER_S:
            gc.collect()  # a call kept alive by a reference cycle, such as an exception's, keeps gRPC alive
            collected = True


def _grpc_may_run() -> bool:
    """Whether a thread of gRPC exists, or one that is too young to tell.

    A thread that ends during the check may have started another one that was missed; the check then begins again.
    """
    while True:
        try:
            return any(map(_may_be_of_grpc, os.listdir(_THREADS)))
        except (FileNotFoundError, ProcessLookupError):
            if not os.path.exists(_THREADS):
                return False


def _may_be_of_grpc(thread: str) -> bool:
    """A thread sets its name when it first runs, which on a busy machine is later than its creation."""
    with open(f"{_THREADS}/{thread}/stat") as file:  # format: proc(5)
        name, _, rest = file.read().partition("(")[2].rpartition(")")
    state, *_, user_ticks, system_ticks = rest.split()[:13]
    return name in _GRPC_THREADS or (state in _AWAKE and user_ticks == system_ticks == "0")


def _before_fork() -> None:
    global _running, _shared
    GATE.close()
    empty = GATE.wait_until_empty(WAIT_S)
    ends_at_s = time.monotonic() + LEAVE_S
    _abandon_all(cut=not empty)
    while not empty and time.monotonic() < ends_at_s:
        empty = GATE.wait_until_empty(LEAVE_S / 10)
        _abandon_all(cut=not empty)  # on its way out a call may have made another connection
    if not _running:
        return
    at_rest = _come_to_rest(SHARED_S if _shared else SHUTDOWN_S)
    _running = _shared = not at_rest
    if not at_rest or not empty:
        _warn()


def _abandon_all(*, cut: bool) -> None:
    for part in _parts:
        part.abandon(cut=cut)


def _come_to_rest(timeout_s: float) -> bool:
    if not wait_for_shutdown(timeout_s):
        return False
    # The last threads seen to end may be joined by a Python thread that is still inside and holds a lock. Starting and
    # ending gRPC here needs that lock, and no other shutdown than this one follows.
    for part in _parts:
        part.start_and_end()
    return wait_for_shutdown(timeout_s)


def _warn() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "gRPC is running in this process while it forks, and cannot be ended, as something else uses it or a call "
            "does not return: the child may crash or hang. Fork before gRPC is used, or start the child by 'spawn'",
            RuntimeWarning,
            stacklevel=3,
        )


def _after_fork_in_child() -> None:
    global _running, _shared
    _running = _shared = False  # nothing runs here
    GATE.open_in_child()
    for part in _parts:
        part.forget_inherited()


_BEFORE_THIS = concurrent.futures.thread, logging
os.register_at_fork(before=_before_fork, after_in_parent=GATE.open, after_in_child=_after_fork_in_child)
