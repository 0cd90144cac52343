"""Store: several drives as one, with buckets, placement of objects on drives, and everything that is not a batch.

A drive that is missing or broken takes its own objects with it and no others: they are answered with DriveFailed until
it is back. Thread-safe. Belongs to the process that opened it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound, StoreFormatError
from storage_node.store import store_record as records
from storage_node.store.archives.limits import ShardLimits
from storage_node.store.archives.open_archives import indexing_of
from storage_node.store.drive.drive import Drive, Durability
from storage_node.store.drive.pending import PendingObject
from storage_node.store.drive.preconditions import Condition
from storage_node.store.files.segment_format import SEGMENT_FORMAT
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import Record, Version
from storage_node.store.listing import merged
from storage_node.store.names import check_object_name, object_name_fault
from storage_node.store.pool.drive_set import DriveSet, Located
from storage_node.store.pool.open import OpenDrives, drive_folders, open_drives
from storage_node.store.pool.placement import Placement
from storage_node.store.pool.rebalance import Moved
from storage_node.store.pool.status import DriveState, drive_state
from storage_node.store.pool.writes import PlacedChanges, StagedObject
from storage_node.store.replica_state import StoredVersion, not_found_message
from storage_node.store.snapshots import Snapshots
from storage_node.store.stale_replicas import CopyInDoubt, in_doubt_message
from storage_node.store.store_record import ClusterRecord
from storage_node.store.upload import Upload, checked_metadata

__all__ = ["DriveState", "Moved", "Store", "StoredVersion", "Upload", "not_found_message"]


class Store(Snapshots):
    """Open with `Store.open`; close it, or use it as a context manager."""

    def __init__(
        self,
        opened: OpenDrives,
        *,
        writable: bool,
        durability: Durability,
        roots: Sequence[Path],
        shard_limits: ShardLimits | None = None,
    ) -> None:
        drives = DriveSet(opened.record, opened.drives, opened.problems, self._follow_writer)
        super().__init__(
            opened.record, drives, writable=writable, durability=durability, roots=roots, shard_limits=shard_limits
        )
        self._changes = PlacedChanges(drives)
        self.left_out = opened.left_out
        """Folders given that are not of the store any more (retired, forgotten), or not yet, and why."""

    # -- opening and closing

    @classmethod
    def open(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        *,
        mode: Literal["a", "r"] = "a",
        durability: Durability = "process",
        shard_limits: ShardLimits | None = None,
    ) -> Store:
        """Open the store on these drives; mode "a" creates it where there is none, mode "r" never locks or writes.

        `shard_limits`: of each drive.

        Raises StoreNotFound, StoreLocked, StoreReadOnly, StoreFormatError, DriveFull, DriveFailed, InvalidRequest.
        """
        if mode not in ("a", "r"):
            raise InvalidRequest(f'mode {mode!r}: "a" opens for reading and writing and creates, "r" only reads')
        if durability not in ("process", "power"):
            raise InvalidRequest(f'durability {durability!r}: "process" or "power"')
        roots = drive_folders(paths)
        opened = open_drives(roots, writable=mode == "a", durability=durability, shard_limits=shard_limits)
        store = cls(opened, writable=mode == "a", durability=durability, roots=roots, shard_limits=shard_limits)
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
            except (StoreFormatError, OSError):
                on_drive = None
            if on_drive is None or on_drive.order < self._record.order:
                with contextlib.suppress(OSError):  # a majority has it, and a full drive must open to be emptied
                    records.write(drive.root, self._record)
        if self._record.segments < SEGMENT_FORMAT:
            with contextlib.suppress(LoaderError):  # no room for it: small objects have files of their own, as before
                self.change_record(ClusterRecord.with_segments)
        for drive in self._live():
            drive.shares_files = self._record.segments >= SEGMENT_FORMAT
            drive.set_cuts(self._record.cuts)
        self._purge_all()
        if self.moving:
            self._synchronise(self._live())

    def close(self) -> None:
        """Wait for running commits, and let go of the drives. What comes later raises Closed."""
        for drive in self._end():
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
    def drives(self) -> Sequence[Drive | None]:
        """In the order of the record; None for a drive that is missing or disabled."""
        return self._set.in_record()

    def states(self) -> list[DriveState]:
        """Raises Closed."""
        self._require_open()
        return [drive_state(slot, retiring=slot.uuid in self._record.retiring) for slot in self._set.rows()]

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
        """Raises DriveFailed for a drive that is missing, disabled, or not of the store any more, Closed."""
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
    ) -> list[Located | LoaderError | UnicodeEncodeError]:
        """Objects of many names while they may be on several drives; slot and record of each, or what went wrong."""
        self._require_open()
        return self._set.lookup_moving(placement, bucket_uuid, names)

    def newest_entry(self, bucket_uuid: bytes, name: str) -> Record | None:
        self._require_open()
        return self._set.newest(bucket_uuid, name).record

    def landed(self, bucket_uuid: bytes, name: str, write_id: bytes, before: Record | None) -> Record | None:
        """What another try of a write has stored; `before` is what there is of the name. Raises DriveFailed."""
        self._require_open()
        return self._set.at(self._set.placement.owner(bucket_uuid, name)).landed(write_id, before)

    def look_again(self, bucket_uuid: bytes, name: str, cut: int | None = None) -> Located:
        """Straight from the catalogs, after the file of an object was not there; with a `cut` as a snapshot sees it.

        Raises DriveFailed, StoreFormatError.
        """
        if cut is not None:
            return self._set.lookup_at(bucket_uuid, name, cut)
        self._require_open()
        slot, record = self._set.newest(bucket_uuid, name)
        return Located(slot, None if record is None or record.is_tombstone else record)

    def _drop(self, bucket_uuid: bytes, name: str, version: Version, *, tombstone: bool) -> Record | None:
        return self._changes.drop(bucket_uuid, name, version, tombstone=tombstone)

    def begin_put(
        self,
        bucket: str,
        name: str,
        metadata: dict[str, str] | None = None,
        version: Version | None = None,
        stage: Callable[[Drive], StagedFile] = Drive.stage,
        *,
        grouped: bool = False,
    ) -> Upload:
        """Begin to write an object; nothing is visible before `Upload.commit`.

        `version`: that of a copy, given by another node; it is committed if it is newer than what the store has.
        `stage`: makes the file on the drive that owns the name. `grouped`: it is committed with others, and if it is
        small it shares a file with them; its bytes are held in memory until then.

        Raises InvalidName, BucketNotFound, StoreReadOnly, DriveFailed, DriveFull, InvalidRequest.
        """
        self._require_writable()
        check_object_name(name)
        bucket_uuid = self.bucket_to_change(bucket).uuid_bytes
        metadata = checked_metadata(metadata)
        placement = self._set.placement
        drive = self._set.at(placement.owner(bucket_uuid, name))
        pending = PendingObject(
            bucket_uuid, name, drive.stage(held=True) if grouped else stage(drive), metadata, version
        )
        return Upload(f"{bucket}/{name}", StagedObject(drive, placement, pending, indexing_of(name)), self._changes)

    def commit_many(self, uploads: Sequence[Upload | LoaderError]) -> list[Record | LoaderError]:
        """Commit many uploads with few catalog writes; each succeeds or fails on its own drive. Order is kept."""
        results: list[Record | LoaderError] = [
            LoaderError("not committed") if isinstance(upload, Upload) else upload for upload in uploads
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
        of = self.bucket(bucket)
        bucket_uuid = of.uuid_bytes
        try:
            self._require_open()
            if of.cut is None:
                drive, found = self._set.lookup(bucket_uuid, name)
            else:
                slot, found = self._set.lookup_at(bucket_uuid, name, of.cut)
                drive = self._set.at(slot)
        except UnicodeEncodeError:
            found = None
        if of.cut is None and self.doubts.any and self.in_doubt(bucket_uuid, name, found):
            raise CopyInDoubt(in_doubt_message(name))
        if found is None:
            raise self.missing(bucket, bucket_uuid, name)
        return drive, found

    def head(self, bucket: str, name: str) -> Record:
        """Raises BucketNotFound, ObjectNotFound, DriveFailed, StoreFormatError, Closed."""
        return self.locate(bucket, name)[1]

    def delete(
        self,
        bucket: str,
        name: str,
        version: Version | None = None,
        keep_tombstone: bool = False,
        condition: Condition | None = None,
    ) -> Record | None:
        """Remove an object. With `keep_tombstone` its deletion has a version, above the object's or the one given.

        With a `version` this deletes what is not newer than that, and is no error where there is nothing. Returns what
        the store has of the name now: None, a tombstone, or a newer object. Raises ObjectNotFound when there is no
        such object and neither a version nor a condition was given, VersionConflict when the condition does not hold,
        StoreReadOnly, DriveFull, and what `head` raises.
        """
        self._require_writable()
        bucket_uuid = self.bucket_to_change(bucket).uuid_bytes
        found: Record | None = None
        if object_name_fault(name):
            missing = True
        elif keep_tombstone:
            before, found = self._changes.entomb(bucket_uuid, name, version, condition)
            missing = version is None and (before is None or before.is_tombstone)
        elif version is not None:
            found = self._changes.drop(bucket_uuid, name, version, tombstone=False)
            missing = False
        else:
            missing = not self._changes.delete(bucket_uuid, name, condition)
        if missing:
            raise ObjectNotFound(not_found_message(bucket, name))
        return found

    def delete_many(self, bucket: str, names: Sequence[str]) -> list[LoaderError | None]:
        """Remove objects without a trace; of each, in order, None or why not. A repeated name is there only once.

        Raises what `bucket_to_change` raises, StoreReadOnly, Closed.
        """
        self._require_writable()
        bucket_uuid = self.bucket_to_change(bucket).uuid_bytes
        different = [name for name in dict.fromkeys(names) if not object_name_fault(name)]
        done = dict(zip(different, self._changes.delete_many(bucket_uuid, different), strict=True))
        results: list[LoaderError | None] = []
        for name in names:
            result = done.pop(name, False)
            if result is False:
                result = ObjectNotFound(not_found_message(bucket, name))
            results.append(None if isinstance(result, bool) else result)
        return results

    def entomb_many(self, bucket: str, graves: Sequence[tuple[str, Version]]) -> list[Record | LoaderError]:
        """Leave tombstones of these versions where nothing newer is; what counts of each now, in order.

        Raises what `bucket_to_change` raises, StoreReadOnly, Closed.
        """
        self._require_writable()
        left: list[Record | LoaderError] = []
        for result in self._changes.entomb_many(self.bucket_to_change(bucket).uuid_bytes, graves):
            if isinstance(result, LoaderError):
                left.append(result)
            else:
                assert result[1] is not None
                left.append(result[1])
        return left

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
        of = self.bucket(bucket)
        try:
            prefix.encode(), start_after.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"prefix {prefix!r}, start_after {start_after!r}: not valid Unicode") from None
        self._require_open()
        found = merged(self._set, of.uuid_bytes, prefix, start_after, tombstones=tombstones, cut=of.cut)
        return found if of.cut is None else (pair for pair in found if self.is_holder(of.uuid_bytes, pair[0]))
