"""GetBatch on one store, in three stages: look every entry up, plan frames, read frame after frame, in request order.

What the catalog says of each entry is known at the start, in a table of columns (`batch_table`); the plan is a pure
function of it (`frame_plan`); what is true of the bytes is known only when they are read. Failures of each stage end in
the entry's status, in its place. The common frame costs one native call; a frame in which anything goes wrong is read
again entry by entry, with patience.

A batch belongs to one thread at a time. It holds no lock and no memory between frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES, U8, EntryFault, Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.format import CatalogEntry
from storage_node.store.read.batch_lookup import BatchLookup
from storage_node.store.read.file_frame import FileFrame
from storage_node.store.read.frame_plan import FrameSpan, plan_frames
from storage_node.store.read.frame_reader import FrameReader
from storage_node.store.store import Store


class StoreBatch:
    """n entries looked up, ready to be read, in order."""

    def __init__(self, store: Store, request: pb.BatchRequest) -> None:
        """Raises InvalidRequest when the request's columns do not fit together."""
        self._request = request
        lookup = BatchLookup(store, request)
        self._table = lookup.run()
        self._reader = FrameReader(self._table, lookup, request)
        self.wait_us = 0
        """What END is to say of it; see ais_batch.proto."""
        self.file_frame_bytes = 0
        """What frames may have that `read_message` leaves in files; 0 where it is not used."""

    @property
    def n(self) -> int:
        return self._table.n

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each entry, 0 for one that has failed; shape (n,)."""
        return self._table.sizes

    @property
    def status(self) -> U8:
        """Of each entry; shape (n,)."""
        return self._table.status

    def fault(self, position: int) -> EntryFault | None:
        """Why an entry failed, where there is more to say than its status."""
        return self._table.faults.get(self._table.first_index + position)

    def kind(self, position: int) -> int:
        """Which checksum an entry has, a ChecksumKind."""
        return int(self._table.kind[position])

    def version(self, position: int) -> str:
        """Of the object that an entry is, or is of; "" of one that was not found."""
        record = self._table.records[position]
        return "" if record is None else str(record.version)

    def record(self, position: int) -> CatalogEntry | None:
        """What the catalog says of the object that an entry is, or is of; None where nothing was found."""
        return self._table.records[position]

    # -- planning

    def spans(self, target_bytes: int = TARGET_PAYLOAD_BYTES) -> Iterator[FrameSpan]:
        """The frames to read, in order."""
        table = self._table
        offset = self._request.resume_offset
        if offset and table.n and not table.status[0] and table.sizes[0] < offset:
            table.fail(0, pb.NOT_FOUND, f"cannot resume at {offset:,}: the entry has {int(table.sizes[0]):,} bytes")
        for span in self.planned(target_bytes):
            # A piece that failed has ended its entry: the pieces planned after it are void.
            if not (span.is_piece and table.status[span.first]):
                yield span

    def planned(self, target_bytes: int = TARGET_PAYLOAD_BYTES) -> Iterator[FrameSpan]:
        """The frames of `spans` as far as can be said before any has been read."""
        return plan_frames(
            self._table.sizes,
            target_bytes=target_bytes,
            resume_offset=self._resume_offset(),
            in_files=self._reader.in_files() if self.file_frame_bytes else None,
            file_frame_bytes=self.file_frame_bytes,
        )

    def _resume_offset(self) -> int:
        table = self._table
        return 0 if table.n and table.status[0] else self._request.resume_offset

    def bytes_in(self, span: FrameSpan) -> int:
        """Payload of a frame that has been read: less than was planned where entries failed."""
        table = self._table
        if span.is_piece:
            return 0 if table.status[span.first] else span.payload_bytes
        return int(table.sizes[span.first : span.stop].sum())

    # -- reading

    def waited(self) -> bool:
        """Whether a frame that was read since the last call had to wait for a drive."""
        return self._reader.waited()

    def announce(self, span: FrameSpan) -> int:
        """Have the kernel fetch what of these entries is not in the page cache; returns how many bytes that is.

        For any thread, beside the one that the batch belongs to.
        """
        return self._reader.announce(span)

    def read(self, span: FrameSpan) -> Frame:
        """Read one frame into memory of its own."""
        return self._reader.read(span)

    def read_encoded(self, span: FrameSpan, batch_id: int) -> tuple[bytes, bool]:
        """Read one frame into a serialized SessionResponse, its payload copied by nobody.

        Returns it, and whether it carries END: the last frame does where all is known before it is read.
        """
        return self._reader.read_encoded(span, batch_id, self.wait_us)

    def read_message(self, span: FrameSpan, batch_id: int) -> tuple[bytes | FileFrame, bool]:
        """As `read_encoded`; or a frame whose bytes stay in their files until they are sent, unless entries are small,
        in pieces, members to be unpacked, or something is the matter with one of them."""
        from_files = self.open_message(span, batch_id)
        return self.read_encoded(span, batch_id) if from_files is None else from_files

    def open_message(self, span: FrameSpan, batch_id: int) -> tuple[FileFrame, bool] | None:
        """As `read_message`, without a look at an entry's bytes; None for a frame that is to be read."""
        return self._reader.file_frame(span, batch_id, self.wait_us)

    def read_all(self, helpers: Executor | None = None, parts: int = 1) -> list[bytes] | None:
        """Every entry as bytes of its own, straight from the drives; None when that takes more than plain reads.

        With `helpers` the batch is read in up to `parts` parts at once, one of them in the calling thread.
        """
        return self._reader.read_all(helpers, parts)

    def close(self) -> None:
        """Close what a batch that ends early has left open. Reading on afterwards begins anew."""
        self._reader.close()

    def end(self, entries: int) -> pb.End:
        """The END of a batch of which the first `entries` entries have been read."""
        return self._table.end(entries, self.wait_us)
