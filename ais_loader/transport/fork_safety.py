"""Fork safety of gRPC: what must have ended before the process forks.

A child inherits gRPC's locks but none of its threads. Forked while gRPC runs, starts or shuts down, it may hang forever
at its first call, or in gRPC's own fork handlers. Before a fork, this module therefore closes a barrier: no thread of
ours enters gRPC until the fork is over. It waits for the threads inside, ends running calls and streams (which start
again after the fork), and gives gRPC the time to shut down, which is complete when gRPC's threads have ended. The first
of a series of forks takes some hundredths of a second for this. If other code in this process uses gRPC too, it cannot
be shut down, and a warning says so: gRPC's own handlers restart its threads in the child, and one of those crashed the
child in 12 of 120 such forks.

A thread that has ended for Python may still free what libraries keep for it. RocksDB holds a lock meanwhile that every
opening in the child would wait for. A fork waits for such threads too.

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
from typing import Protocol

from ais_loader.fork_barrier import GATE

WAIT_S = 5.0
"""Longest wait for running calls before a fork, which then ends them: a silent node must not stall the trainer."""
LEAVE_S = 5.0
"""Time for the callers of those calls to notice."""
SHUTDOWN_S = 5.0
"""Longest wait for gRPC to shut down before a fork. It takes some hundredths of a second if only this module uses it,
and a second if fifty processes compete for the CPU."""
SHARED_S = 0.5
"""The same, if the last wait was in vain: each worker of a DataLoader is a fork."""

ENDING_S = 5.0
"""Longest wait before a fork for threads that are about to end."""

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
_LONG_NS = 2_000_000
"""Processor time after which a thread is not one that ends."""


class ForkPart(Protocol):
    """An owner of gRPC connections."""

    def abandon(self, *, cut: bool) -> None:
        """Called before a fork, possibly several times: end what is running. `cut`: calls have had their time."""

    def start_and_end(self) -> None:
        """Start and end gRPC by creating and closing an object that needs it."""

    def forget_inherited(self) -> None:
        """Called in a forked child: connections are the parent's, and a lock may be held by a thread that does not
        exist here."""


__all__ = ["GATE", "ForkPart", "grpc_begins", "register_part", "wait_for_shutdown"]
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


def _stat_of(thread: str) -> tuple[str, list[str]]:
    """Return the name of a thread, and the fields behind it, of which the first is its state."""
    with open(f"{_THREADS}/{thread}/stat") as file:  # format: proc(5)
        name, _, rest = file.read().partition("(")[2].rpartition(")")
    return name, rest.split()


def _may_be_of_grpc(thread: str) -> bool:
    """A thread sets its name when it first runs, which on a busy machine is later than its creation."""
    name, fields = _stat_of(thread)
    state, *_, user_ticks, system_ticks = fields[:13]
    return name in _GRPC_THREADS or (state in _AWAKE and user_ticks == system_ticks == "0")


def wait_for_ending_threads(timeout_s: float) -> bool:
    """Wait until threads that Python does not know any more are gone. Returns False if they are not in time.

    Threads that Python has never known, of other libraries, sleep, or use more time than any thread does when it ends.
    """
    ends_at_s, first_ns = time.monotonic() + timeout_s, dict[str, int]()
    while True:
        known = {str(thread.native_id) for thread in threading.enumerate()}
        try:
            unknown = set(os.listdir(_THREADS)) - known
        except FileNotFoundError:
            return True
        if not any(_may_end(thread, first_ns) for thread in unknown):
            return True
        if time.monotonic() > ends_at_s:
            return False
        time.sleep(_TICK_S / 10)


def _may_end(thread: str, first_ns: dict[str, int]) -> bool:
    """`first_ns`: the processor time of each thread when it was first seen."""
    try:
        name, (state, *_) = _stat_of(thread)
        with open(f"{_THREADS}/{thread}/schedstat") as file:
            used_ns = int(file.read().split()[0])
    except (FileNotFoundError, ProcessLookupError):  # it has ended; or the kernel does not count
        return False
    if name.startswith("rocksdb:"):  # it does not end, but it may hold the lock of RocksDB's threads
        return state in _AWAKE
    return state in _AWAKE and used_ns - first_ns.setdefault(thread, used_ns) < _LONG_NS


def _before_fork() -> None:
    GATE.close()
    empty = GATE.wait_until_empty(WAIT_S)
    ends_at_s = time.monotonic() + LEAVE_S
    _abandon_all(cut=not empty)
    while not empty and time.monotonic() < ends_at_s:
        empty = GATE.wait_until_empty(LEAVE_S / 10)
        _abandon_all(cut=not empty)  # on its way out a call may have made another connection
    if _running:
        _end_grpc(empty)
    wait_for_ending_threads(ENDING_S)


def _end_grpc(empty: bool) -> None:
    global _running, _shared
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
            stacklevel=4,
        )


def _after_fork_in_child() -> None:
    global _running, _shared
    gc.freeze()  # the parent's garbage has handles of libraries, which may wait for the parent's threads when freed
    _running = _shared = False  # nothing runs here
    GATE.open_in_child()
    for part in _parts:
        part.forget_inherited()


_BEFORE_THIS = concurrent.futures.thread, logging
os.register_at_fork(before=_before_fork, after_in_parent=GATE.open, after_in_child=_after_fork_in_child)
