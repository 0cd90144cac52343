"""Zip walk: the members of a zip from its central directory, which is at its end, without their local headers.

The directory is parsed as that of a stored zip. The local header of a member is compared with it when the member is
read (`cold_index`).

Pure: `index_directory` raises MissingBytes for what has to be read first, and is called again.
"""

from __future__ import annotations

from array import array

import numpy as np

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge
from storage_node.remote.archives.sparse_source import SparseSource
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import DEFAULT_LIMITS, STORED, ArchiveLimits
from storage_node.store.archives.table import MemberTable
from storage_node.store.archives.zip_directory import find_directory, method_of, read_entries

TAIL_BYTES = 128 << 10
"""Bytes to read from the end first: the longest comment, and the directory of about a thousand members."""


def index_directory(source: SparseSource, limits: ArchiveLimits = DEFAULT_LIMITS) -> MemberIndex:
    """Index a zip by its directory. The offset of a member is that of its local header; its checksum is its CRC-32.

    Raises MissingBytes, and what indexing a stored zip raises: ArchiveDamaged, ArchiveUnsupported, ArchiveTooLarge.
    """
    directory = find_directory(source, limits)
    if directory.entries > limits.members:
        raise ArchiveTooLarge(f"a zip of {directory.entries} entries; at most {limits.members} are served")
    source.pread(directory.size_bytes, directory.at)  # all of it is missing together, and not piece by piece
    allowed, total = limits.unpacked_bytes(source.size_bytes), 0
    table = MemberTable(limits)
    starts, ends = array("Q"), array("Q")
    for entry in read_entries(source, directory):
        if not entry.is_file:
            table.add_other(entry.name.rstrip(b"/"))
            continue
        method = method_of(entry, directory)
        total += entry.size_bytes
        if total > allowed:
            raise ArchiveTooLarge(f"byte {entry.at}: the zip claims to unpack to more than {allowed} bytes; a bomb?")
        if method == STORED and entry.packed_bytes != entry.size_bytes:
            raise ArchiveDamaged(f"byte {entry.at}: a stored member takes another number of bytes than it has")
        starts.append(entry.header_at)
        ends.append(entry.header_at + entry.packed_bytes)
        table.add_file(entry.name, entry.header_at, entry.size_bytes, entry.crc32, entry.packed_bytes, method)
    begins, stops = np.array(starts, np.uint64), np.array(ends, np.uint64)
    by_place = np.argsort(begins)
    if (stops[by_place][:-1] > begins[by_place][1:]).any() or (len(stops) and int(stops.max()) > directory.at):
        raise ArchiveDamaged(f"byte {directory.at}: by its directory, members of the zip overlap")
    return MemberIndex.of(table.finish(), ArchiveKind.ZIP, source.size_bytes)
