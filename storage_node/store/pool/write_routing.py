"""Write routing in a pool: changes go to the drive that owns the name, wherever older entries of it still are.

While nothing moves a change is the owner's alone. Otherwise it counts what other drives have of the name as if the
owner had it, is committed on the owner, and takes away what is older elsewhere. A crash between the two leaves
something older behind, which is never found again and goes when its turn to move comes.

Nothing is changed of a name as long as a drive that may have an entry of it cannot be asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ais_loader.errors import LoaderError, OutcomeUnknown
from storage_node.store import format as fmt
from storage_node.store.archives.open_archives import Indexing
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.pending import PendingObject
from storage_node.store.drive.preconditions import Condition, done_before, require
from storage_node.store.files.object_files import drive_error
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.pool.placement import DrivePlacement
from storage_node.store.write_memory import SUPERSEDED

R = TypeVar("R")


class StagedObject(NamedTuple):
    drive: Drive
    """On which it has been staged."""
    placement: DrivePlacement
    """By which that was its owner."""
    pending: PendingObject
    indexing: Indexing | None = None
    """Of a shard's members."""


class _Entry(NamedTuple):
    drive: Drive
    record: CatalogEntry


class PlacedChanges:
    """Of a store that is open for writing. Thread-safe."""

    def __init__(self, drives: DriveSet) -> None:
        self._drives = drives

    def newest(self, bucket_uuid: bytes, name: str) -> CatalogEntry | None:
        return self._drives.newest(bucket_uuid, name).record

    def commit(self, objects: Sequence[StagedObject]) -> list[CatalogEntry | LoaderError]:
        """Each on its owner, those of one owner in one commit; in order. See `Drive.commit`."""
        try:
            return self._commit_each(objects)
        finally:
            for staged in objects:  # harmless where it has been published
                staged.pending.file.discard()

    def _commit_each(self, objects: Sequence[StagedObject]) -> list[CatalogEntry | LoaderError]:
        results: list[CatalogEntry | LoaderError] = [LoaderError("not committed")] * len(objects)
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            by_drive: dict[Drive, list[int]] = {}
            for at, staged in enumerate(objects):
                try:
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
        return results

    def _bring(self, staged: StagedObject, placement: DrivePlacement) -> Drive:
        """To the drive that owns the name now; it was another one when the object was begun."""
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
            others: dict[bytes, list[_Entry]] = {}
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

    def _elsewhere(self, placement: DrivePlacement, owner: Drive, bucket_uuid: bytes, name: str) -> list[_Entry]:
        """What drives that owned the name before have of it. Raises LoaderError."""
        entries: list[_Entry] = []
        for slot in placement.entry_slots(bucket_uuid, name).slots:
            drive = self._drives.at(slot)
            if drive is not owner:
                record = drive.newest(bucket_uuid, [name])[0]
                if record is not None:
                    entries.append(_Entry(drive, record))
        return entries

    # -- taking away; all raise what those of `Drive` raise

    def delete(self, bucket_uuid: bytes, name: str, condition: Condition | None = None) -> bool | OutcomeUnknown:
        """Remove an object without a trace; whether there was one. See `Changes.delete`."""
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            owner = self._drives.at(placement.owner(bucket_uuid, name))
            if not placement.moving:
                return owner.delete(bucket_uuid, [name], condition=condition)[0]
            with self._drives.names.of([fmt.object_key(bucket_uuid, name)]):
                others = self._elsewhere(placement, owner, bucket_uuid, name)
                here = owner.newest(bucket_uuid, [name])[0]
                entries = [*others, _Entry(owner, here)] if here is not None else others
                newest = max(entries, key=_version, default=None)
                if newest is None:
                    return owner.delete(bucket_uuid, [name], condition=condition)[0]
                if done_before(condition, newest.record) is None:
                    require(condition, name, newest.record)
                    # The older ones first: should the newest stay, it is still what counts.
                    for entry in sorted(entries, key=_version):
                        if not entry.record.is_tombstone and entry is not newest:
                            entry.drive.delete(bucket_uuid, [name])
                return newest.drive.delete(bucket_uuid, [name], condition=condition)[0]

    def delete_many(
        self, bucket_uuid: bytes, names: Sequence[str], condition: Condition | None = None
    ) -> list[bool | LoaderError]:
        """As `delete` of each, those of one drive in one commit; in order, and each fails with its own drive."""
        return self._grouped(
            bucket_uuid,
            names,
            lambda owner, rows: owner.delete(bucket_uuid, [names[row] for row in rows], condition=condition),
            lambda row: self.delete(bucket_uuid, names[row], condition),
        )

    def write_tombstones(
        self, bucket_uuid: bytes, tombstones: Sequence[tuple[str, Version, bytes]]
    ) -> list[tuple[CatalogEntry | None, CatalogEntry | None] | LoaderError]:
        """As `write_tombstone` of each: one commit for each drive, in order, and each fails with its own drive."""
        return self._grouped(
            bucket_uuid,
            [name for name, _, _ in tombstones],
            lambda owner, rows: owner.write_tombstones(bucket_uuid, [tombstones[row] for row in rows]),
            lambda row: self.write_tombstone(bucket_uuid, *tombstones[row][:2], writes=tombstones[row][2]),
        )

    def _grouped(
        self,
        bucket_uuid: bytes,
        names: Sequence[str],
        change: Callable[[Drive, Sequence[int]], Sequence[R]],
        change_one: Callable[[int], R],
    ) -> list[R | LoaderError]:
        """What came of each name: changed together where its drive is the only one that can have an entry of it."""
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
    ) -> tuple[CatalogEntry | None, CatalogEntry | None]:
        """See `Changes.write_tombstone`."""
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            owner = self._drives.at(placement.owner(bucket_uuid, name))
            if not placement.moving:
                return owner.write_tombstone(bucket_uuid, name, version, condition=condition, writes=writes)
            with self._drives.names.of([fmt.object_key(bucket_uuid, name)]):
                others = self._elsewhere(placement, owner, bucket_uuid, name)
                elsewhere = max(others, key=_version).record if others else None
                before, left = owner.write_tombstone(
                    bucket_uuid, name, version, elsewhere=elsewhere, condition=condition, writes=writes
                )
                if left is not None:
                    _drop(others, bucket_uuid, name, older_than=left.version)
                return before, left

    def drop(self, bucket_uuid: bytes, name: str, version: Version, *, tombstone: bool) -> CatalogEntry | None:
        """See `Changes.drop`."""
        with self._drives.placement_lock.shared():
            placement = self._drives.placement
            owner = self._drives.at(placement.owner(bucket_uuid, name))
            if not placement.moving:
                return owner.drop(bucket_uuid, name, version, tombstone=tombstone)
            with self._drives.names.of([fmt.object_key(bucket_uuid, name)]):
                others = self._elsewhere(placement, owner, bucket_uuid, name)
                here = owner.newest(bucket_uuid, [name])[0]
                entries = [*others, _Entry(owner, here)] if here is not None else others
                if not entries:
                    return None
                newest = max(entries, key=_version)
                if newest.record.version > version or (tombstone and not newest.record.is_tombstone):
                    return newest.record
                for entry in sorted(entries, key=_version):
                    entry.drive.drop(bucket_uuid, name, entry.record.version, tombstone=False)
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


def _keep_index(drive: Drive, staged: StagedObject, record: CatalogEntry) -> None:
    """Unless what counts is another object, which was newer."""
    file = staged.pending.file
    if record.path == SUPERSEDED:
        return
    if staged.indexing is not None and (record.size_bytes, record.checksum) == (file.size_bytes, file.checksum):
        drive.shards.keep(record, staged.indexing)


def _drop(entries: Sequence[_Entry], bucket_uuid: bytes, name: str, *, older_than: Version) -> None:
    for drive, record in entries:
        if record.version < older_than:
            with contextlib.suppress(LoaderError):  # the change stands; this is moved away later
                drive.drop(bucket_uuid, name, record.version, tombstone=False)


def _version(entry: _Entry) -> Version:
    return entry.record.version
