"""Uploads of a store: objects and deletions that are still to be uploaded to remote storage, on all its drives."""

from __future__ import annotations

import contextlib

from ais_loader.errors import LoaderError, VersionConflict
from storage_node.store import format as fmt
from storage_node.store.drive.preconditions import Condition
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.write import WriteRouter


class Uploads:
    """Thread-safe. While objects move between drives, each change is made wherever the object is."""

    def __init__(self, drives: DriveSet, changes: WriteRouter) -> None:
        self._drives = drives
        self._changes = changes

    def newest(self, bucket_uuid: bytes, name: str) -> CatalogEntry | None:
        """Return the current entry of a name, also a tombstone. Raises DriveFailed, StoreFormatError, Closed."""
        return self._changes.newest(bucket_uuid, name)

    def pending(self) -> list[tuple[bytes, str, CatalogEntry]]:
        """Return bucket, name and entry of all that is to be uploaded, oldest first, as far as drives can be read."""
        found: dict[tuple[bytes, str], CatalogEntry] = {}
        for drive in self._drives.live():
            for key in drive.changes.journal.names():
                bucket_uuid, name = fmt.bucket_of_key(key), fmt.name_of_key(key)
                with contextlib.suppress(LoaderError):
                    entry = self._changes.newest(bucket_uuid, name)
                    if entry is not None and fmt.is_pending(entry.raw_metadata):
                        found[bucket_uuid, name] = entry
        return sorted(((*of, entry) for of, entry in found.items()), key=lambda one: one[2].modified_ns)

    @property
    def has_pending(self) -> bool:
        """Whether something is to be uploaded. Cheap."""
        return any(drive.changes.journal.names() for drive in self._drives.live())

    def attempt(self, bucket_uuid: bytes, name: str) -> bytes:
        """Return what `begin` has noted last for a pending object; empty if nothing was."""
        key = fmt.object_key(bucket_uuid, name)
        return max((drive.changes.journal.attempt(key) for drive in self._drives.live()), default=b"")

    def begin(self, bucket_uuid: bytes, name: str, version: Version, attempt: bytes) -> bool:
        """See `UploadJournal.begin`."""
        with self._drives.placement_lock.shared():
            slots = self._drives.placement.entry_slots(bucket_uuid, name).slots
            noted = [self._drives.at(slot).changes.journal.begin(bucket_uuid, name, version, attempt) for slot in slots]
        return any(noted)

    def forget_deletion(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        """Remove the tombstone of a deletion that is uploaded, if no other node needs it. Its id is remembered."""
        with self._drives.placement_lock.shared():
            for slot in self._drives.placement.entry_slots(bucket_uuid, name).slots:
                with contextlib.suppress(VersionConflict):  # there is something newer
                    self._drives.at(slot).changes.delete(
                        bucket_uuid, [name], tombstones=True, condition=Condition(not_above=version)
                    )

    def settle(self, bucket_uuid: bytes, name: str, version: Version, raw_metadata: bytes) -> bool:
        """See `UploadJournal.settle`. Returns whether the object was pending in this version."""
        with self._drives.placement_lock.shared():
            slots = self._drives.placement.entry_slots(bucket_uuid, name).slots
            settled = [
                self._drives.at(slot).changes.journal.settle(bucket_uuid, name, version, raw_metadata) for slot in slots
            ]
        found = next((entry for entry in settled if entry is not None), None)
        if found is not None:
            self._changes.tell(bucket_uuid, name, found)
        return found is not None
