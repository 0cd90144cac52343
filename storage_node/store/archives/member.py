"""Archive member: its name, and where its bytes are.

Names. An archive holds bytes, the wire holds UTF-8. A name that is UTF-8 is taken as it is: `./a.wav`, `../a.wav`,
`/a.wav` and `a//b` are four names like any others, because nothing here ever makes a path of one. Of any other name
each byte that is not part of valid UTF-8 is written as a backslash, an `x` and two small hexadecimal digits (what
Python calls "backslashreplace"): the Latin-1 name b"caf\\xe9.wav" is asked for as the ten characters `caf\\xe9.wav`.
Should that be the name of another member too, the two are duplicates.

Duplicates. The last member of a name is the one that is found and listed, as in `tarfile.getmember` and
`zipfile.getinfo`; a directory, symbolic link or device of that name hides an earlier file. A regular file without a
name cannot be asked for and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Member(NamedTuple):
    """One regular file. A tuple, because listings yield millions of them."""

    name: str
    offset_bytes: int
    """Where its bytes begin: in the uncompressed tar, or in the zip file (there, the packed bytes)."""
    size_bytes: int
    checksum: int
    """CRC-32C of its bytes, unpacked."""
    packed_bytes: int
    """What it takes in the zip file; `size_bytes` in a tar."""
    method: int
    """STORED or DEFLATED."""


STORED, DEFLATED = 0, 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What one archive may ask of a node. Beyond it the answer is ArchiveTooLarge."""

    members: int = 10_000_000
    """Entries of every type, also those that are no members. The indexer holds about 60 bytes for each, and 250 when it
    sorts them at the end."""
    names_bytes: int = 256 << 20
    """All names together, those of hard links' targets included. Five times as much is held at the end."""
    name_bytes: int = 64 << 10
    """One name."""
    header_bytes: int = 8 << 20
    """One extended header (GNU long name, PAX records): held in memory while it is read."""
    directory_bytes: int = 4 << 30
    """Central directory of a zip. It is read in pieces."""
    expansion: int = 200
    """Unpacked bytes for each packed one; speech, images and text stay below 30."""
    free_bytes: int = 64 << 20
    """Unpacked bytes that are allowed whatever the packed size."""
    window_bytes: int = 128 << 20
    """Memory of one zstd decompressor (`zstd --long=27`)."""

    def __post_init__(self) -> None:
        if min(getattr(self, field) for field in self.__slots__) < 1:
            raise ValueError(f"every limit must be positive, got {self}")

    def unpacked_bytes(self, packed_bytes: int) -> int:
        """The most that so many packed bytes may unpack to."""
        return self.free_bytes + self.expansion * packed_bytes


DEFAULT_LIMITS = Limits()


def text_of(name: bytes) -> str:
    """The name by which a member is asked for; see the rule above."""
    return name.decode("utf-8", "backslashreplace")
