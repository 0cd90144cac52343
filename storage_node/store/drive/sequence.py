"""Sequence numbers that a drive gives once and never again, over every crash: the generations of its files.

They are reserved in the catalog many at a time, so that taking one costs nothing: a crash skips numbers.
"""

from __future__ import annotations

import threading

from ais_loader.errors import StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import REBUILD_HINT, Catalog, WriteBatch

_RESERVED_AT_ONCE = 1 << 16


class SequenceNumbers:
    """Of one drive that is open for writing. Thread-safe."""

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
        """No number from this one on has been taken."""
        return self._next

    def take(self, count: int = 1) -> int:
        """The first of so many that follow each other. Raises LoaderError."""
        with self._lock:
            first = self._next
            if first + count > self._reserved:
                # Always synced, whatever the durability: a counter that came back would name two files alike.
                batch = WriteBatch(raw_mode=True)
                reserved = first + count - 1 + _RESERVED_AT_ONCE
                batch.put(fmt.COUNTER_KEY, reserved.to_bytes(8, "big"))
                self._catalog.write(batch, sync=True)
                self._reserved = reserved
            self._next = first + count
            return first
