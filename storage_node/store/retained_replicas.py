"""Replicas of retained versions: compares what snapshots see on one node with what they see on others, and makes them
equal.

All replicas of a bucket have the same cuts. Of each name a cut sees the newest version with a counter up to the cut
that any node has, be it an object or a tombstone. Nodes that differ therefore converge by taking over newer versions. A
version that a node lacks may have ended already, on that node too. It is then added to the retained versions, and never
becomes the current object again.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ais_loader.errors import LoaderError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.drive.commit_files import PendingObject
from storage_node.store.drive.denied_names import denied_error
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.ended_versions import Ended, Retained, end_retained, find_seen, scan_seen
from storage_node.store.files.object_files import drive_error
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.names import HIDDEN
from storage_node.store.store import Store


class Seen(NamedTuple):
    """Version of a name that a cut sees."""

    record: CatalogEntry
    """Entry of an object or a tombstone."""
    ended: int
    """Counter at which it was replaced or deleted here; 0 while it is the current one."""


class NewerFirst(LoaderError):
    """Raised if an older version, still current here, would hide one to retain. Replace the older one first."""

    kind = "newer-first"


def seen(store: Store, bucket_uuid: bytes, names: Sequence[str], cut: int) -> list[Seen | None]:
    """Return what the cut sees of each name, in order. Raises DriveFailed, StoreFormatError, Closed."""
    found: list[Seen | None] = []
    for name in names:
        drive = store.drive_set.at(store.drive_set.placement.owner(bucket_uuid, name))
        current = drive.newest(bucket_uuid, [name])[0]
        if current is not None and current.counter <= cut:
            found.append(Seen(current, 0))
        else:
            ended = find_seen(drive.catalog, bucket_uuid, name, cut)
            found.append(None if ended is None else Seen(ended.record, ended.ended))
    return found


def seen_after(
    store: Store, bucket_uuid: bytes, start_after: str, cut: int, limit: int
) -> list[tuple[str, CatalogEntry]]:
    """Return the next names of which the cut sees something, including tombstones. Raises as `seen`, and for a missing
    drive."""
    drives = [store.drive_set.at(slot) for slot in store.drive_set.placement.slots]
    scans: list[Iterator[tuple[str, CatalogEntry]]] = [
        scan_seen(drive.catalog, bucket_uuid, "", start_after, cut) for drive in drives
    ]
    merged = heapq.merge(*scans, key=lambda pair: pair[0].encode())
    return list(itertools.islice((pair for pair in merged if not pair[0].startswith(HIDDEN)), limit))


class RetainedHere(NamedTuple):
    """Version that is retained on a drive."""

    drive: Drive
    key: bytes
    name: str
    record: CatalogEntry
    seen_by: range
    """Range of the cuts that see it, if they are those of snapshots."""


def retained_after(drive: Drive, bucket_uuid: bytes, after: bytes, limit: int) -> list[RetainedHere]:
    """Return the next retained versions after this key, in the order of names. Raises DriveFailed, StoreFormatError,
    Closed."""
    found: list[RetainedHere] = []
    for key, value in itertools.islice(drive.catalog.scan(fmt.RETAINED_PREFIX + bucket_uuid, after or None), limit):
        entry = fmt.decode_entry(value)
        seen_by = range(entry.counter, fmt.ended_of_retained(key))
        found.append(RetainedHere(drive, key, fmt.name_of_retained(key), entry, seen_by))
    return found


def release(gone: Sequence[RetainedHere]) -> None:
    """Release versions that other nodes retain. Raises LoaderError."""
    for one in gone:
        changes = one.drive.changes
        dead: list[CatalogEntry] = []
        with changes.stripes.of([fmt.object_key_of(one.key)]):
            now = one.drive.catalog.get(one.key)
            if now is None or fmt.decode_entry(now) != one.record:
                continue
            batch = WriteBatch(raw_mode=True)
            end_retained(batch, one.key, one.record)
            if one.record.has_file:
                dead.append(one.record)
            one.drive.catalog.write(batch, sync=False)
        changes.defer_unlink(Ended(dead, []))


@dataclass(slots=True)
class KeptVersion:
    """Version that is being added to the retained ones. Belongs to one thread; `commit` or `abort` ends it."""

    drive: Drive
    bucket_uuid: bytes
    name: str
    record: CatalogEntry
    """Entry as on another node: without a path."""
    ended: int
    metadata: dict[str, str]
    file: StagedFile | None = None
    """None for a tombstone."""

    @property
    def label(self) -> str:
        return repr(self.name)

    @property
    def size_bytes(self) -> int:
        return 0 if self.file is None else self.file.size_bytes

    @property
    def checksum(self) -> int:
        return 0 if self.file is None else self.file.checksum

    def write(self, data: bytes) -> None:
        """Append bytes. Raises DriveFull, DriveFailed."""
        assert self.file is not None
        try:
            self.file.write(data)
        except OSError as error:
            raise drive_error(error, self.drive.root, "writing a version for a snapshot") from error

    def commit(self) -> None:
        """Retain it, unless cuts see something newer here. Raises NewerFirst, and as `Drive.commit`."""
        try:
            _keep(self)
        except OSError as error:
            raise drive_error(error, self.drive.root, "retaining a version for a snapshot") from error
        finally:
            self.abort()

    def publish(self, batch: WriteBatch, key: bytes, ended: int) -> Retained:
        """Publish its file under a key; see `Transactions.retain`."""
        assert self.file is not None
        version, modified_ns = self.record.version, self.record.modified_ns
        pending = PendingObject(self.bucket_uuid, self.name, self.file, self.metadata, version, modified_ns)
        pending.durable = self.record.is_coded
        return Retained(key, self.drive.changes.retain(batch, key, ended, pending))

    def abort(self) -> None:
        if self.file is not None:
            self.file.discard()


def retained_coded(store: Store, bucket_uuid: bytes, name: str, version: Version) -> KeptVersion | None:
    """Begin to write a file for a retained version that is coded; None if none is retained. Raises LoaderError."""
    drive = store.drive_set.at(store.drive_set.placement.owner(bucket_uuid, name))
    for key, value in drive.catalog.scan(fmt.retained_prefix(bucket_uuid, name)):
        entry = fmt.decode_entry(value)
        if entry.version == version and entry.is_coded:
            ended = fmt.ended_of_retained(key)
            return KeptVersion(drive, bucket_uuid, name, entry, ended, entry.metadata, drive.stage())
    return None


def _keep(kept: KeptVersion) -> None:
    drive, entry, changes = kept.drive, kept.record, kept.drive.changes
    retention = changes.retention
    dead: list[CatalogEntry] = []
    marked: list[Retained] = []
    with changes.stripes.of([fmt.object_key(kept.bucket_uuid, kept.name)]):
        current = drive.newest(kept.bucket_uuid, [kept.name])[0]
        if current is not None and current.is_denied:
            raise denied_error(repr(kept.name), current)
        prefix = fmt.retained_prefix(kept.bucket_uuid, kept.name)
        others = [Retained(key, fmt.decode_entry(value)) for key, value in drive.catalog.scan(prefix)]
        newer = [other.record for other in others if other.record.version > entry.version]
        if current is not None and current.version >= entry.version:
            newer.append(current)
        # It ended with the next version that this node has, if that came earlier.
        ended = min([kept.ended, *(one.counter for one in newer)])
        if not retention.is_seen(kept.bucket_uuid, entry.counter, ended):
            return
        if current is not None and current.version < entry.version:
            raise NewerFirst(f"{kept.name!r}: version {current.version} is still what this node has")
        batch = WriteBatch(raw_mode=True)
        for other in others:
            if other.record.version == entry.version:
                if other.record.is_coded and kept.file is not None:
                    marked.append(kept.publish(batch, other.key, other.ended))
                    break
                if other.ended >= ended:
                    return
                _end_at(batch, other, ended, marked)
                drive.catalog.write(batch, sync=False)
                break
            if other.record.version < entry.version and other.ended > entry.counter:
                if retention.is_seen(kept.bucket_uuid, other.record.counter, entry.counter):
                    _end_at(batch, other, entry.counter, marked)
                else:
                    end_retained(batch, other.key, other.record)
                    if other.record.has_file:
                        dead.append(other.record)
        else:
            key = fmt.retained_key(kept.bucket_uuid, kept.name, ended)
            if kept.file is None:
                batch.put(key, fmt.encode_entry(entry))
                drive.catalog.write(batch, sync=False)
            else:
                marked.append(kept.publish(batch, key, ended))
    changes.defer_unlink(Ended(dead, marked))


def _end_at(batch: WriteBatch, other: Retained, ended: int, marked: list[Retained]) -> None:
    entry = other.record
    key = other.key[:-8] + ended.to_bytes(8, "big")
    batch.delete(other.key)
    batch.put(key, fmt.encode_entry(entry))
    if entry.has_file:
        batch.put(fmt.generation_key(fmt.MARK_PREFIX, entry.generation), ended.to_bytes(8, "big") + entry.path)
        marked.append(Retained(key, entry))
