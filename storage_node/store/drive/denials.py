"""Denials of one drive: which names are denied, where their bytes were, and when they were removed.

A denial is a tombstone (format.py), and everything that holds for tombstones holds for it. Its commit also adds a row
that tells where the bytes of the name were, because nothing else knows afterwards. The row is not purged at first. When
the files and slots are gone, durably, the row gets the time. A crash in between leaves garbage keys, whose files the
next start removes, and the row, which then gets its time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ais_loader.errors import ObjectDenied, StoreFormatError
from ais_loader.wire.reserved import DENIED
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import RawFiles
from storage_node.store.format import CatalogEntry


class DeniedCopy(NamedTuple):
    """Place where bytes of a denied object were on a drive."""

    kind: str
    """"file", "segment", "link" for a file that has other names, or "fragments" of a group; with " of a snapshot"
    for a version that only snapshots saw."""
    size_bytes: int
    version: str
    generation: int
    """Number of the file; 0 for fragments."""
    group: str = ""
    """UUID of the group in hex, of fragments."""


class DenialRow(NamedTuple):
    copies: tuple[DeniedCopy, ...]
    purged_ns: int
    """When the drive had none of their bytes any more; 0: it may still have some."""


class Denials:
    """Denials of a drive that is open for writing. Thread-safe if callers hold the stripes of the names."""

    def __init__(self, files: RawFiles, catalog: Catalog) -> None:
        """Read the rows. Raises DriveFailed, StoreFormatError."""
        self._files, self._catalog = files, catalog
        self._lock = threading.Lock()
        rows = [(fmt.OBJECT_PREFIX + key[1:], value) for key, value in catalog.scan(fmt.DENIAL_PREFIX)]
        self.keys = {key for key, _ in rows}
        """Object keys of the denied names."""
        self._pending = {key for key, value in rows if not decode_row(value).purged_ns}  # guarded by _lock

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
                known = self.row(key) if key in self.keys else None
                copies = list(known.copies if known is not None else ())
                copies += [self._copy(at, one) for at, one in gone if fmt.object_key_of(at) == key and one.path]
                purged_ns = 0 if any(one.generation for one in copies) else time.time_ns()
                batch.put(fmt.denial_key(key), encode_row(DenialRow(tuple(copies), purged_ns)))
                noted[key] = True
            elif self.keys and key in self.keys:
                batch.delete(fmt.denial_key(key))
                noted[key] = False
        with self._lock:
            self.keys.update(key for key, is_denied in noted.items() if is_denied)  # also if the commit may have failed
        return noted

    def committed(self, noted: Mapping[bytes, bool]) -> None:
        if noted:
            with self._lock:
                self._pending.update(key for key, is_denied in noted.items() if is_denied)
                self.keys.difference_update(key for key, is_denied in noted.items() if not is_denied)

    def _copy(self, key: bytes, entry: CatalogEntry) -> DeniedCopy:
        of = " of a snapshot" if key.startswith(fmt.RETAINED_PREFIX) else ""
        version = str(entry.version)
        if entry.is_coded:
            return DeniedCopy(f"fragments{of}", entry.size_bytes, version, 0, entry.group.hex())
        kind = "segment" if entry.offset else "link" if self._files.is_linked(entry.path) else "file"
        return DeniedCopy(f"{kind}{of}", entry.size_bytes, version, entry.generation)

    def pending(self) -> set[bytes]:
        """Return the object keys whose bytes may still be on the drive."""
        with self._lock:
            return set(self._pending)

    def purged(self) -> None:
        """Record which rows have no file on the drive any more. Raises LoaderError."""
        if not (pending := self.pending()):
            return
        failpoint("deny.purged")
        batch, done = WriteBatch(raw_mode=True), set[bytes]()
        for key in pending:
            row = self.row(key)
            garbage = [fmt.generation_key(fmt.GARBAGE_PREFIX, one.generation) for one in row.copies] if row else []
            if row is not None and any(self._catalog.get_many(garbage)):
                continue
            done.add(key)
            if row is not None:
                batch.put(fmt.denial_key(key), encode_row(row._replace(purged_ns=time.time_ns())))
        if done:
            self._catalog.write(batch, sync=False, is_commit=False)
        with self._lock:
            self._pending -= done

    def row(self, key: bytes) -> DenialRow | None:
        value = self._catalog.get(fmt.denial_key(key))
        return None if value is None else decode_row(value)


def denied_after(
    catalog: Catalog, bucket_uuid: bytes, start_after: str = ""
) -> Iterator[tuple[str, CatalogEntry, DenialRow]]:
    """Iterate over the denied names of a bucket after `start_after`, in the order of their UTF-8 bytes. Raises
    DriveFailed, StoreFormatError."""
    prefix = fmt.DENIAL_PREFIX + bucket_uuid
    for key, value in catalog.scan(prefix, prefix + start_after.encode() if start_after else None):
        current = catalog.get(fmt.OBJECT_PREFIX + key[1:])
        if current is not None and (entry := fmt.decode_entry(current)).is_denied:
            yield fmt.name_of_key(key), entry, decode_row(value)


def denied_error(label: str, entry: CatalogEntry | None) -> ObjectDenied:
    """Return the error for an object that is denied, with the reason that its tombstone gives."""
    reason = entry.metadata.get(DENIED, "") if entry is not None else ""
    return ObjectDenied(f"{label} is denied{f': {reason}' if reason else ''}; `Bucket.allow` ends that")


def encode_row(row: DenialRow) -> bytes:
    return json.dumps([list(row.copies), row.purged_ns]).encode()


def decode_row(value: bytes) -> DenialRow:
    """Decode a row. Raises StoreFormatError."""
    try:
        copies, purged_ns = json.loads(value)
        return DenialRow(tuple(DeniedCopy(*one) for one in copies), int(purged_ns))
    except (ValueError, TypeError) as error:
        raise StoreFormatError(f"damaged row of a denial: {error}") from error
