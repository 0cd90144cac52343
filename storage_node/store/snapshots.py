"""Snapshots of buckets: created with one number, read under names of their own, freed when they are deleted.

Creating one stops all commits of the store for a moment. Everything acknowledged before has a number up to the cut, and
later commits get numbers above it: each object is in the snapshot whole, in one version, or not at all, and the
snapshot never changes. It is written to the store record like a bucket. From its commit on, and shortly before,
versions that it sees are retained on their drives (`drive.ended_versions`).

Deleting one removes it from the record first, and notes there that its bucket has to be trimmed. A crash in between
leaves more than necessary, and the next start continues.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ais_loader.errors import DriveFailed, LoaderError, SnapshotExists, StoreFormatError, Unsupported
from storage_node.store import format as fmt
from storage_node.store.buckets import Buckets
from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.version_clock import VersionClock
from storage_node.store.failpoints import failpoint
from storage_node.store.format import CatalogEntry
from storage_node.store.listing import merged
from storage_node.store.names import SNAPSHOT_MARK, check_snapshot_name
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.record_keeper import RecordKeeper
from storage_node.store.store_record import FrozenBucket, SnapshotRecord


class Snapshot(NamedTuple):
    name: str
    created_ns: int
    objects: int
    size_bytes: int
    """Total size of these objects."""


class CutCheck:
    """Verifies that everything in a bucket at the moment of a snapshot's cut has a number up to the cut.

    It should, because the version clock is never behind a number that it issued or heard of. The check exists because
    the snapshot would silently lack entries with higher numbers.

    Created while the bucket's commits are held back. Call `run` or `close` once afterwards, in one thread.
    """

    def __init__(self, catalogs: Iterable[Catalog], bucket_uuid: bytes, cut: int) -> None:
        """Raises LoaderError."""
        self._cut = cut
        self._scans = [catalog.scan(fmt.OBJECT_PREFIX + bucket_uuid) for catalog in catalogs]
        # The first entry of each scan is read now, which fixes the scan's snapshot.
        self._first = [pair for scan in self._scans for pair in itertools.islice(scan, 1)]

    def run(self, clock: VersionClock) -> None:
        """Compare all entries. Raises StoreFormatError if the snapshot would lack one; the clock is then above it, so
        that the next snapshot succeeds.

        Raises LoaderError.
        """
        name, highest = "", self._cut
        try:
            for key, value in itertools.chain(self._first, *self._scans):
                if (counter := fmt.counter_of_value(value)) > highest:
                    name, highest = fmt.name_of_key(key), counter
        finally:
            self.close()
        if highest > self._cut:
            clock.advance_past(highest)
            raise StoreFormatError(
                f"the snapshot would lack {name!r}, which had counter {highest} when the version clock was only at "
                f"{self._cut}; it is not made. The clock is above that now: make it again"
            )

    def close(self) -> None:
        for scan in self._scans:
            scan.close()


class Snapshots:
    """Snapshots of all buckets of one store. Thread-safe."""

    def __init__(self, record: RecordKeeper, drives: DriveSet, buckets: Buckets, clock: VersionClock) -> None:
        self._record = record
        self._drives = drives
        self._buckets = buckets
        self._clock = clock
        self._trim_lock = threading.Lock()
        """Held while versions of deleted snapshots are released; acquired outside the record's lock."""

    def create(self, bucket: str, name: str) -> Snapshot:
        """Keep the current contents of a bucket, under the name bucket@name.

        It contains every write and deletion acknowledged before the call, and none that begins after its return; each
        of those in between is in it or not. On return it is durable, with everything that it sees, whatever the
        durability.

        Raises InvalidName, BucketNotFound, SnapshotExists, SnapshotReadOnly, StoreReadOnly, Closed, DriveFull,
        DriveFailed if a drive is missing, Unsupported while objects move from drive to drive, and StoreFormatError if
        it would lack something.
        """
        self._drives.require_writable()
        check_snapshot_name(name)
        with self._record.lock, contextlib.ExitStack() as quiet:
            found = self._buckets.to_change(bucket)
            if name in self._record.current.snapshots.get(found.uuid, {}):
                raise SnapshotExists(f"bucket {bucket!r} has a snapshot {name!r} already")
            if self._record.current.former or self._record.current.retiring:
                raise Unsupported("objects are moving from drive to drive; make the snapshot when that is over")
            drives = self._drives.live()
            if len(drives) < len(self._record.current.drives):
                raise DriveFailed("a drive of the store is missing; a snapshot needs all of them")
            for drive in drives:
                quiet.enter_context(drive.quiet())
            cut = self._clock.highest
            record = self._record.current.with_snapshot(found.uuid, name, SnapshotRecord(cut, time.time_ns()))
            # The cuts are set before the commit. Otherwise a record whose commit fails here, but which is found at the
            # next start, would represent a snapshot whose versions were not retained.
            for drive in drives:
                drive.changes.set_cuts(record.cuts)
            check = CutCheck([drive.catalog for drive in drives], found.uuid_bytes, cut)
            failpoint("snapshot.cut")
            try:
                self._record.commit(record)
            except BaseException:
                check.close()
                self._record.note_trimming(found.uuid)
                raise
        failpoint("snapshot.recorded")
        try:
            check.run(self._clock)
            for drive in drives:
                drive.sync()
        except LoaderError:
            with contextlib.suppress(LoaderError):
                self.delete(bucket, name)
            raise
        return self._counted(bucket, name, record.snapshots[found.uuid][name])

    def of(self, bucket: str) -> list[Snapshot]:
        """List snapshots, oldest first. Raises BucketNotFound, and what `Store.objects` raises if one has not been
        counted yet."""
        if not self._drives.writable:
            self._record.refresh(only_if_stale=False)
        named = self._record.current.snapshots.get(self._buckets.get(bucket).uuid, {})
        found = sorted(named.items(), key=lambda pair: (pair[1].cut, pair[1].created_ns))
        base = bucket.partition(SNAPSHOT_MARK)[0]
        return [self._counted(base, name, one) for name, one in found]

    def delete(self, bucket: str, name: str) -> None:
        """Delete a snapshot, and release what only it sees.

        Raises BucketNotFound, SnapshotNotFound, SnapshotReadOnly, StoreReadOnly, Closed, DriveFull, DriveFailed.
        """
        self._drives.require_writable()
        with self._trim_lock:
            with self._record.lock:
                found = self._buckets.to_change(bucket)
                if name not in self._record.current.snapshots.get(found.uuid, {}):
                    raise self._buckets.missing(f"{bucket}{SNAPSHOT_MARK}{name}")
                self._record.commit(self._record.current.without_snapshot(found.uuid, name))
                for drive in self._drives.live():
                    with drive.quiet():
                        drive.changes.set_cuts(self._record.current.cuts)
            failpoint("snapshot.released")
            with contextlib.suppress(LoaderError):  # it is deleted; the next start removes what is left
                self.trim(found.uuid)

    def follow(self, wanted: Mapping[str, Mapping[str, SnapshotRecord]]) -> None:
        """Retain what these snapshots of a cluster see, by uuid of the bucket, and drop all others of these buckets.

        `finish_trimming` releases what they no longer see. Raises StoreReadOnly, Closed, DriveFull, DriveFailed.
        """
        self._drives.require_writable()
        with self._record.lock, contextlib.ExitStack() as quiet:
            record = self._record.current.with_snapshots_of(wanted)
            if record.snapshots == self._record.current.snapshots:
                return
            for drive in self._drives.live():
                quiet.enter_context(drive.quiet())
            # Before the commit, as in `create`.
            both = {uuid: [*cuts, *self._record.current.cuts.get(uuid, ())] for uuid, cuts in record.cuts.items()}
            for drive in self._drives.live():
                drive.changes.set_cuts({**self._record.current.cuts, **both})
            self._record.commit(record, whoever=True)  # a missing drive gets it when it comes back
            for drive in self._drives.live():
                drive.changes.set_cuts(record.cuts)

    def finish_trimming(self) -> None:
        """Release what deleted snapshots have left. Raises LoaderError."""
        self._drives.require_writable()
        with self._trim_lock:
            for bucket_uuid in self._record.current.trimming:
                self.trim(bucket_uuid)

    def trim(self, bucket_uuid: str) -> int:
        """Release what no snapshot of a bucket sees any more. Returns how many versions that were."""
        seen_by = self._record.current.snapshots.get(bucket_uuid)
        trimmed = sum(drive.changes.trim(bytes.fromhex(bucket_uuid)) for drive in self._drives.live())
        if self._drives.all_live():
            with self._record.lock:
                if (
                    self._record.current.snapshots.get(bucket_uuid) == seen_by
                ):  # else another one may have been deleted meanwhile
                    self._record.commit(self._record.current.trimmed(bucket_uuid))
        return trimmed

    # -- counting

    def _counted(self, bucket: str, name: str, known: SnapshotRecord) -> Snapshot:
        """Return a snapshot with its counts. It never changes, so it is counted once."""
        if known.objects < 0:
            found = self._buckets.find(bucket)
            if found is None:
                raise self._buckets.missing(bucket)
            frozen = FrozenBucket(found.uuid, found.copies, at=known.cut)
            objects = size_bytes = 0
            for _, entry in self._frozen_objects(frozen):
                objects += 1
                size_bytes += entry.size_bytes
            known = replace(known, objects=objects, size_bytes=size_bytes)
            if self._drives.writable:
                with contextlib.suppress(LoaderError):  # then it is counted again later
                    self._record_count(found.uuid, name, known)
            failpoint("snapshot.counted")
        return Snapshot(name, known.created_ns, known.objects, known.size_bytes)

    def _frozen_objects(self, bucket: FrozenBucket) -> Iterator[tuple[str, CatalogEntry]]:
        self._drives.require_open()
        return merged(self._drives, bucket.uuid_bytes, "", "", tombstones=False, cut=bucket.cut)

    def _record_count(self, bucket_uuid: str, name: str, counted: SnapshotRecord) -> None:
        with self._record.lock:
            now = self._record.current.snapshots.get(bucket_uuid, {}).get(name)
            if now is not None and now.cut == counted.cut and now.objects < 0:
                self._record.commit(self._record.current.with_snapshot(bucket_uuid, name, counted))
