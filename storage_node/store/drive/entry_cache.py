"""Cache of catalog entries of one drive, and of the locations of its objects.

A scan in the background fills the locations. It finds an object in half the time of a look-up. It is due when what was
looked up is a quarter of all objects, so that it never costs a process more than twice what its own look-ups have cost;
at once if there are few objects, and when a node starts. It ends early when the memory of locations is full, and when a
reader that follows a writer drops everything.

Every part is a scan of its own, which begins behind the part before. The catalog may change between them: `EntryCache`
skips what has changed since the fill began.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ais_loader.errors import LoaderError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.locations import Locations, limit_bytes
from storage_node.store.drive.shared_locations import SharedLocations
from storage_node.store.format import CatalogEntry, decode_entry, is_object

GENERATION_ENTRIES = 1 << 15
"""The cache has at most two generations: about 25 MiB."""
_FEW = 64
"""Maximum size of a commit whose entries are kept: larger ones would displace what is in use."""


class EntryCache:
    """Cache in front of RocksDB: a look-up takes a tenth of a microsecond here, two microseconds there.

    Entries that are used again survive others: when the newer generation is full, it becomes the older one, and what it
    replaces is dropped. An entry of the older generation that is looked up moves to the newer one.

    It is never stale with respect to commits of this process, not even between the catalog's write and its return: a
    look-up finds whatever a listing shows. A commit removes the entries that it changes before it writes. Meanwhile
    look-ups read the catalog, and a look-up in progress cannot restore an old entry. Thread-safe.

    `locations` holds the locations of many more objects than there are entries, and is invalidated with them. A commit
    adds what it has written, and its entries if they are few. A fill adds what a scan finds, except for what has
    changed since the fill began.
    """

    def __init__(self, dirfd: int = -1, shared: SharedLocations | None = None) -> None:
        """`dirfd`: descriptor of the folder that paths of entries are relative to. `shared`: the file of the table, if
        this process writes to the drive."""
        self.locations = Locations(dirfd, limit_bytes())  # guarded by _lock for changes
        self._shared = shared  # guarded by _lock
        self.has_all = False
        """Whether the table has been filled, so that only large objects are unknown."""
        self._room = 0
        self._lock = threading.Lock()
        self._newer: dict[bytes, CatalogEntry] = {}  # guarded by _lock for changes, as are the next three
        self._older: dict[bytes, CatalogEntry] = {}
        self._changing: set[bytes] = set()
        self._changed: set[bytes] | None = None
        """Keys that have changed since the current fill began; None without one."""
        self._watch: Callable[[Collection[bytes]], object] = len
        self.generation = 0
        """Increases with every invalidation."""

    def get_many(self, keys: Sequence[bytes]) -> list[CatalogEntry | None]:
        """Return entries in the order of `keys`; None means that the catalog has to be read."""
        get = self._newer.get
        entries = [get(key) for key in keys]
        if self._older and not all(entries):
            self._find_older(keys, entries)
        return entries

    def _find_older(self, keys: Sequence[bytes], entries: list[CatalogEntry | None]) -> None:
        """Fill in what only the older generation has, and move it to the newer one."""
        with self._lock:
            for at, key in enumerate(keys):
                if entries[at] is None and (entry := self._older.pop(key, None) or self._newer.get(key)) is not None:
                    entries[at] = self._newer[key] = entry
            self._begin_generation()

    def _begin_generation(self) -> None:
        if len(self._newer) >= GENERATION_ENTRIES:
            self._newer, self._older = {}, self._newer

    def add(self, found: Iterable[tuple[bytes, CatalogEntry]], generation: int) -> None:
        """Keep what was read from the catalog, unless entries were invalidated since `generation`."""
        with self._lock:
            if generation == self.generation:
                for key, entry in found:
                    if key in self._changing:
                        continue
                    # Of two look-ups beside a commit, the one that read the catalog first may arrive here last.
                    before = self._newer.get(key) or self._older.pop(key, None)
                    if before is None or before.version <= entry.version:
                        before = entry
                    self._newer[key] = before
                self._begin_generation()

    def learn(self, keys: list[bytes], values: list[bytes | None], generation: int) -> None:
        """Keep the locations in values that were read from the catalog, unless there were invalidations since
        `generation`."""
        with self._lock:
            if generation == self.generation:
                busy = self._changing
                values = [None if key in busy else value for key, value in zip(keys, values, strict=True)]
                self.locations.add(keys, values, False, True)
                self._share()

    def watch_changes(self, on: bool, *, is_filled: bool = False) -> None:
        """Note what changes from now on, during a fill, or end that. `is_filled`: whether the fill came to its end."""
        with self._lock:
            self.has_all = self.has_all or (is_filled and self._changed is not None)
            self._changed = set(self._changing) if on else None

    def watch(self, changing: Callable[[Collection[bytes]], object]) -> None:
        """See `Drive.watch_changes`."""
        with self._lock:
            self._watch = changing
            changing(self._changing)

    def fill(self, found: Iterable[tuple[bytes, bytes]]) -> bool:
        """Add the locations in a part of the scan. Returns False if the fill has to end: the memory is full, or
        everything was dropped."""
        with self._lock:
            if (changed := self._changed) is None:
                return False
            current = [pair for pair in found if pair[0] not in changed]
            added = self.locations.add([key for key, _ in current], [value for _, value in current], False, False)
            self._share()
            return added

    @contextlib.contextmanager
    def changing(self, written: Mapping[bytes, bytes | None]) -> Iterator[None]:
        """Return a context for the catalog write that sets the values of these keys; None removes one. Only one thread
        changes a key at a time."""
        keys = written.keys()
        with self._lock:
            self._changing.update(keys)
            self._watch(keys)
            if self._changed is not None:
                self._changed.update(keys)
            self.generation += 1
            for key in keys:
                self._newer.pop(key, None)
                self._older.pop(key, None)
            self.locations.remove(keys)
            self._share()
        added: Mapping[bytes, bytes | None] = {}
        try:
            yield
            added = written
        finally:
            with self._lock:
                self._changing.difference_update(keys)
                self.generation += 1
                if self._shared is not None and len(added) < len(keys):
                    self._shared.end()  # for good: the catalog may have the commit or not
                    self._shared = None
                self.locations.add(list(added), list(added.values()), True, True)
                self._share()
                if len(added) <= _FEW:
                    entries = {key: decode_entry(value) for key, value in added.items() if value and is_object(value)}
                    self._newer |= entries
                    self._begin_generation()

    def _share(self) -> None:
        """Let the file follow the table."""
        if self._shared is not None:
            self._shared.follow(self.locations)
        if self.locations.room < self._room:  # everything was forgotten
            self.has_all = False
        self._room = self.locations.room

    def begin_sharing(self, placement: int, *, is_empty: bool) -> None:
        """Share the table under this placement, 0 for none. `is_empty`: whether the catalog has no objects."""
        with self._lock:
            if (shared := self._shared) is not None:
                shared.end()
                shared.set_placement(placement)
                self.has_all = self.has_all or is_empty
                shared.follow(self.locations)

    def end_sharing(self, sequence: int) -> None:
        """Share the table no more. `sequence`: the catalog's, which it will have until another writer opens it. Raises
        OSError."""
        with self._lock:
            if self._shared is not None:
                if self.has_all:
                    self._shared.seal(self.locations, sequence)
                self._shared.end()

    def save(self, shared: SharedLocations, sequence: int) -> None:
        """Move the table of a reader, which equals the catalog at this number, to the file."""
        with self._lock:
            if self.has_all:
                shared.save(self.locations, sequence)
                if self.locations.is_shared:  # it is mapped from there
                    self.locations.clear()
                    self._share()

    def forget(self) -> None:
        """Drop everything: the catalog has changed."""
        with self._lock:
            self.generation += 1
            self._newer, self._older, self._changed = {}, {}, None
            self.locations.clear()
            self._share()

    def forget_segment(self, path: bytes) -> None:
        """Drop the locations of objects in a segment that is being removed, or whose objects have moved.

        Entries that name it are found again in the catalog once its file is missing.
        """
        with self._lock:
            self.generation += 1
            self.locations.drop(path)
            self._share()


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
                thread = threading.Thread(target=self._run, args=(owns,), name="ais-loader-locations")
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError:  # none can be started now; the next fill that is due tries again
                    self._cache.watch_changes(False)

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
        part = catalog.part(fmt.OBJECT_PREFIX, after, None, _PART)
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
