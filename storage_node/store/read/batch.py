"""GetBatch on one store: look every entry up, then read frame after frame, in request order.

What the catalog says of each entry is known at the start (`batch_lookup`); what is true of the bytes, only when they
are read. Both kinds of failure end in the entry's status, in its place. The common frame costs one native call; a frame
in which anything goes wrong is read again entry by entry, with patience.

A batch belongs to one thread at a time. It holds no lock and no memory between frames.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

import numpy as np

from ais_loader.errors import LoaderError
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES, Frame, Piece, encode_frame, encode_prefix
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.checksum import crc32c, digest
from storage_node.store.files.segment_format import file_of
from storage_node.store.format import BLOCK_BYTES, Record
from storage_node.store.read.batch_members import MemberPart, status_of
from storage_node.store.read.batch_pieces import LOOKUPS_OF_A_MOVING_OBJECT, BatchPieces
from storage_node.store.read.batch_status import MAX_ITEM_BYTES
from storage_node.store.read.frame_plan import FrameSpan, plan_frames
from storage_node.store.read.native_reader import Failure, FailureCode, announce, read_frame, read_list
from storage_node.store.store import Store

_MIN_ENTRIES_PER_PART = 16


class StoreBatch(BatchPieces):
    """n entries looked up, ready to be read, in order."""

    def __init__(self, store: Store, request: pb.BatchRequest) -> None:
        super().__init__(store, request)
        self.wait_us = 0
        """What END is to say of it; see ais_batch.proto."""
        self._has_duplicates = len(set(self._sources(slice(0, self.n)))) < self.n

    def spans(self, target_bytes: int = TARGET_PAYLOAD_BYTES) -> Iterator[FrameSpan]:
        """The frames to read, in order."""
        offset = self._request.resume_offset
        if offset and self.n and not self.status[0] and self.sizes[0] < offset:
            self._fail(0, pb.NOT_FOUND, f"cannot resume at {offset:,}: the entry has {int(self.sizes[0]):,} bytes")
        resume_offset = self._resume_offset()
        for span in self.planned(target_bytes):
            # A piece that failed has ended its entry: the pieces planned after it are void.
            if span.offset == resume_offset or not self.status[span.first]:
                yield span

    def planned(self, target_bytes: int = TARGET_PAYLOAD_BYTES) -> Iterator[FrameSpan]:
        """The frames of `spans` as far as can be said before any has been read."""
        return plan_frames(self.sizes, target_bytes=target_bytes, resume_offset=self._resume_offset())

    def _resume_offset(self) -> int:
        return 0 if self.n and self.status[0] else self._request.resume_offset

    def bytes_in(self, span: FrameSpan) -> int:
        """Payload of a frame that has been read: less than was planned where entries failed."""
        if span.is_piece:
            return 0 if self.status[span.first] else span.payload_bytes
        return int(self.sizes[span.first : span.stop].sum())

    # -- reading

    def waited(self) -> bool:
        """Whether a frame that was read since the last call had to wait for a drive."""
        waited, self._waited[0] = bool(self._waited[0]), 0
        return waited

    def announce(self, span: FrameSpan) -> int:
        """Have the kernel fetch what of these entries is not in the page cache; returns how many bytes that is.

        For any thread, beside the one that the batch belongs to.
        """
        at = slice(span.first, span.stop)
        return announce(self._folders[at], self._paths[at], self._start[at], self.sizes[at])

    def read(self, span: FrameSpan) -> Frame:
        """Read one frame into memory of its own."""
        if span.is_piece:
            return self._read_piece(span)
        at = slice(span.first, span.stop)
        if self._is_plain(span):
            # Room for the checksums that are only known after reading, in front of the payload.
            room = 4 * (span.stop - span.first)
            result = self._read_plain(span, bytes(room), 0)
            if result is not None:
                self.checksum[at] = np.frombuffer(result, "<u4", span.stop - span.first)
                return self._frame(at, memoryview(result)[room:])
        return self._read_patiently(span)

    def read_encoded(self, span: FrameSpan, batch_id: int) -> tuple[bytes, bool]:
        """Read one frame into a serialized SessionResponse, its payload copied by nobody.

        Returns it, and whether it carries END: the last frame does where all is known before it is read.
        """
        at = slice(span.first, span.stop)
        if not span.is_piece and self._is_plain(span):
            last = span.stop == self.n and bool((self.kind[at] == pb.STORED).all())
            prefix, checksum_at = encode_prefix(
                batch_id,
                index=self.index[at],
                size=self.sizes[at].astype(np.uint32),
                checksum=self.checksum[at],
                status=self.status[at],
                checksum_kind=self.kind[at],
                payload_bytes=span.payload_bytes,
                end=self.end(self.n) if last else None,
            )
            result = self._read_plain(span, prefix, checksum_at)
            if result is not None:
                self.checksum[at] = np.frombuffer(result, "<u4", span.stop - span.first, checksum_at)
                return result, last
        return encode_frame(batch_id, self.read(span)), False

    def read_all(self, helpers: Executor | None = None, parts: int = 1) -> list[bytes] | None:
        """Every entry as bytes of its own, straight from the drives; None when that takes more than plain reads.

        With `helpers` the batch is read in up to `parts` parts at once, one of them in the calling thread.
        """
        if not self.n or self._request.resume_offset or not self._is_plain(FrameSpan(0, self.n, 0)):
            return None
        if int(self.sizes.sum()) > MAX_ITEM_BYTES:
            return None
        step = -(-self.n // parts) if helpers is not None and self.n >= parts * _MIN_ENTRIES_PER_PART else self.n
        spans = [slice(first, first + step) for first in range(0, self.n, step)]
        elsewhere = [helpers.submit(self._read_list, span) for span in spans[1:]] if helpers is not None else []
        whole: list[bytes] = []
        for result in [self._read_list(spans[0]), *(future.result() for future in elsewhere)]:
            if not isinstance(result, list):
                return None
            whole += result
        return whole

    def _read_list(self, at: slice) -> list[bytes] | Failure:
        return read_list(
            self._folders[at],
            self._paths[at],
            self._start[at],
            self.sizes[at],
            self.checksum[at],
            self.kind[at] == pb.STORED,
        )

    def _is_plain(self, span: FrameSpan) -> bool:
        """Whether one native call can read the whole frame."""
        at = slice(span.first, span.stop)
        if self.status[at].any():
            return False
        if (self.kind[at] == pb.COMPUTED).any() and (self._request.verify_ranges or self._any_in_segment(at)):
            return False
        if self._packed and not self._packed.isdisjoint(range(span.first, span.stop)):
            return False
        return not (self._has_duplicates and len(set(self._sources(at))) < span.stop - span.first)

    def _any_in_segment(self, at: slice) -> bool:
        return self._shared_files and any(record is not None and record.offset for record in self._records[at])

    def _sources(self, at: slice) -> Sequence[object]:
        """What is read for each entry: equal ones are read once."""
        if not self._shards and not self._shared_files:
            return self._paths[at]
        columns = self._folders[at].tolist(), self._paths[at], self._start[at].tolist(), self.sizes[at].tolist()
        return list(zip(*columns, strict=True))

    def _read_plain(self, span: FrameSpan, prefix: bytes, checksum_at: int) -> bytes | None:
        at = slice(span.first, span.stop)
        result = read_frame(
            prefix,
            checksum_at,
            self._folders[at],
            self._paths[at],
            self._start[at],
            self.sizes[at],
            self.checksum[at],
            self.kind[at] == pb.STORED,
            self._waited,
        )
        return result if isinstance(result, bytes) else None

    def _read_patiently(self, span: FrameSpan) -> Frame:
        """Entry by entry: duplicates are read once, failures get their status, moving objects another look."""
        parts: list[bytes] = []
        seen: dict[tuple[int, bytes, int, int], int] = {}
        for position in range(span.first, span.stop):
            part = b""
            if not self.status[position]:
                key = (
                    self._drives[position],
                    self._paths[position],
                    int(self._start[position]),
                    int(self.sizes[position]),
                )
                if key[1] and key in seen:
                    first = seen[key]
                    part = parts[first - span.first]
                    self.checksum[position], self.kind[position] = self.checksum[first], self.kind[first]
                else:
                    part = self._read_one(position)
                    if not self.status[position]:
                        seen[key] = position
            parts.append(part)
        return self._frame(slice(span.first, span.stop), memoryview(b"".join(parts)))

    def _read_one(self, position: int) -> bytes:
        """The bytes of one entry; b"" with its status set when they cannot be had."""
        for _ in range(LOOKUPS_OF_A_MOVING_OBJECT):
            record = self._records[position]
            assert record is not None  # entries without one have a status and are not read
            outcome: bytes | tuple[int, int]
            part = self._members.get(position)
            # A range says nothing of bytes that were given back a moment ago; the whole object does.
            in_segment = record.offset > 0
            verify = (self._request.verify_ranges or in_segment) and self.kind[position] == pb.COMPUTED
            if part is not None and (verify or part.file_offset is None):
                outcome = self._unpack(position, part, verify=verify)
                if self.status[position]:
                    return b""
            elif verify:
                outcome = self._read_verified(position, record)
            else:
                outcome = self._read_bytes(
                    int(self._folders[position]),
                    self._paths[position],
                    int(self._start[position]),
                    int(self.sizes[position]),
                    int(self.checksum[position]) if self.kind[position] == pb.STORED else None,
                )
            if isinstance(outcome, bytes):
                self.checksum[position] = crc32c(outcome)
                return outcome
            code, number = outcome
            if code == FailureCode.OPEN and number == errno.ENOENT:
                moved = self._look_again(position)
            else:
                moved = in_segment and self._look_again(position, outcome)
            if not moved:
                if not self.status[position]:
                    self._fail_read(position, code, number)
                return b""
        self._fail(position, pb.UNAVAILABLE, f"{self._names[position]!r} is replaced faster than it can be read")
        return b""

    def _read_piece(self, span: FrameSpan) -> Frame:
        """One that lies in a segment is small, and read whole: it may only be resumed here."""
        position, at = span.first, slice(span.first, span.stop)
        record, whole_size = self._records[position], int(self.sizes[position])
        if record is None or not record.offset or self.status[position]:
            return super()._read_piece(span)
        whole = self._read_one(position)
        if not self.status[position] and len(whole) != whole_size:
            self._fail(position, pb.UNAVAILABLE, f"{self._names[position]!r} was replaced before it could be read")
        if self.status[position]:
            return self._frame(at, memoryview(b""))
        piece = whole[span.offset : span.offset + span.payload_bytes]
        checksum = crc32c(whole[: span.offset + len(piece)])
        return Frame(
            self.index[at],
            np.array([len(piece)], np.uint32),
            np.array([checksum], np.uint32),
            self.status[at].copy(),
            self.kind[at].copy(),
            memoryview(piece),
            Piece(span.offset, whole_size, str(record.version)),
        )

    def _unpack(self, position: int, part: MemberPart, *, verify: bool) -> bytes:
        """A part of a member; b"" with its status set when it cannot be had. To verify it, all of it is read."""
        try:
            if verify:
                whole = part.shard.archive.read_member(part.member)
                self.kind[position] = pb.STORED
                return whole[part.start : part.start + part.size_bytes]
            return b"".join(part.pieces())
        except LoaderError as error:
            self._fail(position, status_of(error), f"{self._names[position]!r}: {error}", error.kind)
        except OSError as error:
            self._fail_read(position, FailureCode.READ, error.errno or 0)
        return b""

    def _read_verified(self, position: int, record: Record) -> bytes | tuple[int, int]:
        """A range, after its covering blocks have been compared with their stored checksums."""
        start, size = int(self._start[position]) - record.offset, int(self.sizes[position])
        folder = int(self._folders[position])
        if record.size_bytes <= BLOCK_BYTES:
            path = file_of(record.path)
            whole = self._read_bytes(folder, path, record.offset, record.size_bytes, record.checksum)
            if isinstance(whole, bytes):
                self.kind[position] = pb.STORED
                return whole[start : start + size]
            return whole
        first, stop = start // BLOCK_BYTES, -(-(start + max(size, 1)) // BLOCK_BYTES)
        begin, end = first * BLOCK_BYTES, min(stop * BLOCK_BYTES, record.size_bytes)
        stop = -(-end // BLOCK_BYTES)
        covering = self._read_bytes(folder, record.path, begin, end - begin, None)
        if not isinstance(covering, bytes):
            return covering
        drive = self._store.drive_at(self._drives[position])
        try:
            stored = drive.block_checksums(record, first, stop) if stop > first else []
        except LoaderError:
            # They went with an object that was replaced meanwhile, or they are lost: another look tells.
            return FailureCode.OPEN, errno.ENOENT
        for number, checksum in enumerate(stored):
            if crc32c(memoryview(covering)[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]) != checksum:
                return FailureCode.CHECKSUM, 0
        self.kind[position] = pb.STORED
        return covering[start - begin : start - begin + size]

    # -- the end

    def end(self, entries: int) -> pb.End:
        """The END of a batch of which the first `entries` entries have been read."""
        status, checksum = self.status[:entries], self.checksum[:entries]
        return pb.End(
            outcome=pb.End.COMPLETE if entries == self.n else pb.End.STOPPED,
            first_index=self.first_index,
            entries=entries,
            failed_entries=int(np.count_nonzero(status)),
            payload_bytes=int(self.sizes[:entries].sum()),
            digest=digest(status, checksum),
            wait_us=self.wait_us,
        )
