"""Entry cache in front of RocksDB: a look-up costs a tenth of a microsecond here, two there.

Never stale beyond a commit in this process, not even for the moment between the catalog's write and its return: what a
listing shows, a look-up finds. A commit forgets what it changes before it writes, look-ups ask the catalog meanwhile,
and one that was under way may not bring the old entry back. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType

from storage_node.store.format import CatalogEntry

MAX_ENTRIES = 1 << 16
"""About 25 MiB. Beyond it everything is dropped: batches draw at random, so no entry is worth more than another."""


class EntryCache:
    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._records: dict[bytes, CatalogEntry] = {}  # guarded by _lock for changes
        self._changing: set[bytes] = set()  # guarded by _lock
        self.generation = 0  # guarded by _lock for changes

    def get_many(self, keys: Sequence[bytes]) -> list[CatalogEntry | None]:
        """Records in the order of `keys`; None where the catalog has to be asked."""
        get = self._records.get
        return [get(key) for key in keys]

    def add(self, found: Iterable[tuple[bytes, CatalogEntry]], generation: int) -> None:
        """Keep what was read from the catalog, unless something has been forgotten since `generation`."""
        with self._lock:
            if generation == self.generation:
                if len(self._records) >= self._max_entries:
                    self._records = {}
                for key, record in found:
                    if key in self._changing:
                        continue
                    # Of two look-ups beside a commit, the one that came before it may get here last.
                    before = self._records.get(key)
                    if before is None or before.version <= record.version:
                        self._records[key] = record

    def changing(self, keys: Collection[bytes]) -> _Changing:
        """Around the catalog's write that changes these keys, of which nobody else changes one at the same time."""
        return _Changing(self, keys)

    def _begin(self, keys: Collection[bytes]) -> None:
        with self._lock:
            self._changing.update(keys)
            self.generation += 1
            for key in keys:
                self._records.pop(key, None)

    def _end(self, keys: Collection[bytes]) -> None:
        with self._lock:
            self._changing.difference_update(keys)
            self.generation += 1

    def forget(self) -> None:
        """Drop everything: the catalog is another one."""
        with self._lock:
            self.generation += 1
            self._records = {}


class _Changing:
    __slots__ = "_cache", "_keys"

    def __init__(self, cache: EntryCache, keys: Collection[bytes]) -> None:
        self._cache = cache
        self._keys = keys

    def __enter__(self) -> None:
        self._cache._begin(self._keys)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cache._end(self._keys)
