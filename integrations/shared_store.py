"""Shared store: one for all integrations of this process that mean it, reader of all, and lock while one writes.

fsspec makes a file system for each thread that asks for one, a training script has a loader, an I/O backend and an
opener, and libraries ask from many threads. An embedded store has one writer at a time, and whoever only reads must not
be that one: reading never locks, the first write opens the store for writing, and IDLE_S after the end of the last
write the store is closed again and others may write to it. It is let go of at once by `release`, before a fork (a child
could not write to it otherwise), at the end of the process, and when a client of this process wants to write to it. If
such a client holds it already, writes are done by that one.

What is written is read at once by this process: its readers follow the commits of its writers. A storage node has no
lock, and one client does both.
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

import tenacity

import ais_loader
from ais_loader import Client, errors
from ais_loader.client import URL_VARIABLE
from ais_loader.urls import store_folders

if TYPE_CHECKING:
    from ais_loader.transport.embedded import EmbeddedTransport

logger = logging.getLogger(__name__)

IDLE_S = 1.0
"""How long the lock is kept after a write, as the next one follows often: opening and closing takes a twentieth of a
second, a write a thousandth."""

_TELL_AFTER_S = 1.0
"""A wait for another writer that is longer is logged, once."""

_stores: WeakValueDictionary[str, SharedStore] = WeakValueDictionary()
_lock = threading.Lock()


def named_url(url: str | os.PathLike[str] | None = None) -> str | None:
    """The store's URL, or the one that AIS_LOADER_URL names now; None where neither says."""
    return (os.fspath(url) if url else os.environ.get(URL_VARIABLE)) or None


def shared_store(
    url: str | os.PathLike[str] | None = None, connect_options: Mapping[str, Any] | None = None
) -> SharedStore:
    """The store at this URL, or at the one in AIS_LOADER_URL, the same for everybody in this process.

    It lasts as long as somebody refers to it. Raises what `connect` raises, but where there is no store yet: the first
    write makes it.
    """
    named, options = named_url(url), connect_options or {}
    key = f"{_normal(named)!r} {sorted(options.items())!r}"
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = SharedStore(named, options)
        return store


class StoreReference:
    """A store by its URL, found when it is used; pickles as that. Thread-safe.

    Without a URL it is the store that AIS_LOADER_URL names at each use, also where it is changed in between.
    """

    def __init__(
        self, url: str | os.PathLike[str] | None = None, connect_options: Mapping[str, Any] | None = None
    ) -> None:
        """Nothing is opened here. Arguments as for `ais_loader.connect`."""
        self.url = os.fspath(url) if url else None
        self._options = dict(connect_options or {})
        self._store: SharedStore | None = None  # keeps it

    def store(self) -> SharedStore:
        """Raises what `connect` raises."""
        self._store = shared_store(self.url, self._options)
        return self._store

    def reader(self) -> Client:
        """A client for reading, which is not to be closed. Raises what `connect` raises."""
        return self.store().reader()

    @contextmanager
    def writer(self, wait_s: float = 0.0) -> Iterator[Client]:
        """A client for writing until the end of the block; `wait_s` and errors as for `SharedStore.writer`."""
        with self.store().writer(wait_s) as client:
            yield client

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
    """Thread-safe; in a forked child it begins anew."""

    def __init__(self, url: str | None, connect_options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = dict(connect_options)
        self._locks_to_write = "mode" not in self._options and not (url or "").startswith("grpc://")
        """An embedded store about which nothing else was said."""
        self._reader: Client | None = None
        self._start()
        with suppress(errors.StoreNotFound):
            self.reader()  # a wrong URL is told at once

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # the collector may end a write anywhere, in here too
        self._writer: Client | None = None  # guarded by _lock, as all that follows
        self._writes: set[object] = set()
        """Under way: they need the writer."""
        self._last_write_s = 0.0
        self._timer: threading.Timer | None = None

    def reader(self) -> Client:
        """Raises what `connect` raises."""
        with self._lock:
            return self._reader_now()

    def _reader_now(self) -> Client:
        if self._reader is None or self._reader.closed:
            options = self._options | ({"mode": "r"} if self._locks_to_write else {})
            self._reader = ais_loader.connect(self._url, **options)
        return self._reader

    @contextmanager
    def writer(self, wait_s: float = 0.0) -> Iterator[Client]:
        """A client that may write, until the end of the block.

        While somebody else holds the store for writing, it is asked for again and again for `wait_s` seconds; readers
        of this process go on meanwhile. Raises StoreLocked after that, and what `connect` raises at once.
        """
        write, pid = object(), os.getpid()
        client = self._begin(write, wait_s)
        try:
            yield client
        finally:
            if pid == os.getpid():  # otherwise the parent began it
                with self._lock:
                    self._writes.discard(write)
                    self._last_write_s = time.monotonic()
                    if self._writer is not None and self._timer is None:
                        self._wait(IDLE_S)

    def _begin(self, write: object, wait_s: float) -> Client:
        """Take part in writing under this name, as soon as nobody else writes."""
        told = False

        def tell(state: tenacity.RetryCallState) -> None:
            nonlocal told
            waited_s = state.seconds_since_start or 0.0
            if not told and waited_s >= _TELL_AFTER_S and state.outcome is not None:
                told = True
                logger.warning("waiting up to %g s to write: %s", wait_s, state.outcome.exception())

        def begin() -> Client:
            with self._lock:
                client = self._writer_now()
                self._writes.add(write)
                return client

        waiting = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(errors.StoreLocked),
            stop=tenacity.stop_before_delay(wait_s),
            wait=tenacity.wait_random(0.02, 0.2),
            before_sleep=tell,
            reraise=True,
        )
        try:
            return waiting(begin)
        except errors.StoreLocked as error:
            if wait_s <= 0:
                raise
            raise errors.StoreLocked(f"{error}; waited {wait_s:g} s for it") from error

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
                return  # the end of that write waits again
            if left_s > 0:
                self._wait(left_s)
            else:
                self._close_writer()

    def release(self) -> None:
        """Let go of the lock now, unless something is being written."""
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
        """After a fork: the writer is the parent's, and the thread that holds _lock may not be here."""
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
