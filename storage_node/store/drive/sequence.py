"""Sequence numbers that a drive issues only once, across all crashes: the generations of its files.

They are reserved in the catalog in large ranges, so that taking one is free. A crash skips numbers.
"""

from __future__ import annotations

import threading

from ais_loader.errors import StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import REBUILD_HINT, Catalog, WriteBatch

_RESERVED_AT_ONCE = 1 << 16


class SequenceNumbers:
    """Sequence numbers of one drive that is open for writing. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        """Raises LoaderError."""
        self._catalog = catalog
        self._lock = threading.Lock()
        stored = catalog.get(fmt.COUNTER_KEY)
        self._next = self._reserved = int.from_bytes(stored or b"\1", "big")  # guarded by _lock
        if self._next > fmt.MAX_GENERATION:
            raise StoreFormatError(
                f"{catalog.path}: {self._next} is no generation that a drive comes to; {REBUILD_HINT}"
            )

    @property
    def next(self) -> int:
        """The next number to be issued."""
        return self._next

    def take(self, count: int = 1) -> int:
        """Return the first of `count` consecutive numbers. Raises LoaderError."""
        with self._lock:
            first = self._next
            if first + count > self._reserved:
                # Always synced, whatever the durability: a counter that went back would give two files the same name.
                batch = WriteBatch(raw_mode=True)
                reserved = first + count - 1 + _RESERVED_AT_ONCE
                batch.put(fmt.COUNTER_KEY, reserved.to_bytes(8, "big"))
                self._catalog.write(batch, sync=True)
                self._reserved = reserved
            self._next = first + count
            return first
