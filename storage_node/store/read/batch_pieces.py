"""Large entries of a batch: read in pieces, from a file that is held open meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ais_loader.errors import LoaderError
from ais_loader.wire.frame import EntryFault, Frame, Piece
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.checksum import combine, crc32c
from storage_node.store.read.batch_lookup import BatchTable
from storage_node.store.read.batch_members import status_of
from storage_node.store.read.frame_plan import FrameSpan
from storage_node.store.read.native_reader import FailureCode, read_frame
from storage_node.store.store import Store

LOOKUPS_OF_A_MOVING_OBJECT = 10


@dataclass(slots=True)
class _OpenEntry:
    """A large entry whose pieces are being sent."""

    position: int
    fd: int
    checksum: int
    unpacked: Iterator[bytes] | None = None
    """Of a member that is packed: what has not been sent yet."""
    rest: bytes = b""


class BatchPieces(BatchTable):
    """n entries looked up. Belongs to one thread at a time."""

    def __init__(self, store: Store, request: pb.BatchRequest) -> None:
        super().__init__(store, request)
        self._open: _OpenEntry | None = None
        self._waited = bytearray(1)
        """Becomes 1 when a drive had to be waited for."""

    def _read_piece(self, span: FrameSpan) -> Frame:
        position, at = span.first, slice(span.first, span.stop)
        assert span.piece_bytes is not None
        whole_size = int(self.sizes[position])
        opened = self._open_large(position, span.offset)
        if opened is None:
            return self._frame(at, memoryview(b""))
        record = self._records[position]
        assert record is not None
        if int(self.sizes[position]) != whole_size:
            self.close()
            self._fail(position, pb.UNAVAILABLE, f"{self._names[position]!r} was replaced before it could be read")
            return self._frame(at, memoryview(b""))
        result: bytes | tuple[int, int]
        if opened.unpacked is not None:
            result = self._unpack_more(opened, span.piece_bytes)
            if self.status[position]:
                self.close()
                return self._frame(at, memoryview(b""))
        else:
            result = self._read_bytes(opened.fd, b"", int(self._start[position]) + span.offset, span.piece_bytes, None)
        if not isinstance(result, bytes):
            self._fail_read(position, *result)
            self.close()
            return self._frame(at, memoryview(b""))
        opened.checksum = combine(opened.checksum, crc32c(result), len(result)) if span.offset else crc32c(result)
        if span.offset + len(result) == whole_size:
            self.close()
            if self.kind[position] == pb.STORED and opened.checksum != int(self.checksum[position]):
                self._fail_read(position, FailureCode.CHECKSUM, 0)
                return self._frame(at, memoryview(b""))
            self.checksum[position] = opened.checksum
        return Frame(
            self.index[at],
            np.array([len(result)], np.uint32),
            np.array([opened.checksum], np.uint32),
            self.status[at].copy(),
            self.kind[at].copy(),
            memoryview(result),
            Piece(span.offset, whole_size, str(record.version)),
        )

    def _unpack_more(self, opened: _OpenEntry, size_bytes: int) -> bytes:
        """The next bytes of a member that is packed; its status is set when they cannot be had."""
        assert opened.unpacked is not None
        position, parts, got = opened.position, [opened.rest], len(opened.rest)
        try:
            while got < size_bytes:
                parts.append(next(opened.unpacked))
                got += len(parts[-1])
        except LoaderError as error:
            self._fail(position, status_of(error), f"{self._names[position]!r}: {error}", error.kind)
            return b""
        except OSError as error:
            self._fail_read(position, FailureCode.READ, error.errno or 0)
            return b""
        whole = b"".join(parts)
        opened.rest = whole[size_bytes:]
        return whole[:size_bytes]

    def _open_large(self, position: int, offset: int) -> _OpenEntry | None:
        """The entry's file, held open until its last piece: what was begun is finished, whatever is put meanwhile."""
        if self._open is not None and self._open.position == position:
            return self._open
        self.close()
        resumed = self._request.resume_checksum if position == 0 else 0
        if not self._paths[position] and (shard := self._shards.get(int(self._folders[position]))) is not None:
            pieces = self._members[position].pieces(offset) if position in self._packed else None
            self._open = _OpenEntry(position, os.dup(shard.fd), resumed, pieces)
            return self._open
        for _ in range(LOOKUPS_OF_A_MOVING_OBJECT):
            record = self._records[position]
            assert record is not None
            try:
                fd = self._store.drive_at(self._drives[position]).files.open(record.path)
            except FileNotFoundError:
                if self._look_again(position):
                    continue
                return None
            except OSError as error:
                self._fail_read(position, FailureCode.OPEN, error.errno or 0)
                return None
            self._open = _OpenEntry(position, fd, resumed)
            return self._open
        return None

    def close(self) -> None:
        """Close what a batch that ends early has left open. Reading on afterwards begins anew."""
        if self._open is not None:
            os.close(self._open.fd)
            self._open = None

    def _frame(self, at: slice, payload: memoryview) -> Frame:
        faults: dict[int, EntryFault] = {}
        if self.faults:
            indexes = range(self.first_index + at.start, self.first_index + at.stop)
            faults = {index: self.faults[index] for index in indexes if index in self.faults}
        return Frame(
            self.index[at],
            self.sizes[at].astype(np.uint32),
            self.checksum[at].copy(),
            self.status[at].copy(),
            self.kind[at].copy(),
            payload,
            errors=faults,
        )

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
