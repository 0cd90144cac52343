"""Buckets of one store: looked up, created, changed, and deleted with their contents."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping

from ais_loader.errors import (
    AccessDenied,
    BucketExists,
    BucketHasSnapshots,
    BucketNotEmpty,
    BucketNotFound,
    InvalidRequest,
    LoaderError,
    NodeUnavailable,
    SnapshotNotFound,
    SnapshotReadOnly,
)
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.bucket_uuid import draw_bucket_uuid
from ais_loader.wire.redundancy import COPIES
from storage_node.store.failpoints import failpoint
from storage_node.store.format import CatalogEntry
from storage_node.store.listing import merged
from storage_node.store.names import SNAPSHOT_MARK, bucket_not_found, check_bucket_name, unfinished_name
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.quotas import Use
from storage_node.store.record_keeper import RecordKeeper
from storage_node.store.refused_buckets import refusal
from storage_node.store.store_record import BucketRecord

_PURGE_AT_ONCE = 1000


class ReplicaStale(NodeUnavailable):
    """Another node may have a newer version; read there, or retry in a moment."""


class ObjectCoded(NodeUnavailable):
    """Objects are coded: their bytes are in fragments that several nodes have, and no files are here. A node reads them
    from these, or stores them again; whoever gets this error asks one."""

    def __init__(
        self, message: str, bucket_uuid: bytes = b"", entries: Mapping[str, CatalogEntry] | None = None
    ) -> None:
        super().__init__(message)
        self.bucket_uuid = bucket_uuid
        self.entries = entries or {}
        """Entry of each object by name."""


class Buckets:
    """Buckets of one store. Thread-safe."""

    def __init__(self, record: RecordKeeper, drives: DriveSet) -> None:
        self._record = record
        self._drives = drives
        self.suggests = True
        """Whether errors suggest names of other buckets; not to clients that may not see all of them."""

    # -- looking up

    def get(self, name: str) -> BucketRecord:
        """Return a bucket. Raises BucketNotFound, and ReplicaStale for a snapshot that is being created."""
        found = self.find(name)
        if found is None:
            raise self.missing(name)
        return found

    def require_still(self, name: str, known: BucketRecord) -> None:
        """Check that a bucket or snapshot still exists after something in it was missing, or a listing ended.

        Raises BucketNotFound, and ReplicaStale for a snapshot that is being created again.
        """
        found = self.get(name)
        if (found.uuid, found.cut) != (known.uuid, known.cut):
            raise BucketNotFound(f"{name!r} was deleted and made again meanwhile")

    def missing(self, name: str) -> BucketNotFound | ReplicaStale | AccessDenied:
        """Return the error for a name that belongs to no bucket and no snapshot."""
        if (refused := refusal(name)) is not None:
            return refused
        of, mark, snapshot = name.partition(SNAPSHOT_MARK)
        record = self._record.current
        if mark and of in record.buckets:
            if unfinished_name(snapshot) in record.snapshots.get(record.buckets[of].uuid, {}):
                return ReplicaStale(f"snapshot {snapshot!r} of bucket {of!r} is being made, as far as this node knows")
            return SnapshotNotFound(f"bucket {of!r} has no snapshot {snapshot!r}")
        return bucket_not_found(of, record.buckets if self.suggests else ())

    def to_change(self, name: str) -> BucketRecord:
        """Return a bucket that may be changed. Raises BucketNotFound, SnapshotReadOnly for a snapshot's name."""
        found = self.get(name)
        if found.cut is not None:
            raise SnapshotReadOnly(f"{name!r} is a snapshot, which never changes; write to the bucket itself")
        return found

    def uuid_to_change(self, name: str) -> bytes:
        """Return the uuid of a bucket that may be changed. A shortcut, because every PUT needs it."""
        if self._drives.writable and (found := self._record.current.buckets.get(name)) is not None:
            return found.uuid_bytes
        return self.to_change(name).uuid_bytes

    def find(self, name: str) -> BucketRecord | None:
        """Return a bucket by its name, or one of its snapshots by bucket@snapshot."""
        if not self._drives.writable:
            self._record.refresh(only_if_stale=name in self._record.current.buckets)
        return self._record.current.bucket(name)

    def all(self) -> dict[str, BucketRecord]:
        if not self._drives.writable:
            self._record.refresh(only_if_stale=False)
        return dict(self._record.current.buckets)

    # -- changing

    def create(
        self,
        name: str,
        settings: BucketSettings = BucketSettings(),  # noqa: B008  # frozen
        *,
        exist_ok: bool = False,
    ) -> BucketRecord:
        """See `Store.create_bucket`."""
        self._drives.require_open()
        check_bucket_name(name)
        _require_one_copy(settings)
        found = self.find(name)
        with self._record.lock:
            record = self._record.current
            found = record.buckets.get(name) if self._drives.writable else found
            if found is not None:
                if exist_ok:
                    return found
                raise BucketExists(f"bucket {name!r} exists; pass exist_ok=True to use it")
            self._drives.require_writable()
            bucket = BucketRecord(draw_bucket_uuid().hex()).with_settings(settings)
            _require_settable(bucket)
            if bucket.has_quota:
                self._count(bucket)
            self._record.commit(record.with_buckets({name: bucket}))
            return bucket

    def follow(self, wanted: Mapping[str, BucketRecord]) -> None:
        """See `Store.follow_buckets`."""
        self._drives.require_writable()
        with self._record.lock:
            record = self._record.current
            if missing := {name: bucket for name, bucket in wanted.items() if name not in record.buckets}:
                self._record.commit(record.with_buckets(missing), whoever=True)  # a missing drive gets it later

    def set(self, name: str, settings: BucketSettings) -> BucketRecord:
        """See `Store.set_bucket`."""
        self._drives.require_writable()
        _require_one_copy(settings)
        with self._record.lock:
            found = self.to_change(name)
            changed = found.with_settings(settings)
            if changed != found:
                _require_settable(changed)
                if changed.has_quota and not found.has_quota:
                    self._count(changed)
                self._record.commit(self._record.current.with_buckets({name: changed}))
                if found.has_quota and not changed.has_quota:
                    self._count_no_more(changed)
            return self._record.current.buckets[name]

    def use(self, name: str) -> Use | None:
        """Return the use of a bucket with a quota, on the drives that are there; None for other buckets, and for a
        store that is open for reading. Raises BucketNotFound."""
        found = self.get(name)
        return self._record.quotas.use(found.uuid_bytes) if found.has_quota and self._drives.writable else None

    def _count(self, bucket: BucketRecord) -> None:
        """Count a bucket on every drive, before its quota is in force. A drive that is missing does so when it is back.
        Raises DriveFailed, StoreFormatError."""
        try:
            for drive in self._drives.live():
                drive.changes.usage.start(bucket.uuid_bytes)
        except BaseException:
            self._count_no_more(bucket)
            raise

    def _count_no_more(self, bucket: BucketRecord) -> None:
        for drive in self._drives.live():
            with contextlib.suppress(LoaderError):  # it is counted in vain until the drive is opened again
                drive.changes.usage.stop(bucket.uuid_bytes)

    def delete(self, name: str, *, force: bool = False, of_cluster: bool = False) -> int:
        """See `Store.delete_bucket`."""
        self._drives.require_writable()
        with self._record.lock, contextlib.ExitStack() as quiet:
            bucket = self.to_change(name)
            record = self._record.current
            if (snapshots := record.snapshots.get(bucket.uuid)) and not (force and of_cluster):
                raise BucketHasSnapshots(f"bucket {name!r} has snapshots, {', '.join(snapshots)}: delete them first")
            for drive in self._drives.live():
                quiet.enter_context(drive.quiet())
            if not force and next(merged(self._drives, bucket.uuid_bytes, "", "", tombstones=False), None) is not None:
                raise BucketNotEmpty(f"bucket {name!r} holds objects; pass force=True to delete them with it")
            self._record.commit(record.without_bucket(name), whoever=of_cluster)
            self._record.deleted_buckets.add(bucket.uuid_bytes)
            for drive in self._drives.live():
                drive.refuse_bucket(bucket.uuid_bytes)
                drive.changes.set_cuts(self._record.current.cuts)
        failpoint("bucket.recorded")
        return self.purge(bucket.uuid)

    def purge(self, bucket_uuid: str) -> int:
        """Delete the objects of a bucket that is no longer in the store record. Returns how many there were."""
        purged = 0
        moving = bool(self._record.current.former)
        seen: set[str] = set()  # while objects move, one may be on two drives, but counts once
        for drive in self._drives.live():
            found = drive.scan_all(bytes.fromhex(bucket_uuid), "", "")
            while names := [name for name, _ in itertools.islice(found, _PURGE_AT_ONCE)]:
                deleted = drive.changes.delete(bytes.fromhex(bucket_uuid), names, tombstones=True)
                gone = {name for name, was_there in zip(names, deleted, strict=True) if was_there} - seen
                purged += len(gone)
                if moving:
                    seen |= gone
            drive.changes.trim(bytes.fromhex(bucket_uuid))
            drive.changes.usage.stop(bytes.fromhex(bucket_uuid))
        if self._drives.all_live():
            with self._record.lock:
                self._record.commit(self._record.current.purged(bucket_uuid))
        return purged


def _require_settable(bucket: BucketRecord) -> None:
    if bucket.has_quota and bucket.remote is not None:
        raise InvalidRequest(
            "a remote bucket has no quota: its objects are elsewhere, and `cache_bytes` limits the copies of them"
        )


def _require_one_copy(settings: BucketSettings) -> None:
    if settings.redundancy not in (None, COPIES):
        raise InvalidRequest(
            f"redundancy={settings.redundancy}: fragments go to different hosts, and this store is on one; form a "
            "cluster"
        )
    for what, count in (("copies", settings.copies), ("min_copies", settings.min_copies)):
        if count not in (None, 1):
            raise InvalidRequest(f"{what}={count}: a store on one host keeps one copy of each object")
