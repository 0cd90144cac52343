"""Damaged replicas: objects of this store whose bytes do not match their checksums or are missing, as far as is known.

Readers note what they encounter, and the scrub finds the rest. Such an object is overwritten with another replica under
the same version. If there is none, it stays listed until it is written again or deleted. None of this is stored on the
drives: damage that remains after a restart is found again. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from storage_node.store.format import Version

MAX_KEPT = 100_000
"""Maximum number of objects that are listed by name. The scrub, or a reader, finds the others again."""
MAX_WHOLE = 10_000
"""Maximum number of suspected objects remembered as intact."""


class DamagedCopies:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[bytes, str], Version] = {}
        self._whole: dict[tuple[bytes, str], Version] = {}
        self.found = self.mended = 0
        """Since the store was opened."""
        self.on_found: Callable[[], object] = bool
        """Called on any thread after an object was noted."""

    def note(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        with self._lock:
            if self._known.get((bucket_uuid, name)) == version or len(self._known) >= MAX_KEPT:
                return
            self._known[bucket_uuid, name] = version
            self.found += 1
        self.on_found()

    def suspect(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        """Note an object if an archive turned out to be damaged inside, which it may have been when it was stored.

        This is decided once, by reading all of it.
        """
        if self._whole.get((bucket_uuid, name)) != version:
            self.note(bucket_uuid, name, version)

    def version_of(self, bucket_uuid: bytes, name: str) -> Version | None:
        """Return which version of the object is damaged here; None if no damage is known."""
        return self._known.get((bucket_uuid, name)) if self._known else None

    def drop(self, bucket_uuid: bytes, name: str, *, mended: bool = False) -> None:
        """Remove an object that was repaired, or is gone."""
        with self._lock:
            if self._known.pop((bucket_uuid, name), None) is not None:
                self.mended += mended

    def drop_whole(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        """Remove an object that matches its checksums, and remember it as intact."""
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
