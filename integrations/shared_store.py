"""Shared store: one instance for all integrations in this process that use the same store. It takes the lock only
while something writes.

fsspec creates a file system per thread, a training script has a loader, an I/O backend and an opener, and libraries use
many threads. An embedded store has one writer at a time, and readers must not take that role. Therefore, reading never
locks, the first write opens the store for writing, and IDLE_S after the end of the last write the store is closed again
and others can write to it. The lock is released immediately by `release`, before a fork (otherwise, a child could not
write), at the end of the process, and when a client of this process wants to write. If such a client already holds the
lock, it does the writes.

This process reads its own writes immediately, because its readers follow the commits of its writers. A storage node has
no lock, and one client does both.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import ais_loader
from ais_loader import Client, errors
from ais_loader.objects.client import URL_VARIABLE
from ais_loader.values.urls import is_remote, store_folders
from ais_loader.wire.backoff import Backoff

if TYPE_CHECKING:
    from ais_loader.transport.embedded import EmbeddedTransport

logger = logging.getLogger(__name__)

IDLE_S = 1.0
"""How long to keep the lock after a write, since another one often follows: opening and closing takes a twentieth of a
second, and a write a thousandth."""

_NOTE_AFTER_S = 1.0
"""A longer wait for another writer is logged, once."""
_PAUSES = Backoff(0.2, 0.2, jitter=0.9)
_NOTES_S = 0.1
"""Notes of progress are at least this far apart."""

_stores: WeakValueDictionary[str, SharedStore] = WeakValueDictionary()
_lock = threading.Lock()


def named_url(url: str | os.PathLike[str] | None = None) -> str | None:
    """Return the store's URL, or the current AIS_LOADER_URL, or None if neither is set."""
    return (os.fspath(url) if url else os.environ.get(URL_VARIABLE)) or None


def shared_store(
    url: str | os.PathLike[str] | None = None, connect_options: Mapping[str, Any] | None = None
) -> SharedStore:
    """Return the store at this URL, or at AIS_LOADER_URL. All callers in this process get the same instance.

    It lives as long as it is referenced. Raises the errors of `connect`, except if there is no store yet: the first
    write creates it.
    """
    named, options = named_url(url), connect_options or {}
    key = f"{_normal(named)!r} {sorted(options.items())!r}"
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = SharedStore(named, options)
        return store


class StoreReference:
    """A reference to a store by URL, resolved at each use. It pickles as the URL, and is thread-safe.

    Without a URL, it refers to the store that AIS_LOADER_URL names at each use, even if that changes.
    """

    def __init__(
        self, url: str | os.PathLike[str] | None = None, connect_options: Mapping[str, Any] | None = None
    ) -> None:
        """Open nothing yet. The arguments are those of `ais_loader.connect`."""
        self.url = os.fspath(url) if url else None
        self._options = dict(connect_options or {})
        self._store: SharedStore | None = None  # keeps the store alive

    def store(self) -> SharedStore:
        """Return the store. Raises the errors of `connect`."""
        self._store = shared_store(self.url, self._options)
        return self._store

    def reader(self) -> Client:
        """Return a client for reading. Do not close it. Raises the errors of `connect`."""
        return self.store().reader()

    @contextmanager
    def writer(self, wait_s: float = 0.0) -> Iterator[Client]:
        """Yield a client for writing. `wait_s` and the errors are those of `SharedStore.writer`."""
        with self.store().writer(wait_s) as client:
            yield client

    def progressed(self) -> None:
        """Show processes that wait to write that a write of this one has got on."""
        self.store().progressed()

    def __getstate__(self) -> tuple[str | None, dict[str, Any]]:
        return self.url, self._options

    def __setstate__(self, state: tuple[str | None, dict[str, Any]]) -> None:
        self.url, self._options = state
        self._store = None

    def __repr__(self) -> str:
        return f"StoreReference({self.url!r})"


def _normal(url: str | None) -> str | None:
    if url is None or ("://" in url and not url.startswith("file://")):
        return url
    return ",".join(map(os.path.abspath, store_folders(url)))


class SharedStore:
    """A store that is shared in this process. It is thread-safe, and starts afresh in a forked child."""

    def __init__(self, url: str | None, connect_options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = dict(connect_options)
        self._locks_to_write = "mode" not in self._options and not is_remote(url or "")
        """Whether this is an embedded store without an explicit mode."""
        self._reader: Client | None = None
        self.changes = 0
        """The number of writes that this process began and ended, and of calls of `forget`."""
        self._start()
        with suppress(errors.StoreNotFound):
            self.reader()  # a wrong URL is told at once

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a garbage collection may end a write anywhere, even in here
        self._writer: Client | None = None  # guarded by _lock, like all that follows
        self._writes: set[object] = set()
        """The writes in progress, which need the writer."""
        self._last_write_s = 0.0
        self._noted_s = 0.0
        self._timer: threading.Timer | None = None

    def reader(self) -> Client:
        """Return a client for reading. Raises the errors of `connect`."""
        with self._lock:
            return self._reader_now()

    def _reader_now(self) -> Client:
        if self._reader is None or self._reader.closed:
            options = self._options | ({"mode": "r"} if self._locks_to_write else {})
            self._reader = ais_loader.connect(self._url, **options)
        return self._reader

    @contextmanager
    def writer(self, wait_s: float = 0.0) -> Iterator[Client]:
        """Yield a client that may write until the end of the block.

        While someone else has the store open for writing, this retries. Readers of this process continue in the
        meantime. It raises StoreLocked once the other has made no progress for `wait_s` seconds: nothing was committed,
        no upload grew, no other process became the writer, and `progressed` was not called there. The errors of
        `connect` are raised immediately.
        """
        write, pid = object(), os.getpid()
        client = self._begin(write, wait_s)
        try:
            yield client
        finally:
            if pid == os.getpid():  # otherwise the parent began it
                with self._lock:
                    self.changes += 1
                    self._writes.discard(write)
                    self._last_write_s = time.monotonic()
                    if self._writer is not None and self._timer is None:
                        self._wait(IDLE_S)

    def _begin(self, write: object, wait_s: float) -> Client:
        """Register this write, as soon as no one else is writing."""
        started_s = moved_s = time.monotonic()
        noted, seen = False, None
        while True:
            try:
                with self._lock:
                    client = self._writer_now()
                    self._writes.add(write)
                    self.changes += 1
                    return client
            except errors.StoreLocked as error:
                if wait_s <= 0:
                    raise
                now_s, pause_s, mark = time.monotonic(), _PAUSES.pause_s(), (str(error), self._writing_mark())
                if mark != seen:
                    moved_s, seen = now_s, mark
                if now_s - moved_s + pause_s >= wait_s:
                    raise errors.StoreLocked(
                        f"{error}; waited {wait_s:g} s for it, in which it made no progress"
                    ) from error
                if not noted and now_s - started_s >= _NOTE_AFTER_S:
                    noted = True
                    logger.warning("waiting to write, for up to %g s without progress of the other: %s", wait_s, error)
            time.sleep(pause_s)

    def _writing_mark(self) -> tuple[object, ...]:
        from ais_loader.transport.embedded import writing_mark

        return writing_mark(store_folders(self._url or ""))

    def progressed(self) -> None:
        """Show other processes that wait to write that a write of this one has got on: it has more of its bytes."""
        now_s = time.monotonic()
        if self._locks_to_write and now_s - self._noted_s >= _NOTES_S:
            from ais_loader.transport.embedded import note_writing

            self._noted_s = now_s
            note_writing(store_folders(self._url or ""))

    def _writer_now(self) -> Client:
        if not self._locks_to_write:
            return self._reader_now()
        if self._writer is None or self._writer.closed:
            from ais_loader.transport.embedded import writer_here

            paths = store_folders(self._url or "")
            own = writer_here(paths)
            if own is not None and own.on_wanted is None:
                return Client(own)
            client = ais_loader.connect(self._url, **self._options, mode="a")
            opened: EmbeddedTransport | None = writer_here(paths)
            assert opened is not None
            opened.on_wanted = self.release
            self._writer = client
        return self._writer

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._release_when_idle)
        self._timer.daemon = True
        self._timer.start()

    def _release_when_idle(self) -> None:
        with self._lock:
            self._timer = None
            left_s = self._last_write_s + IDLE_S - time.monotonic()
            if self._writer is None or self._writes:
                return  # the end of that write starts the timer again
            if left_s > 0:
                self._wait(left_s)
            else:
                self._close_writer()

    def forget(self) -> None:
        """Make those that keep what they have read request it again."""
        with self._lock:
            self.changes += 1

    def release(self) -> None:
        """Release the lock now, unless a write is in progress."""
        with self._lock:
            if not self._writes:
                self._close_writer()

    def _close_writer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def begin_in_child(self) -> None:
        """Reset after a fork: the writer belongs to the parent, and the thread that holds _lock may not exist here."""
        self._start()


def _release_all() -> None:
    for store in list(_stores.values()):
        store.release()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for store in list(_stores.values()):
        store.begin_in_child()


atexit.register(_release_all)
os.register_at_fork(before=_release_all, after_in_child=_after_fork_in_child)
