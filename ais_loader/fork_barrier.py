"""Fork barrier: while the process forks, no other thread is where a library holds locks of the whole process.

A forked child has a copy of such a lock as it was, and not the thread that would release it. gRPC has such locks, see
`transport.fork_safety`, and RocksDB while it opens and closes a database (the one around its timer), and while it
flushes and compacts one (that of its threads).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ForkBarrier:
    """Barrier between our threads in these libraries and forks. Thread-safe.

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
"""The barrier of this process."""
