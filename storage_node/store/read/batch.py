"""GetBatch on one store, in three stages: look up every entry, plan frames, read the frames in request order.

The catalogs' information on each entry is collected at the start, in a table of columns (`batch_table`). The plan is a
pure function of it (`frame_plan`). Damage and replaced objects are only found while reading. Failures of each stage end
in the entry's status, in its position. The common frame takes one native call; a frame in which anything goes wrong is
read again entry by entry, with retries.

A batch belongs to one thread at a time. It holds no lock and no memory between frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ArchiveUnsupported, LoaderError, MemberNotFound, NotFound, ObjectDenied, RangeError
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES, U8, U32, EntryFault, Frame, without_end
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.buckets import ObjectCoded
from storage_node.store.checksum import crc32c
from storage_node.store.chunked_put import Spooled
from storage_node.store.format import CatalogEntry, encode_place
from storage_node.store.read.batch_lookup import BatchLookup
from storage_node.store.read.batch_members import status_of
from storage_node.store.read.batch_table import MAX_ITEM_BYTES
from storage_node.store.read.file_frame import FileFrame
from storage_node.store.read.frame_plan import FrameSpan, plan_frames
from storage_node.store.read.frame_reader import FrameReader
from storage_node.store.store import Store

_SLOW_S = 0.002
"""Time to read a frame from which on END follows in a message of its own, because it tells of that time. The END of an
only entry never does: who has its bytes may close the batch, which would count as abandoned."""


class Closable(Protocol):
    def close(self) -> None: ...


class StoreBatch(FrameReader):
    """Looked-up entries of one request, ready to be read in order."""

    def __init__(self, store: Store, request: pb.BatchRequest, lookup: BatchLookup | None = None) -> None:
        """`lookup`: one that has located every entry. Raises InvalidRequest if the request's columns do not fit
        together."""
        if lookup is None:
            lookup = BatchLookup(store, request)
            if not lookup.locate(waits=True):
                lookup.run()
        super().__init__(lookup, request)
        self._spooled: list[Closable] = []
        self.file_frame_bytes = 0
        """Maximum payload of frames that `read_message` sends from files; 0 if it is not used."""

    @classmethod
    def of_known(cls, store: Store, request: pb.BatchRequest) -> StoreBatch | None:
        """Return a batch of which every location, or coded entry, is known, or None. A writer waits for no drive here.

        Raises InvalidRequest if the request's columns do not fit together.
        """
        lookup = BatchLookup(store, request)
        return cls(store, request, lookup) if lookup.locate(waits=False, or_cached=True) else None

    @property
    def n(self) -> int:
        return self._table.n

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each entry, 0 for one that has failed; shape (n,)."""
        return self._table.sizes

    @property
    def status(self) -> U8:
        """Status of each entry; shape (n,)."""
        return self._table.status

    @property
    def checksum(self) -> U32:
        """CRC-32C of each entry's bytes, once its frame was read; shape (n,)."""
        return self._table.checksum

    def fault(self, position: int) -> EntryFault | None:
        """Return details of an entry's failure, if there are any besides its status."""
        return self._table.faults.get(self._table.first_index + position)

    def told(self, fault: EntryFault) -> EntryFault:
        """See `BatchTable.told`."""
        return self._table.told(fault)

    def kind(self, position: int) -> int:
        """Return the kind of an entry's checksum, a ChecksumKind."""
        return int(self._table.kind[position])

    def version(self, position: int) -> str:
        """Return the version of an entry's object, "" if it was not found."""
        self._lookup.complete()
        return self._table.version(position)

    def record(self, position: int) -> CatalogEntry | None:
        """Return the catalog entry of an entry's object, or None if it was not found."""
        self._lookup.complete()
        return self._table.records[position]

    def own_file(self, position: int) -> str:
        """Return the path of a file that has the bytes of an entry and no others; "" if there is none."""
        table, entry = self._table, self.record(position)
        if entry is None or entry.path != table.paths[position] or entry.size_bytes != table.sizes[position]:
            return ""
        return table.drive_of(position).own_file(entry)

    # -- entries that are coded, or stored after the look-up

    @property
    def coded(self) -> list[int]:
        """Positions of entries whose objects are coded, in order. They are failed until they are placed."""
        return sorted(self._table.coded)

    def range_of(self, position: int) -> tuple[int, int]:
        """Return the start and the length that are requested of an entry; -1: to its end."""
        return self._lookup.range_of(position)

    @classmethod
    def of_files(cls, store: Store, request: pb.BatchRequest) -> StoreBatch:
        """Return a batch none of whose objects is coded. Raises ObjectCoded, for the coded ones of one bucket."""
        batch = cls(store, request)
        if batch.coded:
            at = request.bucket_index[batch.coded[0]] if request.bucket_index else 0
            coded = [p for p in batch.coded if not request.bucket_index or request.bucket_index[p] == at]
            entries = {request.name[p]: entry for p in coded if (entry := batch.record(p)) is not None}
            batch.close()
            raise ObjectCoded("objects are coded", store.bucket(request.bucket[at]).uuid_bytes, entries)
        return batch

    def look_up_again(self, positions: Sequence[int]) -> None:
        """Look up entries whose objects have been stored, replaced or deleted since, and whose frames are not planned
        yet."""
        self._lookup.look_up_again(positions)
        self._changed = True

    def place(self, position: int, spooled: Spooled, version: str) -> None:
        """Set the bytes of an entry, whose frame is not planned yet, and the version of their object."""
        self._lookup.complete()
        self._table.place(position, spooled.source.fd, spooled.size_bytes, spooled.checksum, version)
        self._changed = True

    def place_arriving(
        self, position: int, fd: int, start: int, size_bytes: int, version: str, checksum: int | None = None
    ) -> None:
        """Set the bytes of an entry, whose frame is not planned yet, to `size_bytes` bytes from `start` of a file in
        which they arrive. The caller waits until those of a frame have arrived before it reads the frame. `checksum`:
        their CRC-32C, if it is known."""
        self._lookup.complete()
        self._table.place(position, fd, size_bytes, checksum, version, start)
        if size_bytes > MAX_ITEM_BYTES:
            self._table.fail_too_large(position, size_bytes)
        self._changed = True

    def enter_places(self, memory: FileIO, positions: Sequence[int]) -> None:
        """Set the bytes of coded entries to their places, which are written to this file."""
        self.keep(memory)
        for position in positions:
            entry, (start, length) = self.record(position), self.range_of(position)
            assert entry is not None
            place, at = encode_place(entry), memory.tell()
            memory.write(place)
            self._table.place(position, memory.fileno(), len(place), crc32c(place), "", at)
            self._table.kind[position] = pb.CODED
            if (size_bytes := entry.size_bytes - start if length < 0 else length) > MAX_ITEM_BYTES:
                self._table.fail_too_large(position, size_bytes)
            elif not position and size_bytes < (self._table.resume_offset or 0):
                self._table.sizes[0] = size_bytes  # `spans` refuses it
            elif not position:
                self._table.resume_offset = None  # of its bytes
        self._changed = True

    def keep(self, spooled: Closable) -> None:
        """Keep bytes open until the batch is closed."""
        self._spooled.append(spooled)

    def fail(self, position: int, error: LoaderError) -> None:
        """Set the status of an entry, whose frame is not planned yet, from an error."""
        if isinstance(error, (RangeError, MemberNotFound, ArchiveUnsupported)):
            status = status_of(error)
        else:
            status = pb.NOT_FOUND if isinstance(error, NotFound) else pb.UNAVAILABLE
            status = pb.OBJECT_DENIED if isinstance(error, ObjectDenied) else status
        self._lookup.complete()
        self._table.fail(position, status, str(error), error.kind)

    def fail_begun(self, position: int, error: LoaderError) -> None:
        """Set the status of an entry of which bytes may have been read already. A retry may get all of it."""
        self._lookup.complete()
        self._table.fail(position, pb.UNAVAILABLE, str(error), error.kind)

    # -- planning

    def spans(
        self, target_bytes: int = TARGET_PAYLOAD_BYTES, first: int = 0, stop: int | None = None
    ) -> Iterator[FrameSpan]:
        """Iterate over the frames to read, in order; only those of entries first .. stop-1 if these are given."""
        table = self._table
        offset = table.resume_offset
        if not first and offset and table.n and not table.status[0] and table.sizes[0] < offset:
            table.fail(0, pb.NOT_FOUND, f"cannot resume at {offset:,}: the entry has {int(table.sizes[0]):,} bytes")
        for span in self.planned(target_bytes, first, stop):
            # A piece that failed has ended its entry: the pieces planned after it are void.
            if not (span.is_piece and table.status[span.first]):
                yield span

    def planned(
        self, target_bytes: int = TARGET_PAYLOAD_BYTES, first: int = 0, stop: int | None = None
    ) -> Iterator[FrameSpan]:
        """Iterate over the frames of `spans` as planned before any has been read."""
        in_files = self._in_files() if self.file_frame_bytes else None
        spans = plan_frames(
            self._table.sizes[first:stop],
            target_bytes=target_bytes,
            resume_offset=None if first else self._resume_offset(),
            in_files=None if in_files is None else in_files[first:stop],
            file_frame_bytes=self.file_frame_bytes,
        )
        return spans if not first else (span.shifted(first) for span in spans)

    def _resume_offset(self) -> int | None:
        table = self._table
        return None if table.n and table.status[0] else table.resume_offset

    def bytes_in(self, span: FrameSpan) -> int:
        """Return the payload of a frame that has been read: less than planned if entries failed."""
        table = self._table
        if span.is_piece:
            return 0 if table.status[span.first] else span.payload_bytes
        return int(table.sizes[span.first : span.stop].sum())

    # -- reading

    def read(self, span: FrameSpan) -> Frame:
        """Read one frame into memory of its own."""
        with self.waits.waiting("drive"):
            return self._read_sound(span)

    def read_encoded(self, span: FrameSpan, batch_id: int) -> tuple[bytes | memoryview, bool]:
        """Read one frame into a serialized SessionResponse, without copying its payload.

        Returns it, and whether it carries END: the last frame does if everything is known before it is read, and
        reading it takes no time that END would have to tell of.
        """
        before_s = self.waits.spent_s["drive"]
        with self.waits.waiting("drive"):
            message, ended = self._read_encoded(span, batch_id)
        if ended and self.n > 1 and self.waits.spent_s["drive"] - before_s > _SLOW_S:
            return without_end(message), False
        return message, ended

    def read_message(self, span: FrameSpan, batch_id: int) -> tuple[bytes | memoryview | FileFrame, bool]:
        """Read a frame as `read_encoded` does, or return one whose bytes stay in their files until they are sent. The
        latter is not used for small entries, pieces, compressed members, or if any entry has a problem."""
        from_files = self.open_message(span, batch_id)
        return self.read_encoded(span, batch_id) if from_files is None else from_files

    def open_message(self, span: FrameSpan, batch_id: int) -> tuple[FileFrame, bool] | None:
        """Return a frame that is sent from files, without examining the bytes; None for a frame that has to be read."""
        opened = self._file_frame(span, batch_id)
        if opened is not None and opened[1] and self.n > 1 and not opened[0].cached:
            opened[0].prefix = without_end(opened[0].prefix)
            return opened[0], False
        return opened

    def close(self) -> None:
        super().close()
        while self._spooled:
            self._spooled.pop().close()

    def end(self, entries: int) -> pb.End:
        """Return the END of a batch of which the first `entries` entries have been read."""
        return self._table.end(entries, self.waits)
