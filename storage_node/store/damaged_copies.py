"""Damaged copies: objects of this store whose bytes are not what was put, or not there, as far as somebody has noticed.

Readers note what they meet, the scrub what nobody reads. Another copy is written over such an object under the same
version; where there is none, it stays here until it is put again or deleted. Nothing of this is kept on the drives:
what is still damaged after a restart is met again. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from storage_node.store.format import Version

MAX_KEPT = 100_000
"""Objects that are remembered by name; the scrub, or a reader, comes past the others again."""
MAX_WHOLE = 10_000
"""Of those that were suspected, and found to be whole."""


class DamagedCopies:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[bytes, str], Version] = {}
        self._whole: dict[tuple[bytes, str], Version] = {}
        self.found = self.mended = 0
        """Since the store was opened."""
        self.on_found: Callable[[], None] = lambda: None
        """Called, from any thread, when something was noted."""

    def note(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        with self._lock:
            if self._known.get((bucket_uuid, name)) == version or len(self._known) >= MAX_KEPT:
                return
            self._known[bucket_uuid, name] = version
            self.found += 1
        self.on_found()

    def suspect(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        """As `note`, where an archive turned out to be damaged inside, which it may have been when it was put.

        That is found out once by reading all of it.
        """
        if self._whole.get((bucket_uuid, name)) != version:
            self.note(bucket_uuid, name, version)

    def version_of(self, bucket_uuid: bytes, name: str) -> Version | None:
        """Which version of the object is damaged here; None when nothing is known against it."""
        return self._known.get((bucket_uuid, name)) if self._known else None

    def drop(self, bucket_uuid: bytes, name: str, *, mended: bool = False) -> None:
        """It is whole again, or gone."""
        with self._lock:
            if self._known.pop((bucket_uuid, name), None) is not None:
                self.mended += mended

    def drop_whole(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        """It was compared with its checksums, and is what was put."""
        with self._lock:
            if len(self._whole) >= MAX_WHOLE:
                del self._whole[next(iter(self._whole))]
            self._whole[bucket_uuid, name] = version
        self.drop(bucket_uuid, name)

    def by_bucket(self) -> dict[bytes, dict[str, Version]]:
        with self._lock:
            found: dict[bytes, dict[str, Version]] = {}
            for (bucket_uuid, name), version in self._known.items():
                found.setdefault(bucket_uuid, {})[name] = version
            return found

    def __len__(self) -> int:
        return len(self._known)
