"""Segment compaction of one drive: rewrites the living objects of sparse segments into a new one, in bounded steps.

The problem. Pages of a segment are freed only when every object on them is dead, and its index only with the last of
its objects. Small objects that are overwritten or deleted in random order therefore leave segments that are nearly
empty and hardly smaller than they were.

The invariant. A move changes neither the version of an object nor anything else that clients see, only where its bytes
are. It is an ordinary commit (transactions.py), which takes effect only if the catalog still has the very entry that
was read. A put, a deletion or an upload that comes first thus wins, and the copy is dropped. The old bytes become
garbage in the same atomic write, and stay for the grace period for readers that looked the entry up before.

The steps for a group of objects, from one segment or several:

1. Take a segment that is noted as sparse (sparse_segments.py). Its index says which objects are alive in it.
2. Read the catalog entries of these names. Those that name this segment are to be moved. Others are retained for
   snapshots, or about to be freed: they stay.
3. Read the bytes, and compare them with their checksums. A damaged object stays where it is and is reported: its entry
   still names what is left of it, for whoever repairs it.
4. Commit the group. The new segment, its name and the commit are synced whatever the durability of the store, because
   the old bytes may be durable, and are about to be removed.
5. When the last object of the old segment has been freed, the segment is removed like any other.

A crash before the commit leaves the old entries and a staged or unnamed file, which the next start removes. After it,
the garbage keys name the old slots, which the next start frees. The note that a segment is sparse stays in the catalog
until the segment is removed, so that the next start goes on.

What cannot be moved (damaged, retained for a snapshot, without identity) keeps its segment. The segment is not tried
again before another of its objects is freed, or the store is opened again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ais_loader.errors import LoaderError, StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.checksum import crc32c
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.drive.commit_files import PendingObject
from storage_node.store.drive.sparse_segments import SparseSegments
from storage_node.store.drive.transactions import Transactions
from storage_node.store.files.error_counters import ErrorCounters, is_passing
from storage_node.store.files.object_files import RawFiles
from storage_node.store.files.segment_format import REMOVED, SegmentUse, slot_path
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry, Version

GROUP_BYTES, GROUP_OBJECTS = 4 << 20, 1024
"""Maximum size of one commit."""


class DamagedObject(NamedTuple):
    bucket_uuid: bytes
    name: str
    version: Version


@dataclass(slots=True)
class Compacted:
    """Result of one step."""

    segments: int = 0
    """Segments that were looked at."""
    objects: int = 0
    """Objects that were moved."""
    bytes: int = 0
    """Their size."""
    damaged: list[DamagedObject] = field(default_factory=list)
    """Objects that were not moved because their bytes do not match their checksums."""


class _Living(NamedTuple):
    key: bytes
    entry: CatalogEntry


class SegmentCompaction:
    """Thread-safe: steps run one after another."""

    def __init__(
        self, catalog: Catalog, files: RawFiles, changes: Transactions, sparse: SparseSegments, faults: ErrorCounters
    ) -> None:
        self._catalog = catalog
        self._files = files
        self._changes = changes
        self._sparse = sparse
        self._faults = faults
        self._lock = threading.Lock()

    def note_all(self) -> None:
        """Find all sparse segments of the drive, by reading the index of every segment. Raises OSError, LoaderError."""
        with contextlib.suppress(FileNotFoundError):  # there never was a segment
            for file in self._files.segment_files():
                with contextlib.suppress(OSError):  # removed meanwhile, or unreadable, which the doctor reports
                    use = self._files.segment_use(file)
                    if use is not None and use.is_sparse:
                        self._note(file, use)

    def step(self, hold: Callable[[], StagedFile], stage: Callable[[], StagedFile]) -> Compacted:
        """Move the objects of one group. Nothing is moved if no segment is sparse.

        `stage` creates a staged file, `hold` one that is held in memory.

        Raises OSError, LoaderError; the segments are tried again then.
        """
        with self._lock:
            result = Compacted()
            taken: list[bytes] = []
            group: list[PendingObject] = []
            try:
                while self._has_room(group) and (file := self._sparse.take()) is not None:
                    taken.append(file)
                    if not self._collect(file, hold, group, result):
                        self._sparse.put_back(file)
                self._commit(group, stage, result)
            except BaseException:
                for file in taken:
                    self._sparse.put_back(file)
                raise
            finally:
                for pending in group:
                    pending.file.discard()
            return result

    def _has_room(self, group: list[PendingObject]) -> bool:
        return len(group) < GROUP_OBJECTS and sum(pending.file.size_bytes for pending in group) < GROUP_BYTES

    def _collect(
        self, file: bytes, hold: Callable[[], StagedFile], group: list[PendingObject], result: Compacted
    ) -> bool:
        """Add the objects of a segment to the group. Returns False if there was no room for all of them."""
        try:
            living = self._living(file)
        except FileNotFoundError:
            self._note(file, REMOVED)
            return True
        except OSError as error:
            if is_passing(error):
                raise
            return True  # counted with the drive; it must not keep other segments from being compacted
        result.segments += 1
        for one in living:
            if not self._has_room(group):
                return False
            if (pending := self._read(one, hold, result)) is not None:
                group.append(pending)
        return True

    def _living(self, file: bytes) -> list[_Living]:
        """Return the objects in this segment whose current entries name it. Raises OSError, LoaderError."""
        found: list[_Living] = []
        places: dict[bytes, bytes] = {}
        for slot, raw in self._files.living(file):
            with contextlib.suppress(StoreFormatError):
                identity = fmt.decode_identity(raw)
                key = fmt.object_key(identity.bucket_uuid, identity.name)
                places[key] = slot_path(file, slot, identity.generation)
        for (key, path), value in zip(places.items(), self._catalog.get_many(list(places)), strict=True):
            with contextlib.suppress(StoreFormatError):  # the doctor reports it
                if value is not None and (entry := fmt.decode_entry(value)).path == path:
                    fmt.decode_metadata(entry.raw_metadata)
                    found.append(_Living(key, entry))
        return found

    def _read(self, one: _Living, hold: Callable[[], StagedFile], result: Compacted) -> PendingObject | None:
        """Stage a verified copy of an object; None if it is damaged or has changed. Raises OSError, LoaderError."""
        entry, bucket_uuid, name = one.entry, fmt.bucket_of_key(one.key), fmt.name_of_key(one.key)
        try:
            data = b"".join(self._files.read(entry))
        except OSError as error:
            if is_passing(error):
                raise
            data = b""
        if len(data) != entry.size_bytes or crc32c(data) != entry.checksum:
            if self._catalog.get(one.key) == fmt.encode_entry(entry):
                self._faults.note_checksum()
                result.damaged.append(DamagedObject(bucket_uuid, name, entry.version))
            return None
        pending = PendingObject(
            bucket_uuid,
            name,
            hold(),
            entry.metadata,
            entry.version,
            entry.modified_ns,
            writes=entry.writes,
            moved=entry,
        )
        pending.file.write(data)
        return pending

    def _commit(self, group: list[PendingObject], stage: Callable[[], StagedFile], result: Compacted) -> None:
        if not group:
            return
        done = self._changes.commit(group, stage, durable=True)
        for pending, moved in zip(group, done, strict=True):
            if not isinstance(moved, LoaderError):
                result.objects += 1
                result.bytes += pending.file.size_bytes

    def _note(self, file: bytes, use: SegmentUse) -> None:
        batch = WriteBatch(raw_mode=True)
        self._sparse.note(batch, {file: use})
        if batch.len():
            self._catalog.write(batch, sync=False, is_commit=False)
