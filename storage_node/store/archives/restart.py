"""Random access into a compressed tar, by the restart points that its member index contains.

The plan of a tar.zst or tar.lz4 has three columns: the offset of each point in the file, its offset in the content, and
its flags. The plan of a tar.gz is described in gzip_points.py. Reading a member decompresses from the preceding point
on, so the longest stretch between two points bounds the cost of one member.

Threads: a view may be used from any number of threads at once.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ais_loader.errors import ArchiveDamaged, ArchiveIndexError
from storage_node.store.archives.inflating import RestartPoints
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import ArchiveLimits
from storage_node.store.archives.source import ByteSource, chunks_of, read_exactly

MAX_STRETCH_BYTES = 16 << 20
"""Maximum stretch between restart points. A shard with longer ones is served from a decompressed copy."""
ONE_FRAME_BYTES = 4 << 20
"""Frames up to this size are decompressed by one call."""

_SPARE_BYTES = 64 << 10
_COUNT = struct.Struct("<Q")


class View(Protocol):
    """The uncompressed tar inside a compressed one, by positioned reads."""

    stretch_bytes: int
    """Maximum number of bytes read or decompressed before the requested range. A file may contain many blocks that
    decompress to nothing."""

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Iterate over bytes start .. stop-1 of the tar, in pieces of at most a few MiB.

        Raises ArchiveDamaged if the file no longer contains them.
        """
        ...


def encode_points(points: RestartPoints) -> bytes:
    packed_at, content_at = (np.array(column, "<u8").tobytes() for column in (points.packed_at, points.content_at))
    return _COUNT.pack(len(points.flags)) + packed_at + content_at + bytes(points.flags)


class RestartView:
    """View of a tar.zst or tar.lz4."""

    def __init__(
        self, source: ByteSource, kind: ArchiveKind, plan: memoryview, content_bytes: int, limits: ArchiveLimits
    ) -> None:
        self._source, self._kind = source, kind
        self._limits = replace(limits, free_bytes=max(1, content_bytes))  # indexing has ruled out a bomb
        count = _COUNT.unpack_from(plan)[0] if len(plan) >= _COUNT.size else 0
        if not count or len(plan) != _COUNT.size + 17 * count:
            raise ArchiveIndexError(f"the restart points of a compressed tar do not take {len(plan)} bytes")
        # Reading integers from a memoryview is several times faster than from an array.
        columns = plan[_COUNT.size : _COUNT.size + 16 * count].cast("Q")
        self._packed, self._contents = columns[:count], columns[count:]
        self._flags = plan[_COUNT.size + 16 * count :]
        self._content_bytes = content_bytes
        packed = np.append(np.frombuffer(plan, "<u8", count, _COUNT.size), np.uint64(source.size_bytes))
        content = np.append(np.frombuffer(plan, "<u8", count, _COUNT.size + 8 * count), np.uint64(content_bytes))
        if content[0] != 0 or (packed[1:] < packed[:-1]).any() or (content[1:] < content[:-1]).any():
            raise ArchiveIndexError("the restart points of a compressed tar are not in order, or outside of it")
        # After the last point there may be the seek table, which is never read.
        self.stretch_bytes = int(max(np.diff(content).max(), np.diff(packed[:-1]).max(initial=0)))

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        while start < stop:
            row = bisect_right(self._contents, start) - 1
            content_at, content_stop = self._contents[row], self._end(self._contents, row + 1, self._content_bytes)
            packed_at, packed_stop = self._packed[row], self._end(self._packed, row + 1, self._source.size_bytes)
            held, packed = content_stop - content_at, packed_stop - packed_at
            # The frame may be followed by frames to skip, such as a seek table.
            if self._kind is ArchiveKind.TAR_ZST and held <= ONE_FRAME_BYTES and packed <= 2 * held + _SPARE_BYTES:
                from storage_node.store.archives.zstd_frames import unpack_frame

                whole = unpack_frame(read_exactly(self._source, packed, packed_at), held)
                if whole is not None:
                    piece = whole[start - content_at : stop - content_at]
                    yield piece
                    start += len(piece)
                    continue
            yield from self._from_point(row, packed_at, content_at, start, stop)
            return

    @staticmethod
    def _end(column: Sequence[int] | memoryview, row: int, end: int) -> int:
        return column[row] if row < len(column) else end

    def _from_point(self, row: int, packed_at: int, at: int, start: int, stop: int) -> Iterator[bytes]:
        """Decompress from a restart point on, across the following ones."""
        decoder: Any
        if self._kind is ArchiveKind.TAR_ZST:
            from storage_node.store.archives.zstd_frames import ZstdDecoder

            decoder = ZstdDecoder(self._limits)
        else:
            from storage_node.store.archives.lz4_frames import Lz4Decoder

            decoder = Lz4Decoder(self._limits, self._flags[row])
        # The requested bytes end before the first point after them, so reading stops there.
        packed_stop = self._end(self._packed, bisect_left(self._contents, stop), self._source.size_bytes)
        for chunk in chunks_of(self._source, packed_at, packed_stop):
            for piece in decoder.feed(chunk):
                if at + len(piece) > start:
                    yield piece[max(0, start - at) : stop - at]
                at += len(piece)
                if at >= stop:
                    return
        raise ArchiveDamaged(f"byte {packed_stop}: what is packed here ends at byte {at} of the tar, not at {stop}")
