"""Batch look-up: finds each name in the catalogs and fills the columns of the batch's table.

It runs at the start, and once more for an entry whose file has vanished when it is read. The module is long because all
ways to an entry fill one table: caches, catalogs, members of shards, and what a first look-up had missed.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ais_loader.errors import (
    AccessDenied,
    BucketNotFound,
    LoaderError,
    NodeUnavailable,
    ObjectDeleted,
    ObjectDenied,
    ObjectReplaced,
    StaleMap,
)
from ais_loader.wire.frame import U32, EntryFault
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.object_info import has_version
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.store.buckets import ObjectCoded, ReplicaStale
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.locations import StoredFile, find
from storage_node.store.drive.version_clock import MAX_COUNTER
from storage_node.store.files.segment_format import file_of
from storage_node.store.format import CatalogEntry, object_key
from storage_node.store.native import MAX_LOCATED_BYTES, NODE_BITS
from storage_node.store.pool.drive_set import DrivePlacement
from storage_node.store.read.batch_members import find_member, status_of
from storage_node.store.read.batch_reader import FailureCode
from storage_node.store.read.batch_table import MAX_ITEM_BYTES, BatchTable
from storage_node.store.read.frame_plan import check_columns, check_range
from storage_node.store.replica_state import not_found_message, stale_message, version_gone
from storage_node.store.store import Store
from storage_node.store.store_record import BucketRecord

_Unfound: TypeAlias = dict[int, LoaderError | UnicodeEncodeError | None]
"""Errors of look-ups by position; None if there is no object."""
_FEW = 128  # cached entries: looking up more costs more than a switch to a thread
_NODE_MASK = (1 << NODE_BITS) - 1


@dataclass(frozen=True, slots=True)
class _Failed:
    status: int
    fault: EntryFault


class BatchLookup:
    """Look-up of the entries of one request. Belongs to one thread at a time."""

    def __init__(self, store: Store, request: pb.BatchRequest) -> None:
        """Raises InvalidRequest if the request's columns do not fit together."""
        self._store = store
        self._request = request
        self.table = BatchTable(list(request.name), request.first_index, hides_places=store.hides_places)
        """Table that all look-ups fill in."""
        if request.resume_version.startswith(ETAG_VERSION):
            self.table.resumed_version = request.resume_version
        self.table.resume_offset = request.resume_offset or None
        self._looking: set[str] = set()
        """Shards that were looked up again because their files were missing."""
        check_columns(request, self.table.n)
        self.table.describes = request.HasField("whole_up_to")

    def run(self, wanted: Sequence[int] | None = None) -> None:
        """Look up every entry, or those at the `wanted` positions."""
        table, request = self.table, self._request
        wanted = range(table.n) if wanted is None else wanted
        by_bucket: dict[int, list[int]] = {}
        if request.bucket_index:
            for position in wanted:
                by_bucket.setdefault(request.bucket_index[position], []).append(position)
        elif wanted:
            by_bucket[0] = list(wanted)
        for at, positions in by_bucket.items():
            bucket_name = request.bucket[at]
            try:
                bucket = self._store.bucket(bucket_name)
            except (BucketNotFound, ReplicaStale, AccessDenied) as error:
                self._fail_without_bucket(positions, error)
                continue
            missing = self._look_up_bucket(bucket.uuid_bytes, bucket_name, bucket.cut, positions)
            if missing and bucket.cut is not None:
                try:
                    self._store.require_still(bucket_name, bucket)
                except (BucketNotFound, ReplicaStale, AccessDenied) as error:
                    self._fail_without_bucket(missing, error)
        if request.start or request.member or request.version or request.resume_version:
            located = self._locate_members(wanted) if request.member else frozenset()
            for position in wanted:
                if position not in located:
                    self._narrow(position)

    def locate(self, *, waits: bool, or_cached: bool = False) -> bool:
        """Find all entries in what is known of locations. Returns False if that is not enough, and for requests for
        anything but whole objects of one bucket. With `waits`, locations that are not known are read from the catalogs,
        and so are objects of a snapshot, or in a pinned version, that the locations have in another version. With
        `or_cached`, a few are looked up instead if the catalog's are cached, and some coded."""
        request, table, drive_set = self._request, self.table, self._store.drive_set
        if not table.n or len(request.bucket) != 1 or request.start or request.member:
            return False
        placement = drive_set.placement
        if request.resume_version or request.resume_offset or placement.moving or self._store.replicas.stale.any:
            return False
        try:
            bucket = self._store.bucket(request.bucket[0])
            drives = {slot: drive_set.at(slot) for slot in placement.slots}
            tables = [table for drive in drives.values() for table in drive.locations(bucket.cut)]
        except LoaderError:
            return False  # the look-up of the entries says so for each
        is_fixed = bucket.cut is not None or len(request.version) > 0
        versions = (~np.zeros(table.n, np.uint64), np.zeros(table.n, np.uint32)) if is_fixed else ()
        columns = table.folders, table.start, table.sizes, table.checksum, *versions
        prefix = object_key(bucket.uuid_bytes, "")
        found = find(tuple(tables), prefix, table.names, *columns)
        few = or_cached and bucket.cut is None and None in found and table.n <= _FEW
        cached = [drive_set.cached(bucket.uuid_bytes, name, coded=True) for name in table.names] if few else [None]
        if all(cached) and any(one is not None and one[1].is_coded for one in cached):
            self._clear(0)
            self.run()
            return True
        if None in found and waits:
            self._learn(placement, bucket.uuid_bytes, found)
            learned = [drive.learned for drive in drives.values()]
            found = find((*tables, *learned), prefix, table.names, *columns)
        table.drives = drives
        if is_fixed:
            others = self._other_versions(found, bucket.cut, *versions)
            are_found = not others or (waits and self._locate_each(placement, bucket, found, others))
        else:
            are_found = None not in found
        if not are_found:
            self._clear(0)
            return False
        table.files = cast("list[StoredFile]", found)
        return True

    def _other_versions(
        self, found: list[StoredFile | None], cut: int | None, counters: npt.NDArray[np.uint64], origins: U32
    ) -> list[int]:
        """Return the positions of which no location is known any more, or that of another version than the wanted one.
        Versions are compared as `Version` writes them."""
        others = counters > (MAX_COUNTER if cut is None else cut)
        if None in found:  # the columns may still have what an earlier search found
            others |= [file is None for file in found]
        if pins := self._request.version:
            others |= [
                pin != "" and (not origin or pin != f"{origin >> NODE_BITS}.{counter}.{origin & _NODE_MASK}")
                for pin, counter, origin in zip(pins, counters.tolist(), origins.tolist(), strict=True)
            ]
        return np.flatnonzero(others).tolist()

    def _locate_each(
        self, placement: DrivePlacement, bucket: BucketRecord, found: list[StoredFile | None], positions: list[int]
    ) -> bool:
        """Locate entries by what the catalogs say of each. Returns False if one of them needs another way to read."""
        table, drives = self.table, self.table.drives.copy()
        table.start[positions] = 0
        missed = self._look_up_settled(placement, bucket.uuid_bytes, bucket.cut, positions)
        if missed or table.status.any() or table.drives != drives:  # whose folders would be closed
            return False
        for position in positions:
            entry = table.records[position]
            if entry is None or entry.size_bytes > MAX_LOCATED_BYTES or self._refused(position, entry):
                return False
            found[position] = StoredFile(table.paths[position], False)
        return True

    def _learn(self, placement: DrivePlacement, bucket_uuid: bytes, found: Sequence[StoredFile | None]) -> None:
        """Look up the locations that are not known."""
        unknown = [position for position, file in enumerate(found) if file is None]
        with contextlib.suppress(LoaderError, UnicodeEncodeError):  # the look-up of the entries says so for each
            for slot, of_drive in self._by_drive(placement, bucket_uuid, unknown).items():
                drive = self._store.drive_set.at(slot)
                drive.learn(bucket_uuid, [self.table.names[position] for position in of_drive])
                drive.fill.note_learned(len(of_drive), partial(placement.keeps, slot))

    def complete(self, first: int = 0) -> None:
        """Look up entries from `first` on in the catalogs if only their locations are known. The entries before it
        have been read."""
        table = self.table
        if table.files is None:
            return
        table.paths = [file.path for file in table.files]
        table.files, table.shared_files, table.located_sizes = None, True, table.sizes.copy()
        self._clear(first)
        self.run(range(first, table.n))

    def _clear(self, first: int) -> None:
        table = self.table
        for column in (table.folders, table.start, table.sizes, table.checksum, table.status):
            column[first:] = 0
        table.kind[first:] = pb.STORED
        table.records[first:] = [None] * (table.n - first)
        table.coded.clear()
        table.faults.clear()

    def _fail_without_bucket(self, positions: list[int], error: BucketNotFound | ReplicaStale | AccessDenied) -> None:
        status, kind = (pb.NOT_FOUND if isinstance(error, BucketNotFound) else pb.UNAVAILABLE), error.kind
        acting_by, asked_by = self._store.replicas.map_version, self._request.map_version
        if isinstance(error, AccessDenied):
            status = pb.DENIED
        elif asked_by and asked_by != acting_by:
            # One of the two nodes does not yet know that the bucket was created, or deleted.
            older = NodeUnavailable if acting_by < asked_by else StaleMap
            status, kind = pb.UNAVAILABLE, older.kind
        for position in positions:
            self.table.fail(position, status, str(error), kind)

    def _look_up_bucket(self, bucket_uuid: bytes, bucket_name: str, cut: int | None, positions: list[int]) -> list[int]:
        """Look up entries of one bucket. Returns the positions of missing objects."""
        missing: list[int] = []
        while positions:
            placement = self._store.drive_set.placement
            if placement.moving and cut is None:
                failed = self._look_up_moving(placement, bucket_uuid, positions)
            else:
                failed = self._look_up_settled(placement, bucket_uuid, cut, positions)
            if not failed or self._store.drive_set.still(placement):
                break
            positions = list(failed)  # drives were added or removed meanwhile
        for position, error in failed.items() if positions else ():
            if error is None:
                missing.append(position)
                self._fail_missing(position, bucket_name, bucket_uuid)
            else:
                self.table.fail(position, pb.UNAVAILABLE, str(error), getattr(error, "kind", ""))
        return missing

    def _look_up_settled(
        self, placement: DrivePlacement, bucket_uuid: bytes, cut: int | None, positions: list[int]
    ) -> _Unfound:
        """Look up while every object is on its owner. Returns what was not found (None), or not looked up."""
        names = self.table.names
        failed: _Unfound = {}
        for slot, mine in self._by_drive(placement, bucket_uuid, positions).items():
            try:
                drive = self._store.drive_set.at(slot)
                wanted = [names[position] for position in mine]
                found = drive.lookup(bucket_uuid, wanted) if cut is None else drive.lookup_at(bucket_uuid, wanted, cut)
            except (LoaderError, UnicodeEncodeError) as error:
                failed.update(dict.fromkeys(mine, error))
                continue
            failed.update(self._take(slot, drive, bucket_uuid, mine, found, of_snapshot=cut is not None))
        return failed

    def _by_drive(self, placement: DrivePlacement, bucket_uuid: bytes, positions: list[int]) -> dict[int, list[int]]:
        """Group positions by the drives that own their names."""
        if placement.only is not None:
            return {placement.only: positions}
        by_drive = defaultdict[int, list[int]](list)
        for position in positions:
            by_drive[placement.owner(bucket_uuid, self.table.names[position])].append(position)
        return by_drive

    def _look_up_moving(self, placement: DrivePlacement, bucket_uuid: bytes, positions: list[int]) -> _Unfound:
        failed: _Unfound = {}
        by_slot: dict[int, list[tuple[int, CatalogEntry | None]]] = {}
        found = self._store.drive_set.lookup_moving(
            placement, bucket_uuid, [self.table.names[position] for position in positions]
        )
        for position, located in zip(positions, found, strict=True):
            if isinstance(located, Exception):
                failed[position] = located
            else:
                by_slot.setdefault(located.slot, []).append((position, located.record))
        for slot, rows in by_slot.items():
            mine = [position for position, _ in rows]
            try:
                drive = self._store.drive_set.at(slot)
            except LoaderError as error:
                failed.update(dict.fromkeys(mine, error))
            else:
                failed.update(self._take(slot, drive, bucket_uuid, mine, [entry for _, entry in rows]))
        return failed

    def _take(
        self,
        slot: int,
        drive: Drive,
        bucket_uuid: bytes,
        mine: list[int],
        found: list[CatalogEntry | None],
        *,
        of_snapshot: bool = False,
    ) -> _Unfound:
        """Enter what was found on one drive. Returns what was missing."""
        table = self.table
        if self._store.replicas.stale.any and bucket_uuid:
            mine, found = self._trusted(bucket_uuid, mine, found, of_snapshot=of_snapshot)
            if not mine:
                return {}
        table.drives[slot] = drive
        at = np.array(mine)
        table.folders[at] = drive.files.objects_fd
        table.sizes[at] = [0 if entry is None else entry.size_bytes for entry in found]
        table.checksum[at] = [0 if entry is None else entry.checksum for entry in found]
        offsets = [0 if entry is None else entry.offset for entry in found]
        if any(offsets):
            table.start[at] = offsets
            table.shared_files = True
        missed: _Unfound = {}
        for position, entry in zip(mine, found, strict=True):
            if entry is None:
                missed[position] = None
            else:
                table.slots[position] = slot
                table.records[position] = entry
                table.paths[position] = file_of(entry.path) if entry.offset else entry.path
                request = self._request
                if entry.is_coded:
                    self._fail_coded(position)
                elif entry.size_bytes > MAX_ITEM_BYTES and not (request.start or request.member or table.describes):
                    table.fail_too_large(position, entry.size_bytes)
        return missed

    def _trusted(
        self, bucket_uuid: bytes, positions: list[int], found: list[CatalogEntry | None], *, of_snapshot: bool
    ) -> tuple[list[int], list[CatalogEntry | None]]:
        """Return those that are not stale; the others fail."""
        table = self.table
        left: list[int] = []
        records: list[CatalogEntry | None] = []
        for position, entry in zip(positions, found, strict=True):
            if self._is_stale(bucket_uuid, position, entry, of_snapshot=of_snapshot):
                table.fail(position, pb.UNAVAILABLE, stale_message(table.names[position]), ReplicaStale.kind)
            else:
                left.append(position)
                records.append(entry)
        return left, records

    def _is_stale(
        self, bucket_uuid: bytes, position: int, entry: CatalogEntry | None, *, of_snapshot: bool = False
    ) -> bool:
        replicas, name = self._store.replicas, self.table.names[position]
        try:
            return (
                replicas.may_be_denied(bucket_uuid, name)
                if of_snapshot
                else replicas.is_stale(bucket_uuid, name, entry)
            )
        except LoaderError:
            return True

    def _narrow(self, position: int) -> None:
        """Apply the member, version and range that the request gives for one entry."""
        table = self.table
        entry, request = table.records[position], self._request
        if entry is None:
            return
        if failed := self._refused(position, entry):
            table.coded.discard(position)
            table.fail(position, failed.status, failed.fault.message, failed.fault.kind)
            return
        if entry.is_coded:
            return
        start, length = self.range_of(position)
        if request.member and request.member[position]:
            self._narrow_to_member(position, entry, request.member[position])
        elif start or length >= 0:
            table.start[position] = entry.offset + start
            table.sizes[position] = entry.size_bytes - start if length < 0 else length
            if table.sizes[position] != entry.size_bytes:
                table.kind[position] = pb.COMPUTED
                table.checksum[position] = 0
                table.shared_files = True
        if table.sizes[position] > MAX_ITEM_BYTES and not table.describes:
            table.fail_too_large(position, int(table.sizes[position]))

    def _locate_members(self, wanted: Sequence[int]) -> set[int]:
        """Locate whole members of tars, one shard at a time. Returns their positions; all others are handled one by
        one."""
        table, request = self.table, self._request
        if request.start or request.resume_version:
            return set()
        by_shard: dict[bytes, list[int]] = {}
        for position in wanted:
            entry = table.records[position]
            if request.member[position] and entry is not None and not table.status[position]:
                if request.version and self._refused(position, entry):
                    continue
                by_shard.setdefault(entry.path, []).append(position)
        found = [place for positions in by_shard.values() for place in self._located_in_shard(positions)]
        if not found:
            return set()
        located, paths, *columns = map(list, zip(*found, strict=True))
        table.folders[located], table.start[located], table.sizes[located], table.checksum[located] = columns
        for position, path in zip(located, paths, strict=True):
            table.paths[position] = path
        return set(located)

    def _located_in_shard(self, positions: list[int]) -> Iterator[tuple[int, bytes, int, int, int, int]]:
        """Yield position, path, descriptor, offset, size and checksum of the members of one shard. The path is that
        below the descriptor, or b"" if this is the shard's own."""
        table = self.table
        first, request = positions[0], self._request
        entry = table.records[first]
        assert entry is not None
        drive = table.drive_of(first)
        index, path, fd = drive.shards.closed_index(entry.path), entry.path, drive.files.objects_fd
        if index is None:
            try:
                shard = drive.shards.open(entry, table.names[first])
            except (OSError, LoaderError):
                return  # the error occurs again, and is reported for each entry
            if not shard.archive.is_plain:
                return
            index, path, fd = shard.archive.index, b"", shard.fd
            table.shards[fd] = shard
        table.shared_files = True
        places = index.places([request.member[position] for position in positions])
        for position, place in zip(positions, places, strict=True):
            if place is not None and place[1] <= MAX_ITEM_BYTES:
                yield position, path, fd, *place

    def _narrow_to_member(self, position: int, entry: CatalogEntry, member: str) -> None:
        table = self.table
        name, drive = table.names[position], table.drive_of(position)
        try:
            part = find_member(drive, entry, name, member, *self.range_of(position))
        except FileNotFoundError:
            # Probably just replaced: the current shard has members of its own.
            if name not in self._looking:
                self._looking.add(name)
                self.again(position)
                self._looking.discard(name)
            else:
                table.fail(position, pb.UNAVAILABLE, f"{name!r} is replaced faster than it can be read")
            return
        except OSError as error:
            self.fail_read(position, FailureCode.OPEN, error.errno or 0)
            return
        except LoaderError as error:
            self.fail_member(position, error, str(error))
            return
        table.shards[part.shard.fd] = part.shard
        table.members[position] = part
        if part.file_offset is None:
            table.packed.add(position)
        table.paths[position] = b""
        table.folders[position] = part.shard.fd
        table.start[position] = part.file_offset or 0
        table.sizes[position] = part.size_bytes
        table.kind[position] = pb.STORED if part.is_whole else pb.COMPUTED
        table.checksum[position] = part.member.checksum if part.is_whole else 0

    def range_of(self, position: int) -> tuple[int, int]:
        """Return the start and the length that the request gives for an entry; -1: to its end."""
        request = self._request
        return (request.start[position] if request.start else 0, request.length[position] if request.length else -1)

    def _pinned(self, position: int) -> str:
        request = self._request
        if position == 0 and request.resume_version and self.table.resume_offset != 0:
            return request.resume_version
        return request.version[position] if request.version else ""

    def _begins_again(self, entry: CatalogEntry, gone: LoaderError) -> bool:
        """Whether the first entry is resumed in a version that was replaced, and the client has requested none, or the
        tag that the stored one has as well: it is sent from its beginning then, in the version that is stored."""
        request = self._request
        wanted = request.version[0] if request.version else ""
        is_replaced = isinstance(gone, ObjectReplaced) or request.resume_version.startswith(ETAG_VERSION)
        if not is_replaced or (wanted and not has_version(entry, wanted)):
            return False
        self.table.resume_offset, self.table.resumed_version = 0, ""
        return True

    def _refused(self, position: int, entry: CatalogEntry) -> _Failed | None:
        name = self.table.names[position]
        pinned = self._pinned(position)
        if pinned and not has_version(entry, pinned):
            gone = version_gone(repr(name), pinned, entry.version)
            if position or not self._begins_again(entry, gone):
                return _Failed(pb.NOT_FOUND, EntryFault(str(gone), gone.kind))
        if self._request.member and self._request.member[position]:
            return None  # a range is the member's
        if fault := check_range(*self.range_of(position), entry.size_bytes):
            return _Failed(pb.RANGE, EntryFault(f"{name!r}: {fault}"))
        return None

    def again(self, position: int, problem: tuple[int, int] | None = None) -> bool:
        """Look up an entry again after its file vanished. Returns True if the catalog names another file now; otherwise
        the status is set.

        `problem`: another error that reading met, a FailureCode and an errno.
        """
        table = self.table
        name, old = table.names[position], table.records[position]
        bucket_name = self._request.bucket[self._request.bucket_index[position] if self._request.bucket_index else 0]
        bucket = self._store.find_bucket(bucket_name)
        try:
            slot, entry = self._store.drive_set.look_again(bucket.uuid_bytes, name, bucket.cut) if bucket else (0, None)
            drive = self._store.drive_set.at(slot)
        except LoaderError as error:
            table.fail(position, pb.UNAVAILABLE, str(error), error.kind)
            return False
        current = bucket if bucket is not None and self._store.replicas.stale.any else None
        if current is not None and self._is_stale(
            current.uuid_bytes, position, entry, of_snapshot=current.cut is not None
        ):
            table.fail(position, pb.UNAVAILABLE, stale_message(name), ReplicaStale.kind)
            return False
        if entry is None:
            self._fail_missing(position, bucket_name, bucket.uuid_bytes if bucket is not None else None)
            return False
        if old is not None and (slot, entry.path) == (table.slots[position], old.path):
            if problem is not None:
                self.fail_read(position, *problem)
            else:
                _fail_missing_file(table, position, drive)
                self._note_damage(position)
            return False
        if failed := self._refused(position, entry):
            table.fail(position, failed.status, failed.fault.message, failed.fault.kind)
            return False
        table.kind[position], table.start[position] = pb.STORED, 0
        self._take(slot, drive, b"", [position], [entry], of_snapshot=True)  # it is not stale
        self._narrow(position)
        return not table.status[position]

    def _fail_coded(self, position: int) -> None:
        """Fail an entry until its bytes are placed."""
        self.table.coded.add(position)
        name = self.table.names[position]
        self.table.fail(position, pb.UNAVAILABLE, f"{name!r}: it is coded, and not read yet", ObjectCoded.kind)

    def look_up_again(self, positions: Sequence[int]) -> None:
        """Look up entries as if for the first time."""
        self.complete()
        table, at = self.table, np.array(positions)
        table.status[at], table.kind[at], table.start[at] = pb.OK, pb.STORED, 0
        for position in positions:
            table.coded.discard(position)
            table.faults.pop(table.first_index + position, None)
            table.records[position] = None
        self.run(positions)

    def fail_read(self, position: int, code: int, number: int) -> None:
        """Fail an entry that could not be read. `code` is a FailureCode, `number` an errno, or 0."""
        member = self._request.member[position] if self._request.member else ""
        label = repr(self.table.names[position]) + (f", member {member!r}" if member else "")
        if position in self.table.placed:
            message = f"{label}: reading what was fetched: {os.strerror(number) if number else 'damaged'}"
            self.table.fail(position, pb.UNAVAILABLE, message)
            return
        _fail_reading(self.table, position, label, code, number)
        self._note_damage(position)

    def fail_member(self, position: int, error: LoaderError, message: str) -> None:
        """Fail an entry because of its archive."""
        self.table.fail(position, status_of(error), message, error.kind)
        self._note_damage(position, surely=False)

    def _note_damage(self, position: int, *, surely: bool = True) -> None:
        """Note the object of an unreadable entry as damaged, or as suspected."""
        entry = self.table.records[position]
        if self.table.status[position] == pb.CORRUPT and entry is not None:
            at = self._request.bucket_index[position] if self._request.bucket_index else 0
            with contextlib.suppress(LoaderError):  # the bucket was deleted meanwhile
                bucket_uuid = self._store.bucket(self._request.bucket[at]).uuid_bytes
                damaged = self._store.damaged
                noted = damaged.note if surely else damaged.suspect
                noted(bucket_uuid, self.table.names[position], entry.version)

    def _fail_missing(self, position: int, bucket: str, bucket_uuid: bytes | None) -> None:
        table = self.table
        name = table.names[position]
        asked_by, acting_by = self._request.map_version, self._store.replicas.map_version
        if 0 < asked_by < acting_by:
            # The object may have been handed over under a map that the caller does not know yet.
            message = f"{name!r} is not here: asked by map {asked_by}, this node has {acting_by}"
            table.fail(position, pb.UNAVAILABLE, message, StaleMap.kind)
            return
        if bucket_uuid is None:
            table.fail(position, pb.NOT_FOUND, not_found_message(bucket, name))
            return
        error = self._store.replicas.missing(bucket, bucket_uuid, name)
        if isinstance(error, ObjectDenied):
            table.fail(position, pb.OBJECT_DENIED, str(error), error.kind)
        else:
            table.fail(position, pb.NOT_FOUND, str(error), error.kind if isinstance(error, ObjectDeleted) else "")


def _fail_missing_file(table: BatchTable, position: int, drive: Drive) -> None:
    if drive.is_there():
        message = f"{table.names[position]!r}: its file or block checksums are gone from {drive.root}"
        table.fail(position, pb.CORRUPT, message)
    else:
        table.fail(position, pb.UNAVAILABLE, f"{drive.root}: the drive's folder is gone", "drive-failed")


def _fail_reading(table: BatchTable, position: int, label: str, code: int, number: int) -> None:
    faults = table.drive_of(position).faults
    if code in (FailureCode.SHORT, FailureCode.CHECKSUM):
        faults.note_checksum()
    else:
        faults.note_number(number, f"reading {label}: {os.strerror(number)}")
    if code == FailureCode.SHORT:
        table.fail(position, pb.CORRUPT, f"{label}: its file is shorter than what was put")
    elif code == FailureCode.CHECKSUM:
        table.fail(position, pb.CORRUPT, f"{label}: the bytes on the drive do not match the stored checksum")
    else:
        table.fail(position, pb.UNAVAILABLE, f"{label}: {os.strerror(number)} (errno {number})")
