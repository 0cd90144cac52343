"""Zip indexer: one pass that decompresses each member once to compute its CRC-32C for the index.

The directory's CRC-32 and sizes are verified on the way, in the order of the directory, so that a zip with false
entries is rejected when it is indexed and not when it is read. The sizes that members claim are added up before each
one is decompressed. A member that cannot be read is listed, and not looked into.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator

import numpy as np

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import DEFAULT_LIMITS, READABLE, STORED, ArchiveLimits
from storage_node.store.archives.source import ByteSource, chunks_of
from storage_node.store.archives.table import MemberTable
from storage_node.store.archives.zip_directory import data_offset, find_directory, method_of, read_entries
from storage_node.store.checksum import crc32c

PIECE_BYTES = 1 << 20


def index_zip(source: ByteSource, limits: ArchiveLimits = DEFAULT_LIMITS) -> MemberIndex:
    """Index a zip. Raises ArchiveDamaged, ArchiveTooLarge; ArchiveUnsupported for a part of several volumes."""
    directory = find_directory(source, limits)
    allowed = limits.unpacked_bytes(source.size_bytes)
    total = packed = 0
    table = MemberTable(limits)
    starts, ends = array("Q"), array("Q")
    for entry in read_entries(source, directory):
        if not entry.is_file:
            table.add_other(entry.name.rstrip(b"/"))
            continue
        total += entry.size_bytes
        if total > allowed:
            raise ArchiveTooLarge(
                f"byte {entry.at}: the zip's {source.size_bytes} bytes claim to unpack to more than {allowed}; a bomb?"
            )
        method = method_of(entry, directory)
        start = data_offset(source, entry, directory, method)
        packed += entry.packed_bytes
        if packed > directory.at:  # fail before reading all of them
            raise ArchiveDamaged(f"byte {entry.at}: a member of the zip begins inside another one: too many bytes")
        starts.append(entry.header_at)
        ends.append(start + entry.packed_bytes)
        checksum, crc32 = 0, 0
        for piece in unpack(source, start, entry.packed_bytes, entry.size_bytes, method) if method in READABLE else ():
            checksum, crc32 = crc32c(piece, checksum), zlib.crc32(piece, crc32)
        if crc32 != entry.crc32 and method in READABLE:
            raise ArchiveDamaged(f"byte {start}: {entry.raw_name[:200]!r} does not match its CRC-32 in the zip")
        table.add_file(entry.name, start, entry.size_bytes, checksum, entry.packed_bytes, method)
    begins, stops = np.array(starts, np.uint64), np.array(ends, np.uint64)
    by_place = np.argsort(begins)
    overlapping = np.flatnonzero(stops[by_place][:-1] > begins[by_place][1:])
    if len(overlapping):
        at = int(begins[by_place[overlapping[0] + 1]])
        raise ArchiveDamaged(f"byte {at}: a member of the zip begins here, inside another one")
    return MemberIndex.of(table.finish(), ArchiveKind.ZIP, source.size_bytes)


def unpack(source: ByteSource, start: int, packed_bytes: int, size_bytes: int, method: int) -> Iterator[bytes]:
    """Iterate over a member's bytes, in pieces of at most PIECE_BYTES. Raises ArchiveDamaged unless they are exactly
    `size_bytes`."""
    stop = start + packed_bytes
    if not packed_bytes and not size_bytes:
        return  # some writers store no deflate data for an empty member
    if method == STORED:
        yield from chunks_of(source, start, stop)
        return
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    left = size_bytes
    at = start
    try:
        for chunk in chunks_of(source, start, stop):
            at += len(chunk)
            while (chunk or left) and not inflater.eof:
                # One byte more than the remaining size, to detect a member larger than it declares.
                piece = inflater.decompress(chunk, min(PIECE_BYTES, left + 1))
                if len(piece) > left:
                    raise ArchiveDamaged(f"byte {at}: a member unpacks to more than its {size_bytes} bytes")
                left -= len(piece)
                chunk = inflater.unconsumed_tail
                if piece:
                    yield piece
                elif not chunk:
                    break
    except zlib.error as error:
        raise ArchiveDamaged(f"byte {at}: a member is not the deflate data that it should be: {error}") from None
    if left or not inflater.eof or inflater.unused_data or at != stop:
        raise ArchiveDamaged(f"byte {at}: a member of {size_bytes} bytes ends {left} bytes too early, or does not end")
