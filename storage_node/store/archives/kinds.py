"""Archive detection: the kind of an object by the suffix of its name, confirmed by its first bytes.

The name decides whether an object has members (`shard.tar/a.wav` is split there); the first bytes confirm it. A `.tar`
that is really compressed is an error that says so. It is not silently decompressed, because other tools read the same
object under the same name. A plain V7 tar has no magic number, so a `.tar` is rejected only if it begins like another
format.
"""

from __future__ import annotations

from enum import IntEnum

from ais_loader.errors import ArchiveDamaged, NotAnArchive
from ais_loader.file_formats import HEAD_BYTES, format_of
from storage_node.store.archives.tar_header import BLOCK_BYTES, parse_header

MAGIC_BYTES = HEAD_BYTES
"""Number of leading bytes that `recognise` needs; fewer if the object is smaller."""


class ArchiveKind(IntEnum):
    """Archive kinds. The numbers are stored in member indexes: append only."""

    TAR = 1
    TAR_GZ = 2
    TAR_ZST = 3
    TAR_LZ4 = 4
    ZIP = 5

    @property
    def is_compressed_tar(self) -> bool:
        return self in (ArchiveKind.TAR_GZ, ArchiveKind.TAR_ZST, ArchiveKind.TAR_LZ4)


SUFFIXES = {
    ".tar": ArchiveKind.TAR,
    ".tar.gz": ArchiveKind.TAR_GZ,
    ".tgz": ArchiveKind.TAR_GZ,
    ".tar.zst": ArchiveKind.TAR_ZST,
    ".tzst": ArchiveKind.TAR_ZST,
    ".tar.lz4": ArchiveKind.TAR_LZ4,
    ".tlz4": ArchiveKind.TAR_LZ4,
    ".zip": ArchiveKind.ZIP,
}

_ANY_SUFFIX = tuple(SUFFIXES)

_NAMES = {
    ArchiveKind.TAR: "tar",
    ArchiveKind.TAR_GZ: "gzip",
    ArchiveKind.TAR_ZST: "zstd",
    ArchiveKind.TAR_LZ4: "lz4",
    ArchiveKind.ZIP: "zip",
}


def kind_of_name(name: str) -> ArchiveKind | None:
    """Return the kind by suffix, ignoring case, or None if the object is not an archive."""
    lowered = name.lower()
    if not lowered.endswith(_ANY_SUFFIX):  # fast path: called for every put
        return None
    return next((kind for suffix, kind in SUFFIXES.items() if lowered.endswith(suffix)), None)


def require_archive(name: str) -> ArchiveKind:
    """Return the kind by suffix. Raises NotAnArchive if the name is not an archive's."""
    kind = kind_of_name(name)
    if kind is None:
        raise NotAnArchive(f"{name!r} has no members: its name ends in none of {', '.join(SUFFIXES)}")
    return kind


def recognise(name: str, head: bytes) -> ArchiveKind:
    """Return the kind of the object `name` whose first bytes (MAGIC_BYTES, or all there are) are `head`.

    Raises NotAnArchive if the name is not an archive's, or if the bytes are of another format.
    """
    kind = require_archive(name)
    found = format_of(head)
    if found == _NAMES[kind]:
        return kind
    if kind is ArchiveKind.TAR and (found is None or _is_header(head)):
        return kind
    if kind in (ArchiveKind.TAR_ZST, ArchiveKind.TAR_LZ4) and is_skippable(head[:4]):
        return kind
    if kind is ArchiveKind.ZIP and found not in _NAMES.values():
        return kind  # a self-extracting zip begins with a program
    expected = _NAMES[kind]
    raise NotAnArchive(
        f"{name!r} is {expected} by its name, but begins like {found or 'something else'}"
        + (f"; name it {_suffix(found)}, or store it unpacked" if found in _NAMES.values() else "")
    )


def is_skippable(magic: bytes) -> bool:
    """Whether it is the magic number of a skippable frame; zstd and lz4 use the same numbers."""
    return len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50


def _is_header(head: bytes) -> bool:
    """Whether the bytes are a tar header. A member may be called `BZh.wav`."""
    try:
        parse_header(head[:BLOCK_BYTES], 0)
    except ArchiveDamaged:
        return False
    return len(head) >= BLOCK_BYTES


def _suffix(content: str | None) -> str:
    kind = next(kind for kind, name in _NAMES.items() if name == content)
    return next(suffix for suffix, of in SUFFIXES.items() if of is kind)
