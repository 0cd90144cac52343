"""Archive members in a batch: the location of each one's bytes, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ais_loader.errors import (
    ArchiveDamaged,
    ArchiveError,
    ArchiveIndexError,
    ArchiveUnsupported,
    CorruptObject,
    LoaderError,
    MemberNotFound,
    RangeError,
)
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.archives.member import Member
from storage_node.store.archives.open_archives import OpenShard, naming
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry
from storage_node.store.read.frame_plan import check_range


@dataclass(frozen=True, slots=True)
class MemberPart:
    """Member, or a range of one. Holding it keeps the shard's file open."""

    name: str
    """Name of the archive."""
    shard: OpenShard
    member: Member
    start: int
    size_bytes: int
    file_offset: int | None
    """Offset of the bytes in the file `shard.fd`; None if they have to be decompressed."""

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self.member.size_bytes

    def pieces(self, offset: int = 0) -> Iterator[bytes]:
        """Iterate over the decompressed bytes from `offset` of this part on. A whole member is verified with its last
        piece.

        Raises LoaderError, OSError.
        """
        return self._naming(self.shard.archive.pieces(self.member, self.start + offset, self.size_bytes - offset))

    def _naming(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        with naming(self.name, self.member.name):
            yield from pieces

    def checked_pieces(self, offset: int = 0) -> Iterator[bytes]:
        """Iterate like `pieces`, with each piece verified before it is returned.

        Raises FileNotFoundError if the archive has been replaced and its block checksums are gone.
        """
        if self.shard.is_object:
            checked = self.shard.checked()
            return self._naming(checked.pieces(self.member, self.start + offset, self.size_bytes - offset))
        return self._of_verified_copy(offset)

    def _of_verified_copy(self, offset: int) -> Iterator[bytes]:
        with naming(self.name, self.member.name):
            self.shard.archive.verify(self.member)  # a decompressed copy has checksums of whole members only
        yield from self.pieces(offset)


def find_member(drive: Drive, entry: CatalogEntry, name: str, member: str, start: int, length: int) -> MemberPart:
    """Find a member, or a range of it; `length` -1: to the end. Builds the shard's index if there is none.

    Raises FileNotFoundError if the shard's file is gone, OSError, MemberNotFound, RangeError, ArchiveError.
    """
    shard = drive.shards.open(entry, name)
    try:
        found = shard.archive.index.find(member)
    except (MemberNotFound, ArchiveUnsupported) as error:
        raise type(error)(f"{name!r} {error}") from None
    if fault := check_range(start, length, found.size_bytes):
        raise RangeError(f"{name!r}, member {member!r}: {fault}")
    size_bytes = found.size_bytes - start if length < 0 else length
    in_file = shard.archive.file_range(found)
    return MemberPart(name, shard, found, start, size_bytes, None if in_file is None else in_file[0] + start)


def status_of(error: LoaderError) -> int:
    """Return the status of an entry whose member cannot be delivered."""
    if isinstance(error, MemberNotFound):
        return pb.MEMBER_NOT_FOUND
    if isinstance(error, RangeError):
        return pb.RANGE
    if isinstance(error, ArchiveDamaged | ArchiveIndexError | CorruptObject):
        return pb.CORRUPT
    if isinstance(error, ArchiveError):
        return pb.FAILED
    return pb.UNAVAILABLE
