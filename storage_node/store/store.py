"""Several drives as one store: buckets, placement of objects on drives, and everything that is not a batch.

A drive that is missing or broken takes its own objects with it and no others: they are answered with DriveFailed until
it is back. Thread-safe. Belongs to the process that opened it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from storage_node.store import record as records
from storage_node.store.changes import PendingObject
from storage_node.store.copies import StoredVersion
from storage_node.store.doubts import CopyInDoubt, in_doubt_message
from storage_node.store.drive import READER_STALENESS_S, Drive, Durability
from storage_node.store.drive_changes import DriveChanges
from storage_node.store.drive_set import DriveSet, Located
from storage_node.store.errors import (
    BucketExists,
    BucketNotEmpty,
    BucketNotFound,
    DriveFailed,
    FormatError,
    InvalidRequest,
    ObjectNotFound,
    StoreClosed,
    StoreError,
    StoreReadOnly,
)
from storage_node.store.failpoints import failpoint
from storage_node.store.format import Record, Version
from storage_node.store.listing import merged
from storage_node.store.moving import Moved
from storage_node.store.names import check_bucket_name, check_object_name, object_name_fault
from storage_node.store.opening import OpenDrives, drive_folders, newest_record, open_beside, open_drives
from storage_node.store.placed_changes import PlacedChanges, StagedObject
from storage_node.store.places import Placement
from storage_node.store.raw_files import drive_error
from storage_node.store.record import BucketRecord, ClusterRecord
from storage_node.store.states import DriveState, drive_state
from storage_node.store.upload import Upload, checked_metadata

__all__ = ["DriveState", "Moved", "Store", "StoredVersion", "Upload", "not_found_message"]

_PURGE_AT_ONCE = 1000


class Store(DriveChanges):
    """Open with `Store.open`; close it, or use it as a context manager."""

    def __init__(self, opened: OpenDrives, *, writable: bool, durability: Durability, roots: Sequence[Path]) -> None:
        drives = DriveSet(opened.record, opened.drives, opened.problems, self._follow_writer)
        super().__init__(drives, durability, roots)
        self._record = opened.record
        self._changes = PlacedChanges(drives)
        self.left_out = opened.left_out
        """Folders given that are not of the store any more (retired, forgotten), or not yet, and why."""
        self.writable = writable
        self._record_read_at = time.monotonic()
        self._closed = False

    # -- opening and closing

    @classmethod
    def open(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        *,
        mode: Literal["a", "r"] = "a",
        durability: Durability = "process",
    ) -> Store:
        """Open the store on these drives; mode "a" creates it where there is none, mode "r" never locks or writes.

        Raises StoreNotFound, StoreLocked, StoreReadOnly, FormatError, DriveFull, DriveFailed, InvalidRequest.
        """
        if mode not in ("a", "r"):
            raise InvalidRequest(f'mode {mode!r}: "a" opens for reading and writing and creates, "r" only reads')
        if durability not in ("process", "power"):
            raise InvalidRequest(f'durability {durability!r}: "process" or "power"')
        roots = drive_folders(paths)
        opened = open_drives(roots, writable=mode == "a", durability=durability)
        store = cls(opened, writable=mode == "a", durability=durability, roots=roots)
        if store.writable:
            try:
                store._settle()
            except BaseException:
                store.close()
                raise
        return store

    def _settle(self) -> None:
        """Bring every drive to the newest record, and finish deleting what was being deleted."""
        for drive in self._live():
            try:
                on_drive = records.read(drive.root)
            except (FormatError, OSError):
                on_drive = None
            if on_drive is None or on_drive.order < self._record.order:
                with contextlib.suppress(OSError):  # a majority has it, and a full drive must open to be emptied
                    records.write(drive.root, self._record)
        for bucket_uuid in self._record.purging:
            with contextlib.suppress(StoreError):  # the next start goes on
                self._purge(bucket_uuid)
        if self.moving:
            self._synchronise(self._live())

    def close(self) -> None:
        """Wait for running commits, and let go of the drives. What comes later raises StoreClosed."""
        self._closed = True
        for drive in self._live():
            drive.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what the store is

    @property
    def store_uuid(self) -> str:
        return self._record.store_uuid

    @property
    def record(self) -> ClusterRecord:
        return self._record

    @property
    def drives(self) -> Sequence[Drive | None]:
        """In the order of the record; None for a drive that is missing or disabled."""
        return self._set.in_record()

    def _live(self) -> list[Drive]:
        return self._set.live()

    def states(self) -> list[DriveState]:
        """Raises StoreClosed."""
        self._require_open()
        return [drive_state(slot, retiring=slot.uuid in self._record.retiring) for slot in self._set.rows()]

    # -- buckets

    def bucket(self, name: str) -> BucketRecord:
        """Raises BucketNotFound."""
        found = self.find_bucket(name)
        if found is None:
            raise BucketNotFound(f"bucket {name!r} does not exist; create_bucket makes it")
        return found

    def find_bucket(self, name: str) -> BucketRecord | None:
        if not self.writable:
            self._refresh_record(only_if_stale=name in self._record.buckets)
        return self._record.buckets.get(name)

    def buckets(self) -> dict[str, BucketRecord]:
        if not self.writable:
            self._refresh_record(only_if_stale=False)
        return dict(self._record.buckets)

    def _refresh_record(self, *, only_if_stale: bool) -> None:
        now = time.monotonic()
        if only_if_stale and now - self._record_read_at < READER_STALENESS_S:
            return
        with contextlib.suppress(FormatError):  # no drive can be read now: what is known stays true of the past
            newest = newest_record({drive.root: drive.identity for drive in self._live()})
            with self._record_lock:
                if newest.order > self._record.order:
                    self._follow(newest)
        self._record_read_at = now

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
            also = open_beside(record, before, self._roots, self._durability)
        for drive in self._set.follow(record, also):
            if not self.writable:
                drive.give_up(f"drive {drive.identity.drive_uuid} has left the store")

    def create_bucket(
        self, name: str, *, copies: int = 1, exist_ok: bool = False, bucket_uuid: str | None = None
    ) -> BucketRecord:
        """`bucket_uuid`: this node's part of a cluster's bucket, which has its uuid and its copies from the cluster.

        Raises InvalidName, BucketExists, InvalidRequest, StoreReadOnly, StoreClosed, DriveFull, DriveFailed."""
        self._require_open()
        check_bucket_name(name)
        if copies != 1 and bucket_uuid is None:
            raise InvalidRequest(f"copies={copies}: a store on one host keeps one copy of each object")
        found = self.find_bucket(name)
        with self._record_lock:
            found = self._record.buckets.get(name) if self.writable else found
            if found is not None:
                if exist_ok:
                    return found
                raise BucketExists(f"bucket {name!r} exists; pass exist_ok=True to use it")
            self._require_writable()
            self._commit_record(self._record.with_bucket(name, copies, bucket_uuid))
            return self._record.buckets[name]

    def delete_bucket(self, name: str, *, force: bool = False) -> int:
        """Delete an empty bucket, or with `force` its objects too; returns how many objects went.

        Uploads into it that are not committed by then fail with BucketNotFound. Raises BucketNotFound, BucketNotEmpty,
        StoreReadOnly, StoreClosed, DriveFull, DriveFailed.
        """
        self._require_writable()
        with self._record_lock, contextlib.ExitStack() as quiet:
            bucket = self.bucket(name)
            for drive in self._live():
                quiet.enter_context(drive.quiet())
            if not force and next(self.objects(name, page_size=1), None) is not None:
                raise BucketNotEmpty(f"bucket {name!r} holds objects; pass force=True to delete them with it")
            self._commit_record(self._record.without_bucket(name))
            self._dead_buckets.add(bucket.uuid_bytes)
            for drive in self._live():
                drive.refuse_bucket(bucket.uuid_bytes)
        failpoint("bucket.recorded")
        return self._purge(bucket.uuid)

    def _purge(self, bucket_uuid: str) -> int:
        """Delete the objects of a bucket that is no longer in the record."""
        purged = 0
        for drive in self._live():
            found = drive.scan_all(bytes.fromhex(bucket_uuid), "", "")
            while names := [name for name, _ in itertools.islice(found, _PURGE_AT_ONCE)]:
                purged += sum(drive.delete(bytes.fromhex(bucket_uuid), names, tombstones=True))
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
        live = [*self._live(), *also]
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
        problem: StoreError | None = None
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
            raise StoreClosed("the store has been closed")

    def _require_writable(self) -> None:
        self._require_open()
        if not self.writable:
            raise StoreReadOnly('the store is open for reading only; connect with mode="a" to write')

    # -- objects

    @property
    def placement(self) -> Placement:
        """Replaced whenever drives come or go. Who has not found something asks `still`."""
        return self._set.placement

    def still(self, placement: Placement) -> bool:
        """Whether what was not found by this placement is not there; otherwise look again, by the one of now."""
        return self._set.still(placement)

    def drive_index(self, bucket_uuid: bytes, name: str) -> int:
        """The slot of the drive that owns the object; what `drive_at` takes. As long as no drive has come or gone,
        its position in `drives`."""
        return self._set.placement.owner(bucket_uuid, name)

    def drive_at(self, index: int) -> Drive:
        """Raises DriveFailed for a drive that is missing, disabled, or not of the store any more, StoreClosed."""
        self._require_open()
        return self._set.at(index)

    def cached(self, bucket_uuid: bytes, name: str) -> tuple[Drive, Record] | None:
        """What is known of an object without asking a catalog; None means that it has to be looked up."""
        placement = self._set.placement
        drive = self._set.slots[placement.owner(bucket_uuid, name)].drive
        record = drive.cached(bucket_uuid, name) if drive is not None and placement.ordered else None
        return None if drive is None or record is None else (drive, record)

    def lookup_moving(
        self, placement: Placement, bucket_uuid: bytes, names: Sequence[str]
    ) -> list[Located | StoreError | UnicodeEncodeError]:
        """Objects of many names while they may be on several drives; slot and record of each, or what went wrong."""
        self._require_open()
        return self._set.lookup_moving(placement, bucket_uuid, names)

    def newest_entry(self, bucket_uuid: bytes, name: str) -> Record | None:
        self._require_open()
        return self._set.newest(bucket_uuid, name).record

    def look_again(self, bucket_uuid: bytes, name: str) -> Located:
        """Straight from the catalogs, after the file of an object was not there. Raises DriveFailed, FormatError."""
        self._require_open()
        slot, record = self._set.newest(bucket_uuid, name)
        return Located(slot, None if record is None or record.is_tombstone else record)

    def _drop(self, bucket_uuid: bytes, name: str, version: Version, *, tombstone: bool) -> Record | None:
        return self._changes.drop(bucket_uuid, name, version, tombstone=tombstone)

    def begin_put(
        self, bucket: str, name: str, metadata: dict[str, str] | None = None, version: Version | None = None
    ) -> Upload:
        """Begin to write an object; nothing is visible before `Upload.commit`.

        `version`: that of a copy, given by another node; it is committed if it is newer than what the store has.

        Raises InvalidName, BucketNotFound, StoreReadOnly, DriveFailed, DriveFull, InvalidRequest.
        """
        self._require_writable()
        check_object_name(name)
        bucket_uuid = self.bucket(bucket).uuid_bytes
        metadata = checked_metadata(metadata)
        placement = self._set.placement
        drive = self._set.at(placement.owner(bucket_uuid, name))
        pending = PendingObject(bucket_uuid, name, drive.stage(), metadata, version)
        return Upload(f"{bucket}/{name}", StagedObject(drive, placement, pending), self._changes)

    def commit_many(self, uploads: Sequence[Upload | StoreError]) -> list[Record | StoreError]:
        """Commit many uploads with few catalog writes; each succeeds or fails on its own drive. Order is kept."""
        results: list[Record | StoreError] = [
            StoreError("not committed") if isinstance(upload, Upload) else upload for upload in uploads
        ]
        staged: dict[int, StagedObject] = {}
        for at, upload in enumerate(uploads):
            if isinstance(upload, Upload):
                try:
                    staged[at] = upload.take()
                except InvalidRequest as error:
                    results[at] = error
        for at, result in zip(staged, self._changes.commit(list(staged.values())), strict=True):
            results[at] = result
        return results

    def locate(self, bucket: str, name: str) -> tuple[Drive, Record]:
        """The drive that owns an object, and what its catalog knows of it. Raises what `head` raises."""
        bucket_uuid = self.bucket(bucket).uuid_bytes
        try:
            self._require_open()
            drive, found = self._set.lookup(bucket_uuid, name)
        except UnicodeEncodeError:
            found = None
        if self.doubts.any and self.in_doubt(bucket_uuid, name, found):
            raise CopyInDoubt(in_doubt_message(name))
        if found is None:
            raise ObjectNotFound(not_found_message(bucket, name))
        return drive, found

    def head(self, bucket: str, name: str) -> Record:
        """Raises BucketNotFound, ObjectNotFound, DriveFailed, FormatError, StoreClosed."""
        return self.locate(bucket, name)[1]

    def delete(
        self, bucket: str, name: str, version: Version | None = None, keep_tombstone: bool = False
    ) -> Record | None:
        """Remove an object. With `keep_tombstone` its deletion has a version, above the object's or the one given.

        With a `version` this deletes what is not newer than that, and is no error where there is nothing. Returns what
        the store has of the name now: None, a tombstone, or a newer object. Raises ObjectNotFound when there is no
        such object and no version was given, StoreReadOnly, DriveFull, and what `head` raises.
        """
        self._require_writable()
        bucket_uuid = self.bucket(bucket).uuid_bytes
        found: Record | None = None
        if object_name_fault(name):
            missing = True
        elif keep_tombstone:
            before, found = self._changes.entomb(bucket_uuid, name, version)
            missing = version is None and (before is None or before.is_tombstone)
        elif version is not None:
            found = self._changes.drop(bucket_uuid, name, version, tombstone=False)
            missing = False
        else:
            missing = not self._changes.delete(bucket_uuid, name)
        if missing:
            raise ObjectNotFound(not_found_message(bucket, name))
        return found

    def objects(
        self, bucket: str, prefix: str = "", start_after: str = "", page_size: int | None = None
    ) -> Iterator[tuple[str, Record]]:
        """Objects in name order (by the bytes of their UTF-8 form), `page_size` of them at most.

        Raises BucketNotFound, InvalidRequest, and DriveFailed when a drive is missing: a list that silently lacks
        names would be worse.
        """
        scans = self._scans(bucket, prefix, start_after, tombstones=False)
        yield from itertools.islice(scans, page_size)

    def _scans(self, bucket: str, prefix: str, start_after: str, *, tombstones: bool) -> Iterator[tuple[str, Record]]:
        bucket_uuid = self.bucket(bucket).uuid_bytes
        try:
            prefix.encode(), start_after.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"prefix {prefix!r}, start_after {start_after!r}: not valid Unicode") from None
        self._require_open()
        return merged(self._set, bucket_uuid, prefix, start_after, tombstones=tombstones)


def not_found_message(bucket: str, name: str) -> str:
    fault = object_name_fault(name)
    return f"no object {name!r} in bucket {bucket!r}" + (f" (nor can there be: {fault})" if fault else "")
