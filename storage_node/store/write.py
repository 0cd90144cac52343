"""Writes of a store: an upload, from its first byte until it becomes visible, and the drives that a change concerns.

A change goes to the drive that owns the name, wherever older entries of it still are. While nothing moves, it concerns
only the owner. Otherwise it takes the entries of other drives into account as if the owner had them, is committed on
the owner, and removes older entries elsewhere. A crash between the last two leaves an older entry, which no look-up
finds and which rebalancing removes.

While a drive that may have an entry of a name cannot be read, the name cannot be changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ais_loader.errors import ContentMismatch, DriveFailed, InvalidRequest, LoaderError, ObjectDenied, OutcomeUnknown
from ais_loader.wire.denied import content_of, denied_content
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.store import format as fmt
from storage_node.store.archives.open_archives import Indexing
from storage_node.store.drive.commit_files import PendingObject
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.preconditions import SUPERSEDED, Condition, done_before, memory_of, require
from storage_node.store.files.clone_or_copy import Transfer, fill
from storage_node.store.files.object_files import drive_error
from storage_node.store.format import CatalogEntry, Version, is_pending
from storage_node.store.pool.drive_set import DrivePlacement, DriveSet

MAX_METADATA_BYTES = 4096
ChangeWatch = Callable[[bytes, str, "CatalogEntry | None"], None]
"""Called after each change with the bucket's uuid, the name, and the entry that it has now, if any; on any thread."""
R = TypeVar("R")


class StagedObject(NamedTuple):
    drive: Drive
    """Drive on which it was staged."""
    placement: DrivePlacement
    """Placement under which that drive was its owner."""
    pending: PendingObject
    indexing: Indexing | None = None
    """Index of a shard's members."""


class _StagedEntry(NamedTuple):
    drive: Drive
    record: CatalogEntry


class Upload:
    """Object that is being written. Belongs to one thread; `commit` or `abort` ends it, leaving the block aborts it."""

    def __init__(self, label: str, staged: StagedObject, changes: WriteRouter) -> None:
        self.label = label
        self._changes = changes
        self._staged = staged
        self._pending: PendingObject | None = staged.pending
        self.method: Transfer = "copied"
        """Method by which `fill` got the bytes."""

    @property
    def drive(self) -> Drive:
        return self._staged.drive

    @property
    def _open(self) -> PendingObject:
        if self._pending is None:
            raise InvalidRequest(f"the upload of {self.label} has been committed or aborted")
        return self._pending

    @property
    def has_ended(self) -> bool:
        """Whether it has been committed or aborted, so that nothing is left to abort."""
        return self._pending is None

    @property
    def of(self) -> tuple[bytes, str]:
        """The bucket's uuid, and the object's name."""
        return self._open.bucket_uuid, self._open.name

    @property
    def size_bytes(self) -> int:
        return self._open.file.size_bytes

    @property
    def checksum(self) -> int:
        """CRC-32C of the bytes written so far."""
        return self._open.file.checksum

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Raises DriveFull or DriveFailed, and aborts the upload."""
        pending = self._open
        try:
            pending.file.write(data)
            if self._staged.indexing is not None:
                self._staged.indexing.feed(data)
        except BaseException as error:
            self._abort_for(error)
            raise

    def fill(self, source_fd: int, go_on: Callable[[], None] = lambda: None) -> None:
        """Take all bytes of an open file by the cheapest method that the file systems support: sharing, or copying.

        If the object's file was linked, the bytes are there already. `go_on` is called regularly; if it raises, the
        upload is aborted. Raises SourceUnreadable, and what `write` raises.
        """
        indexing = self._staged.indexing

        def on_piece(piece: bytes) -> None:
            go_on()
            if indexing is not None and piece:
                indexing.feed(piece)

        pending = self._open
        try:
            self.method = fill(pending.file, source_fd, on_piece)
        except BaseException as error:
            self._abort_for(error)
            raise

    @property
    def linked(self) -> bool:
        """Whether its file is a hard link to an existing one."""
        return self._open.file.linked

    def _abort_for(self, error: BaseException) -> None:
        """Abort, and raise the store's error for an OSError."""
        self.abort()
        if isinstance(error, OSError):
            raise drive_error(error, self.drive.root, "writing an object") from error

    def newest(self) -> CatalogEntry | None:
        """Return the current entry of this name, also a tombstone. Raises DriveFailed, StoreFormatError, Closed."""
        pending = self._open
        return self._changes.newest(pending.bucket_uuid, pending.name)

    def assign(
        self,
        version: Version,
        modified_ns: int = 0,
        writes: bytes = b"",
        *,
        is_copy: bool = False,
        durable: bool = False,
    ) -> None:
        """Set the version, time and write memory that all replicas have. It is committed if nothing newer exists.

        `is_copy`, `durable`: see `PendingObject`.
        """
        pending = self._open
        pending.version, pending.modified_ns = version, modified_ns
        pending.is_copy, pending.durable = is_copy, durable
        pending.writes = writes or pending.writes

    def require(self, condition: Condition | None) -> None:
        """Set a condition on the current object at the commit: if it does not hold, `commit` raises VersionConflict.

        If another try of the same write has been committed, `commit` returns the result of that.
        """
        self._open.condition = condition
        if condition is not None and condition.write_id and not self._open.writes:
            self._open.writes = memory_of(condition.write_id)

    @property
    def condition(self) -> Condition | None:
        return self._open.condition

    def settled(self) -> CatalogEntry | None:
        """Return what another try of this write has committed, so that this one need not go on; None if it may.

        Raises VersionConflict if the condition no longer holds, OutcomeUnknown if that try's outcome is unknown, and
        what `newest` raises.
        """
        pending = self._open
        condition = pending.condition
        if condition is None or (condition.is_empty and not condition.began_ns):
            return None
        before = self.newest()
        settled = self.drive.changes.settled(pending, before)
        if isinstance(settled, LoaderError):
            raise settled
        return settled

    def commit(self) -> CatalogEntry:
        """Make the object visible, whole, replacing one of the same name. Returns the current entry.

        That is the object's, unless it brought a version that is not newer than what the store has: then nothing has
        changed, and the store's entry is returned, which may be a tombstone. Raises what `Drive.commit` raises,
        VersionConflict.
        """
        result = self._changes.commit([self.take()])[0]
        if isinstance(result, LoaderError):
            raise result
        return result

    def take(self) -> StagedObject:
        """Hand the staged object over to the caller, which commits it. Raises InvalidRequest."""
        _ = self._open  # raises
        self._pending = None
        return self._staged

    def abort(self) -> None:
        if self._pending is not None:
            self._pending.file.discard()
            self._pending = None

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class WriteRouter:
    """Routes the changes of a store that is open for writing to its drives. Thread-safe."""

    def __init__(self, drives: DriveSet) -> None:
        self._drives = drives
        self.watches: Mapping[ChangeWatch, Container[bytes]] = {}
        """Watches of changes, with the uuids of the buckets that they watch."""
        self.denied_contents: Mapping[bytes, frozenset[str]] = {}
        """Contents that nobody may write, by the uuid of the bucket; see `wire.denied.content_of`."""

    def tell(self, bucket_uuid: bytes, name: str, left: CatalogEntry | None) -> None:
        """Call the watches of changes: `left` is the entry that a name has now, if any."""
        if left is None or left.path != SUPERSEDED:
            is_to_upload = left is not None and is_pending(left.raw_metadata)
            for watch, bucket_uuids in self.watches.items():
                if is_to_upload or bucket_uuid in bucket_uuids:
                    watch(bucket_uuid, name, left)

    def newest(self, bucket_uuid: bytes, name: str) -> CatalogEntry | None:
        return self._drives.newest(bucket_uuid, name).record

    def commit(self, objects: Sequence[StagedObject]) -> list[CatalogEntry | LoaderError]:
        """Commit each object on its owner, one commit for each owner. Results are in order. See `Drive.commit`."""
        try:
            return self._commit_each(objects)
        finally:
            for staged in objects:  # harmless if it has been published
                staged.pending.file.discard()

    def _commit_each(self, objects: Sequence[StagedObject]) -> list[CatalogEntry | LoaderError]:
        results: list[CatalogEntry | LoaderError] = [LoaderError("not committed")] * len(objects)
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            by_drive: dict[Drive, list[int]] = {}
            for at, staged in enumerate(objects):
                try:
                    one = staged.pending
                    refused = self.content_error(one.bucket_uuid, one.name, one.file.checksum, one.file.size_bytes)
                    if refused is not None:
                        raise refused
                    owner = staged.drive if staged.placement is placement else self._bring(staged, placement)
                except LoaderError as error:
                    staged.pending.file.discard()
                    results[at] = error
                else:
                    by_drive.setdefault(owner, []).append(at)
            for drive, positions in by_drive.items():
                group = [objects[at].pending for at in positions]
                outcome = self._commit_moving(placement, drive, group) if placement.moving else _commit(drive, group)
                for at, result in zip(positions, outcome, strict=True):
                    results[at] = result
                    if not isinstance(result, LoaderError):
                        _keep_index(drive, objects[at], result)
                        self.tell(objects[at].pending.bucket_uuid, objects[at].pending.name, result)
        return results

    def content_error(self, bucket_uuid: bytes, name: str, checksum: int, size_bytes: int) -> ObjectDenied | None:
        """Return the error for an object of denied content."""
        if not self.denied_contents or (denied := self.denied_contents.get(bucket_uuid)) is None:
            return None
        content = content_of(checksum, size_bytes)
        return ObjectDenied(denied_content(name, content)) if content in denied else None

    def _bring(self, staged: StagedObject, placement: DrivePlacement) -> Drive:
        """Copy a staged object to the drive that owns the name now; another one did when the write began."""
        pending = staged.pending
        owner = self._drives.at(placement.owner(pending.bucket_uuid, pending.name))
        if owner is not staged.drive:
            copy = owner.stage()
            try:
                for part in pending.file.read_back():
                    copy.write(part)
            except BaseException as error:
                copy.discard()
                if isinstance(error, OSError):
                    raise drive_error(error, owner.root, "bringing an object to another drive") from error
                raise
            pending.file.discard()
            pending.file = copy
        return owner

    def _commit_moving(
        self, placement: DrivePlacement, drive: Drive, group: Sequence[PendingObject]
    ) -> list[CatalogEntry | LoaderError]:
        keys = [fmt.object_key(pending.bucket_uuid, pending.name) for pending in group]
        results: list[CatalogEntry | LoaderError] = [LoaderError("not committed")] * len(group)
        with self._drives.names.of(keys):
            others: dict[bytes, list[_StagedEntry]] = {}
            able: list[int] = []
            for at, pending in enumerate(group):
                try:
                    others[keys[at]] = self._elsewhere(placement, drive, pending.bucket_uuid, pending.name)
                except LoaderError as error:
                    pending.file.discard()
                    results[at] = error
                else:
                    able.append(at)
            elsewhere = {key: max(entries, key=_version).record for key, entries in others.items() if entries}
            for at, result in zip(able, _commit(drive, [group[at] for at in able], elsewhere), strict=True):
                results[at] = result
            for at in able:
                result = results[at]
                if not isinstance(result, LoaderError):
                    pending = group[at]
                    _drop(others[keys[at]], pending.bucket_uuid, pending.name, older_than=result.version)
        return results

    def _elsewhere(self, placement: DrivePlacement, owner: Drive, bucket_uuid: bytes, name: str) -> list[_StagedEntry]:
        """Return the entries of the name on its former owners. Raises LoaderError."""
        entries: list[_StagedEntry] = []
        for slot in placement.entry_slots(bucket_uuid, name).slots:
            drive = self._drives.at(slot)
            if drive is not owner:
                entry = drive.newest(bucket_uuid, [name])[0]
                if entry is not None:
                    entries.append(_StagedEntry(drive, entry))
        return entries

    # -- taking away; all raise what those of `Drive` raise

    def _delete(
        self, bucket_uuid: bytes, name: str, condition: Condition | None, *, copies_only: bool = False
    ) -> bool | OutcomeUnknown:
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            owner = self._drives.at(placement.owner(bucket_uuid, name))
            if not placement.moving:
                return owner.changes.delete(bucket_uuid, [name], condition=condition, copies_only=copies_only)[0]
            with self._drives.names.of([fmt.object_key(bucket_uuid, name)]):
                others = self._elsewhere(placement, owner, bucket_uuid, name)
                local = owner.newest(bucket_uuid, [name])[0]
                entries = [*others, _StagedEntry(owner, local)] if local is not None else others
                newest = max(entries, key=_version, default=None)
                if newest is None:
                    return owner.changes.delete(bucket_uuid, [name], condition=condition)[0]
                if copies_only and not fmt.is_remote_copy(newest.record.raw_metadata):
                    return False
                if done_before(condition, newest.record) is None:
                    require(condition, name, newest.record)
                    # Older entries first: if the newest stays, it is still the one that counts.
                    for entry in sorted(entries, key=_version):
                        if not entry.record.is_tombstone and entry is not newest:
                            entry.drive.changes.delete(bucket_uuid, [name])
                return newest.drive.changes.delete(bucket_uuid, [name], condition=condition, copies_only=copies_only)[0]

    def delete_many(
        self, bucket_uuid: bytes, names: Sequence[str], condition: Condition | None = None, *, copies_only: bool = False
    ) -> list[bool | LoaderError]:
        """Remove objects without tombstones, those of one drive in one commit. Returns whether there were any, in
        order; each name fails with its own drive. See `Transactions.delete`."""
        results = self._grouped(
            bucket_uuid,
            names,
            lambda owner, rows: owner.changes.delete(
                bucket_uuid, [names[row] for row in rows], condition=condition, copies_only=copies_only
            ),
            lambda row: self._delete(bucket_uuid, names[row], condition, copies_only=copies_only),
        )
        for name, result in zip(names, results, strict=True):
            if result is True:
                self.tell(bucket_uuid, name, None)
        return results

    def write_tombstones(
        self, bucket_uuid: bytes, tombstones: Sequence[tuple[str, Version | None, bytes]], raw_metadata: bytes = b""
    ) -> list[tuple[CatalogEntry | None, CatalogEntry | None] | LoaderError]:
        """Write many tombstones, one commit for each drive. Results are in order; names fail with their drive."""
        results = self._grouped(
            bucket_uuid,
            [name for name, _, _ in tombstones],
            lambda owner, rows: owner.changes.write_tombstones(
                bucket_uuid, [tombstones[row] for row in rows], raw_metadata
            ),
            lambda row: self._write_tombstone(
                bucket_uuid, *tombstones[row][:2], writes=tombstones[row][2], raw_metadata=raw_metadata
            ),
        )
        for (name, _, _), result in zip(tombstones, results, strict=True):
            if not isinstance(result, LoaderError) and result[0] is not result[1]:
                self.tell(bucket_uuid, name, result[1])
        return results

    def write_coded(
        self, bucket_uuid: bytes, coded: Sequence[tuple[str, CatalogEntry]]
    ) -> list[CatalogEntry | LoaderError]:
        """Write coded entries, one commit for each drive. Results are in order; names fail with their drive. See
        `Transactions.write_coded`."""

        def change_one(row: int) -> CatalogEntry:
            raise DriveFailed(
                f"{coded[row][0]!r}: objects move between drives, and are not coded before that has ended"
            )

        results = self._grouped(
            bucket_uuid,
            [name for name, _ in coded],
            lambda owner, rows: owner.changes.write_coded(bucket_uuid, [coded[row] for row in rows]),
            change_one,
        )
        for (name, _), result in zip(coded, results, strict=True):
            if not isinstance(result, LoaderError):
                self.tell(bucket_uuid, name, result)
        return results

    def _grouped(
        self,
        bucket_uuid: bytes,
        names: Sequence[str],
        change: Callable[[Drive, Sequence[int]], Sequence[R]],
        change_one: Callable[[int], R],
    ) -> list[R | LoaderError]:
        """Return the result of each name. Names are changed together if only their owner can have entries."""
        results: list[R | LoaderError] = [LoaderError("not changed")] * len(names)
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            if not placement.moving:
                by_slot: dict[int, list[int]] = {}
                for row, name in enumerate(names):
                    by_slot.setdefault(placement.owner(bucket_uuid, name), []).append(row)
                for slot, rows in by_slot.items():
                    try:
                        done: Sequence[R | LoaderError] = change(self._drives.at(slot), rows)
                    except LoaderError as error:
                        done = [error] * len(rows)
                    for row, result in zip(rows, done, strict=True):
                        results[row] = result
                return results
        for row in range(len(names)):
            try:
                results[row] = change_one(row)
            except LoaderError as error:
                results[row] = error
        return results

    def write_tombstone(
        self,
        bucket_uuid: bytes,
        name: str,
        version: Version | None,
        condition: Condition | None = None,
        writes: bytes = b"",
        raw_metadata: bytes = b"",
    ) -> tuple[CatalogEntry | None, CatalogEntry | None]:
        """See `Transactions.write_tombstone`."""
        before, left = self._write_tombstone(bucket_uuid, name, version, condition, writes, raw_metadata)
        self.tell(bucket_uuid, name, left)
        return before, left

    def _write_tombstone(
        self,
        bucket_uuid: bytes,
        name: str,
        version: Version | None,
        condition: Condition | None = None,
        writes: bytes = b"",
        raw_metadata: bytes = b"",
    ) -> tuple[CatalogEntry | None, CatalogEntry | None]:
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            owner = self._drives.at(placement.owner(bucket_uuid, name))
            if not placement.moving:
                return owner.changes.write_tombstone(
                    bucket_uuid, name, version, condition=condition, writes=writes, raw_metadata=raw_metadata
                )
            with self._drives.names.of([fmt.object_key(bucket_uuid, name)]):
                others = self._elsewhere(placement, owner, bucket_uuid, name)
                elsewhere = max(others, key=_version).record if others else None
                before, left = owner.changes.write_tombstone(
                    bucket_uuid,
                    name,
                    version,
                    elsewhere=elsewhere,
                    condition=condition,
                    writes=writes,
                    raw_metadata=raw_metadata,
                )
                if left is not None:
                    _drop(others, bucket_uuid, name, older_than=left.version)
                return before, left

    def drop(self, bucket_uuid: bytes, name: str, version: Version, *, tombstone: bool) -> CatalogEntry | None:
        """See `Transactions.drop`."""
        left = self._drop(bucket_uuid, name, version, tombstone=tombstone)
        self.tell(bucket_uuid, name, left)
        return left

    def _drop(self, bucket_uuid: bytes, name: str, version: Version, *, tombstone: bool) -> CatalogEntry | None:
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            owner = self._drives.at(placement.owner(bucket_uuid, name))
            if not placement.moving:
                return owner.changes.drop(bucket_uuid, name, version, tombstone=tombstone)
            with self._drives.names.of([fmt.object_key(bucket_uuid, name)]):
                others = self._elsewhere(placement, owner, bucket_uuid, name)
                local = owner.newest(bucket_uuid, [name])[0]
                entries = [*others, _StagedEntry(owner, local)] if local is not None else others
                if not entries:
                    return None
                newest = max(entries, key=_version)
                if newest.record.version > version or (tombstone and not newest.record.is_tombstone):
                    return newest.record
                for entry in sorted(entries, key=_version):
                    entry.drive.changes.drop(bucket_uuid, name, entry.record.version, tombstone=False)
                return None


def _commit(
    drive: Drive, group: Sequence[PendingObject], elsewhere: dict[bytes, CatalogEntry] | None = None
) -> Sequence[CatalogEntry | LoaderError]:
    if not group:
        return []
    try:
        return drive.commit(group, elsewhere)
    except LoaderError as error:
        return [error] * len(group)


def _keep_index(drive: Drive, staged: StagedObject, entry: CatalogEntry) -> None:
    """Save the index of a new archive, unless a newer object has superseded it."""
    file = staged.pending.file
    if entry.path == SUPERSEDED:
        return
    if staged.indexing is not None and (entry.size_bytes, entry.checksum) == (file.size_bytes, file.checksum):
        drive.shards.keep(entry, staged.indexing)


def _drop(entries: Sequence[_StagedEntry], bucket_uuid: bytes, name: str, *, older_than: Version) -> None:
    for drive, entry in entries:
        if entry.version < older_than:
            with contextlib.suppress(LoaderError):  # the change stands; rebalancing removes this later
                drive.changes.drop(bucket_uuid, name, older_than, tombstone=False)


def _version(entry: _StagedEntry) -> Version:
    return entry.record.version


def checked_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """Raise InvalidRequest unless `metadata` maps strings to strings and is small; otherwise return it."""
    metadata = metadata or {}
    size_bytes = 0
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidRequest(f"metadata maps str to str, got {key!r}: {value!r}")
        try:
            size_bytes += len(key.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(f"metadata {key!r}: a lone surrogate has no UTF-8 form") from None
    if size_bytes > MAX_METADATA_BYTES:
        raise InvalidRequest(f"metadata has {size_bytes:,} bytes, {MAX_METADATA_BYTES:,} are allowed")
    return metadata


class ReceivedBytes(Protocol):
    """Received bytes with their size and checksum."""

    @property
    def label(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def checksum(self) -> int: ...


def check_content(upload: ReceivedBytes, size_bytes: int | None, checksum: int | None) -> None:
    """Raise ContentMismatch unless the bytes match the announced size and checksum (None: not announced)."""
    if size_bytes is not None and upload.size_bytes != size_bytes:
        raise ContentMismatch(f"{upload.label}: announced {size_bytes:,} bytes, got {upload.size_bytes:,}")
    if checksum is not None and upload.checksum != checksum:
        raise ContentMismatch(f"{upload.label}: announced CRC-32C {checksum:08x}, got {upload.checksum:08x}")


def check_announced(upload: ReceivedBytes, header: pb.PutHeader) -> None:
    """Raise ContentMismatch unless the bytes match the size and checksum that the header of their PUT announces."""
    check_content(
        upload,
        header.size_bytes if header.HasField("size_bytes") else None,
        header.checksum if header.HasField("checksum") else None,
    )
