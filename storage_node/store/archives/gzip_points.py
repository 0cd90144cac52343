"""Reading in the middle of a gzip file, from restart points kept in a member index.

Deflate refers to the 32 KiB before, and blocks begin at any bit, so a point is three things: a place in the file, how
many bits of the octet before it belong to it, and the history. The library indexed_gzip finds them, once; reading needs
zlib alone: the history is a preset dictionary, and the bits are brought into place by empty blocks in front of them.
Histories stay in the mapped index until they are wanted.

Threads: a view may be used from any number of threads at once.

Source: RFC 1951; zran.c in the examples of zlib; zran.h of indexed_gzip 1.8 for its file, version 1.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from storage_node.store.archives.errors import ArchiveDamaged, IndexDamaged, LibraryMissing
from storage_node.store.archives.inflating import PIECE_BYTES, GzipDecoder
from storage_node.store.archives.member import Limits
from storage_node.store.archives.source import ByteSource, SourceFile, read_exactly

GAP_BYTES = 1 << 20
MAX_GAP_BYTES = 16 << 20
POINTS = 2048
"""64 MiB of history. From 2 GiB of tar on, points lie further apart; from 32 GiB on there are more of them instead."""

_MAGIC = b"GZIDX\x01\0"
_HEAD = struct.Struct("<7sQQIII")
_POINT = np.dtype([("packed_at", "<u8"), ("content_at", "<u8"), ("bits", "u1"), ("has_history", "u1")])
_MAX_HISTORY_BYTES = 32 << 10
_READ_BYTES = 128 << 10
_TRAILER_BYTES = 8

# Deflate blocks that hold nothing, as (bits, how many): by fixed codes, and by codes that make the number odd.
_FIXED = (0b010, 10)
_ODD_PARTS = (
    (0b100, 3), (0, 5), (0, 5), (14, 4),  # dynamic; 257 literals, 1 distance, 18 lengths of the codes of lengths:
    *((length, 3) for length in (0, 0, 2, 1, *[0] * 13, 2)),  # of 18, of 0, and of 1
    (0b11, 2), (127, 7), (0b11, 2), (107, 7),  # no code for 138 literals, nor for 118 more
    (0b01, 2), (0, 1), (0, 1),  # one bit for the end of the block, none for the distance; the end
)  # fmt: skip


def build_gzip_points(source: ByteSource, content_bytes: int) -> bytes:
    """Restart points of a gzip file that a pass has found sound. Raises LibraryMissing, ArchiveDamaged."""
    try:
        import indexed_gzip  # type: ignore[import-untyped]
    except ImportError as error:
        raise LibraryMissing(
            "gzip archives need the package indexed_gzip: pip install 'ais-loader[archives]'"
        ) from error
    gap = min(max(GAP_BYTES, content_bytes // POINTS), MAX_GAP_BYTES)
    exported = io.BytesIO()
    try:
        with indexed_gzip.IndexedGzipFile(fileobj=SourceFile(source), spacing=gap) as file:
            file.build_full_index()
            file.export_index(fileobj=exported)
    except (OSError, ValueError) as error:
        raise ArchiveDamaged(f"no restart points can be made for the gzip file: {error}") from None
    return exported.getvalue()


class GzipPoints:
    def __init__(self, source: ByteSource, plan: memoryview, content_bytes: int, limits: Limits) -> None:
        """Raises IndexDamaged when `plan` cannot be of this file."""
        self._source, self._content_bytes = source, content_bytes
        self._limits = replace(limits, free_bytes=max(1, content_bytes))  # found to be no bomb when it was indexed
        if len(plan) < _HEAD.size or plan[: len(_MAGIC)] != _MAGIC:
            raise IndexDamaged("the restart points of a tar.gz are in no format that this version reads")
        _, _, _, _, history_bytes, count = _HEAD.unpack_from(plan)
        if _HEAD.size + _POINT.itemsize * count > len(plan) or not count:
            raise IndexDamaged(f"{count} restart points of a tar.gz do not fit into {len(plan)} bytes")
        points = np.frombuffer(plan, _POINT, count, _HEAD.size)
        self._packed_at, self._content_at = points["packed_at"].copy(), points["content_at"].copy()
        self._bits, has_history = points["bits"].copy(), points["has_history"] != 0
        self._history_bytes = history_bytes
        # Where each history ends: those without one take nothing.
        self._history_end = np.cumsum(has_history, dtype=np.int64) * history_bytes
        self._has_history = has_history
        self._histories = plan[_HEAD.size + _POINT.itemsize * count :]
        content = np.append(self._content_at, np.uint64(content_bytes))
        if (
            history_bytes > _MAX_HISTORY_BYTES
            or int(self._history_end[-1]) != len(self._histories)
            or content[0] != 0
            or (content[1:] < content[:-1]).any()
            or (self._packed_at[1:] < self._packed_at[:-1]).any()
            or (self._packed_at > source.size_bytes).any()
            or (self._bits > 7).any()
            or (self._packed_at < 1).any()
        ):
            raise IndexDamaged("the restart points of a tar.gz are not in order, or outside of it")
        self.stretch_bytes = int(np.diff(content).max())

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Bytes start .. stop-1 of the tar, in pieces of at most PIECE_BYTES. Raises ArchiveDamaged."""
        if start >= stop:
            return
        row = int(np.searchsorted(self._content_at, np.uint64(start), "right")) - 1
        at = self._content_at.item(row)
        for piece in self._inflated(row, stop):
            if at + len(piece) > start:
                yield piece[max(0, start - at) : stop - at]
            at += len(piece)
            if at >= stop:
                return
        raise ArchiveDamaged(f"the gzip file unpacks to {at} bytes, not to the {stop} that are asked for")

    def _inflated(self, row: int, stop: int) -> Iterator[bytes]:
        """What follows a point, in pieces that end at `stop` where they can."""
        left = stop - self._content_at.item(row)
        at = self._packed_at.item(row)
        history = b""
        if self._has_history[row]:
            end = int(self._history_end[row])
            history = bytes(self._histories[end - self._history_bytes : end])
        bits = self._bits.item(row)
        data = _aligned(bits, read_exactly(self._source, 1, at - 1)[0]) if bits else b""
        inflater = zlib.decompressobj(-zlib.MAX_WBITS, zdict=history)
        try:
            while not inflater.eof:
                if not data:
                    data = self._source.pread(_READ_BYTES, at)
                    at += len(data)
                    if not data:
                        raise ArchiveDamaged(f"byte {at}: the gzip file ends within its data")
                piece = inflater.decompress(data, max(1, min(PIECE_BYTES, left)))
                while piece:
                    yield piece
                    left -= len(piece)
                    # A full piece may leave more inside, also when all input is in.
                    most = max(1, min(PIECE_BYTES, left))
                    piece = inflater.decompress(inflater.unconsumed_tail, most) if not inflater.eof else b""
                data = inflater.unconsumed_tail
        except zlib.error as error:
            raise ArchiveDamaged(f"before byte {at}: not the gzip data that it should be: {error}") from None
        # The next gzip member, if there is one.
        at += _TRAILER_BYTES - len(inflater.unused_data)
        decoder = GzipDecoder(self._limits)
        while data := self._source.pread(_READ_BYTES, at):
            at += len(data)
            yield from decoder.feed(data)


def _bits_of(*parts: tuple[int, int]) -> tuple[int, int]:
    value = length = 0
    for part, size in parts:
        value |= part << length
        length += size
    return value, length


_ODD = _bits_of(*_ODD_PARTS)


def _aligned(bits: int, octet: int) -> bytes:
    """Octets of empty blocks, the last one with the upper `bits` bits of `octet`, which the data goes on from."""
    blocks = [_FIXED] * ((-bits if bits % 2 == 0 else 3 - bits) % 8 // 2) + [_ODD] * (bits % 2)
    value, length = _bits_of(*blocks)
    assert (length + bits) % 8 == 0
    return (value | (octet >> 8 - bits) << length).to_bytes((length + bits) // 8, "little")
