"""Cold index: where the members of a cold archive are, and what their bytes can be compared with.

An index that was built from the whole archive, while it was stored, has the CRC-32C of each member. One of a zip's
directory has the CRC-32 of the zip. One of a tar's headers has nothing of the kind: the bytes are those between the
offsets, of the version that was walked.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import NamedTuple

from ais_loader.errors import ArchiveDamaged, MemberCorrupt
from storage_node.remote.archives.sparse_source import SparseSource
from storage_node.store.archives.archive import Archive
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import STORED, Member, text_of
from storage_node.store.archives.zip_directory import read_local
from storage_node.store.archives.zip_index import unpack

_LOCAL_BYTES = 30 + 512
"""Bytes of a local header that are read beside the name: itself, and its extra fields."""


class IndexSource(IntEnum):
    """Source of an index. The numbers are stored: append only."""

    HEADERS = 1
    """The headers of a tar, without its content."""
    DIRECTORY = 2
    """The directory of a zip; offsets are those of local headers."""
    STORED = 3
    """The whole archive."""


KINDS = (ArchiveKind.TAR, ArchiveKind.ZIP)
"""Archives whose members can be read from a part of the file."""


class ColdIndex(NamedTuple):
    members: MemberIndex
    origin: IndexSource

    def checksum(self, member: Member) -> int:
        """Return the CRC-32C of a member; 0 if it is not known."""
        return member.checksum if self.origin is IndexSource.STORED else 0

    def range_of(self, member: Member, start: int, length: int) -> tuple[int, int]:
        """Return start and stop of the bytes of the archive that `taken` needs for a range of a member."""
        if self._is_plain(member):
            return member.offset_bytes + start, member.offset_bytes + start + length
        stop = member.offset_bytes + member.packed_bytes
        if self.origin is IndexSource.DIRECTORY:
            stop += len(member.name.encode()) + _LOCAL_BYTES
        return member.offset_bytes, min(stop, self.members.content_bytes)

    def taken(self, member: Member, start: int, length: int, data: memoryview) -> bytes | memoryview:
        """Return a range of a member from the bytes at `range_of`. What can be compared is.

        Raises LoaderError if the bytes are not those of the member, or too few: the whole archive decides then.
        """
        is_whole = length == member.size_bytes
        at = self.range_of(member, start, length)[0]
        source = SparseSource(self.members.content_bytes)
        source.add(at, data)
        if self.origin is IndexSource.DIRECTORY:
            return self._unpacked(source, member)[start : start + length]
        if self._is_plain(member) and not (is_whole and self.origin is IndexSource.STORED):
            if len(data) != length:
                raise ArchiveDamaged(f"{member.name!r}: {len(data)} of {length} bytes")
            return data
        return b"".join(Archive(source, self.members).pieces(member))[start : start + length]

    def _is_plain(self, member: Member) -> bool:
        """Whether a member's own bytes are at its offset."""
        return self.origin is not IndexSource.DIRECTORY and member.method == STORED

    @staticmethod
    def _unpacked(source: SparseSource, member: Member) -> bytes:
        """Unpack a member behind its local header, and compare both with the directory."""
        local = read_local(source, member.offset_bytes, repr(member.name))
        if text_of(local.name) != member.name or local.method != member.method or local.is_encrypted:
            raise ArchiveDamaged(f"{member.name!r}: its own header and the zip directory differ")
        sizes = local.crc32, local.packed_bytes, local.size_bytes
        if local.has_sizes and sizes != (member.checksum, member.packed_bytes, member.size_bytes):
            raise ArchiveDamaged(f"{member.name!r}: its own header and the zip directory say different sizes")
        data = b"".join(unpack(source, local.data_at, member.packed_bytes, member.size_bytes, member.method))
        if zlib.crc32(data) != member.checksum:
            raise MemberCorrupt(f"{member.name!r}: its bytes do not match their CRC-32 in the zip")
        return data
