"""Deletion log of one drive: the ids of recent deletions that left no tombstone.

A standalone store keeps no tombstones. The result of a deletion, and the write memory of the deleted object, are kept
here until there is an object of that name again, or until MAX_ENTRIES others have been deleted since. Thread-safe if
callers hold the stripes of the names.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.format import CatalogEntry

MAX_ENTRIES = 1 << 14


class DeletionLog:
    def __init__(self, catalog: Catalog, max_entries: int = MAX_ENTRIES) -> None:
        """Reads the log from the drive. Raises DriveFailed, StoreFormatError."""
        self._max_entries = max_entries
        self._lock = threading.Lock()
        kept = [(key, fmt.decode_entry(value)) for key, value in catalog.scan(fmt.DELETION_PREFIX)]
        kept.sort(key=lambda pair: pair[1].modified_ns)
        self._entries: OrderedDict[bytes, CatalogEntry] = OrderedDict(  # guarded by _lock
            (fmt.OBJECT_PREFIX + key[1:], entry) for key, entry in kept
        )
        stored = catalog.get(fmt.FORGOTTEN_KEY)
        self.forgotten_ns = int.from_bytes(stored, "big") if stored is not None else 0
        """Time of the newest deletion that was dropped to make room; 0 if none was."""
        self._trimmed: list[bytes] = []  # guarded by _lock; still on the drive
        self._trim()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> CatalogEntry | None:
        """Return the deletion of an object, as a tombstone with the deleted object's version."""
        return self._entries.get(key)

    def put(self, batch: WriteBatch, deletions: Mapping[bytes, CatalogEntry]) -> None:
        """Add deletions to a commit; `committed` follows."""
        with self._lock:
            trimmed, self._trimmed = self._trimmed, []
            if trimmed:
                batch.put(fmt.FORGOTTEN_KEY, self.forgotten_ns.to_bytes(8, "big"))
        for key in trimmed:  # if the commit fails, the next start trims them
            if key not in self._entries:
                batch.delete(fmt.DELETION_PREFIX + key[1:])
        for key, deletion in deletions.items():
            batch.put(fmt.DELETION_PREFIX + key[1:], fmt.encode_entry(deletion))

    def committed(self, deletions: Mapping[bytes, CatalogEntry]) -> None:
        """Keep deletions that have been committed; drop the oldest ones above the limit."""
        if not deletions:
            return
        with self._lock:
            for key, deletion in deletions.items():
                self._entries[key] = deletion
                self._entries.move_to_end(key)
            self._trim()

    def _trim(self) -> None:
        while len(self._entries) > self._max_entries:
            key, oldest = self._entries.popitem(last=False)
            self.forgotten_ns = max(self.forgotten_ns, oldest.modified_ns)
            self._trimmed.append(key)

    def replaced(self, batch: WriteBatch, keys: Iterable[bytes]) -> None:
        """Add to a commit that these objects exist again, with the memory of their deletions. `forget` follows."""
        if self._entries:
            for key in keys:
                if key in self._entries:
                    batch.delete(fmt.DELETION_PREFIX + key[1:])

    def forget(self, keys: Iterable[bytes]) -> None:
        if self._entries:
            with self._lock:
                for key in keys:
                    self._entries.pop(key, None)
