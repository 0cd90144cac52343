"""Denied names of one drive: where their bytes were, and when they were removed.

A denial is a tombstone (format.py), and everything that holds for tombstones holds for it. Its commit also adds a row
that tells where the bytes of the name were, because nothing else knows afterwards. When the files and slots are gone,
durably, and the catalog's files, which have metadata of all versions, have been compacted, the row gets the time. A
crash in between leaves garbage keys, whose files the next start removes, and the row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from google.protobuf.message import DecodeError

from ais_loader.errors import ObjectDenied, StoreFormatError
from ais_loader.wire.generated import ais_contents_pb2 as pb
from ais_loader.wire.reserved import DENIED
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import RawFiles
from storage_node.store.format import CatalogEntry


class DeniedNames:
    """Denied names of a drive that is open for writing. Thread-safe if callers hold the stripes of the names."""

    def __init__(self, files: RawFiles, catalog: Catalog) -> None:
        """Read the rows. Raises DriveFailed, StoreFormatError."""
        self._files, self._catalog = files, catalog
        self._lock = threading.Lock()
        rows = [(fmt.OBJECT_PREFIX + key[1:], _decoded(value)) for key, value in catalog.scan(fmt.DENIAL_PREFIX)]
        self._keys = {key for key, _ in rows}
        self._compacted = set[bytes]()  # guarded by _lock; the catalog's files have nothing of these any more
        self._pending = {key: object() for key, row in rows if not row.purged_ns}  # guarded by _lock
        """Names whose bytes or metadata may still be on the drive, each with an object for its last denial."""

    def note(
        self,
        batch: WriteBatch,
        entries: Mapping[bytes, CatalogEntry | None],
        gone: Sequence[tuple[bytes, CatalogEntry]] = (),
    ) -> dict[bytes, bool]:
        """Add the rows of these entries to their commit; `committed` takes the result. `gone`: see `Ended.denied`."""
        noted: dict[bytes, bool] = {}
        for key, entry in entries.items():
            if entry is not None and entry.is_denied:
                row = self._row(key)
                row.copy.extend(self._copy(at, one) for at, one in gone if one.path and fmt.object_key_of(at) == key)
                row.purged_ns = 0
                batch.put(fmt.denial_key(key), row.SerializeToString())
                noted[key] = True
            elif self._keys and key in self._keys:
                batch.delete(fmt.denial_key(key))
                noted[key] = False
        return noted

    def committed(self, noted: Mapping[bytes, bool]) -> None:
        for key, is_denied in noted.items():
            with self._lock:
                (self._keys.add if is_denied else self._keys.discard)(key)
                self._pending.pop(key, None)
                if is_denied:
                    self._pending[key] = object()
                self._compacted.discard(key)

    def _copy(self, key: bytes, entry: CatalogEntry) -> pb.DeniedCopy:
        copy = pb.DeniedCopy(size_bytes=entry.size_bytes, version=str(entry.version))
        if entry.is_coded:
            copy.kind, copy.group = "fragments", entry.group.hex()
        else:
            copy.kind = "segment" if entry.offset else "link" if self._files.is_linked(entry.path) else "file"
            copy.generation = entry.generation
        copy.kind += " of a snapshot" if key.startswith(fmt.RETAINED_PREFIX) else ""
        return copy

    def pending(self) -> list[bytes]:
        """Return the object keys of which something may still be on the drive."""
        with self._lock:
            return list(self._pending)

    def uncompacted(self) -> dict[bytes, object]:
        """Return the object keys of which the catalog's files may have something, for `purged`."""
        with self._lock:
            return {key: denial for key, denial in self._pending.items() if key not in self._compacted}

    def purged(self, compacted: Mapping[bytes, object]) -> None:
        """Record which names have no file on the drive any more, and nothing in the catalog's files. Those of
        `compacted` have been compacted since they were `uncompacted`. Raises LoaderError."""
        with self._lock:
            # What has been denied anew meanwhile is compacted anew.
            self._compacted |= {key for key, denial in compacted.items() if self._pending.get(key) is denial}
            pending = set(self._compacted)
        if not pending:
            return
        failpoint("deny.purged")
        batch, done = WriteBatch(raw_mode=True), set[bytes]()
        for key in pending:
            row = self._row(key)
            garbage = [fmt.generation_key(fmt.GARBAGE_PREFIX, one.generation) for one in row.copy]
            if not any(self._catalog.get_many(garbage)):
                row.purged_ns = time.time_ns()
                batch.put(fmt.denial_key(key), row.SerializeToString())
                done.add(key)
        self._catalog.write(batch, sync=False, is_commit=False)
        with self._lock:
            for key in done:
                del self._pending[key]
            self._compacted -= done

    def _row(self, key: bytes) -> pb.DeniedOnDrive:
        value = self._catalog.get(fmt.denial_key(key)) if key in self._keys else None
        return pb.DeniedOnDrive() if value is None else _decoded(value)


def denied_after(
    catalog: Catalog, bucket_uuid: bytes, start_after: str = ""
) -> Iterator[tuple[str, CatalogEntry, pb.DeniedOnDrive]]:
    """Iterate over the denied names of a bucket after `start_after`, in the order of their UTF-8 bytes. Raises
    DriveFailed, StoreFormatError."""
    prefix = fmt.DENIAL_PREFIX + bucket_uuid
    for key, value in catalog.scan(prefix, prefix + start_after.encode() if start_after else None):
        current = catalog.get(fmt.OBJECT_PREFIX + key[1:])
        if current is not None and (entry := fmt.decode_entry(current)).is_denied:
            yield fmt.name_of_key(key), entry, _decoded(value)


def denied_error(label: str, entry: CatalogEntry | None) -> ObjectDenied:
    """Return the error for an object that is denied, with the reason that its tombstone gives."""
    reason = entry.metadata.get(DENIED, "") if entry is not None else ""
    return ObjectDenied(f"{label} is denied{f': {reason}' if reason else ''}; `Bucket.allow` ends that")


def _decoded(value: bytes) -> pb.DeniedOnDrive:
    try:
        return pb.DeniedOnDrive.FromString(value)
    except DecodeError as error:
        raise StoreFormatError(f"damaged row of a denial: {error}") from error
