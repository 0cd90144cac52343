"""The store's record in memory and on its drives: buckets, and the one moment at which a change of it counts.

A reader beside a writer reads it again once a second, before it says that something is not there, and when a writer in
its own process has changed it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ais_loader.errors import (
    BucketExists,
    BucketHasSnapshots,
    BucketNotEmpty,
    BucketNotFound,
    Closed,
    DriveFailed,
    InvalidRequest,
    LoaderError,
    SnapshotNotFound,
    SnapshotReadOnly,
    StoreFormatError,
    StoreReadOnly,
)
from storage_node.store import store_record as records
from storage_node.store.archives.limits import ShardLimits
from storage_node.store.drive.drive import READER_STALENESS_S, Drive, Durability
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import drive_error
from storage_node.store.format import Record
from storage_node.store.names import SNAPSHOT_MARK, check_bucket_name, unfinished_name
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.pool.membership import DriveChanges
from storage_node.store.pool.open import newest_record, open_beside
from storage_node.store.stale_replicas import CopyInDoubt
from storage_node.store.store_record import BucketRecord, ClusterRecord

_PURGE_AT_ONCE = 1000


class Recorded(DriveChanges):
    """The part of a store that keeps its record."""

    def __init__(
        self,
        record: ClusterRecord,
        drives: DriveSet,
        *,
        writable: bool,
        durability: Durability,
        roots: Sequence[Path],
        shard_limits: ShardLimits | None = None,
    ) -> None:
        super().__init__(drives, durability, roots, shard_limits)
        self._record = record
        self.writable = writable
        self._record_read_at = time.monotonic()
        self._record_marks: list[object] = []
        """Of a reader: those of its drives when it was read last."""
        self._closed = False

    @abstractmethod
    def objects(
        self, bucket: str, prefix: str = "", start_after: str = "", page_size: int | None = None
    ) -> Iterator[tuple[str, Record]]: ...

    @property
    def record(self) -> ClusterRecord:
        return self._record

    def _live(self) -> list[Drive]:
        return self._set.live()

    # -- buckets

    def bucket(self, name: str) -> BucketRecord:
        """Raises BucketNotFound."""
        found = self.find_bucket(name)
        if found is None:
            raise self.no_bucket(name)
        return found

    def no_bucket(self, name: str) -> BucketNotFound | CopyInDoubt:
        """What to say of a name that is that of no bucket, and of no snapshot of one."""
        of, mark, snapshot = name.partition(SNAPSHOT_MARK)
        if mark and of in self._record.buckets:
            if unfinished_name(snapshot) in self._record.snapshots.get(self._record.buckets[of].uuid, {}):
                return CopyInDoubt(f"snapshot {snapshot!r} of bucket {of!r} is being made, as far as this node knows")
            return SnapshotNotFound(f"bucket {of!r} has no snapshot {snapshot!r}")
        return BucketNotFound(f"bucket {of!r} does not exist; create_bucket makes it")

    def bucket_to_change(self, name: str) -> BucketRecord:
        """Raises BucketNotFound, and SnapshotReadOnly for the name of a snapshot."""
        found = self.bucket(name)
        if found.cut is not None:
            raise SnapshotReadOnly(f"{name!r} is a snapshot, which never changes; write to the bucket itself")
        return found

    def find_bucket(self, name: str) -> BucketRecord | None:
        """By its name, or that of one of its snapshots: bucket@snapshot."""
        if not self.writable:
            self._refresh_record(only_if_stale=name in self._record.buckets)
        return self._record.bucket(name)

    def buckets(self) -> dict[str, BucketRecord]:
        if not self.writable:
            self._refresh_record(only_if_stale=False)
        return dict(self._record.buckets)

    def _refresh_record(self, *, only_if_stale: bool) -> None:
        now, marks = time.monotonic(), [drive.record_mark.latest for drive in self._live()]
        if only_if_stale and marks == self._record_marks and now - self._record_read_at < READER_STALENESS_S:
            return
        with contextlib.suppress(StoreFormatError):  # no drive can be read now: what is known stays true of the past
            newest = newest_record({drive.root: drive.identity for drive in self._live()})
            with self._record_lock:
                if newest.order > self._record.order:
                    self._follow(newest)
        self._record_read_at, self._record_marks = now, marks

    def _follow_writer(self) -> None:
        """What was not found may have moved to a drive that the writer has added since."""
        if not self.writable and not self._closed:
            self._refresh_record(only_if_stale=False)

    def _follow(self, record: ClusterRecord, also: Sequence[Drive] = ()) -> None:
        """The record that counts from now on; the caller holds _record_lock."""
        before, self._record = self._record, record
        if (before.drives, before.active, before.former) == (record.drives, record.active, record.former):
            return
        if not self.writable:
            also = open_beside(record, before, self._roots, self._durability, self._shard_limits)
        for drive in self._set.follow(record, also):
            if not self.writable:
                drive.give_up(f"drive {drive.identity.drive_uuid} has left the store")

    def create_bucket(
        self,
        name: str,
        *,
        copies: int = 1,
        exist_ok: bool = False,
        bucket_uuid: str | None = None,
        min_copies: int = 1,
        reframe: bool = False,
    ) -> BucketRecord:
        """`bucket_uuid`: this node's part of a cluster's bucket, which has its uuid and its copies from the cluster.

        Raises InvalidName, BucketExists, InvalidRequest, StoreReadOnly, Closed, DriveFull, DriveFailed."""
        self._require_open()
        check_bucket_name(name)
        if bucket_uuid is None:
            _require_one_copy(copies=copies, min_copies=min_copies)
        found = self.find_bucket(name)
        with self._record_lock:
            found = self._record.buckets.get(name) if self.writable else found
            if found is not None:
                if exist_ok:
                    return found
                raise BucketExists(f"bucket {name!r} exists; pass exist_ok=True to use it")
            self._require_writable()
            of_cluster = bucket_uuid is not None  # which will say it again to a drive that does not hear of it now
            changed = self._record.with_bucket(name, copies, bucket_uuid, reframe=reframe)
            self._commit_record(changed, whoever=of_cluster)
            return self._record.buckets[name]

    def set_bucket(self, name: str, copies: int | None, min_copies: int | None, reframe: bool | None) -> BucketRecord:
        """Change what is not None. Raises BucketNotFound, InvalidRequest, StoreReadOnly, Closed, DriveFull,
        DriveFailed."""
        self._require_writable()
        _require_one_copy(copies=copies, min_copies=min_copies)
        with self._record_lock:
            found = self.bucket_to_change(name)
            if reframe is not None and reframe != found.reframe:
                self._commit_record(self._record.with_reframe(name, reframe))
            return self._record.buckets[name]

    def delete_bucket(self, name: str, *, force: bool = False, of_cluster: bool = False) -> int:
        """Delete an empty bucket, or with `force` its objects too; returns how many objects went.

        `of_cluster`: its map says that the bucket is gone, however many drives can hear of it now.
        Uploads into it that are not committed by then fail with BucketNotFound. Raises BucketNotFound, BucketNotEmpty,
        BucketHasSnapshots whatever `force` says, StoreReadOnly, Closed, DriveFull, DriveFailed.
        """
        self._require_writable()
        with self._record_lock, contextlib.ExitStack() as quiet:
            bucket = self.bucket_to_change(name)
            if (snapshots := self._record.snapshots.get(bucket.uuid)) and not (force and of_cluster):
                raise BucketHasSnapshots(f"bucket {name!r} has snapshots, {', '.join(snapshots)}: delete them first")
            for drive in self._live():
                quiet.enter_context(drive.quiet())
            if not force and next(self.objects(name, page_size=1), None) is not None:
                raise BucketNotEmpty(f"bucket {name!r} holds objects; pass force=True to delete them with it")
            self._commit_record(self._record.without_bucket(name), whoever=of_cluster)
            self._dead_buckets.add(bucket.uuid_bytes)
            for drive in self._live():
                drive.refuse_bucket(bucket.uuid_bytes)
                drive.set_cuts(self._record.cuts)
        failpoint("bucket.recorded")
        return self._purge(bucket.uuid)

    def _purge(self, bucket_uuid: str) -> int:
        """Delete the objects of a bucket that is no longer in the record."""
        purged = 0
        moving = bool(self._record.former)
        seen: set[str] = set()  # while objects move, one may be on two drives: it is one all the same
        for drive in self._live():
            found = drive.scan_all(bytes.fromhex(bucket_uuid), "", "")
            while names := [name for name, _ in itertools.islice(found, _PURGE_AT_ONCE)]:
                deleted = drive.delete(bytes.fromhex(bucket_uuid), names, tombstones=True)
                gone = {name for name, was_there in zip(names, deleted, strict=True) if was_there} - seen
                purged += len(gone)
                if moving:
                    seen |= gone
            drive.trim(bytes.fromhex(bucket_uuid))
        if self._set.all_live():
            with self._record_lock:
                self._commit_record(self._record.purged(bucket_uuid))
        return purged

    def change_record(self, change: Callable[[ClusterRecord], ClusterRecord]) -> None:
        """Commit a changed record. For the doctor; raises what `create_bucket` raises."""
        self._require_writable()
        with self._record_lock:
            self._commit_record(change(self._record))

    def _commit_record(self, record: ClusterRecord, also: Sequence[Drive] = (), *, whoever: bool = False) -> None:
        """Put the record on every drive; the caller holds _record_lock.

        It counts once a majority has it, of the drives before and after; with `whoever`, once all that can be written
        have it. `also`: drives that are new in it.
        """
        live = [*also, *self._live()]
        sets = () if whoever else (self._record.drives, record.drives)

        def is_enough(drives: Sequence[Drive]) -> bool:
            there = {drive.identity.drive_uuid for drive in drives}
            return bool(there) and all(2 * len(there.intersection(uuids)) > len(uuids) for uuids in sets)

        if not is_enough(live):
            raise DriveFailed(
                f"only {len(live)} of {len(self._record.drives)} drives can be written; a change of buckets or drives "
                "needs a majority"
            )
        written: list[Drive] = []
        problem: LoaderError | None = None
        for drive in live:
            try:
                records.write(drive.root, record)
                written.append(drive)
            except OSError as error:
                drive.faults.note(error, "writing the record")
                problem = drive_error(error, drive.root, "writing the record of buckets")
        failed = {drive.identity.drive_uuid for drive in live if drive not in written}
        if problem is not None and (not is_enough(written) or failed & {drive.identity.drive_uuid for drive in also}):
            # The number is spent: a drive that has this record must never hold it for the one that comes next.
            self._record = replace(self._record, revision=record.revision)
            raise problem
        self._follow(record, also)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the store has been closed")

    def _require_writable(self) -> None:
        self._require_open()
        if not self.writable:
            raise StoreReadOnly('the store is open for reading only; connect with mode="a" to write')

    def _end(self) -> list[Drive]:
        """Nothing is begun any more; returns the drives that are open."""
        self._closed = True
        if self._set.gate.is_inherited:
            return self._live()  # a lock may be held for ever by a thread that the fork left behind
        with self._record_lock:
            return self._live()


def _require_one_copy(**counts: int | None) -> None:
    for what, count in counts.items():
        if count not in (None, 1):
            raise InvalidRequest(f"{what}={count}: a store on one host keeps one copy of each object")
