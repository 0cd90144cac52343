"""Entry reader: reads single entries of a batch, those of a frame in which something goes wrong, and large ones in
pieces.

Damage and replaced objects are only found while reading. An entry whose file has vanished is looked up again; one that
cannot be read ends with a status.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ais_loader.errors import LoaderError
from ais_loader.wire.frame import Frame, Piece
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.archives.open_archives import OpenShard, named_message
from storage_node.store.checksum import combine, crc32c
from storage_node.store.format import BLOCK_BYTES, CatalogEntry
from storage_node.store.native import read_frame
from storage_node.store.read.batch_lookup import BatchLookup
from storage_node.store.read.batch_members import MemberPart
from storage_node.store.read.batch_reader import FailureCode
from storage_node.store.read.batch_table import BatchTable
from storage_node.store.read.frame_plan import FrameSpan

_LOOKUPS_OF_A_MOVING_OBJECT = 10


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Stored checksums of some blocks of an object with more than one block."""

    first: int
    """Number of the first block."""
    checksums: list[int]
    object_bytes: int


@dataclass(slots=True)
class _OpenEntry:
    """Large entry whose pieces are being sent."""

    position: int
    fd: int
    checksum: int
    """CRC-32C of the bytes sent so far."""
    expected: int | None
    """Final CRC-32C; None if it is unknown."""
    blocks: _Blocks | None = None
    """Block checksums that each piece is compared with before it is sent."""
    unpacked: Iterator[bytes] | None = None
    """For a compressed member: the rest of its decompressed bytes."""
    rest: bytes = b""
    is_placed: bool = False
    """Whether the descriptor belongs to the batch."""


class EntryReader:
    """Reader of single entries. Belongs to one thread at a time."""

    def __init__(self, table: BatchTable, lookup: BatchLookup, request: pb.BatchRequest, waited: bytearray) -> None:
        """`waited` has one byte, which becomes 1 if a drive had to be waited for."""
        self._table = table
        self._lookup = lookup
        self._request = request
        self._waited = waited
        self._open: _OpenEntry | None = None

    def read(self, position: int) -> bytes:
        """Read one entry; b"" with its status set if it cannot be read."""
        table = self._table
        for _ in range(_LOOKUPS_OF_A_MOVING_OBJECT):
            entry = table.records[position]  # None if the bytes are in a file of their own
            outcome: bytes | tuple[int, int]
            part = table.members.get(position)
            # A range of an object in a segment has no checksum that would show that its bytes were freed; the whole
            # object has.
            in_segment = entry is not None and entry.offset > 0
            verify = (self._request.verify_ranges or in_segment) and table.kind[position] == pb.COMPUTED
            if part is not None and (part.file_offset is None or (verify and not part.shard.is_object)):
                outcome = self._unpack(position, part, verify=verify)
                if table.status[position]:
                    return b""
            elif verify and entry is not None:
                outcome = self._read_verified(position, entry)
            else:
                outcome = self._read_bytes(
                    int(table.folders[position]),
                    table.paths[position],
                    int(table.start[position]),
                    int(table.sizes[position]),
                    int(table.checksum[position]) if table.kind[position] == pb.STORED else None,
                )
            if isinstance(outcome, bytes):
                if len(outcome) != table.sizes[position]:
                    due = int(table.sizes[position])
                    message = f"{table.names[position]!r}: {len(outcome):,} bytes were read where {due:,} were due"
                    table.fail(position, pb.CORRUPT, message)
                    return b""
                table.checksum[position] = crc32c(outcome)
                return outcome
            code, number = outcome
            if code == FailureCode.OPEN and number == errno.ENOENT:
                moved = self._lookup.again(position)
            else:
                moved = in_segment and self._lookup.again(position, outcome)
            if not moved:
                if not table.status[position]:
                    self._lookup.fail_read(position, code, number)
                return b""
        table.fail_replaced(position)
        return b""

    def _unpack(self, position: int, part: MemberPart, *, verify: bool) -> bytes | tuple[int, int]:
        """Read a part of a member; b"" with its status set if it cannot be read."""
        table = self._table
        try:
            if verify:
                found = b"".join(part.checked_pieces())
                table.kind[position] = pb.STORED
                return found
            return b"".join(part.pieces())
        except FileNotFoundError:
            return FailureCode.OPEN, errno.ENOENT
        except LoaderError as error:
            self._lookup.fail_member(position, error, named_message(error, table.names[position]))
        except OSError as error:
            self._lookup.fail_read(position, FailureCode.READ, error.errno or 0)
        return b""

    def _read_verified(self, position: int, entry: CatalogEntry) -> bytes | tuple[int, int]:
        """Read a range of the object, or of an uncompressed member, after comparing the blocks around it with their
        checksums."""
        table = self._table
        start, size = int(table.start[position]) - entry.offset, int(table.sizes[position])
        folder, path = int(table.folders[position]), table.paths[position]
        if entry.size_bytes <= BLOCK_BYTES:
            whole = self._read_bytes(folder, path, entry.offset, entry.size_bytes, entry.checksum)
            if isinstance(whole, bytes):
                table.kind[position] = pb.STORED
                return whole[start : start + size]
            return whole
        try:
            blocks = self._blocks(position, entry, start, size)
        except LoaderError:
            # They were removed with a replaced object, or they are lost: another look-up tells.
            return FailureCode.OPEN, errno.ENOENT
        found = self._read_compared(folder, path, blocks, start, size)
        if isinstance(found, bytes):
            table.kind[position] = pb.STORED
        return found

    def _blocks(self, position: int, entry: CatalogEntry, start: int, size: int) -> _Blocks:
        """Return the checksums of the blocks around a range of an object larger than one block. Raises LoaderError."""
        first, stop = start // BLOCK_BYTES, -(-min(start + size, entry.size_bytes) // BLOCK_BYTES)
        stored = self._table.drive_of(position).block_checksums(entry, first, stop) if stop > first else []
        return _Blocks(first, stored, entry.size_bytes)

    def _read_compared(
        self, folder: int, path: bytes, blocks: _Blocks, start: int, size: int
    ) -> bytes | tuple[int, int]:
        """Read a range of an object after comparing the blocks around it with their stored checksums."""
        first, stop = start // BLOCK_BYTES, -(-(start + size) // BLOCK_BYTES)
        begin, end = first * BLOCK_BYTES, min(stop * BLOCK_BYTES, blocks.object_bytes)
        covering = self._read_bytes(folder, path, begin, max(0, end - begin), None)
        if not isinstance(covering, bytes):
            return covering
        view = memoryview(covering)
        for at in range(0, len(covering), BLOCK_BYTES):
            if crc32c(view[at : at + BLOCK_BYTES]) != blocks.checksums[first - blocks.first + at // BLOCK_BYTES]:
                return FailureCode.CHECKSUM, 0
        return covering[start - begin : start - begin + size]

    def _read_bytes(
        self, folder: int, path: bytes, start: int, size: int, expected: int | None
    ) -> bytes | tuple[int, int]:
        result = read_frame(
            b"",
            -1,
            np.array([folder], np.int32),
            [path],
            np.array([start]),
            np.array([size]),
            np.array([expected or 0], np.uint32),
            np.array([expected is not None]),
            self._waited,
        )
        return result if isinstance(result, bytes) else (result[1], result[2])

    # -- in pieces

    def read_piece(self, span: FrameSpan) -> Frame:
        """Read one piece. An object in a segment is small and read whole; it only has pieces if a batch resumes within
        it."""
        table = self._table
        position, at = span.first, slice(span.first, span.stop)
        entry, whole_size = table.records[position], int(table.sizes[position])
        if entry is None or not entry.offset or table.status[position]:
            piece, checksum = self._read_open_piece(span)
        else:
            whole = self.read(position)
            if not table.status[position] and len(whole) != whole_size:
                table.fail_replaced(position)
            piece = whole[span.offset : span.offset + span.payload_bytes]
            checksum = crc32c(whole[: span.offset + len(piece)])
        if table.status[position]:
            return frame_of(table, at, memoryview(b""))
        return Frame(
            table.index[at],
            np.array([len(piece)], np.uint32),
            np.array([checksum], np.uint32),
            table.status[at].copy(),
            table.kind[at].copy(),
            memoryview(piece),
            Piece(span.offset, whole_size, table.version(position)),
        )

    def _read_open_piece(self, span: FrameSpan) -> tuple[bytes, int]:
        """Read a piece from a file that is held open. Returns it, and the checksum of what ends with it; nothing with
        the status set if it cannot be read."""
        table, position = self._table, span.first
        assert span.piece_bytes is not None
        if table.status[position]:
            self.close()
            return b"", 0
        whole_size, begins_at = int(table.sizes[position]), table.resume_offset
        opened = self._open_large(position, span.offset)
        if opened is None:
            return b"", 0
        # The rest of another version must not be sent as that of the one that was begun, even if it is of that size.
        if int(table.sizes[position]) != whole_size or (span.offset and table.resume_offset != begins_at):
            self.close()
            table.fail_replaced(position)
            return b"", 0
        result: bytes | tuple[int, int]
        if opened.unpacked is not None:
            result = self._unpack_more(opened, span.piece_bytes)
            if table.status[position]:
                self.close()
                return b"", 0
        else:
            start = int(table.start[position]) + span.offset
            if opened.blocks is None:
                result = self._read_bytes(opened.fd, b"", start, span.piece_bytes, None)
            else:
                result = self._read_compared(opened.fd, b"", opened.blocks, start, span.piece_bytes)
        if not isinstance(result, bytes):
            self._lookup.fail_read(position, *result)
            self.close()
            return b"", 0
        opened.checksum = combine(opened.checksum, crc32c(result), len(result)) if span.offset else crc32c(result)
        if span.offset + len(result) == whole_size:
            self.close()
            if opened.expected is not None and opened.checksum != opened.expected:
                self._lookup.fail_read(position, FailureCode.CHECKSUM, 0)
                return b"", 0
            table.checksum[position] = opened.checksum
        return result, opened.checksum

    def _unpack_more(self, opened: _OpenEntry, size_bytes: int) -> bytes:
        """Return the next bytes of a compressed member. Its status is set if they cannot be read."""
        table = self._table
        assert opened.unpacked is not None
        position, parts, got = opened.position, [opened.rest], len(opened.rest)
        try:
            while got < size_bytes:
                parts.append(next(opened.unpacked))
                got += len(parts[-1])
        except LoaderError as error:
            self._lookup.fail_member(position, error, named_message(error, table.names[position]))
            return b""
        except OSError as error:
            self._lookup.fail_read(position, FailureCode.READ, error.errno or 0)
            return b""
        whole = b"".join(parts)
        opened.rest = whole[size_bytes:]
        return whole[:size_bytes]

    def _open_large(self, position: int, offset: int) -> _OpenEntry | None:
        """Open the entry's file, and hold it open until its last piece, so that a put meanwhile does not affect it."""
        table = self._table
        if self._open is not None and self._open.position == position:
            return self._open
        self.close()
        if position in table.placed:
            # Not a duplicate: the file of a descriptor may change while its bytes arrive.
            self._open = self._opened(position, int(table.folders[position]), None)
            self._open.is_placed = True
            return self._open
        for _ in range(_LOOKUPS_OF_A_MOVING_OBJECT):
            entry = table.records[position]
            assert entry is not None
            shard = None if table.paths[position] else table.shards.get(int(table.folders[position]))
            try:
                if shard is not None:
                    self._open = self._open_member(position, entry, shard, offset)
                else:
                    blocks = self._blocks_to_compare(position, entry, offset)
                    fd = table.drive_of(position).files.open(entry.path)
                    self._open = self._opened(position, fd, blocks)
                return self._open
            except FileNotFoundError:
                if self._lookup.again(position):
                    continue
                return None
            except OSError as error:
                self._lookup.fail_read(position, FailureCode.OPEN, error.errno or 0)
                return None
            except LoaderError as error:
                self._lookup.fail_member(position, error, named_message(error, table.names[position]))
                return None
        table.fail_replaced(position)
        return None

    def _open_member(self, position: int, entry: CatalogEntry, shard: OpenShard, offset: int) -> _OpenEntry:
        """Open a member for reading in pieces. Raises OSError, LoaderError."""
        table = self._table
        packed = position in table.packed
        if shard.is_object and not packed:
            blocks = self._blocks_to_compare(position, entry, offset)
            return self._opened(position, os.dup(shard.fd), blocks)
        verify = self._request.verify_ranges or table.kind[position] == pb.STORED
        unpacked: Iterator[bytes] | None = None
        if packed:
            part = table.members[position]
            unpacked = part.checked_pieces(offset) if verify else part.pieces(offset)
        elif verify:
            member = shard.archive.index.find(self._request.member[position])
            shard.archive.verify(member)  # it has a checksum of the whole member only
        opened = self._opened(position, os.dup(shard.fd), None)
        if verify:
            table.kind[position] = pb.STORED
        opened.unpacked = unpacked
        return opened

    def _opened(self, position: int, fd: int, blocks: _Blocks | None) -> _OpenEntry:
        table = self._table
        sent = self._request.resume_checksum if position == 0 and table.resume_offset else 0
        expected = int(table.checksum[position]) if table.kind[position] == pb.STORED else None
        if blocks is not None:
            table.kind[position] = pb.STORED
        return _OpenEntry(position, fd, sent, expected, blocks)

    def _blocks_to_compare(self, position: int, entry: CatalogEntry, offset: int) -> _Blocks | None:
        """Return the blocks that have not been sent yet, or None for a range that is not to be verified.

        They are read once, so that a put meanwhile does not remove them. A whole entry has a checksum as well, but its
        pieces are sent before all of it has been read. After a damaged piece another holder continues, so every piece
        that is sent must be correct. Raises FileNotFoundError if the block checksums are gone.
        """
        table = self._table
        is_range = table.kind[position] == pb.COMPUTED
        if (is_range and not self._request.verify_ranges) or entry.size_bytes <= BLOCK_BYTES:
            return None
        try:
            return self._blocks(
                position, entry, int(table.start[position]) + offset, int(table.sizes[position]) - offset
            )
        except LoaderError as error:
            raise FileNotFoundError(str(error)) from error

    def close(self) -> None:
        """Close what a batch that ends early has left open. Reading afterwards must start anew."""
        if self._open is not None:
            if not self._open.is_placed:
                os.close(self._open.fd)
            self._open = None


def frame_of(table: BatchTable, at: slice, payload: memoryview) -> Frame:
    """Return a frame of these entries as they have been read."""
    return Frame(
        table.index[at],
        table.sizes[at].astype(np.uint32),
        table.checksum[at].copy(),
        table.status[at].copy(),
        table.kind[at].copy(),
        payload,
        errors=table.faults_of(at),
    )
