"""Append position of a plain tar: after its last member, before its end-of-archive blocks.

Reads the headers and skips the content. Writers differ in what follows the last member: nothing, one or two blocks of
zeros, or zeros up to a record of 10 KiB. Anything but zeros would be overwritten, so such a tar is rejected.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge, ArchiveUnsupported
from storage_node.store.archives.kinds import MAGIC_BYTES, ArchiveKind, recognise
from storage_node.store.archives.member import DEFAULT_LIMITS, ArchiveLimits
from storage_node.store.archives.source import ByteSource, chunks_of, read_exactly
from storage_node.store.archives.tar_header import (
    BLOCK_BYTES,
    CONTINUED_FILE,
    GNU_LONG_LINK,
    GNU_LONG_NAME,
    NO_CONTENT,
    PAX_GLOBAL,
    PAX_LOCAL,
    SPARSE_FILE,
    ZERO_BLOCK,
    padded,
    parse_header,
    parse_pax,
    parse_pax_size,
)

_OF_MEMBERS = (b"path", b"linkpath", b"size")


class TarEnd(NamedTuple):
    at: int
    """Offset of the first byte after the last member and its padding."""
    found: list[bytes]
    """The requested names that the tar contains, in its order; directories without their trailing slash."""


def find_end(
    source: ByteSource, name: str, wanted: Collection[bytes] = (), limits: ArchiveLimits = DEFAULT_LIMITS
) -> TarEnd:
    """Find the append position of the tar `name`; it is 0 for an empty one.

    Raises ArchiveUnsupported for a compressed tar, a zip, or a tar to which members cannot be added; NotAnArchive,
    ArchiveDamaged, ArchiveTooLarge.
    """
    size = source.size_bytes
    if recognise(name, source.pread(MAGIC_BYTES, 0)) is not ArchiveKind.TAR:
        raise ArchiveUnsupported(f"{name!r} is compressed: members can be added to plain tars (.tar) alone")
    at = 0
    found: list[bytes] = []
    local: dict[bytes, bytes] = {}
    long_name: bytes | None = None
    promised = False
    while at < size:
        block = source.pread(BLOCK_BYTES, at)
        if block == ZERO_BLOCK[: len(block)]:
            break
        header = parse_header(read_exactly(source, BLOCK_BYTES, at), at)
        if header.type in (SPARSE_FILE, CONTINUED_FILE):
            raise ArchiveUnsupported(f"byte {at}: {header.name!r} is sparse, or part of a volume; nothing can be added")
        content_at = at + BLOCK_BYTES
        is_pax = header.type == PAX_GLOBAL or header.type in PAX_LOCAL
        if is_pax or header.type in (GNU_LONG_NAME, GNU_LONG_LINK):
            if header.size_bytes > limits.header_bytes:
                raise ArchiveTooLarge(f"byte {at}: an extended header of {header.size_bytes} bytes")
            data = read_exactly(source, header.size_bytes, content_at)
            if header.type == GNU_LONG_NAME:
                long_name = data.partition(b"\0")[0]
            elif header.type in PAX_LOCAL:
                local |= {key: value for key, value in parse_pax(data, content_at) if key in _OF_MEMBERS}
            elif header.type == PAX_GLOBAL and any(key in _OF_MEMBERS for key, _ in parse_pax(data, content_at)):
                raise ArchiveUnsupported(f"byte {at}: a global header that names members; nothing can be added")
            promised = promised or header.type != PAX_GLOBAL
            at = content_at + padded(header.size_bytes)
            continue
        length = header.size_bytes
        if header.type not in NO_CONTENT and local.get(b"size"):
            length = parse_pax_size(local[b"size"], at)
        member = (local.get(b"path", b"").rstrip(b"/") or long_name or header.name).rstrip(b"/")
        if member in wanted:
            found.append(member)
        at = content_at + padded(length)
        local, long_name, promised = {}, None, False
    if at > size or promised:
        raise ArchiveDamaged(f"byte {size}: the tar ends within a member, a header or padding")
    for chunk in chunks_of(source, at):
        if chunk.count(0) != len(chunk):
            raise ArchiveUnsupported(
                f"byte {at}: after its end of archive there is more than zeros (two tars joined?), which would be lost"
            )
    return TarEnd(at, found)
