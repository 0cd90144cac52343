"""Fork safety of gRPC: what has to be over before the process forks.

A child inherits gRPC's locks and none of its threads: forked over while gRPC runs, begins or shuts down, it may hang
for ever at its first call, or in gRPC's own fork handlers. So a fork lets nobody of ours into gRPC until it is over,
however long it takes; waits for those who are inside; ends what is under way, which begins anew afterwards; and gives
gRPC the time to shut down, which the end of gRPC's threads shows. The first of a row of forks pays some hundredths of a
second for it. Where others in this process use gRPC too it cannot be had to shut down, and a warning says so: gRPC's
own handlers begin its threads anew in the child, and one of those crashed it in 12 of 120 such forks.

No gRPC here, and nothing that takes long to import: whoever imports it in a hurry does so inside the barrier.
"""

from __future__ import annotations

# Before a fork logging and thread pools take a lock of theirs, and the last to be registered is the first to be asked:
# they have to stand before this module. Else a fork would hold their locks while it waits for those who need them.
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
"""Longest wait for running calls before a fork, which ends them then: a silent node must not stall the trainer."""
LEAVE_S = 5.0
"""How long the callers of those may take to notice."""
SHUTDOWN_S = 5.0
"""Longest wait for gRPC to shut down before a fork; it takes some hundredths of a second where only we use it, and a
second where fifty processes want the processor."""
SHARED_S = 0.5
"""The same, when the last wait was for nothing: each worker of a DataLoader is a fork."""

_GRPC_THREADS = {"grpc_global_tim", "event_engine", "lifeguard", "grpc_shutdown"}
"""Names of gRPC's own threads, as Linux cuts them."""
_TICK_S = 0.005
_COLLECT_AFTER_S = 0.25
_LOOKS_PER_S = 50
"""A wait takes so many looks, too: where nobody gets the processor, gRPC does not get it either."""
_THREADS = "/proc/self/task"
_AWAKE = {"R", "D"}
"""States of a thread that runs, or waits for a processor or for a page."""


class ForkPart(Protocol):
    """What has connections of gRPC."""

    def let_go(self, *, cut: bool) -> None:
        """Before a fork, maybe several times: end what is under way. `cut`: calls have been given their time."""

    def start_and_end(self) -> None:
        """Have gRPC start and end, by making and closing something that needs it."""

    def forget_inherited(self) -> None:
        """In a forked child: connections are the parent's, and a lock may be held by a thread that is not here."""


class ForkBarrier:
    """Keeps what our threads do in gRPC apart from forks. Thread-safe.

    A thread that is inside may go in again, and so may the one that forks: whatever it runs on its way to the fork,
    such as a destructor, nobody else could end for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._forker: int | None = None  # guarded by _changed, as the next two
        self._forks = 0
        """How many the forker has begun: a signal's handler may fork while it is at it."""
        self._inside: dict[int, int] = {}
        """By thread, how often it has gone in."""

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
                times = self._inside.pop(me, 0) - 1  # none in a child that was forked in here
                if times > 0:
                    self._inside[me] = times
                self._changed.notify_all()

    def close(self) -> None:
        """Before a fork: let nobody in any more. Returns when no other thread is forking."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forker in (None, me))
            self._forker = me
            self._forks += 1

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait for those who are inside; False when somebody stays in too long."""
        me = threading.get_ident()
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside.keys() - {me}, timeout_s)

    def open(self) -> None:
        """After a fork, in the parent."""
        with self._changed:
            if self._forker != threading.get_ident():
                return  # the fork began before there was a barrier
            self._forks -= 1
            if not self._forks:
                self._forker = None
                self._changed.notify_all()

    def open_in_child(self) -> None:
        """After a fork, in the child: whoever was inside is not here."""
        self.__init__()  # type: ignore[misc]


GATE = ForkBarrier()
_parts: list[ForkPart] = []
_running = False
"""Whether we may have set gRPC running since it was last seen to be at rest."""
_shared = _warned = False


def take_part(part: ForkPart) -> None:
    """For as long as the process lives."""
    _parts.append(part)


def grpc_begins() -> None:
    """To be called inside the barrier, before anything of gRPC is made."""
    global _running
    _running = True


def wait_for_shutdown(timeout_s: float) -> bool:
    """Wait until gRPC has shut down in this process; False when it has not in time, as when others use it too.

    It does so by itself, in a thread of its own, when the last of its objects is gone. Where there are no threads to
    look up, there is nothing to wait for.
    """
    began_s, looks, quiet_looks = time.monotonic(), 0, 0
    collected = False
    while True:
        quiet_looks = 0 if _grpc_may_run() else quiet_looks + 1
        if quiet_looks == 2:  # one that has just begun may have been asleep, for a lock, before it had its name
            return True
        waited_s, looks = time.monotonic() - began_s, looks + 1
        if not quiet_looks and waited_s > timeout_s and looks > timeout_s * _LOOKS_PER_S:
            return False
        time.sleep(_TICK_S)
        if not collected and waited_s > _COLLECT_AFTER_S:
            gc.collect()  # a call that is kept by a cycle, such as an exception's, keeps gRPC
            collected = True


def _grpc_may_run() -> bool:
    """Whether there is a thread of gRPC's, or one that is too young to tell.

    While one that ends is looked at, another that it has begun may have been missed: all of them are looked at again.
    """
    while True:
        try:
            return any(map(_may_be_of_grpc, os.listdir(_THREADS)))
        except (FileNotFoundError, ProcessLookupError):
            if not os.path.exists(_THREADS):
                return False


def _may_be_of_grpc(thread: str) -> bool:
    """A thread gives itself its name when it first runs, which on a busy machine is not when it is made."""
    with open(f"{_THREADS}/{thread}/stat") as file:  # as proc(5) has it
        name, _, rest = file.read().partition("(")[2].rpartition(")")
    state, *_, user_ticks, system_ticks = rest.split()[:13]
    return name in _GRPC_THREADS or (state in _AWAKE and user_ticks == system_ticks == "0")


def _before_fork() -> None:
    global _running, _shared
    GATE.close()
    empty = GATE.wait_until_empty(WAIT_S)
    ends_at_s = time.monotonic() + LEAVE_S
    _let_go(cut=not empty)
    while not empty and time.monotonic() < ends_at_s:
        empty = GATE.wait_until_empty(LEAVE_S / 10)
        _let_go(cut=not empty)  # on its way out a call may have made another connection
    if not _running:
        return
    at_rest = _come_to_rest(SHARED_S if _shared else SHUTDOWN_S)
    _running = _shared = not at_rest
    if not at_rest or not empty:
        _warn()


def _let_go(*, cut: bool) -> None:
    for part in _parts:
        part.let_go(cut=cut)


def _come_to_rest(timeout_s: float) -> bool:
    if not wait_for_shutdown(timeout_s):
        return False
    # The last threads that are seen to end may be joined by one of Python's, which is still inside, with a lock.
    # Starting and ending gRPC here needs that lock, and is followed by nobody's shutdown but this.
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
