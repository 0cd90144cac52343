"""Member indexes in memory, bounded by their bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from storage_node.store.archives.index import MemberIndex

_VIEWS_BYTES = 2 << 10
"""Approximate memory of an index beside its bytes."""


class IndexCache:
    """Verified indexes by the file of their shard, the least recently used dropped first. Thread-safe.

    An index that is mapped from its file is not kept: it holds a descriptor, and its file could be truncated.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._indexes: OrderedDict[bytes, MemberIndex] = OrderedDict()  # guarded by _lock, as is the size
        self.size_bytes = 0

    def get(self, path: bytes) -> MemberIndex | None:
        with self._lock:
            found = self._indexes.get(path)
            if found is not None:
                self._indexes.move_to_end(path)
            return found

    def add(self, path: bytes, index: MemberIndex) -> None:
        if index.is_mapped:
            return
        with self._lock:
            self._drop(path)
            self._indexes[path] = index
            self.size_bytes += _memory_bytes(index)
            while self.size_bytes > self._limit_bytes:
                self._drop(next(iter(self._indexes)))

    def drop(self, path: bytes) -> None:
        with self._lock:
            self._drop(path)

    def clear(self) -> None:
        with self._lock:
            self._indexes.clear()
            self.size_bytes = 0

    def _drop(self, path: bytes) -> None:
        index = self._indexes.pop(path, None)
        if index is not None:
            self.size_bytes -= _memory_bytes(index)


def _memory_bytes(index: MemberIndex) -> int:
    return index.file_bytes + _VIEWS_BYTES
