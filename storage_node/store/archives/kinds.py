"""Archive detection: the kind of an object by the suffix of its name, confirmed by its first bytes.

The name decides what members mean (`shard.tar/a.wav` is split there); the first bytes decide whether to believe it. A
`.tar` that is really compressed is an error that says so, not something that is quietly decompressed: other tools read
the same object by the same name. A plain tar has no magic in its V7 form, so a `.tar` is doubted only when it begins
like something else.

Source: RFC 1952, 2.3.1; RFC 8878, 3.1; LZ4 frame format 1.6.4; APPNOTE.TXT 6.3.10, 4.3.
"""

from __future__ import annotations

from enum import IntEnum

from ais_loader.errors import ArchiveDamaged, NotAnArchive
from storage_node.store.archives.tar_header import BLOCK_BYTES, parse_header

MAGIC_BYTES = 512
"""What `recognise` wants to see of an object; fewer when it is smaller."""


class ArchiveKind(IntEnum):
    """The numbers are written into member indexes: append only."""

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

_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x02\x21\x4c\x18": "legacy lz4",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7-zip",
    b"Rar!\x1a\x07": "rar",
}
_NAMES = {
    ArchiveKind.TAR: "tar",
    ArchiveKind.TAR_GZ: "gzip",
    ArchiveKind.TAR_ZST: "zstd",
    ArchiveKind.TAR_LZ4: "lz4",
    ArchiveKind.ZIP: "zip",
}


def kind_of_name(name: str) -> ArchiveKind | None:
    """By suffix, in any case of letters; None for an object that is no archive."""
    lowered = name.lower()
    if not lowered.endswith(_ANY_SUFFIX):  # of most objects, each time one is put
        return None
    return next((kind for suffix, kind in SUFFIXES.items() if lowered.endswith(suffix)), None)


def recognise(name: str, head: bytes) -> ArchiveKind:
    """The kind of the object `name` whose first bytes (MAGIC_BYTES, or all there are) are `head`.

    Raises NotAnArchive when the name is none of an archive's, or the bytes are those of something else.
    """
    kind = kind_of_name(name)
    if kind is None:
        raise NotAnArchive(f"{name!r} has no members: its name ends in none of {', '.join(SUFFIXES)}")
    if any(head.startswith(magic) for magic, name in _COMPRESSIONS.items() if name == _NAMES[kind]):
        return kind  # in what a small tar has been compressed to, a header may lie where that of a tar would be
    found = content_of(head)
    if found == _NAMES[kind]:
        return kind
    if kind is ArchiveKind.TAR and (found is None or _is_header(head)):
        return kind
    if kind in (ArchiveKind.TAR_ZST, ArchiveKind.TAR_LZ4) and is_skippable(head[:4]):
        return kind
    if kind is ArchiveKind.ZIP and found is None:
        return kind  # a self-extracting zip begins with a program; its directory is at the end
    said = _NAMES[kind]
    raise NotAnArchive(
        f"{name!r} is {said} by its name, but begins like {found or 'something else'}"
        + (f"; name it {_suffix(found)}, or store it unpacked" if found in _NAMES.values() else "")
    )


def content_of(head: bytes) -> str | None:
    """What an object begins like; None when it cannot be told."""
    if head[257:262] == b"ustar":
        return "tar"
    return next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None)


def is_skippable(magic: bytes) -> bool:
    """Frames that decompressors of zstd and lz4 step over, both by the same numbers."""
    return len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50


def _is_header(head: bytes) -> bool:
    """A member may be called `BZh.wav`."""
    try:
        parse_header(head[:BLOCK_BYTES], 0)
    except ArchiveDamaged:
        return False
    return len(head) >= BLOCK_BYTES


def _suffix(content: str | None) -> str:
    kind = next(kind for kind, name in _NAMES.items() if name == content)
    return next(suffix for suffix, of in SUFFIXES.items() if of is kind)
