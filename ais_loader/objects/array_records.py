"""array_record files: the chunks of records that their footer lists, and the records of a chunk.

A file is a sequence of chunks, which a block header of 24 bytes interrupts every 64 KiB. The footer is a chunk, and the
last 64 KiB say where it is. Chunks are simple ones, of records one after another; transposed ones are refused. Hashes
of chunks are not compared: the store has checksums of its own, and compressed chunks and sizes are checked.

Source: https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md;
https://github.com/google/array_record/blob/main/cpp/layout.proto.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ais_loader.errors import ArchiveDamaged, ArchiveError, ArchiveUnsupported, LibraryMissing
from ais_loader.extras import needs
from ais_loader.objects.client import Client
from ais_loader.objects.range_table import place, read_ranges
from ais_loader.values.entry import ObjectInfo

_BLOCK_BYTES = 1 << 16
_BLOCK_HEADER_BYTES = 24
_CHUNK_HEADER = struct.Struct("<8xQ8xQQ")
_MAGIC = 0x71930E704FDAE05E
_SIMPLE, _TRANSPOSED = ord("r"), ord("t")
_MOST_BYTES = 4 << 30


class ArrayRecordChunks(NamedTuple):
    """The chunks of a file."""

    bounds: npt.NDArray[np.int64]
    """Where each begins and, last, the footer."""
    stops: npt.NDArray[np.int64]
    """The number of records up to the end of each."""


def array_record_chunks(client: Client, objects: Sequence[ObjectInfo], timeout_s: float) -> list[ArrayRecordChunks]:
    """Return the chunks of each object, with two requests.

    Raises ArchiveDamaged for one that is truncated, and what `Client.get_batch` and `array_records` raise.
    """
    for info in objects:
        if not info.size_bytes or info.size_bytes % _BLOCK_BYTES:
            raise _damaged(info, "its end is missing")
    ends = [info.size_bytes - _BLOCK_BYTES for info in objects]
    tails = read_ranges(client, [(info, end, _BLOCK_BYTES) for info, end in zip(objects, ends, strict=True)], timeout_s)
    footers = [_footer_at(info, tail, end) for info, tail, end in zip(objects, tails, ends, strict=True)]
    wanted = [(info, at, end - at) for info, at, end in zip(objects, footers, ends, strict=True)]
    return [
        _chunks_of(info, data, at)
        for (info, at, _), data in zip(wanted, read_ranges(client, wanted, timeout_s), strict=True)
    ]


def array_records(data: memoryview, start: int) -> Sequence[memoryview]:
    """Return the records of a chunk, of the bytes of the file from byte `start` on.

    Raises ArchiveDamaged, ArchiveUnsupported for a chunk that is transposed or compressed otherwise than by zstd or
    brotli, LibraryMissing without brotli 1.2, MissingExtra without zstandard.
    """
    chunk = _without_block_headers(data, start)
    if len(chunk) < _CHUNK_HEADER.size:
        raise ArchiveDamaged("a chunk of records that is truncated")
    size, kind_and_records, decoded = _CHUNK_HEADER.unpack_from(chunk)
    records, kind = kind_and_records >> 8, kind_and_records & 0xFF
    body = chunk[_CHUNK_HEADER.size : _CHUNK_HEADER.size + size]
    if kind == _TRANSPOSED:
        raise ArchiveUnsupported("a chunk of records that is transposed: write the file with transpose:false")
    if kind != _SIMPLE or len(body) != size or not size:
        raise ArchiveDamaged("a chunk of records whose header is damaged")
    sizes_bytes, at = _varint(body, 1)
    sizes = _unpacked(body[0], body[at : at + sizes_bytes])
    values = _unpacked(body[0], body[at + sizes_bytes :])
    stops, at = [0], 0
    while at < len(sizes) and len(stops) <= records:
        length, at = _varint(sizes, at)
        stops.append(stops[-1] + length)
    if (at, len(stops) - 1, stops[-1], len(values)) != (len(sizes), records, len(values), decoded):
        raise ArchiveDamaged("a chunk of records whose sizes do not match its header")
    return [values[first:stop] for first, stop in itertools.pairwise(stops)]


def _footer_at(info: ObjectInfo, tail: bytes, end: int) -> int:
    from ais_loader.wire.generated.ais_formats_pb2 import ArrayRecordPostscript

    try:
        found = ArrayRecordPostscript.FromString(bytes(array_records(memoryview(tail), end)[0]))
        if found.magic == _MAGIC and 0 < found.footer_offset < end:
            return found.footer_offset
    except (ArchiveError, DecodeError, IndexError):
        pass
    raise _damaged(info, "its end is missing or damaged, or it is another file of Riegeli")


def _chunks_of(info: ObjectInfo, data: bytes, footer_at: int) -> ArrayRecordChunks:
    from ais_loader.wire.generated.ais_formats_pb2 import ArrayRecordChunk, ArrayRecordFooter

    try:
        first, *listed = array_records(memoryview(data), footer_at)
        total = ArrayRecordFooter.FromString(bytes(first)).array_record
        chunks = [ArrayRecordChunk.FromString(bytes(one)) for one in listed]
        bounds = np.array([*(one.offset for one in chunks), footer_at], np.int64)
        stops = np.array([one.records for one in chunks], np.int64).cumsum()
    except (ArchiveDamaged, DecodeError, OverflowError, ValueError) as error:
        raise _damaged(info, f"its footer: {error}") from None
    except ArchiveError as error:
        raise type(error)(f"{place(info)}: {error}") from None
    is_sorted = (np.diff(bounds) > 0).all() and (stops[1:] >= stops[:-1]).all()
    if total.version != 1 or not is_sorted or sum(stops[-1:].tolist()) != total.records:
        raise _damaged(info, "its footer lists other chunks than there are")
    return ArrayRecordChunks(bounds, stops)


def _damaged(info: ObjectInfo, why: str) -> ArchiveDamaged:
    return ArchiveDamaged(f"{place(info)}: an array_record file that is damaged or truncated: {why}")


def _without_block_headers(data: memoryview, start: int) -> memoryview:
    first = -start % _BLOCK_BYTES
    if first >= len(data):
        return data
    starts = range(first, len(data), _BLOCK_BYTES)
    parts = [data[at + _BLOCK_HEADER_BYTES : at + _BLOCK_BYTES] for at in starts]
    return memoryview(b"".join([data[:first], *parts]))


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number of 7 bits per byte, lowest first, and where it ends."""
    number = 0
    for more in range(10):
        if at + more >= len(data):
            break
        number |= (data[at + more] & 0x7F) << (7 * more)
        if data[at + more] < 0x80:
            return number, at + more + 1
    raise ArchiveDamaged("a chunk of records with a damaged number")


def _unpacked(kind: int, packed: memoryview) -> memoryview:
    if not kind:
        return packed
    size, at = _varint(packed, 0)
    if size > _MOST_BYTES:
        raise ArchiveDamaged(f"a chunk of records of {size:,} bytes")
    if kind == ord("z"):
        with needs("zstandard", "array_record files"):
            import zstandard
        try:
            # It never has more in memory than the size, whatever the frame says.
            data = zstandard.ZstdDecompressor().stream_reader(packed[at:]).read(size + 1)
        except zstandard.ZstdError as error:
            raise ArchiveDamaged(f"a chunk of records that cannot be unpacked: {error}") from None
    elif kind == ord("b"):
        try:
            import brotli

            data = brotli.Decompressor().process(packed[at:], output_buffer_limit=size + 1)
        except (ImportError, TypeError):  # before 1.2, there is no limit
            raise LibraryMissing("a chunk of records packed by brotli: pip install 'brotli>=1.2'") from None
        except brotli.error as error:
            raise ArchiveDamaged(f"a chunk of records that cannot be unpacked: {error}") from None
    else:
        raise ArchiveUnsupported(f"a chunk of records packed by {chr(kind)!r}; zstd, brotli and none can be read")
    if len(data) != size:
        raise ArchiveDamaged("a chunk of records that is unpacked to another size than it says")
    return memoryview(data)
