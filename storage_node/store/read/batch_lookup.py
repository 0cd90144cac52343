"""Batch look-up: what the catalog says of each entry, as the columns from which frames are planned and read.

A batch finds out at the start what is stored under each name, and again for an entry whose file has vanished meanwhile.
Whatever is wrong ends in the entry's status and fault, in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.errors import BucketNotFound, LoaderError
from ais_loader.wire.frame import EntryFault
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.archives.open_archives import OpenShard
from storage_node.store.drive.drive import Drive
from storage_node.store.files.segment_format import file_of
from storage_node.store.format import Record
from storage_node.store.pool.placement import Placement
from storage_node.store.read.batch_members import MemberPart, find_member, status_of
from storage_node.store.read.batch_status import MAX_ITEM_BYTES, BatchVerdicts
from storage_node.store.read.frame_plan import check_columns, check_range
from storage_node.store.read.native_reader import FailureCode
from storage_node.store.stale_replicas import CopyInDoubt, in_doubt_message
from storage_node.store.store import Store

_Unfound: TypeAlias = dict[int, LoaderError | UnicodeEncodeError | None]
"""By position: why an object could not be looked up; None when there is none."""


@dataclass(frozen=True, slots=True)
class _Failed:
    status: int
    fault: EntryFault


class BatchTable(BatchVerdicts):
    """n entries looked up. Arrays have shape (n,). Belongs to one thread at a time.

    Raises InvalidRequest when the request's columns do not fit together.
    """

    def __init__(self, store: Store, request: pb.BatchRequest) -> None:
        super().__init__(store, list(request.name), request.first_index)
        self._request = request
        n = self.n
        check_columns(request, n)
        self._start: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        self._folders: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self._records: list[Record | None] = [None] * n
        self._drives: list[int] = [0] * n
        self._held: dict[int, Drive] = {}
        """By slot: a drive that is given up meanwhile keeps its folders open for those who read from them."""
        self._paths: list[bytes] = [b""] * n
        self._shards: dict[int, OpenShard] = {}
        """By descriptor: files in which members lie; kept open for as long as the batch is."""
        self._members: dict[int, MemberPart] = {}
        """Of those members that are packed, or asked for in part."""
        self._shared_files = False
        """Whether some of the objects lie in one file with others."""
        self._packed: set[int] = set()
        """Those of them that have to be unpacked."""
        self._looking: set[str] = set()
        """Shards that were looked up again, because their files had gone."""
        self._look_up()

    def _look_up(self) -> None:
        request = self._request
        by_bucket: dict[int, list[int]] = {}
        if request.bucket_index:
            for position, at in enumerate(request.bucket_index):
                by_bucket.setdefault(at, []).append(position)
        elif self.n:
            by_bucket[0] = list(range(self.n))
        for at, positions in by_bucket.items():
            bucket_name = request.bucket[at]
            bucket = self._store.find_bucket(bucket_name)
            if bucket is None:
                error = self._store.no_bucket(bucket_name)
                status = pb.NOT_FOUND if isinstance(error, BucketNotFound) else pb.UNAVAILABLE
                for position in positions:
                    self._fail(position, status, str(error), error.kind)
                continue
            self._look_up_bucket(bucket.uuid_bytes, bucket_name, bucket.cut, positions)
        if request.start or request.member or request.version or request.resume_version:
            located = self._locate_members() if request.member else frozenset()
            for position in range(self.n):
                if position not in located:
                    self._narrow(position)

    def _look_up_bucket(self, bucket_uuid: bytes, bucket_name: str, cut: int | None, positions: list[int]) -> None:
        while positions:
            placement = self._store.placement
            if placement.moving and cut is None:
                failed = self._look_up_moving(placement, bucket_uuid, positions)
            else:
                failed = self._look_up_settled(placement, bucket_uuid, cut, positions)
            if not failed or self._store.still(placement):
                break
            positions = list(failed)  # drives have come or gone meanwhile
        for position, error in failed.items() if positions else ():
            if error is None:
                self._fail_missing(position, bucket_name, bucket_uuid)
            else:
                self._fail(position, pb.UNAVAILABLE, str(error), getattr(error, "kind", ""))

    def _look_up_settled(
        self, placement: Placement, bucket_uuid: bytes, cut: int | None, positions: list[int]
    ) -> _Unfound:
        """Every object is with its owner, or nowhere. Returns what was not found (None), or not looked up."""
        names = self._names
        failed: _Unfound = {}
        by_drive: dict[int, list[int]] = {}
        if placement.only is not None:
            by_drive[placement.only] = positions
        else:
            for position in positions:
                by_drive.setdefault(placement.owner(bucket_uuid, names[position]), []).append(position)
        for slot, mine in by_drive.items():
            try:
                drive = self._store.drive_at(slot)
                wanted = [names[position] for position in mine]
                found = drive.lookup(bucket_uuid, wanted) if cut is None else drive.lookup_at(bucket_uuid, wanted, cut)
            except (LoaderError, UnicodeEncodeError) as error:
                failed.update(dict.fromkeys(mine, error))
                continue
            failed.update(self._take(slot, drive, bucket_uuid, mine, found, of_snapshot=cut is not None))
        return failed

    def _look_up_moving(self, placement: Placement, bucket_uuid: bytes, positions: list[int]) -> _Unfound:
        failed: _Unfound = {}
        by_slot: dict[int, list[tuple[int, Record | None]]] = {}
        found = self._store.lookup_moving(placement, bucket_uuid, [self._names[position] for position in positions])
        for position, located in zip(positions, found, strict=True):
            if isinstance(located, Exception):
                failed[position] = located
            else:
                by_slot.setdefault(located.slot, []).append((position, located.record))
        for slot, rows in by_slot.items():
            mine = [position for position, _ in rows]
            try:
                drive = self._store.drive_at(slot)
            except LoaderError as error:
                failed.update(dict.fromkeys(mine, error))
            else:
                failed.update(self._take(slot, drive, bucket_uuid, mine, [record for _, record in rows]))
        return failed

    def _take(
        self,
        slot: int,
        drive: Drive,
        bucket_uuid: bytes,
        mine: list[int],
        found: list[Record | None],
        *,
        of_snapshot: bool = False,
    ) -> _Unfound:
        """Enter what was found on one drive; returns what was not."""
        if self._store.doubts.any and not of_snapshot:
            mine, found = self._believed(bucket_uuid, mine, found)
            if not mine:
                return {}
        self._held[slot] = drive
        at = np.array(mine)
        self._folders[at] = drive.files.objects_fd
        self.sizes[at] = [0 if record is None else record.size_bytes for record in found]
        self.checksum[at] = [0 if record is None else record.checksum for record in found]
        offsets = [0 if record is None else record.offset for record in found]
        if any(offsets):
            self._start[at] = offsets
            self._shared_files = True
        missed: _Unfound = {}
        for position, record in zip(mine, found, strict=True):
            if record is None:
                missed[position] = None
            else:
                self._drives[position] = slot
                self._records[position] = record
                self._paths[position] = file_of(record.path) if record.offset else record.path
                if record.size_bytes > MAX_ITEM_BYTES and not (self._request.start or self._request.member):
                    self._fail_too_large(position, record.size_bytes)
        return missed

    def _believed(
        self, bucket_uuid: bytes, positions: list[int], found: list[Record | None]
    ) -> tuple[list[int], list[Record | None]]:
        """Those that are not in doubt; the others fail."""
        left: list[int] = []
        records: list[Record | None] = []
        for position, record in zip(positions, found, strict=True):
            if self._doubtful(bucket_uuid, position, record):
                self._fail(position, pb.UNAVAILABLE, in_doubt_message(self._names[position]), CopyInDoubt.kind)
            else:
                left.append(position)
                records.append(record)
        return left, records

    def _doubtful(self, bucket_uuid: bytes, position: int, record: Record | None) -> bool:
        try:
            return self._store.in_doubt(bucket_uuid, self._names[position], record)
        except LoaderError:
            return True

    def _narrow(self, position: int) -> None:
        """Apply what the request says of one entry beyond its name: member, version, range."""
        record, request = self._records[position], self._request
        if record is None:
            return
        if failed := self._refused(position, record):
            self._fail(position, failed.status, failed.fault.message, failed.fault.kind)
            return
        start, length = self._range(position)
        if request.member and request.member[position]:
            self._narrow_to_member(position, record, request.member[position])
        elif start or length >= 0:
            self._start[position] = record.offset + start
            self.sizes[position] = record.size_bytes - start if length < 0 else length
            if self.sizes[position] != record.size_bytes:
                self.kind[position] = pb.COMPUTED
                self.checksum[position] = 0
        if self.sizes[position] > MAX_ITEM_BYTES:
            self._fail_too_large(position, int(self.sizes[position]))
        elif request.verify_ranges and self.kind[position] == pb.COMPUTED:
            self._paths[position] = b""  # never equal to a plain read of the same file

    def _locate_members(self) -> set[int]:
        """Whole members of tars, a shard at a time; returns their positions. All others are seen to one by one."""
        request = self._request
        if request.start or request.version or request.resume_version:
            return set()
        by_shard: dict[bytes, list[int]] = {}
        for position, member in enumerate(request.member):
            record = self._records[position]
            if member and record is not None and not self.status[position]:
                by_shard.setdefault(record.path, []).append(position)
        located: set[int] = set()
        for positions in by_shard.values():
            located.update(self._locate_in_shard(positions))
        return located

    def _locate_in_shard(self, positions: list[int]) -> list[int]:
        first, request = positions[0], self._request
        record = self._records[first]
        assert record is not None
        try:
            shard = self._held[self._drives[first]].shards.open(record, self._names[first])
        except (OSError, LoaderError):
            return []  # which comes up again, and is told of each entry
        if not shard.archive.is_plain:
            return []
        members = shard.archive.index.find_many([request.member[position] for position in positions])
        fits = members.found & (members.sizes <= MAX_ITEM_BYTES)
        at = np.array(positions)[fits]
        self._shards[shard.fd] = shard
        self._folders[at] = shard.fd
        self._start[at] = members.offsets[fits]
        self.sizes[at] = members.sizes[fits]
        self.checksum[at] = members.checksums[fits]
        located: list[int] = at.tolist()
        for position in located:
            self._paths[position] = b""
        return located

    def _narrow_to_member(self, position: int, record: Record, member: str) -> None:
        name, drive = self._names[position], self._held[self._drives[position]]
        try:
            part = find_member(drive, record, name, member, *self._range(position))
        except FileNotFoundError:
            # Replaced a moment ago, most likely: the shard as it is now has members of its own.
            if name not in self._looking:
                self._looking.add(name)
                self._look_again(position)
                self._looking.discard(name)
            else:
                self._fail(position, pb.UNAVAILABLE, f"{name!r} is replaced faster than it can be read")
            return
        except OSError as error:
            self._fail_read(position, FailureCode.OPEN, error.errno or 0)
            return
        except LoaderError as error:
            self._fail(position, status_of(error), str(error), error.kind)
            return
        self._shards[part.shard.fd] = part.shard
        self._members[position] = part
        if part.file_offset is None:
            self._packed.add(position)
        self._paths[position] = b""
        self._folders[position] = part.shard.fd
        self._start[position] = part.file_offset or 0
        self.sizes[position] = part.size_bytes
        self.kind[position] = pb.STORED if part.is_whole else pb.COMPUTED
        self.checksum[position] = part.member.checksum if part.is_whole else 0

    def _range(self, position: int) -> tuple[int, int]:
        request = self._request
        return (
            request.start[position] if request.start else 0,
            request.length[position] if request.length else -1,
        )

    def _pinned(self, position: int) -> str:
        request = self._request
        if position == 0 and request.resume_version:
            return request.resume_version
        return request.version[position] if request.version else ""

    def _refused(self, position: int, record: Record) -> _Failed | None:
        name = self._names[position]
        pinned = self._pinned(position)
        if pinned and pinned != str(record.version):
            message = f"{name!r}: version {pinned} is gone, the store has {record.version}"
            return _Failed(pb.NOT_FOUND, EntryFault(message))
        if self._request.member and self._request.member[position]:
            return None  # a range is the member's
        if fault := check_range(*self._range(position), record.size_bytes):
            return _Failed(pb.RANGE, EntryFault(f"{name!r}: {fault}"))
        return None

    def _look_again(self, position: int, problem: tuple[int, int] | None = None) -> bool:
        """After a file has vanished: True when the catalog names another one by now, False with a status set if not.

        `problem`: what else it was that reading met, a FailureCode and an errno.
        """
        name, old = self._names[position], self._records[position]
        bucket_name = self._request.bucket[self._request.bucket_index[position] if self._request.bucket_index else 0]
        bucket = self._store.find_bucket(bucket_name)
        try:
            slot, record = self._store.look_again(bucket.uuid_bytes, name, bucket.cut) if bucket else (0, None)
            drive = self._store.drive_at(slot)
        except LoaderError as error:
            self._fail(position, pb.UNAVAILABLE, str(error), error.kind)
            return False
        current = bucket if bucket is not None and bucket.cut is None and self._store.doubts.any else None
        if current is not None and self._doubtful(current.uuid_bytes, position, record):
            self._fail(position, pb.UNAVAILABLE, in_doubt_message(name), CopyInDoubt.kind)
            return False
        if record is None:
            self._fail_missing(position, bucket_name, bucket.uuid_bytes if bucket is not None else None)
            return False
        if old is not None and (slot, record.path) == (self._drives[position], old.path):
            if problem is not None:
                self._fail_read(position, *problem)
            else:
                self._fail_missing_file(position, drive)
            return False
        if failed := self._refused(position, record):
            self._fail(position, failed.status, failed.fault.message, failed.fault.kind)
            return False
        self._held[slot] = drive
        self._drives[position], self._folders[position] = slot, drive.files.objects_fd
        self._records[position], self._paths[position] = record, file_of(record.path)
        self.sizes[position], self.checksum[position] = record.size_bytes, record.checksum
        self.kind[position] = pb.STORED
        self._start[position] = record.offset
        self._shared_files |= record.offset > 0
        self._narrow(position)
        return not self.status[position]

    def _fail_read(self, position: int, code: int, number: int) -> None:
        self._fail_reading(position, self._held[self._drives[position]], code, number)
