r"""Archive member: its name, and the location of its bytes.

Names. An archive holds bytes, the wire holds UTF-8. A name that is UTF-8 is used unchanged: `./a.wav`, `../a.wav`,
`/a.wav` and `a//b` are four ordinary names, because no path is ever made from one. In any other name, each byte that is
not part of valid UTF-8 is written as a backslash, an `x` and two lower-case hexadecimal digits (Python's
"backslashreplace"): the Latin-1 name b"caf\\xe9.wav" is requested as the ten characters `caf\\xe9.wav`. If another
member already has that name, the two are duplicates.

Duplicates. The last member of a name is the one that is found and listed, as in `tarfile.getmember` and
`zipfile.getinfo`. A directory, symbolic link or device of that name hides an earlier file. A regular file without a
name cannot be requested and is omitted.

Unreadable members. A member that is encrypted, packed in an unsupported way, sparse, or the rest of a file of another
volume is listed, but reading it raises ArchiveUnsupported. It does not affect the other members of its archive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ais_loader.errors import ArchiveUnsupported


class Member(NamedTuple):
    """One regular file. It is a tuple because listings yield millions of them."""

    name: str
    offset_bytes: int
    """Offset of its bytes in the uncompressed tar, or of its packed bytes in the zip file."""
    size_bytes: int
    checksum: int
    """CRC-32C of its uncompressed bytes."""
    packed_bytes: int
    """Its size in the zip file; `size_bytes` in a tar."""
    method: int
    """STORED, DEFLATED, or the reason why it cannot be read: one of those below, or another method of a zip."""


STORED, DEFLATED = 0, 8
PATCHED, CONTINUED, SPARSE, ENCRYPTED = 252, 253, 254, 255
"""Reasons, above the methods that zips have."""
READABLE = (STORED, DEFLATED)
_REASONS = {
    PATCHED: "is packed in a way that is not known; store it in a zip with deflate",
    CONTINUED: "is part of a multi-volume archive; join the volumes first",
    SPARSE: "is a sparse file; store it with its holes filled",
    ENCRYPTED: "is encrypted; store the zip without a password",
}


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Maximum resources that one archive may use on a node. Beyond them ArchiveTooLarge is raised."""

    members: int = 10_000_000
    """Entries of every type, including those that are not members. The indexer holds about 60 bytes for each, and 250
    while it sorts them at the end."""
    names_bytes: int = 256 << 20
    """Total length of all names, including the targets of hard links. At the end, five times this is in memory."""
    name_bytes: int = 64 << 10
    """Length of one name."""
    header_bytes: int = 8 << 20
    """Size of one extended header (GNU long name, PAX records), which is held in memory while it is read."""
    directory_bytes: int = 4 << 30
    """Size of a zip's central directory. It is read in pieces."""
    expansion: int = 200
    """Uncompressed bytes per packed byte; speech, images and text stay below 30."""
    free_bytes: int = 64 << 20
    """Uncompressed bytes that are allowed for any packed size."""
    window_bytes: int = 128 << 20
    """Memory of one zstd decompressor (`zstd --long=27`)."""

    def __post_init__(self) -> None:
        if min(getattr(self, field) for field in self.__slots__) < 1:
            raise ValueError(f"every limit must be positive, got {self}")

    def unpacked_bytes(self, packed_bytes: int) -> int:
        """Return the maximum number of bytes that `packed_bytes` may decompress to."""
        return self.free_bytes + self.expansion * packed_bytes


DEFAULT_LIMITS = ArchiveLimits()


def require_readable(member: Member) -> Member:
    """Return the member. Raises ArchiveUnsupported if it is listed only."""
    if member.method in READABLE:
        return member
    reason = _REASONS.get(member.method) or (
        f"is packed by method {member.method}; stored ({STORED}) and deflate ({DEFLATED}) are served"
    )
    raise ArchiveUnsupported(f"has the member {member.name!r}, which {reason}")


def text_of(name: bytes) -> str:
    """Return the name under which a member is requested; see the rule above."""
    return name.decode("utf-8", "backslashreplace")
