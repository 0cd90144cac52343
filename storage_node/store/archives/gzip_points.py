"""Random access into a gzip file, from restart points kept in a member index.

Deflate refers to the preceding 32 KiB, and blocks can begin at any bit. A restart point therefore has three parts: an
offset in the file, the number of bits of the preceding octet that belong to it, and the necessary part of the history
(`packed_history`). The library indexed_gzip finds the points, once. Reading needs only zlib: the history becomes a
preset dictionary, and empty blocks are inserted in front of the data to shift its bits into place. Histories stay in
the mapped index until they are needed.

Members are usually read in the order of the archive, so a read often starts where another one ended. A view therefore
keeps a few inflaters in the state in which a read left them, and continues with the nearest one.

Threads: a view may be used from any number of threads at once.

Source: RFC 1951; zran.c in the examples of zlib; zran.h of indexed_gzip 1.8 for its file, version 1.

Deflate may refer to any of the preceding 32 KiB, but only from the next 32 KiB of output. Sound, images and text that
has changed its subject refer to few of them. To find which ones, the data is inflated twice, with two histories whose
bytes differ at every position and together encode the position. Wherever the two outputs differ, the byte was copied
from the history, and the two octets give the position it was copied from. All other bytes of the history are replaced
by zeros. Leading zeros are omitted, because a shorter history is aligned to the end of the window.

Source: RFC 1951; Knespel and Brunst, "Rapidgzip", 2023, for windows reduced to the bytes that are needed.
"""

from __future__ import annotations

import io
import struct
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from ais_loader.errors import ArchiveDamaged, ArchiveIndexError, LibraryMissing
from ais_loader.extras import needs
from storage_node.store.archives.inflating import PIECE_BYTES
from storage_node.store.archives.source import ArchiveFile, ByteSource, read_exactly

GAP_BYTES = 128 << 10
"""Distance between points. Reading a member decompresses half of it in addition, on average. A history takes a few KiB
for text, less for sound."""
MAX_GAP_BYTES = 16 << 20
POINTS = 16 << 10
"""Maximum number of points. From 2 GiB of tar on, the points are further apart; from 256 GiB on, there are more of
them."""
KEPT_STREAMS = 2
"""Number of inflaters that a view keeps in their final state; about 100 KiB each."""

_POINTS_AT_ONCE = 512
"""Points requested from the library at a time. It keeps the complete history of each point that it has found."""
_MAGIC = b"GZIDX\x01\0"
_HEAD = struct.Struct("<7sQQIII")
_POINT = struct.Struct("<QQBB")
_COUNT = struct.Struct("<Q")
_READ_BYTES = 64 << 10
_TRAILER_BYTES = 8
_GZIP_MEMBER = zlib.MAX_WBITS | 16

# Empty deflate blocks, as (bits, number of bits): one with fixed codes, and one with dynamic codes and an odd length.
_FIXED = (0b010, 10)
_ODD_PARTS = (
    (0b100, 3),
    (0, 5),
    (0, 5),
    (14, 4),  # dynamic; 257 literals, 1 distance, 18 lengths of the codes of lengths:
    *((length, 3) for length in (0, 0, 2, 1, *[0] * 13, 2)),  # of 18, of 0, and of 1
    (0b11, 2),
    (127, 7),
    (0b11, 2),
    (107, 7),  # no code for 138 literals, nor for 118 more
    (0b01, 2),
    (0, 1),
    (0, 1),  # one bit for the end of the block, none for the distance; the end
)


class _Point(NamedTuple):
    packed_at: int
    content_at: int
    bits: int
    history: bytes
    """Empty at the beginning of a gzip member's deflate data."""


def build_gzip_points(source: ByteSource, content_bytes: int) -> bytes:
    """Find the restart points of a gzip file that a complete pass has verified, and encode them as a plan (FORMAT.md).

    Raises LibraryMissing, ArchiveDamaged.
    """
    gap = min(max(GAP_BYTES, content_bytes // POINTS), MAX_GAP_BYTES)
    packed_at, content_at, ends = array("Q"), array("Q"), array("Q")
    bits, histories = bytearray(), bytearray()
    for point in _found_points(source, content_bytes, gap):
        if content_at and content_at[-1] == point.content_at:
            packed_at.pop(), content_at.pop(), ends.pop(), bits.pop()  # an empty gzip member, or the end of a member
            del histories[ends[-1] if ends else 0 :]
        if point.history:
            histories += packed_history(point.history, partial(_read_on, source, point))
        packed_at.append(point.packed_at)
        content_at.append(point.content_at)
        ends.append(len(histories))
        bits.append(point.bits)
    columns = (np.array(column, "<u8").tobytes() for column in (packed_at, content_at, ends))
    return b"".join([_COUNT.pack(len(bits)), *columns, bits, histories])


def _read_on(source: ByteSource, point: _Point, history: bytes) -> bytes:
    stream = _Stream(source, point.packed_at, point.content_at, point.bits, history)
    parts, left = [], HISTORY_BYTES
    while left and stream.is_first and (piece := stream.read(left)):
        parts.append(piece)
        left -= len(piece)
    return b"".join(parts)


def _found_points(source: ByteSource, content_bytes: int, gap: int) -> Iterator[_Point]:
    with needs("indexed_gzip", "gzip archives", LibraryMissing):
        import indexed_gzip  # type: ignore[import-untyped]
    last: _Point | None = None
    reached, span = 0, _POINTS_AT_ONCE * gap
    while reached < content_bytes:
        reached = min(reached + span, content_bytes)
        exported = io.BytesIO()
        try:
            with indexed_gzip.IndexedGzipFile(fileobj=ArchiveFile(source), spacing=gap) as file:
                if last is not None:
                    file.import_index(fileobj=io.BytesIO(_exchange_file(source, content_bytes, gap, last)))
                file.seek(reached - 1)  # finds the points up to there
                file.export_index(fileobj=exported)
        except (OSError, ValueError) as error:
            raise ArchiveDamaged(f"no restart points can be made for the gzip file: {error}") from None
        behind = -1 if last is None else last.content_at
        # A point at the very end would have nothing after it to read.
        found = [point for point in _points_of(exported.getvalue()) if behind < point.content_at < content_bytes]
        yield from found
        # One deflate block may be as long as the file. The span grows so that a stretch without points is not read over
        # and over.
        span = _POINTS_AT_ONCE * gap if found else 2 * span
        last = found[-1] if found else last


def _exchange_file(source: ByteSource, content_bytes: int, gap: int, point: _Point) -> bytes:
    """Encode one point as a file of the library, so that the library can continue from there."""
    head = _HEAD.pack(_MAGIC, source.size_bytes, content_bytes, gap, HISTORY_BYTES, 1)
    return head + _POINT.pack(point.packed_at, point.content_at, point.bits, bool(point.history)) + point.history


def _points_of(exchanged: bytes) -> Iterator[_Point]:
    *_, history_bytes, count = _HEAD.unpack_from(exchanged)
    history_at = _HEAD.size + _POINT.size * count
    for number in range(count):
        packed_at, content_at, bits, has_history = _POINT.unpack_from(exchanged, _HEAD.size + _POINT.size * number)
        history = exchanged[history_at : history_at + history_bytes] if has_history else b""
        history_at += len(history)
        yield _Point(packed_at, content_at, bits, history)


class _Stream:
    """Inflater that starts at a point and continues across later gzip members. Belongs to one thread at a time."""

    def __init__(self, source: ByteSource, packed_at: int, content_at: int, bits: int, history: bytes) -> None:
        self.content_at = content_at
        """Position of the next byte in the uncompressed tar."""
        self.is_first = True
        """True while it is in the gzip member in which it started, whose header it has not read."""
        self._source, self._at = source, packed_at
        self._data = _aligned(bits, read_exactly(source, 1, packed_at - 1)[0]) if bits else b""
        self._inflater: zlib._Decompress | None = zlib.decompressobj(-zlib.MAX_WBITS, zdict=history)

    def read(self, most: int) -> bytes:
        """Return up to `most` bytes; empty only at the end of the last member. Raises ArchiveDamaged."""
        while True:
            if self._inflater is None and not self._next_member():
                return b""
            assert self._inflater is not None
            try:
                # Called without input as well: after a full piece, the inflater may hold more output.
                piece = self._inflater.decompress(self._data, most)
            except zlib.error as error:
                raise ArchiveDamaged(f"before byte {self._at}: not the gzip data that it should be: {error}") from None
            if self._inflater.eof:
                self._data = self._inflater.unused_data
                if self.is_first:
                    self._skip_trailer()
                self._inflater, self.is_first = None, False
            else:
                self._data = self._inflater.unconsumed_tail
                if not piece and not self._data and not self._fill():
                    raise ArchiveDamaged(f"byte {self._at}: the gzip file ends within its data")
            if piece:
                self.content_at += len(piece)
                return piece

    def _fill(self) -> bool:
        self._data = self._source.pread(_READ_BYTES, self._at)
        self._at += len(self._data)
        return bool(self._data)

    def _skip_trailer(self) -> None:
        self._at += max(0, _TRAILER_BYTES - len(self._data))
        self._data = self._data[_TRAILER_BYTES:]

    def _next_member(self) -> bool:
        """Start the next gzip member. Skips zeros between members and after the last one."""
        self._data = self._data.lstrip(b"\0")
        while not self._data:
            if not self._fill():
                return False
            self._data = self._data.lstrip(b"\0")
        self._inflater = zlib.decompressobj(_GZIP_MEMBER)
        return True


class GzipPoints:
    def __init__(self, source: ByteSource, plan: memoryview, content_bytes: int) -> None:
        """Raises ArchiveIndexError if `plan` does not fit this file."""
        self._source, self._content_bytes = source, content_bytes
        count = _COUNT.unpack_from(plan)[0] if len(plan) >= _COUNT.size else 0
        if not count or _COUNT.size + 25 * count > len(plan):
            raise ArchiveIndexError(f"{count} restart points of a tar.gz do not fit into {len(plan)} bytes")
        self._packed_at, self._content_at, ends = (
            np.frombuffer(plan, "<u8", count, _COUNT.size + 8 * count * column) for column in range(3)
        )
        self._bits = np.frombuffer(plan, "u1", count, _COUNT.size + 24 * count)
        self._histories = plan[_COUNT.size + 25 * count :]
        self._history_at = np.concatenate([np.zeros(1, np.uint64), ends])
        content = np.append(self._content_at, np.uint64(content_bytes))
        if (
            content[0] != 0
            or (content[1:] < content[:-1]).any()
            or (self._packed_at[1:] < self._packed_at[:-1]).any()
            or (self._packed_at > source.size_bytes).any()
            or (self._packed_at < 1).any()
            or (self._bits > 7).any()
            or (self._history_at[1:] < self._history_at[:-1]).any()
            or int(self._history_at[-1]) != len(self._histories)
        ):
            raise ArchiveIndexError("the restart points of a tar.gz are not in order, or outside of it")
        packed = np.append(self._packed_at, np.uint64(source.size_bytes))
        self.stretch_bytes = int(max(np.diff(content).max(), np.diff(packed).max()))
        self._kept: list[_Stream] = []
        self._lock = threading.Lock()

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Iterate over bytes start .. stop-1 of the tar, in pieces of at most PIECE_BYTES. Raises ArchiveDamaged."""
        if start >= stop:
            return
        stream = self._stream_to(start)
        while (at := stream.content_at) < stop:
            piece = stream.read(min(PIECE_BYTES, stop - at))
            if not piece:
                raise ArchiveDamaged(f"the gzip file unpacks to {at} bytes, not to the {stop} that are asked for")
            if stream.content_at > start:
                yield piece[max(0, start - at) :]
        with self._lock:
            self._kept = [*self._kept[-KEPT_STREAMS + 1 :], stream]

    def _stream_to(self, start: int) -> _Stream:
        """Return the stream nearest before `start`: a kept one, or a new one from the last restart point."""
        row = int(np.searchsorted(self._content_at, np.uint64(start), "right")) - 1
        point_at = self._content_at.item(row)
        with self._lock:
            near = [stream for stream in self._kept if point_at < stream.content_at <= start]
            if near:
                nearest = max(near, key=lambda stream: stream.content_at)
                self._kept.remove(nearest)
                return nearest
        packed = self._histories[self._history_at.item(row) : self._history_at.item(row + 1)]
        try:
            history = unpacked_history(packed)
        except zlib.error as error:
            raise ArchiveDamaged(f"restart point {row} of a tar.gz: {error}") from None
        return _Stream(self._source, self._packed_at.item(row), point_at, self._bits.item(row), history)


def _bits_of(*parts: tuple[int, int]) -> tuple[int, int]:
    value = length = 0
    for part, size in parts:
        value |= part << length
        length += size
    return value, length


_ODD = _bits_of(*_ODD_PARTS)


def _aligned(bits: int, octet: int) -> bytes:
    """Return empty blocks that end with the upper `bits` bits of `octet`, where the data continues."""
    blocks = [_FIXED] * ((-bits if bits % 2 == 0 else 3 - bits) % 8 // 2) + [_ODD] * (bits % 2)
    value, length = _bits_of(*blocks)
    assert (length + bits) % 8 == 0
    return (value | (octet >> 8 - bits) << length).to_bytes((length + bits) // 8, "little")


HISTORY_BYTES = 32 << 10
_LEVEL = 1
_PLACES = np.arange(HISTORY_BYTES)
_LOW = (_PLACES & 0xFF).astype(np.uint8)
# The upper bits plus one are added, so that it never equals the octet in `_LOW`.
_BOTH = (_LOW + 1 + (_PLACES >> 8)).astype(np.uint8)
_SPELLED = _LOW.tobytes(), _BOTH.tobytes()


def packed_history(history: bytes, read_on: Callable[[bytes], bytes]) -> bytes:
    """Compress the necessary part of a history of HISTORY_BYTES; empty if none of it is needed.

    `read_on` takes a history and returns the first HISTORY_BYTES (or fewer, at the end) of the data decompressed after
    the point with it.
    """
    low, both = (np.frombuffer(read_on(spelled), np.uint8) for spelled in _SPELLED)
    from_history = low != both
    if not from_history.any():
        return b""
    low, both = low[from_history], both[from_history]
    places = low.astype(np.int64) | (both - low - np.uint8(1)).astype(np.int64) << 8
    needed = np.zeros(HISTORY_BYTES, np.uint8)
    needed[places] = np.frombuffer(history, np.uint8)[places]
    packer = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
    return packer.compress(needed[places.min() :].tobytes()) + packer.flush()


def unpacked_history(packed: bytes | memoryview) -> bytes:
    """Decompress a history. Raises zlib.error if it is invalid or larger than one window."""
    if not packed:
        return b""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    history = inflater.decompress(packed, HISTORY_BYTES + 1)
    if not inflater.eof or inflater.unused_data or len(history) > HISTORY_BYTES:
        raise zlib.error("no history of a restart point")
    return history
