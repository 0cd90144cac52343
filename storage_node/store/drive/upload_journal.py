"""Upload journal of one drive: names of objects and deletions that are still to be uploaded to remote storage.

The catalog entry says that an object is pending, in its metadata: whatever copies or moves the entry keeps that. The
journal is a range of keys that names these entries, so that a start finds them without reading all others. Its keys are
written in the same catalog commit as the entries. A key's value describes the upload that was begun last.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

from ais_loader.errors import LoaderError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.drive.entry_cache import EntryCache
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import RawFiles
from storage_node.store.files.segment_format import is_slot
from storage_node.store.format import CatalogEntry, Version


class UploadJournal:
    """Thread-safe if callers of `note` and `committed` hold the stripes of the names that they change."""

    def __init__(
        self,
        catalog: Catalog,
        files: RawFiles,
        cache: EntryCache,
        stripes_of: Callable[[Sequence[bytes]], contextlib.AbstractContextManager[object]],
        require_writable: Callable[[], None],
        *,
        sync: bool,
    ) -> None:
        """Reads the journal from the drive; keys of nothing that is pending do not count. `require_writable`: see
        `Transactions`. Raises DriveFailed, StoreFormatError."""
        self._catalog = catalog
        self._files = files
        self._cache = cache
        self._stripes_of = stripes_of
        self._require_writable = require_writable
        self._sync = sync
        self._lock = threading.Lock()
        self._attempts = {  # guarded by _lock
            key: value
            for key, value in ((fmt.OBJECT_PREFIX + key[1:], value) for key, value in catalog.scan(fmt.PENDING_PREFIX))
            if fmt.is_pending(catalog.get(key) or b"")
        }

    def names(self) -> list[bytes]:
        """Return the object keys of what is pending."""
        with self._lock:
            return list(self._attempts)

    def attempt(self, key: bytes) -> bytes:
        """Return the description of the upload that was begun last; empty if none was."""
        with self._lock:
            return self._attempts.get(key, b"")

    def note(self, batch: WriteBatch, entries: Mapping[bytes, CatalogEntry | None]) -> dict[bytes, bytes | None]:
        """Add to a commit what is pending with these entries, and what is no longer; `committed` takes the result."""
        noted: dict[bytes, bytes | None] = {}
        for key, entry in entries.items():
            if entry is not None and entry.raw_metadata and fmt.is_pending(entry.raw_metadata):
                batch.put(fmt.pending_key(key), b"")
                noted[key] = b""
            elif self._attempts and key in self._attempts:
                batch.delete(fmt.pending_key(key))
                noted[key] = None
        return noted

    def committed(self, noted: Mapping[bytes, bytes | None]) -> None:
        if not noted:
            return
        with self._lock:
            for key, attempt in noted.items():
                if attempt is None:
                    self._attempts.pop(key, None)
                else:
                    self._attempts[key] = attempt

    # -- uploads

    def begin(self, bucket_uuid: bytes, name: str, version: Version, attempt: bytes) -> bool:
        """Journal that an upload of this version begins. Returns False if the object is not pending in this version.

        `attempt`: what `attempt` returns from now on, also after a crash.
        """
        key = fmt.object_key(bucket_uuid, name)
        with self._stripes_of([key]):
            self._require_writable()
            entry = self._entry(key)
            if entry is None or entry.version != version or not fmt.is_pending(entry.raw_metadata):
                return False
            batch = WriteBatch(raw_mode=True)
            batch.put(fmt.pending_key(key), attempt)
            self._catalog.write(batch, sync=self._sync)
            self.committed({key: attempt})
        failpoint("upload.noted")
        return True

    def settle(self, bucket_uuid: bytes, name: str, version: Version, raw_metadata: bytes) -> CatalogEntry | None:
        """Give an uploaded object of this version its metadata as a copy of the remote one, and end its journal record.

        The version stays. Returns the entry; None if the object is not pending in this version any more.
        """
        key = fmt.object_key(bucket_uuid, name)
        failpoint("upload.done")
        with self._stripes_of([key]):
            self._require_writable()
            entry = self._entry(key)
            if entry is None or entry.version != version or not fmt.is_pending(entry.raw_metadata):
                return None
            entry = entry._replace(raw_metadata=raw_metadata)
            batch = WriteBatch(raw_mode=True)
            value = fmt.encode_entry(entry)
            batch.put(key, value)
            journaled = self.note(batch, {key: entry})
            with self._cache.changing({key: value}):
                self._catalog.write(batch, sync=self._sync)
            self.committed(journaled)
        failpoint("upload.settled")
        self._describe_file(bucket_uuid, name, entry)
        return entry

    def _describe_file(self, bucket_uuid: bytes, name: str, entry: CatalogEntry) -> None:
        """Write the new metadata to an object's own file as well, for a catalog that is rebuilt, if that is possible.

        Otherwise the object is uploaded again then, unless the remote storage still has it.
        """
        if not entry.has_file or is_slot(entry.path):
            return
        with contextlib.suppress(OSError, LoaderError):
            self._files.own(entry.path, fmt.identity_of_entry(bucket_uuid, name, entry))

    def _entry(self, key: bytes) -> CatalogEntry | None:
        value = self._catalog.get(key)
        return None if value is None else fmt.decode_entry(value)
