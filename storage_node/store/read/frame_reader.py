"""Frame reader: reads the common frame in one native call, any other entry by entry; or a whole batch at once."""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor, Future
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ais_loader.errors import LoaderError
from ais_loader.wire import recycled
from ais_loader.wire.frame import U8, Frame, FrameError, checked, encode_frame, encode_prefix
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits
from storage_node.store.native import announce, copy_into, read_frame, read_into, read_list
from storage_node.store.read.batch_lookup import BatchLookup
from storage_node.store.read.batch_reader import Failure
from storage_node.store.read.batch_table import MAX_ITEM_BYTES
from storage_node.store.read.entry_reader import EntryReader, frame_of
from storage_node.store.read.file_frame import FileFrame, opened
from storage_node.store.read.frame_plan import FrameSpan, goes_from_files

_MIN_ENTRIES_PER_PART = 16
_MAX_COPIES, _MAX_COPIED_BYTES = 256, 2 << 20
"""Limits of a frame that is copied without a thread: it takes less than half a millisecond."""
MAX_GROWTH_BYTES = 16 << 20
"""Maximum growth of a frame beyond its planned size, if objects were replaced by larger ones: it is not counted as
memory."""


class FrameReader:
    """Reader of a batch that has been looked up. Belongs to one thread at a time."""

    def __init__(self, lookup: BatchLookup, request: pb.BatchRequest) -> None:
        self._table = lookup.table
        self._request = request
        self.waits = NodeWaits()
        """Waits to report in END. The caller may set its own."""
        self._waited = bytearray(1)
        """Becomes 1 if a drive had to be waited for."""
        self._lookup = lookup
        self._entries: EntryReader | None = None
        """Created when the first entry needs it; most batches do not."""
        self._changed = False
        """Whether the table has changed. From then on, each frame is searched for duplicates by itself."""

    @cached_property
    def _had_duplicates(self) -> bool:
        """Whether entries had the same location when this was first asked."""
        table = self._table
        return len(set(table.sources(slice(0, table.n)))) < table.n

    def waited(self) -> bool:
        """Whether a frame that was read since the last call had to wait for a drive."""
        waited, self._waited[0] = bool(self._waited[0]), 0
        return waited

    def announce(self, span: FrameSpan) -> int:
        """Make the kernel prefetch what is not in the page cache. Returns the number of bytes requested.

        May be called from any thread, beside the one that the batch belongs to.
        """
        table = self._table
        at = slice(span.first, span.stop)
        return announce(table.folders[at], table.paths_of(at), table.start[at], table.sizes[at])

    def _read_sound(self, span: FrameSpan) -> Frame:
        if self._table.files is not None and (frame := self._read_located(span)) is not None:
            return frame
        return _sound(self._read(span))

    def _read_located(self, span: FrameSpan) -> Frame | None:
        """Read located entries into one buffer; None if that fails for any of them."""
        target = recycled.take(span.payload_bytes)
        if not self._read_into(span, target, 0):
            return None
        return frame_of(self._table, slice(span.first, span.stop), target.toreadonly())

    def _read(self, span: FrameSpan) -> Frame:
        table = self._table
        if span.is_piece:
            return self._patient(span).read_piece(span)
        at = slice(span.first, span.stop)
        if table.files is None and self._is_plain(span):
            # Space in front of the payload for the checksums, which are known only after reading.
            room = 4 * (span.stop - span.first)
            result = self._read_plain(span, bytes(room), 0)
            if result is not None:
                table.checksum[at] = np.frombuffer(result, "<u4", span.stop - span.first)
                return frame_of(table, at, memoryview(result)[room:])
        return self._read_patiently(span)

    def _read_encoded(self, span: FrameSpan, batch_id: int) -> tuple[bytes | memoryview, bool]:
        table = self._table
        at = slice(span.first, span.stop)
        if not span.is_piece and self._is_plain(span):
            prefix, checksum_at, last = self._prefix(span, batch_id)
            if table.files is not None:
                target = _after(prefix, span.payload_bytes)
                if self._read_into(span, target, len(prefix)):
                    return target.toreadonly(), last
            elif (result := self._read_plain(span, prefix, checksum_at)) is not None:
                table.checksum[at] = np.frombuffer(result, "<u4", span.stop - span.first, checksum_at)
                return result, last
        return encode_frame(batch_id, self._read_sound(span)), False

    def copy_encoded(self, span: FrameSpan, batch_id: int) -> tuple[memoryview, bool] | None:
        """Do what `read_encoded` does, if all bytes can be copied out of mappings of cached files; otherwise return
        None."""
        n = span.stop - span.first
        if self._table.files is None or n > _MAX_COPIES or span.payload_bytes > _MAX_COPIED_BYTES:
            return None
        if span.is_piece or not self._is_plain(span):
            return None
        prefix, _, last = self._prefix(span, batch_id)
        target = _after(prefix, span.payload_bytes)
        if not copy_into(target, len(prefix), *self._columns(span), b"\1" * n):
            return None
        return target.toreadonly(), last

    def _prefix(self, span: FrameSpan, batch_id: int, kinds: U8 | None = None) -> tuple[bytes, int, bool]:
        """Return what precedes the payload of a frame, where the checksums are in it, and whether END is. `kinds`: of
        the checksums, if the frame says others than the table."""
        table, at = self._table, slice(span.first, span.stop)
        last = span.stop == table.n and bool((table.kind[at] == pb.STORED).all())
        prefix, checksum_at = encode_prefix(
            batch_id,
            index=table.index[at],
            size=table.sizes[at].astype(np.uint32),
            checksum=table.checksum[at],
            status=table.status[at],
            checksum_kind=table.kind[at] if kinds is None else kinds,
            payload_bytes=span.payload_bytes,
            end=table.end(table.n, self.waits) if last else None,
        )
        return prefix, checksum_at, last

    def _in_files(self) -> npt.NDArray[np.bool_] | None:
        """Return which entries may be in a `_file_frame`, shape (n,); None if the batch has duplicates."""
        return None if self._changed or self._had_duplicates else self._table.kind == pb.STORED

    def _file_frame(self, span: FrameSpan, batch_id: int) -> tuple[FileFrame, bool] | None:
        table, n = self._table, span.stop - span.first
        if span.is_piece or not goes_from_files(n, span.payload_bytes) or not self._is_plain(span):
            return None
        at = slice(span.first, span.stop)
        if not self._know_ranges(span):
            return None
        prefix, _, last = self._prefix(span, batch_id, np.full(n, pb.UNCHECKED, np.uint8))
        paths = table.paths[at] if table.files is None else [file.path for file in table.files[at]]
        columns = table.folders[at].tolist(), paths, table.start[at].tolist(), table.sizes[at].tolist()
        frame = opened(prefix, *columns)
        return None if frame is None else (frame, last)

    def _know_ranges(self, span: FrameSpan) -> bool:
        """Enter the stored checksums of ranges that consist of whole blocks. These are then read and verified like
        whole objects. Returns whether every entry has a checksum now."""
        table, known = self._table, True
        for position in (np.flatnonzero(table.kind[span.first : span.stop] != pb.STORED) + span.first).tolist():
            entry = table.records[position]
            checksum = None
            if table.kind[position] == pb.COMPUTED and entry is not None and table.paths[position]:
                start, size_bytes = int(table.start[position]), int(table.sizes[position])
                checksum = table.drive_of(position).range_checksum(entry, start, size_bytes)
            if checksum is None:
                known = False
            else:
                table.checksum[position], table.kind[position] = checksum, pb.STORED
        return known

    def read_all(self, helpers: Executor | None = None, parts: int = 1) -> list[bytes] | None:
        """Read every entry as separate bytes, directly from the drives; None if that takes more than plain reads.

        With `helpers` the batch is read in up to `parts` parts at once, one of them in the calling thread.
        """
        table = self._table
        size_bytes = int(table.sizes.sum())
        if not table.n or self._request.resume_offset or size_bytes > MAX_ITEM_BYTES:
            return None
        if not self._is_plain(FrameSpan(0, table.n, size_bytes)):
            return None
        in_parts = helpers is not None and table.n >= parts * _MIN_ENTRIES_PER_PART
        step = -(-table.n // parts) if in_parts else table.n
        spans = [slice(first, first + step) for first in range(0, table.n, step)]
        elsewhere: list[Future[list[bytes] | Failure]] = []
        with contextlib.suppress(RuntimeError):  # no thread can be started now: this one reads the rest
            for span in spans[1:]:
                assert helpers is not None
                elsewhere.append(helpers.submit(self._read_list, span))
        here = [self._read_list(span) for span in (spans[0], *spans[1 + len(elsewhere) :])]
        whole: list[bytes] = []
        for result in [here[0], *(future.result() for future in elsewhere), *here[1:]]:
            if not isinstance(result, list):
                return None
            whole += result
        return whole

    def read_whole(self) -> Frame | None:
        """Read every entry into one frame, whatever its size; None if the location of an entry is not known, or one
        cannot be read."""
        table = self._table
        if table.files is None:
            return None
        return self._read_located(FrameSpan(0, table.n, int(table.sizes.sum())))

    def _read_list(self, at: slice) -> list[bytes] | Failure:
        table = self._table
        return read_list(
            table.folders[at],
            table.paths_of(at),
            table.start[at],
            table.sizes[at],
            table.checksum[at],
            table.kind[at] == pb.STORED,
        )

    def _is_plain(self, span: FrameSpan) -> bool:
        at, verify = slice(span.first, span.stop), self._request.verify_ranges
        if self._table.files is not None:
            return True  # whole objects, none of them so large that reading it twice would matter
        if self._table.sizes[at].sum() != span.payload_bytes:
            return False  # they were looked up again since the frame was planned
        if verify:
            self._know_ranges(span)
        return self._table.is_plain(at, verify=verify, has_duplicates=self._changed or self._had_duplicates)

    def _read_plain(self, span: FrameSpan, prefix: bytes, checksum_at: int) -> bytes | None:
        table = self._table
        at = slice(span.first, span.stop)
        result = read_frame(
            prefix,
            checksum_at,
            table.folders[at],
            table.paths_of(at),
            table.start[at],
            table.sizes[at],
            table.checksum[at],
            table.kind[at] == pb.STORED,
            self._waited,
        )
        return result if isinstance(result, bytes) else None

    def _read_into(self, span: FrameSpan, target: memoryview, first_byte: int) -> bool:
        """Read located entries into memory that they fill from there on. Returns whether all of them could be read."""
        failed = read_into(target, first_byte, *self._columns(span), b"\1" * (span.stop - span.first), self._waited)
        return failed is None

    def _columns(self, span: FrameSpan) -> tuple[Any, Any, Any, Any, Any]:
        """Return columns of the batch reader, but for `verify`."""
        table, at = self._table, slice(span.first, span.stop)
        return table.folders[at], table.paths_of(at), table.start[at], table.sizes[at], table.checksum[at]

    def _patient(self, span: FrameSpan) -> EntryReader:
        self._lookup.complete(span.first)
        if self._entries is None:
            self._entries = EntryReader(self._table, self._lookup, self._request, self._waited)
        return self._entries

    def _read_patiently(self, span: FrameSpan) -> Frame:
        """Read entry by entry: duplicates once, failures set the status, vanished files are looked up again."""
        table = self._table
        entries = self._patient(span)
        sizes = table.sizes if table.located_sizes is None else table.located_sizes
        planned = sizes[span.first : span.stop].tolist()
        parts: list[bytes] = []
        grown_bytes = 0
        seen: dict[tuple[int, bytes, int, int], int] = {}
        for position in range(span.first, span.stop):
            part, planned_bytes = b"", planned[position - span.first]
            if not table.status[position]:
                first = seen.get(self._source(position))
                if first is not None:
                    part = parts[first - span.first]
                    table.checksum[position], table.kind[position] = table.checksum[first], table.kind[first]
                else:
                    part = entries.read(position)
                    # The location after reading, which differs if it was looked up again. Other entries with the
                    # previous location have versions and ranges of their own to be looked up by.
                    if not table.status[position] and table.paths[position]:
                        seen[self._source(position)] = position
            grown_bytes += max(0, len(part) - planned_bytes)
            if grown_bytes > MAX_GROWTH_BYTES and len(part) > planned_bytes:
                grown_bytes -= len(part) - planned_bytes
                part = b""
                table.fail_replaced(position)
                seen.clear()
            parts.append(part)
        return frame_of(table, slice(span.first, span.stop), memoryview(b"".join(parts)))

    def _source(self, position: int) -> tuple[int, bytes, int, int]:
        """Return the location of an entry: entries with equal locations have the same bytes."""
        table = self._table
        return table.slots[position], table.paths[position], int(table.start[position]), int(table.sizes[position])

    def close(self) -> None:
        """Close what a batch that ends early has left open. Reading afterwards must start anew."""
        if self._entries is not None:
            self._entries.close()


def _after(prefix: bytes, payload_bytes: int) -> memoryview:
    """Return memory for a message of which only the payload is missing."""
    target = recycled.take(len(prefix) + payload_bytes)
    target[: len(prefix)] = prefix
    return target


def _sound(frame: Frame) -> Frame:
    """Return the frame if its sizes match its bytes. Raises LoaderError."""
    try:
        return checked(frame)
    except FrameError as wrong:
        raise LoaderError(f"a frame does not add up, and is not delivered: {wrong}") from wrong
