"""Replica state: versions, tombstones and the version clock, by which copies on several nodes are compared."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ais_loader.errors import DriveFailed, DriveFull, InvalidRequest, LoaderError, ObjectDeleted, ObjectNotFound
from storage_node.store.buckets import Buckets
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.listing import merged
from storage_node.store.names import SNAPSHOT_MARK, check_object_name, object_name_fault
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.pool.write_routing import PlacedChanges
from storage_node.store.record_keeper import RecordKeeper
from storage_node.store.stale_replicas import ReplicaStale, StaleReplicas


class StoredVersion(NamedTuple):
    """One name in a listing of versions."""

    name: str
    version: Version
    is_tombstone: bool
    size_bytes: int
    checksum: int


def not_found_message(bucket: str, name: str) -> str:
    fault = object_name_fault(name)
    return f"no object {name!r} in bucket {bucket!r}" + (f" (nor can there be: {fault})" if fault else "")


class ReplicaState:
    """What one store knows of its copies of objects, as a node of a cluster; a store on its own is owner of all."""

    def __init__(self, record: RecordKeeper, drives: DriveSet, buckets: Buckets, changes: PlacedChanges) -> None:
        self._record = record
        self._drives = drives
        self._buckets = buckets
        self._changes = changes
        self.stale = StaleReplicas()
        """Copies that are not to be read from."""
        self.is_owner: Callable[[bytes, str], bool] = lambda bucket_uuid, name: True
        """Whether what this store knows of an object, by bucket uuid and name, is what counts. Set by the cluster."""
        self.is_holder: Callable[[bytes, str], bool] = lambda bucket_uuid, name: True
        """Whether readers of a snapshot ask this store for an object. Of others it may have what is out of date."""

    def newest_entry(self, bucket_uuid: bytes, name: str) -> CatalogEntry | None:
        """What there is of a name on any drive, tombstones too. Raises DriveFailed, StoreFormatError, Closed."""
        return self._drives.newest(bucket_uuid, name).record

    def scan(
        self, bucket: str, prefix: str, start_after: str, *, tombstones: bool
    ) -> Iterator[tuple[str, CatalogEntry]]:
        """All drives' entries in name order; of a snapshot those of which this store is a holder.

        Raises BucketNotFound, InvalidRequest, and as `merged`.
        """
        of = self._buckets.get(bucket)
        try:
            prefix.encode(), start_after.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"prefix {prefix!r}, start_after {start_after!r}: not valid Unicode") from None
        self._drives.require_open()
        found = merged(self._drives, of.uuid_bytes, prefix, start_after, tombstones=tombstones, cut=of.cut)
        return found if of.cut is None else (pair for pair in found if self.is_holder(of.uuid_bytes, pair[0]))

    def is_stale(self, bucket_uuid: bytes, name: str, found: CatalogEntry | None) -> bool:
        """Whether a reader may not believe what was found of this name. Raises DriveFailed, StoreFormatError.

        Not to be asked of snapshots: whatever was written since they were made, they see what they saw.
        """
        if self.stale.whole(bucket_uuid):
            return True
        wanted = self.stale.wanted(bucket_uuid, name)
        if wanted is None and (found is not None or not self.stale.gaps(bucket_uuid)):
            return False
        if found is None:
            found = self.newest_entry(bucket_uuid, name)
        if wanted is None:
            return found is None  # a tombstone is an answer
        if found is None or found.version < wanted:
            return True
        self.stale.trust_name(bucket_uuid, name, found.version)
        return False

    def trusted_objects(
        self, bucket: str, prefix: str, start_after: str, page_size: int
    ) -> Iterator[tuple[str, CatalogEntry]]:
        """As `Store.objects`, without those in doubt: another node lists them. Raises ReplicaStale where all are."""
        of = self._buckets.get(bucket)
        bucket_uuid = of.uuid_bytes
        found = self.scan(bucket, prefix, start_after, tombstones=False)
        if self.stale.any and of.cut is None:
            if self.stale.whole(bucket_uuid) or self.stale.gaps(bucket_uuid):
                raise ReplicaStale(f"bucket {bucket!r}: copies here may be old, and are being compared with others")
            found = (pair for pair in found if not self.is_stale(bucket_uuid, *pair))
        return itertools.islice(found, page_size)

    def versions(
        self, bucket: str, start_after: str = "", limit: int | None = None, prefix: str = ""
    ) -> Iterator[StoredVersion]:
        """Objects and tombstones in name order. Raises what `Store.objects` raises."""
        for name, record in itertools.islice(self.scan(bucket, prefix, start_after, tombstones=True), limit):
            yield StoredVersion(name, record.version, record.is_tombstone, record.size_bytes, record.checksum)

    def tombstones(self, bucket: str) -> Iterator[StoredVersion]:
        """Raises what `Store.objects` raises."""
        return (found for found in self.versions(bucket) if found.is_tombstone)

    def forget_tombstone(self, bucket: str, name: str, version: Version) -> bool:
        """Remove a tombstone that every copy has seen; False when there is none, or a newer one. Raises as `delete`."""
        self._drives.require_writable()
        bucket_uuid = self._buckets.get(bucket).uuid_bytes
        before = self.newest_entry(bucket_uuid, name)
        if before is None or not before.is_tombstone or before.version > version:
            return False
        return self._changes.drop(bucket_uuid, name, version, tombstone=True) is None

    def missing(self, bucket: str, bucket_uuid: bytes, name: str) -> ObjectNotFound:
        """What to say of a name that is not in doubt, and of which there is no object: that it was deleted, if so."""
        message = not_found_message(bucket, name)
        if object_name_fault(name) is None and SNAPSHOT_MARK not in bucket:
            with contextlib.suppress(LoaderError):  # of its drive; there is no object all the same
                found = self.newest_entry(bucket_uuid, name)
                if found is not None and found.is_tombstone and self.is_owner(bucket_uuid, name):
                    return ObjectDeleted(f"{message}: deleted with version {found.version}")
        return ObjectNotFound(message)

    def newest(self, bucket: str, names: Sequence[str]) -> list[CatalogEntry | None]:
        """Of each name, tombstones too. Raises InvalidName, BucketNotFound, DriveFailed, StoreFormatError."""
        for name in names:
            check_object_name(name)
        bucket_uuid = self._buckets.get(bucket).uuid_bytes
        return [self.newest_entry(bucket_uuid, name) for name in names]

    @property
    def clock(self) -> int:
        """No version with a higher counter was given here, or heard of. Raises StoreReadOnly, Closed."""
        return max((drive.numbers.highest for drive in self._drives.live()), default=0)

    def next_version(self, node: int, epoch: int, seen: Iterable[Version], clock: int = 0) -> Version:
        """A version for a write that this store's node coordinates; never given twice, over any crash of it.

        Above all `seen`, of `epoch` at least, and with a counter above `clock`. Raises DriveFailed, DriveFull,
        Closed.
        """
        self._drives.require_writable()
        drives = self._drives.live()
        highest = max(seen, default=Version(0, 0))
        floor = max(self.clock, clock, highest.counter)
        if not drives:
            raise DriveFailed("no drive of the store can be used")
        # All drives hear of it: with one of them left, the number still cannot come back. Those that cannot write are
        # done without, as those that are away: a node with one bad drive goes on writing to the others.
        for drive in drives:
            drive.numbers.advance(floor)
        counter = 0
        problem: DriveFailed | DriveFull | None = None
        for drive in drives:
            try:
                drive.numbers.advance(counter - 1)
                taken = drive.numbers.take()
            except (DriveFailed, DriveFull) as error:
                problem = error
            else:
                counter = counter or taken
        if not counter and problem is not None:
            raise problem
        return Version(max(epoch, highest.epoch, self._record.current.epoch), counter, node)
