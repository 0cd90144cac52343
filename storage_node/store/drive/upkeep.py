"""Upkeep of the drives of a store that is open for writing: reaps dead files, and compacts segments.

Commits reap what is due as well. The upkeep is for what they leave: after the last of them, nothing would be removed
before the store is closed. It has one thread for all drives, which exists while there is something to do. It moves at
most as many bytes a second as it was told, and moves objects for a quarter of the time at most. When it has moved some
and nothing is left to do, it flushes the catalog, whose log then has many entries more than once. While it waits, it
refers to no drive: a store that nobody uses any more is collected. Thread-safe. In a forked child it does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from ais_loader.errors import Closed, LoaderError
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.segment_compaction import Compacted
from storage_node.store.format import Version

COMPACT_BYTES_PER_S = 32 << 20
_LEAST_CHARGE_BYTES = 4096
"""A moved object counts as this many bytes at least: small ones cost processor time rather than bandwidth."""
_PAUSES = 3.0
"""Pause after a step, as a multiple of its own time: writes wait for its commit, and share the processor with it."""
_SLACK_S = 0.25
"""Dead files are reaped this much later than they are due, many at once."""
_RETRY_S = 10.0
"""Pause after a drive has refused something."""
_STOP_S = 20.0
log = logging.getLogger(__name__)
_all: weakref.WeakSet[Upkeep] = weakref.WeakSet()


@dataclass(slots=True)
class UpkeepCounts:
    """Counters since the store was opened."""

    moved_objects: int = 0
    moved_bytes: int = 0


class Upkeep:
    def __init__(self, damaged: Callable[[bytes, str, Version], None], compact_bytes_per_s: float) -> None:
        """`damaged` is called with bucket uuid, name and version of each damaged object that is found. Segments are not
        compacted if the rate is 0."""
        self.counts = UpkeepCounts()
        self._damaged = damaged
        self._bytes_per_s = compact_bytes_per_s
        self._pid = os.getpid()
        self._drives: weakref.WeakSet[Drive] = weakref.WeakSet()
        self._moved_on: weakref.WeakSet[Drive] = weakref.WeakSet()
        """Drives on which objects have moved since the catalog was flushed: the log is full of entries replaced since.
        """
        self._refused_until_s: weakref.WeakKeyDictionary[Drive, float] = weakref.WeakKeyDictionary()
        self._logged: weakref.WeakKeyDictionary[Drive, str] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # guarded by _lock, as is _woken
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._compacts_at_s = 0.0
        """When the next group may be moved, on the monotonic clock."""
        _all.add(self)

    def add(self, drive: Drive) -> None:
        """Look after this drive, as long as it is open and used."""
        self._drives.add(drive)
        if len(drive.sparse):
            self.wake()

    def wake(self) -> None:
        """Note that a drive may have something to reap or to compact."""
        with self._lock:
            self._woken.set()
            if self._thread is None and not self._stop.is_set():
                thread = threading.Thread(target=self._run, name="ais-loader-upkeep", daemon=True)
                with contextlib.suppress(RuntimeError):  # none can be started now; the next change tries again
                    thread.start()
                    self._thread = thread

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be reaped or compacted, or was when each drive was looked at last."""
        with self._lock:
            return self._thread is None

    def stop(self) -> None:
        """Stop the thread, and wait for it. Nothing is looked after any more."""
        if self._pid != os.getpid():
            return
        self._stop.set()
        self._woken.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._woken.clear()
            if self._stop.is_set():
                return
            wait_s = self._look_after_all()
            with self._lock:
                if wait_s is None and not self._woken.is_set():
                    self._thread = None
                    return
            if self._woken.wait(wait_s):  # also by its own moves, which must not slow it down
                self._stop.wait(_SLACK_S if wait_s is None else min(wait_s, _SLACK_S))

    def _look_after_all(self) -> float | None:
        """Do what is due. Returns the time until there is more to do; None if there is nothing."""
        waits = [wait_s for drive in list(self._drives) if (wait_s := self._look_after(drive)) is not None]
        return min(waits, default=None)

    def _look_after(self, drive: Drive) -> float | None:
        refused_s = self._refused_until_s.get(drive, 0.0) - time.monotonic()
        if refused_s > 0:
            return refused_s
        try:
            drive.reap()
            waits: list[float] = []
            if len(drive.sparse) and self._bytes_per_s > 0:
                if time.monotonic() >= self._compacts_at_s:
                    began_s = time.monotonic()
                    self._charge(drive, drive.compact_segments(), began_s)
                waits.append(max(0.0, self._compacts_at_s - time.monotonic()))
            if (due_s := drive.due_in_s()) is not None:
                waits.append(due_s + _SLACK_S)
            if not waits and drive in self._moved_on:
                self._moved_on.discard(drive)
                drive.flush_catalog()
            return min(waits, default=None)
        except Closed:
            self._drives.discard(drive)
            return None
        except (LoaderError, OSError) as error:
            if self._logged.get(drive) != str(error):
                log.warning("%s: replaced objects keep their space for now: %s", drive.root, error)
            self._logged[drive] = str(error)
        except Exception:
            log.exception("looking after a drive")
        self._refused_until_s[drive] = time.monotonic() + _RETRY_S
        return _RETRY_S

    def _charge(self, drive: Drive, done: Compacted, began_s: float) -> None:
        if done.objects:
            self._moved_on.add(drive)
        self.counts.moved_objects += done.objects
        self.counts.moved_bytes += done.bytes
        for damaged in done.damaged:
            self._damaged(*damaged)
        charged = max(done.bytes, done.objects * _LEAST_CHARGE_BYTES)
        now_s = time.monotonic()
        self._compacts_at_s = now_s + max(charged / self._bytes_per_s, _PAUSES * (now_s - began_s))


def _stop_all() -> None:
    """Stop all threads before the interpreter ends: a thread that is inside RocksDB then would crash the process."""
    for upkeep in list(_all):
        with contextlib.suppress(Exception):
            upkeep.stop()


atexit.register(_stop_all)
