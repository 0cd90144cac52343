"""Store: several drives as one, with buckets, placement of objects on drives, and everything except batches.

A drive that is missing or broken affects only its own objects: they raise DriveFailed until it is back. A listing needs
all drives, unless it is to skip missing ones. Thread-safe. Belongs to the process that opened it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from ais_loader.errors import DriveFailed, InvalidRequest, LoaderError, ObjectNotFound, StoreFormatError
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.closing import Closing
from storage_node.store import store_record as records
from storage_node.store.archives.kinds import kind_of_name
from storage_node.store.archives.open_archives import Indexing, ShardLimits
from storage_node.store.buckets import Buckets, ReplicaStale
from storage_node.store.damaged_copies import DamagedCopies
from storage_node.store.denied_objects import DeniedObjects
from storage_node.store.drive.commit_files import PendingObject
from storage_node.store.drive.drive import Drive, Durability
from storage_node.store.drive.preconditions import Condition
from storage_node.store.drive.upkeep import COMPACT_BYTES_PER_S, Upkeep
from storage_node.store.drive.version_clock import VersionClock
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.names import check_object_name, object_name_fault
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.pool.membership import DrivePool
from storage_node.store.pool.open import DriveOptions, OpenDrives, drive_folders, open_drives
from storage_node.store.quotas import Use
from storage_node.store.record_keeper import RecordKeeper
from storage_node.store.replica_state import ReplicaState, not_found_message, stale_message
from storage_node.store.snapshots import Snapshots
from storage_node.store.store_record import BucketRecord
from storage_node.store.uploads import Uploads
from storage_node.store.write import ChangeWatch, StagedObject, Upload, WriteRouter, check_content, checked_metadata


class Store(Closing):
    """Open it with `Store.open`; close it, or use it as a context manager.

    Operations on objects and buckets are methods of the store; those on a part of the store are methods of that part.
    """

    def __init__(
        self, opened: OpenDrives, options: DriveOptions, roots: Sequence[Path], damaged: DamagedCopies
    ) -> None:
        self.drive_set = DriveSet(
            opened.record,
            opened.drives,
            opened.problems,
            lambda: self.record.refresh(only_if_stale=False),
            writable=options.writable,
        )
        """Open drives, and the locations of a name's entries."""
        self.record = RecordKeeper(opened.record, self.drive_set, roots=roots, options=options)
        """Store record, in memory and on the drives."""
        self._buckets = Buckets(self.record, self.drive_set)
        self.hides_places = False
        """Whether the errors of a batch's entries name no places, see `places`."""
        self.clock = options.clock
        """Version clock."""
        self.snapshots = Snapshots(self.record, self.drive_set, self._buckets, self.clock)
        self.pool = DrivePool(self.drive_set, self.record, options, roots, finish_deletions=self._finish_deletions)
        """Drives that are added and removed, and the moves that this causes."""
        self._changes = WriteRouter(self.drive_set)
        self.uploads = Uploads(self.drive_set, self._changes)
        """Objects and deletions that are to be uploaded to remote storage."""
        self.replicas = ReplicaState(self.drive_set, self._buckets, self._changes, self.clock)
        """State by which replicas on several nodes are compared."""
        self.denied = DeniedObjects(self.drive_set, self.record, self._buckets, self._changes)
        """Objects and contents that nobody may read or write."""
        self.damaged = damaged
        """Objects that readers and the scrub have found damaged."""
        self.upkeep = options.upkeep
        """Removal of dead files and compaction of segments, if the store is open for writing."""
        self.left_out = opened.left_out
        """Given folders that are no longer part of the store (retired, forgotten), or not yet, with the reasons."""

    # -- opening and closing

    @classmethod
    def open(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        *,
        mode: Literal["a", "r"] = "a",
        durability: Durability = "process",
        shard_limits: ShardLimits | None = None,
        clock: VersionClock | None = None,
        compact_bytes_per_s: float = COMPACT_BYTES_PER_S,
    ) -> Store:
        """Open the store on these drives. Mode "a" creates it if there is none; mode "r" never locks or writes.

        `shard_limits`: for each drive. `clock`: None for one that follows this machine's. `compact_bytes_per_s`: rate
        at which objects move out of segments that are less than half live; 0: never.

        Raises StoreNotFound, StoreLocked, StoreReadOnly, StoreFormatError, DriveFull, DriveFailed, InvalidRequest.
        """
        if mode not in ("a", "r"):
            raise InvalidRequest(f'mode {mode!r}: "a" opens for reading and writing and creates, "r" only reads')
        if durability not in ("process", "power"):
            raise InvalidRequest(f'durability {durability!r}: "process" or "power"')
        roots = drive_folders(paths)
        limits = (shard_limits or ShardLimits()).of_drives(len(roots))
        damaged = DamagedCopies()
        upkeep = Upkeep(damaged.note, compact_bytes_per_s)
        options = DriveOptions(mode == "a", upkeep, durability, limits, clock or VersionClock())
        store = cls(open_drives(roots, options), options, roots, damaged)
        if store.writable:
            try:
                store._settle()
            except BaseException:
                store.close()
                raise
        return store

    def _settle(self) -> None:
        """Write the newest record to every drive, and finish interrupted deletions."""
        current = self.record.current
        for drive in self.drive_set.live():
            try:
                on_drive = records.read(drive.root)
            except (StoreFormatError, OSError):
                on_drive = None
            if on_drive is None or on_drive.order < current.order:
                with contextlib.suppress(OSError):  # a majority has it, and a full drive must open to be emptied
                    records.write(drive.root, current)
        for drive in self.drive_set.live():
            drive.changes.set_cuts(current.cuts)
        self._finish_deletions()

    def _finish_deletions(self) -> None:
        """Finish interrupted deletions of buckets and snapshots."""
        current = self.record.current
        for finish, left in ((self._buckets.purge, current.purging), (self.snapshots.trim, current.trimming)):
            for bucket_uuid in left:
                with contextlib.suppress(LoaderError):  # the next start continues
                    finish(bucket_uuid)

    def close(self) -> None:
        """Wait for running commits, and release the drives. Later calls raise Closed."""
        self.upkeep.stop()
        with contextlib.ExitStack() as closing:
            for drive in self.record.end():
                closing.callback(drive.close)

    # -- what the store is

    def refresh(self) -> None:
        """Make a reader see all current commits of writers in other processes. Does nothing in a writer.

        A drive that cannot be read raises its error when it is used. Raises Closed.
        """
        self.drive_set.require_open()
        self.drive_set.refresh()
        for drive in self.drive_set.live():
            with contextlib.suppress(DriveFailed, StoreFormatError):
                drive.catch_up()

    def follow(self) -> bool:
        """Make a reader see every change that a writer of this host has acknowledged; see `Drive.follow`. Raises
        DriveFailed also if a drive is missing."""
        drives = self.drive_set
        return all(drives.at(slot).follow(drives.refresh) for slot in drives.placement.slots)

    def allow_readers(self, allowed: bool) -> None:
        """See `Drive.allow_readers`. Drives that are added later allow none."""
        for drive in self.drive_set.live():
            drive.allow_readers(allowed)

    @property
    def store_uuid(self) -> str:
        return self.record.current.store_uuid

    @property
    def writable(self) -> bool:
        return self.drive_set.writable

    @property
    def drives(self) -> Sequence[Drive | None]:
        """In the order of the store record; None for a drive that is missing or disabled."""
        return self.drive_set.in_record()

    # -- buckets

    def hide(self) -> None:
        """Let no error name a bucket that the caller has not named, nor an entry of a batch a place (`places`)."""
        self._buckets.suggests = False
        self.hides_places = True

    def bucket(self, name: str) -> BucketRecord:
        """Return a bucket by its name, or one of its snapshots by bucket@snapshot. Raises BucketNotFound."""
        return self._buckets.get(name)

    def find_bucket(self, name: str) -> BucketRecord | None:
        """Return a bucket as `bucket` does; None if there is none."""
        return self._buckets.find(name)

    def require_still(self, name: str, known: BucketRecord) -> None:
        """See `Buckets.require_still`."""
        self._buckets.require_still(name, known)

    def bucket_to_change(self, name: str) -> BucketRecord:
        """Return a bucket to change. Raises BucketNotFound, and SnapshotReadOnly for the name of a snapshot."""
        return self._buckets.to_change(name)

    def buckets(self) -> dict[str, BucketRecord]:
        return self._buckets.all()

    def create_bucket(
        self,
        name: str,
        settings: BucketSettings = BucketSettings(),  # noqa: B008  # frozen
        *,
        exist_ok: bool = False,
    ) -> BucketRecord:
        """Create a bucket.

        Raises InvalidName, BucketExists, InvalidRequest, StoreReadOnly, Closed, DriveFull, DriveFailed.
        """
        return self._buckets.create(name, settings, exist_ok=exist_ok)

    def follow_buckets(self, wanted: Mapping[str, BucketRecord]) -> None:
        """Create this node's parts of a cluster's buckets, with one write of the record. Names that exist stay.

        Raises StoreReadOnly, Closed, DriveFull, DriveFailed.
        """
        self._buckets.follow(wanted)

    def set_bucket(self, name: str, settings: BucketSettings) -> BucketRecord:
        """Change settings that are not None; an empty `remote` removes it, and so does 0 a quota.

        The first quota of a bucket takes one scan of it. Raises BucketNotFound, InvalidRequest, StoreReadOnly, Closed,
        DriveFull, DriveFailed.
        """
        return self._buckets.set(name, settings)

    def use(self, bucket: str) -> Use | None:
        """See `Buckets.use`."""
        return self._buckets.use(bucket)

    def delete_bucket(self, name: str, *, force: bool = False, of_cluster: bool = False) -> int:
        """Delete an empty bucket, or with `force` also its objects. Returns how many objects were deleted.

        `of_cluster`: the cluster map has no such bucket any more, so it is deleted however many drives can be written.
        Uploads into it that are not committed yet fail with BucketNotFound. Raises BucketNotFound, BucketNotEmpty,
        BucketHasSnapshots whatever `force` says, StoreReadOnly, Closed, DriveFull, DriveFailed.
        """
        return self._buckets.delete(name, force=force, of_cluster=of_cluster)

    # -- objects

    def watch_changes(self, watch: ChangeWatch, bucket_uuids: Container[bytes]) -> None:
        """Have `watch` called after each change of an object in these buckets, and of one that is to be uploaded, until
        `unwatch_changes`. Another call for the same watch replaces its buckets."""
        self._changes.watches = {**self._changes.watches, watch: bucket_uuids}

    def unwatch_changes(self, watch: ChangeWatch) -> None:
        self._changes.watches = {one: uuids for one, uuids in self._changes.watches.items() if one != watch}

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

        `version`: that of a replica, issued by another node; it is committed if it is newer than what the store has.
        `stage`: creates the file on the drive that owns the name. `grouped`: it is committed together with others, and
        if it is small it shares a file with them; its bytes are held in memory until then.

        Raises InvalidName, BucketNotFound, StoreReadOnly, DriveFailed, DriveFull, InvalidRequest.
        """
        self.drive_set.require_writable()
        check_object_name(name)
        bucket_uuid = self._buckets.uuid_to_change(bucket)
        metadata = checked_metadata(metadata) if metadata else {}
        placement = self.drive_set.placement
        drive = self.drive_set.at(placement.owner(bucket_uuid, name))
        indexing = None if kind_of_name(name) is None else Indexing(name)
        # An archive needs a file of its own, so that its members can be read.
        file = drive.stage(held=True) if grouped and indexing is None else stage(drive)
        pending = PendingObject(bucket_uuid, name, file, metadata, version)
        return Upload(f"{bucket}/{name}", StagedObject(drive, placement, pending, indexing), self._changes)

    def stage(
        self,
        bucket: str,
        name: str,
        chunks: Iterable[bytes | bytearray | memoryview],
        metadata: dict[str, str],
        size_bytes: int | None = None,
        checksum: int | None = None,
        condition: Condition | None = None,
        *,
        grouped: bool = False,
    ) -> Upload:
        """Stage an object from its chunks; the caller commits it. `condition`: see `Upload.require`. `grouped`: see
        `begin_put`.

        Raises ContentMismatch if the bytes do not have the given size or CRC-32C, VersionConflict, and what `begin_put`
        and `Upload.write` raise; nothing is left behind then.
        """
        upload = self.begin_put(bucket, name, metadata, grouped=grouped)
        try:
            if condition is not None:
                upload.require(condition)
                if not grouped:
                    upload.settled()  # fail before receiving the bytes, if possible
            for chunk in chunks:
                upload.write(chunk)
            if size_bytes is not None or checksum is not None:
                check_content(upload, size_bytes, checksum)
        except BaseException:
            upload.abort()
            raise
        return upload

    def commit_many(self, uploads: Sequence[Upload | LoaderError]) -> list[CatalogEntry | LoaderError]:
        """Commit many uploads with few catalog writes. Results are in order; each depends on its own drive only."""
        results: list[CatalogEntry | LoaderError] = [
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

    def locate(self, bucket: str, name: str) -> tuple[Drive, CatalogEntry]:
        """Return the drive that owns an object, and its catalog entry. Raises what `head` raises."""
        of = self.bucket(bucket)
        bucket_uuid = of.uuid_bytes
        try:
            self.drive_set.require_open()
            if of.cut is None:
                drive, found = self.drive_set.lookup(bucket_uuid, name)
            else:
                slot, found = self.drive_set.lookup_at(bucket_uuid, name, of.cut)
                drive = self.drive_set.at(slot)
        except UnicodeEncodeError:
            found = None
        if of.cut is not None and self.replicas.may_be_denied(bucket_uuid, name):
            raise ReplicaStale(stale_message(name))
        if of.cut is None and self.replicas.stale.any and self.replicas.is_stale(bucket_uuid, name, found):
            raise ReplicaStale(stale_message(name))
        if found is None:
            self.require_still(bucket, of)
            raise self.replicas.missing(bucket, bucket_uuid, name)
        return drive, found

    def head(self, bucket: str, name: str) -> CatalogEntry:
        """Return an object's catalog entry. Raises BucketNotFound, ObjectNotFound, DriveFailed, StoreFormatError,
        Closed."""
        return self.locate(bucket, name)[1]

    def delete(
        self,
        bucket: str,
        name: str,
        version: Version | None = None,
        keep_tombstone: bool = False,
        condition: Condition | None = None,
        writes: bytes = b"",
        raw_metadata: bytes = b"",
    ) -> CatalogEntry | None:
        """Remove an object. With `keep_tombstone` its deletion has a version: the given one, or one above the object's.

        With a `version` it deletes only what is not newer, and a missing object is not an error. Returns the remaining
        entry of the name: None, a tombstone, or a newer object. Raises ObjectNotFound if there is no such object and
        neither a version nor a condition was given, VersionConflict if the condition does not hold, OutcomeUnknown,
        StoreReadOnly, DriveFull, and what `head` raises. `writes`, `raw_metadata`: see `Transactions.write_tombstone`.
        """
        self.drive_set.require_writable()
        bucket_uuid = self.bucket_to_change(bucket).uuid_bytes
        found: CatalogEntry | None = None
        if object_name_fault(name):
            missing = True
        elif keep_tombstone:
            before, found = self._changes.write_tombstone(bucket_uuid, name, version, condition, writes, raw_metadata)
            missing = version is None and not raw_metadata and (before is None or before.is_tombstone)
        elif version is not None:
            found = self._changes.drop(bucket_uuid, name, version, tombstone=False)
            missing = False
        else:
            [result] = self._changes.delete_many(bucket_uuid, [name], condition)
            if isinstance(result, LoaderError):
                raise result
            missing = not result
        if missing:
            raise ObjectNotFound(not_found_message(bucket, name))
        return found

    def delete_many(
        self, bucket: str, names: Sequence[str], condition: Condition | None = None, *, copies_only: bool = False
    ) -> list[LoaderError | None]:
        """Remove objects without leaving tombstones. Returns None or the error for each, in order. A repeated name
        exists only the first time.

        `condition`: the id of the write. `copies_only`: remove only copies of remote objects.

        Raises what `bucket_to_change` raises, StoreReadOnly, Closed.
        """
        self.drive_set.require_writable()
        bucket_uuid = self.bucket_to_change(bucket).uuid_bytes
        different = [name for name in dict.fromkeys(names) if not object_name_fault(name)]
        deleted = self._changes.delete_many(bucket_uuid, different, condition, copies_only=copies_only)
        done = dict(zip(different, deleted, strict=True))
        results: list[LoaderError | None] = []
        for name in names:
            result = done.pop(name, False)
            if result is False:
                result = ObjectNotFound(not_found_message(bucket, name))
            results.append(None if isinstance(result, bool) else result)
        return results

    def write_tombstones(
        self, bucket: str, tombstones: Sequence[tuple[str, Version, bytes]], raw_metadata: bytes = b""
    ) -> list[CatalogEntry | LoaderError]:
        """Write tombstones with these versions unless something newer exists. Returns each name's current entry, in
        order.

        Raises what `bucket_to_change` raises, StoreReadOnly, Closed.
        """
        self.drive_set.require_writable()
        left: list[CatalogEntry | LoaderError] = []
        bucket_uuid = self.bucket_to_change(bucket).uuid_bytes
        for result in self._changes.write_tombstones(bucket_uuid, tombstones, raw_metadata):
            if isinstance(result, LoaderError):
                left.append(result)
            else:
                assert result[1] is not None
                left.append(result[1])
        return left

    def write_coded(self, bucket: str, coded: Sequence[tuple[str, CatalogEntry]]) -> list[CatalogEntry | LoaderError]:
        """See `WriteRouter.write_coded`. Raises what `bucket_to_change` raises, StoreReadOnly, Closed."""
        self.drive_set.require_writable()
        return self._changes.write_coded(self.bucket_to_change(bucket).uuid_bytes, coded)

    def objects(
        self,
        bucket: str,
        prefix: str = "",
        start_after: str = "",
        page_size: int | None = None,
        *,
        skip_missing: bool = False,
    ) -> Iterator[tuple[str, CatalogEntry]]:
        """Iterate over at most `page_size` objects, in name order (by the bytes of their UTF-8 form).

        Raises BucketNotFound, also at the end, if it is deleted meanwhile; InvalidRequest; and DriveFailed if a drive
        is missing, unless `skip_missing`: a listing that silently lacks names would be worse.
        """
        known = self.bucket(bucket)
        scan = self.replicas.scan(bucket, prefix, start_after, tombstones=False, skip_missing=skip_missing)
        yield from itertools.islice(scan, page_size)
        self.require_still(bucket, known)
