"""Location fill: adds the locations of a drive's objects to its table, by one sequential scan in the background.

A scan finds an object in half the time of a look-up. It is due when what was looked up is a quarter of all objects, so
that it never costs a process more than twice what its own look-ups have cost; at once if there are few objects, and
when a node starts. It ends early when the memory of locations is full, and when a reader that follows a writer drops
everything.

Every part is a scan of its own, which begins behind the part before. The catalog may change between them: `EntryCache`
skips what has changed since the fill began.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable

from ais_loader.errors import LoaderError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.entry_cache import EntryCache

Owns = Callable[[list[bytes]], Iterable[bool]]
"""Tells which of these catalog keys are of objects that the drive owns. What else it has is never looked up there."""
_PART = 1024
_PAUSE_S = 0.0003
"""About the time of a part, for threads that wait for the interpreter."""
_AT_ONCE = 1 << 12
_DUE_SHARE = 4
_ALL = b""


class LocationFill:
    """Fill of one drive's table. Thread-safe. Refers to the catalog weakly: an unused drive is closed at once."""

    def __init__(self, catalog: Catalog, cache: EntryCache, filled: weakref.WeakMethod[Callable[[], None]]) -> None:
        """`filled`: called in the fill's thread when the table has all locations."""
        self._catalog = weakref.ref(catalog)
        self._cache = cache
        self._filled = filled
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # guarded by _lock
        self._stopped = threading.Event()
        self._learned = _AT_ONCE // _DUE_SHARE

    def note_learned(self, count: int, owns: Owns) -> None:
        """Note that so many locations had to be looked up, and start a fill if it is due."""
        self._learned += count
        catalog = self._catalog()
        if catalog is not None and self._thread is None and _DUE_SHARE * self._learned >= catalog.estimated_keys():
            self.start(owns)

    def start(self, owns: Owns) -> None:
        """Start a fill, unless one is under way."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._learned = 0
                self._cache.watch_changes(True)
                self._thread = threading.Thread(target=self._run, args=(owns,), name="ais-loader-locations")
                self._thread.start()

    def _run(self, owns: Owns) -> None:
        after: bytes | None = fmt.OBJECT_PREFIX
        is_filled = False
        try:
            while after and not self._stopped.wait(_PAUSE_S) and threading.main_thread().is_alive():
                after = self._add_part(owns, after)
            is_filled = after == _ALL
        except LoaderError:  # whoever reads gets it
            pass
        finally:
            self._cache.watch_changes(False, is_filled=is_filled)
            if is_filled and (filled := self._filled()) is not None:
                filled()
            with self._lock:
                self._thread = None

    def _add_part(self, owns: Owns, after: bytes) -> bytes | None:
        """Add the part behind this key. Returns its last key; _ALL if it was the last part, None if the fill has to end
        before."""
        if (catalog := self._catalog()) is None:
            return None
        part = list(itertools.islice(catalog.scan(fmt.OBJECT_PREFIX, after), _PART))
        owned = list(itertools.compress(part, owns([key for key, _ in part])))
        if not self._cache.fill(owned):
            return None
        return part[-1][0] if len(part) == _PART else _ALL

    def wait(self, timeout_s: float) -> bool:
        """Wait until no fill is under way. Returns whether that is so."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def stop(self) -> None:
        """End the fill after its part, and start none any more."""
        self._stopped.set()
        self.wait(timeout_s=60.0)
