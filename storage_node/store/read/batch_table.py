"""Batch table: columns filled by the look-up, from which frames are planned and read, and errors by entry.

A failure ends in its entry's status and fault, in its position, while the other entries go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ais_loader.errors import NodeUnavailable
from ais_loader.wire.answer_check import digest
from ais_loader.wire.frame import U8, U32, EntryFault
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits
from ais_loader.wire.object_info import info_of
from storage_node.store.archives.open_archives import OpenShard
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.locations import StoredFile
from storage_node.store.format import CatalogEntry
from storage_node.store.places import without_places
from storage_node.store.read.batch_members import MemberPart

MAX_ITEM_BYTES = 256 << 20
_MIN_DISTINCT = 0.5


class BatchTable:
    """Columns of n entries; arrays and lists have one value for each. Belongs to one thread at a time."""

    def __init__(self, names: list[str], first_index: int, *, hides_places: bool = False) -> None:
        """`hides_places`: whether faults name no places, see `places`."""
        self._hides_places = hides_places
        self.names = names
        self.n = n = len(names)
        self.first_index = first_index
        # Columns that frames carry.
        self.index: U32 = np.arange(first_index, first_index + n, dtype=np.uint32)
        self.status: U8 = np.zeros(n, np.uint8)
        self.checksum: U32 = np.zeros(n, np.uint32)
        self.kind: U8 = np.full(n, pb.STORED, np.uint8)
        self.sizes: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        self.faults: dict[int, EntryFault] = {}
        """Errors by index."""
        # Location of the bytes.
        self.folders: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        """Descriptors of the folders that `paths` are relative to; or of archives, with an empty path."""
        self.paths: list[bytes] = [b""] * n
        self.start: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        """Offset of the bytes in their file."""
        self.records: list[CatalogEntry | None] = [None] * n
        self.files: list[StoredFile] | None = None
        """Files of all entries, if these were found by their locations: there are no records and `paths` then."""
        self.located_sizes: npt.NDArray[np.int64] | None = None
        """Sizes by which frames were planned before entries that had been located were looked up; shape (n,)."""
        self.slots: list[int] = [0] * n
        self.drives: dict[int, Drive] = {}
        """Drives by slot. A drive that is given up meanwhile keeps its folders open for its readers."""
        self.coded: set[int] = set()
        """Positions of coded objects, whose bytes have not been placed."""
        self.placed: dict[int, str] = {}
        """Versions of the objects of entries whose bytes are in a file of their own, by position."""
        self.resumed_version = ""
        """Version by which an earlier answer named the object of entry 0, of which this one is the rest."""
        self.resume_offset: int | None = None
        """Where the first entry continues; 0 if it begins again, because the version of its first part was replaced."""
        self.shared_files = False
        """Whether several entries may be in one file: objects of a segment, ranges of an object."""
        self.describes = False
        """Whether END describes the object of the only entry."""
        # Members of archives.
        self.shards: dict[int, OpenShard] = {}
        """Shards by descriptor, kept open as long as the batch."""
        self.members: dict[int, MemberPart] = {}
        """Members that are compressed, or of which a range is requested, by position."""
        self.packed: set[int] = set()
        """Positions of members that have to be decompressed."""

    def version(self, position: int) -> str:
        """Return the version of an entry's object; "" if it was not found."""
        entry = self.records[position]
        if entry is None:
            return self.placed.get(position, "")
        return self.resumed_version if position == 0 and self.resumed_version else str(entry.version)

    def drive_of(self, position: int) -> Drive:
        """Return the drive on which an entry was found."""
        return self.drives[self.slots[position]]

    def place(
        self, position: int, fd: int, size_bytes: int, checksum: int | None, version: str, start: int = 0
    ) -> None:
        """Set the location of an entry's bytes to an open file.

        `checksum`: their CRC-32C; None if it is unknown. `version`: of the object that they are from.
        """
        self.placed[position] = version
        self.records[position] = None
        self.coded.discard(position)
        self.status[position] = pb.OK
        self.faults.pop(self.first_index + position, None)
        self.folders[position], self.paths[position], self.start[position] = fd, b"", start
        self.sizes[position], self.checksum[position] = size_bytes, checksum or 0
        self.kind[position] = pb.COMPUTED if checksum is None else pb.STORED
        self.shared_files = True

    def fail(self, position: int, status: int, message: str, kind: str = "") -> None:
        self.status[position] = status
        self.kind[position] = pb.NONE
        self.sizes[position] = self.checksum[position] = 0
        self.faults[self.first_index + position] = self.told(EntryFault(message, kind))

    def told(self, fault: EntryFault) -> EntryFault:
        """Return a fault as clients are told it."""
        return replace(fault, message=without_places(fault.message)) if self._hides_places else fault

    def fail_replaced(self, position: int) -> None:
        """Fail an entry whose object was replaced since the look-up. A retry gets the new one."""
        message = f"{self.names[position]!r} was replaced before it could be read"
        self.fail(position, pb.UNAVAILABLE, message, NodeUnavailable.kind)

    def fail_too_large(self, position: int, size_bytes: int) -> None:
        self.fail(
            position,
            pb.FAILED,
            f"{self.names[position]!r}: {size_bytes:,} bytes, a batch carries at most {MAX_ITEM_BYTES:,} per entry; "
            "read it in ranges, or with bucket.open()",
            "item-too-large",
        )

    def faults_of(self, at: slice) -> dict[int, EntryFault]:
        """Return the faults of these entries, by index."""
        if not self.faults:
            return {}
        indexes = range(self.first_index + at.start, self.first_index + at.stop)
        return {index: self.faults[index] for index in indexes if index in self.faults}

    def paths_of(self, at: slice) -> list[bytes] | list[StoredFile]:
        """Return the files of entries as the batch reader takes them."""
        return self.paths[at] if self.files is None else self.files[at]

    def sources(self, at: slice) -> Sequence[object]:
        """Return a key for each entry's location: entries with equal keys are read once."""
        if self.files is not None:
            return self.names[at]
        if not self.shards and not self.shared_files:
            return self.paths[at]
        columns = self.folders[at].tolist(), self.paths[at], self.start[at].tolist(), self.sizes[at].tolist()
        return list(zip(*columns, strict=True))

    def is_plain(self, at: slice, *, verify: bool, has_duplicates: bool) -> bool:
        """Whether one native call can read these entries.

        `verify`: ranges are compared with the checksums of their blocks. `has_duplicates`: somewhere in the batch.
        """
        if not self._is_whole(at, verify=verify):
            return False
        # One call reads duplicates again, which costs less than reading each entry by itself if they are few.
        return not has_duplicates or len(set(self.sources(at))) >= _MIN_DISTINCT * (at.stop - at.start)

    def _is_whole(self, at: slice, *, verify: bool) -> bool:
        if self.status[at].any():
            return False
        if (self.kind[at] == pb.COMPUTED).any() and (verify or self._any_in_segment(at)):
            return False
        return not self.packed or self.packed.isdisjoint(range(at.start, at.stop))

    def _any_in_segment(self, at: slice) -> bool:
        return self.shared_files and any(entry is not None and entry.offset for entry in self.records[at])

    def end(self, entries: int, waits: NodeWaits) -> pb.End:
        """Return the END of a batch of which the first `entries` entries have been read."""
        status, checksum = self.status[:entries], self.checksum[:entries]
        described = None
        if self.describes and not self.status[0] and (record := self.records[0]) is not None:
            described = info_of("", "", record)
            described.size_bytes, described.checksum = int(self.sizes[0]), int(self.checksum[0])  # of a member
        return pb.End(
            outcome=pb.End.COMPLETE if entries == self.n else pb.End.STOPPED,
            first_index=self.first_index,
            entries=entries,
            failed_entries=int(np.count_nonzero(status)),
            payload_bytes=int(self.sizes[:entries].sum()),
            digest=digest(status, checksum),
            wait_us=waits.wait_us,
            object=described,
            waits=waits.message(),
        )
