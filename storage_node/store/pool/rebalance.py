"""Rebalancing: moves objects from drives that no longer own them to their owners, in bounded steps.

The problem. When a drive is added or retired, placement assigns some names to other drives at once, but their objects
are still on the old ones. They have to move while clients read, write and delete the same names, at a rate that the
caller controls, and the process may die at any moment.

The invariant. At every moment the newest entry of a name is on one of the drives that own or owned the name
(`DrivePlacement.entry_slots`), and look-ups search all of these. An entry is removed from a drive only when the owner
has the same version or a newer one, durably.

A sweep reads the catalogs of all drives in key order. Its position is kept in memory; nothing about a move in progress
is stored. The steps for each group of misplaced entries:

1. Scan: collect up to `_GROUP` entries on one drive that another drive owns.
2. Stage: copy the bytes of each object to an invisible file on its owner. No locks are held.
3. Commit: share the placement lock and lock the names. Read all entries of each name again. If the one that
   was copied is still the newest, commit the copy on the owner with the same version. If the newest is a
   tombstone, write that. If anything else changed, leave the name to the next sweep.
4. Sync: make the owner's commits durable, whatever the durability of the store. No locks are held.
5. Drop: lock the names again, read their entries again, and drop each entry on another drive that is not newer
   than the owner's.

A crash during step 2 leaves a staged file, which the next opening removes. After step 3, the same version is on two
drives; look-ups find one of them, and the next sweep sees that the owner has it and goes on with step 4. A power loss
before step 4 ends may lose the owner's entry, and the old one is still there. A crash during step 5 leaves some of the
old entries, which the next sweep drops. The position of the sweep advances only after a group, so that an interrupted
group is scanned again.

What cannot be moved (the owner is full, the file cannot be read) stays where it is, can still be read there, and is
tried again by the next sweep.

Everything is in its place only when a whole sweep has met no misplaced entry, not even one that it moved, while the set
of drives did not change and all of them were open. Having tried to move an object is never taken for having moved it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ais_loader.errors import BucketNotFound, DriveFull, LoaderError
from storage_node.store import format as fmt
from storage_node.store.archives.kinds import kind_of_name
from storage_node.store.drive.commit_files import PendingObject
from storage_node.store.drive.drive import Drive
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import drive_error
from storage_node.store.format import BLOCK_BYTES, CatalogEntry
from storage_node.store.pool.drive_set import DrivePlacement, DriveSet

log = logging.getLogger(__name__)

_GROUP = 64
"""Number of entries that are committed on their owner, and made durable, at once."""
_MAX_SCANNED = 20_000
"""Maximum number of entries scanned in one step, so that a step that finds nothing to move ends as well."""


class Moved(NamedTuple):
    """Result of one step."""

    objects: int
    """Number of entries that moved to their owner, including tombstones and removed leftovers."""
    bytes: int
    left_estimate: int
    """Estimated number of entries that are not on their owner yet; 0 only if there are none."""
    problem: str = ""
    """Reason why an object could not be moved, if there is any; it is tried again."""


@dataclass(slots=True)
class _Sweep:
    """One pass through the catalogs of all drives."""

    changes: int
    """Number of changes of the drive set at its start."""
    slots: list[int]
    left: dict[int, int]
    """Estimated number of entries still to move, for each slot not yet passed."""
    after: bytes | None = None
    clean: bool = True
    """Whether every entry so far was moved."""
    met: int = 0
    """Number of entries that were not on their owner when they were scanned."""
    full: set[int] = field(default_factory=set)


class _Entry(NamedTuple):
    key: bytes
    record: CatalogEntry
    owner: int
    """Slot of the drive that owns it."""


class Mover:
    """Rebalancer of a store that is open for writing. Thread-safe: steps run one after another."""

    def __init__(self, drives: DriveSet, purging: Callable[[], Sequence[str]]) -> None:
        """`purging`: uuids of deleted buckets, whose objects are deleted wherever they are."""
        self._drives = drives
        self._purging = purging
        self._lock = threading.Lock()
        self._sweep: _Sweep | None = None

    def step(self, max_objects: int, max_bytes: int) -> tuple[Moved, int | None]:
        """Move some objects, at least one. Also returns the state of the drive set for which everything is in its
        place.

        The latter is None while objects may be misplaced. Raises Closed only.
        """
        with self._lock:
            placement = self._drives.placement
            if not placement.moving:
                return Moved(0, 0, 0), None
            step = _Step(self._drives, placement, {bytes.fromhex(uuid) for uuid in self._purging()})
            while True:
                sweep = self._sweep
                if sweep is None or sweep.changes != self._drives.changes:
                    sweep = self._sweep = self._begin(placement)
                sweep.full.clear()
                step.run(sweep, max_objects, max_bytes)
                if sweep.slots:
                    return step.moved(), None
                self._sweep = None
                settled = not sweep.met and sweep.clean
                settled = settled and sweep.changes == self._drives.changes and self._drives.all_live()
                if settled or not sweep.clean or step.is_spent(max_objects, max_bytes):
                    return step.moved(), sweep.changes if settled else None
                if not self._drives.all_live() or self._drives.placement is not placement:
                    return step.moved(), None

    def _begin(self, placement: DrivePlacement) -> _Sweep:
        changes = self._drives.changes
        slots = [slot for slot in placement.slots if self._drives.slots[slot].drive is not None]
        left: dict[int, int] = {}
        for slot in slots:
            with contextlib.suppress(LoaderError):
                left[slot] = int(self._drives.at(slot).catalog.estimated_keys() * placement.leaving(slot))
        return _Sweep(changes, slots, left)


class _Step:
    def __init__(self, drives: DriveSet, placement: DrivePlacement, purging: set[bytes]) -> None:
        self._drives = drives
        self._placement = placement
        self._purging = purging
        self._objects = self._bytes = self._scanned = 0
        self._problem = ""
        self._sweep: _Sweep

    def moved(self) -> Moved:
        sweep = self._sweep
        left = sum(sweep.left.values())
        unfinished = bool(sweep.slots) or sweep.met > 0 or not sweep.clean or not self._drives.all_live()
        return Moved(self._objects, self._bytes, max(left, 1) if unfinished else 0, self._problem)

    def is_spent(self, max_objects: int, max_bytes: int) -> bool:
        """Whether it has moved, or scanned, as much as it may."""
        enough = self._objects >= max_objects or self._bytes >= max_bytes
        return self._scanned >= _MAX_SCANNED or (self._objects > 0 and enough)

    def run(self, sweep: _Sweep, max_objects: int, max_bytes: int) -> None:
        self._sweep = sweep
        while sweep.slots and self._drives.changes == sweep.changes:
            if self.is_spent(max_objects, max_bytes):
                return
            slot = sweep.slots[0]
            want = max(1, min(_GROUP, max_objects - self._objects))
            room_bytes = max(1, max_bytes - self._bytes)
            group: list[_Entry] = []
            try:
                scanned, group, after = self._next(slot, want, room_bytes, _MAX_SCANNED - self._scanned)
                self._scanned += scanned
                self._move(slot, group)
            except LoaderError as error:
                self._fail(str(error))
                after = None  # the rest of this drive waits for the next sweep
            except Exception as error:
                log.debug("moving objects to their drives", exc_info=True)
                self._fail(f"{type(error).__name__}: {error}")
                after = None
            # The position advances only now: after an interruption, the group is scanned again.
            sweep.after = after
            sweep.left[slot] = max(0, sweep.left.get(slot, 0) - len(group))
            if after is None:
                del sweep.slots[0]
                sweep.left.pop(slot, None)

    def _fail(self, problem: str) -> None:
        self._sweep.clean = False
        self._problem = problem

    def _next(self, slot: int, want: int, room_bytes: int, most: int) -> tuple[int, list[_Entry], bytes | None]:
        """Return the number of entries scanned, the misplaced ones, and the last key, None at the end."""
        drive = self._drives.at(slot)
        group: list[_Entry] = []
        scanned = group_bytes = 0
        after = self._sweep.after
        for key, value in drive.entries(after):
            scanned += 1
            owner = self._placement.owner(fmt.bucket_of_key(key), fmt.name_of_key(key))
            if owner != slot:
                self._sweep.met += 1
                entry = fmt.decode_entry(value)
                if group and group_bytes + entry.size_bytes > room_bytes:
                    return scanned, group, after
                group.append(_Entry(key, entry, owner))
                group_bytes += entry.size_bytes
            after = key
            if len(group) >= want or scanned >= most:
                return scanned, group, after
        return scanned, group, None

    # -- moving one group from one drive

    def _move(self, slot: int, group: Sequence[_Entry]) -> None:
        by_owner: dict[int, list[_Entry]] = {}
        for entry in group:
            if fmt.bucket_of_key(entry.key) in self._purging:
                bucket_uuid, name = fmt.bucket_of_key(entry.key), fmt.name_of_key(entry.key)
                self._drives.at(slot).changes.delete(bucket_uuid, [name], tombstones=True)
            else:
                by_owner.setdefault(entry.owner, []).append(entry)
        for owner, entries in by_owner.items():
            self._move_to(slot, owner, entries)

    def _move_to(self, slot: int, owner: int, entries: Sequence[_Entry]) -> None:
        staged: dict[bytes, PendingObject] = {}
        try:
            source, target = self._drives.at(slot), self._drives.at(owner)
            for entry in entries:
                try:
                    pending = self._stage(source, target, owner, entry)
                except LoaderError as error:
                    self._fail(str(error))
                    if isinstance(error, DriveFull):
                        self._sweep.full.add(owner)
                else:
                    if pending is not None:
                        staged[entry.key] = pending
            failpoint("move.staged")
            keys = [entry.key for entry in entries]
            with self._drives.placement_lock.shared():
                if self._drives.placement is not self._placement:
                    return
                with self._drives.names.of(keys):
                    committed = self._commit(source, target, entries, staged)
            failpoint("move.committed")
            if not committed:
                return
            target.sync()  # no locks are held: this may take long
            with self._drives.placement_lock.shared():
                if self._drives.placement is self._placement:
                    with self._drives.names.of(keys):
                        self._drop(source, target, committed)
            failpoint("move.dropped")
        except LoaderError as error:
            self._fail(str(error))
        except Exception as error:
            log.debug("moving objects from %s", self._drives.slots[slot].root, exc_info=True)
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            for pending in staged.values():
                pending.file.discard()

    def _stage(self, source: Drive, target: Drive, owner: int, entry: _Entry) -> PendingObject | None:
        """Stage a copy of the object on its owner; None if its bytes need not move. Raises LoaderError."""
        record = entry.record
        bucket_uuid, name = fmt.bucket_of_key(entry.key), fmt.name_of_key(entry.key)
        existing = target.newest(bucket_uuid, [name])[0]
        if not record.has_file or (existing is not None and existing.version >= record.version):
            return None
        if owner in self._sweep.full:
            raise DriveFull(f"{target.root}: no space left for what moves there")
        pending = PendingObject(
            bucket_uuid,
            name,
            target.stage(held=kind_of_name(name) is None),  # an archive has a file of its own
            record.metadata,
            record.version,
            record.modified_ns,
            writes=record.writes,
            is_copy=True,
        )
        try:
            _copy(source, record, target, pending)
        except BaseException:
            pending.file.discard()
            raise
        return pending

    def _commit(
        self, source: Drive, target: Drive, entries: Sequence[_Entry], staged: dict[bytes, PendingObject]
    ) -> list[_Entry]:
        """Commit what is still the newest on its owner; returns the entries that the owner has now. The names are
        locked."""
        commit: list[PendingObject] = []
        committed: list[_Entry] = []
        for entry in entries:
            bucket_uuid, name = fmt.bucket_of_key(entry.key), fmt.name_of_key(entry.key)
            found = self._found(source, target, bucket_uuid, name)
            if not found:
                continue  # deleted meanwhile
            best, newest = max(
                found, key=lambda pair: pair[1].version
            )  # of equal versions the owner's, which comes first
            if best is not target and newest.is_tombstone:
                target.changes.write_tombstone(
                    bucket_uuid,
                    name,
                    newest.version,
                    newest.modified_ns,
                    writes=newest.writes,
                    raw_metadata=newest.raw_metadata,
                )
            elif best is not target and newest.is_coded:
                target.changes.write_coded(bucket_uuid, [(name, newest)])
            elif best is not target:
                pending = staged.get(entry.key)
                if best is not source or _content(newest) != _content(entry.record) or pending is None:
                    self._sweep.clean = False  # changed, or another drive has a newer one: left to the next sweep
                    continue
                commit.append(pending)
            committed.append(entry)
        if commit:
            try:
                target.commit(commit)
            except BucketNotFound:
                self._sweep.clean = False  # deleted meanwhile, and about to be purged
                return []
        return committed

    def _drop(self, source: Drive, target: Drive, entries: Sequence[_Entry]) -> None:
        """Drop entries of which the owner durably has the same version or a newer one. The names are locked."""
        for entry in entries:
            bucket_uuid, name = fmt.bucket_of_key(entry.key), fmt.name_of_key(entry.key)
            found = dict(self._found(source, target, bucket_uuid, name))
            owners = found.pop(target, None)
            if owners is None and source in found:
                self._sweep.clean = False  # the owner's entry is gone: the source's may be older, or the same
                continue
            for drive, record in found.items():
                if owners is not None and record.version <= owners.version:
                    drive.changes.drop(bucket_uuid, name, record.version, tombstone=False)
            self._objects += 1
            self._bytes += entry.record.size_bytes

    def _found(self, source: Drive, target: Drive, bucket_uuid: bytes, name: str) -> list[tuple[Drive, CatalogEntry]]:
        """Return all entries of a name, the owner's first. Raises LoaderError, since a drive that cannot be read may
        have one."""
        slots = self._placement.entry_slots(bucket_uuid, name).slots
        found: list[tuple[Drive, CatalogEntry]] = []
        for drive in dict.fromkeys((target, *(self._drives.at(slot) for slot in slots), source)):
            entry = drive.newest(bucket_uuid, [name])[0]
            if entry is not None:
                found.append((drive, entry))
        return found


def _copy(source: Drive, entry: CatalogEntry, target: Drive, pending: PendingObject) -> None:
    """Copy the bytes unchanged. A damaged object stays damaged: it keeps the size and checksums that it should have."""
    try:
        for part in source.files.read(entry):
            try:
                pending.file.write(part)
            except OSError as error:
                raise drive_error(error, target.root, "moving an object to its drive") from error
    except FileNotFoundError:
        pass  # damaged, or replaced meanwhile: then this copy is not used
    except OSError as error:
        raise drive_error(error, source.root, "reading an object that moves to another drive") from error
    if (pending.file.size_bytes, pending.file.checksum) != (entry.size_bytes, entry.checksum):
        source.faults.note_checksum()
        pending.damaged = entry
        if entry.size_bytes > BLOCK_BYTES:
            with contextlib.suppress(LoaderError):
                pending.damaged_blocks = source.block_checksums(entry, 0, -(-entry.size_bytes // BLOCK_BYTES))


def _content(entry: CatalogEntry) -> tuple[bytes, bytes]:
    """Return what differs between two states of one version: uploading changes the metadata."""
    return entry.path, entry.raw_metadata
