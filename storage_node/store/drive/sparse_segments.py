"""Sparse segments of one drive: those that are less than half live, and worth to be rewritten.

A segment becomes sparse when objects in it are freed. Whoever frees them reads the states of all its slots anyway, and
knows then what is left: nothing else is read to find sparse segments. They are named in the catalog, so that a start
knows them as well. The names are hints: a segment that is not named is merely not rewritten, and one that is named by
mistake is looked at in vain. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from storage_node.store import format as fmt
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.files.segment_format import SegmentUse


class SparseSegments:
    def __init__(self, named: Iterable[bytes]) -> None:
        """`named`: paths that the catalog names."""
        self._lock = threading.Lock()
        self._named = dict.fromkeys(named, 0)  # guarded by _lock, as is _waiting
        """Space on the drive of the segments that the catalog names; 0 if it is not known."""
        self._waiting = dict.fromkeys(self._named)
        self.removed = 0
        """Number of sparse segments that were removed since the drive was opened."""
        self.removed_bytes = 0
        """Space that they took on the drive."""

    def __len__(self) -> int:
        """Return the number of segments that wait to be rewritten."""
        return len(self._waiting)

    def note(self, batch: WriteBatch, segments: Mapping[bytes, SegmentUse]) -> None:
        """Add to a batch which of these segments became sparse, and which were removed."""
        if not (segments or self._named):
            return
        with self._lock:
            for path, use in segments.items():
                if use.is_removed:
                    self._waiting.pop(path, None)
                    if path in self._named:
                        self.removed += 1
                        self.removed_bytes += self._named.pop(path)
                        batch.delete(_key(path))
                elif use.is_sparse:
                    self._waiting[path] = None
                    if path not in self._named:
                        batch.put(_key(path), path)
                    self._named[path] = use.allocated_bytes

    def take(self) -> bytes | None:
        """Return the segment that has waited longest, which then waits no more; None if there is none."""
        with self._lock:
            path = next(iter(self._waiting), None)
            if path is not None:
                del self._waiting[path]
            return path

    def put_back(self, path: bytes) -> None:
        """Have a segment wait again, behind the others."""
        with self._lock:
            self._waiting[path] = None


def _key(path: bytes) -> bytes:
    return fmt.generation_key(fmt.SPARSE_PREFIX, fmt.generation_of_path(path))
