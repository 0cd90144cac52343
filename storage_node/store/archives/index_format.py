"""Member index format: the only module that encodes and decodes it. FORMAT.md describes the bytes.

A file is accepted if both checksums match, its parts fill it exactly, and every number in it is in range: rows are
sorted by hash, members lie inside the content, names are contiguous, and the listing is a permutation. All of this is
checked once, when the file is opened, so that a look-up only compares the name.
"""

from __future__ import annotations

import codecs
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ArchiveIndexError
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import STORED
from storage_node.store.archives.table import MemberColumns
from storage_node.store.checksum import crc32c
from storage_node.store.format import Version

MAGIC = b"AISMIDX\n"
FORMAT_VERSION = 2
HEADER_BYTES = 128
_TEXT_BYTES = 1 << 20

_HEADER = struct.Struct("<8sIIIIQQIIQQQQQQQB19xI")
assert _HEADER.size == HEADER_BYTES


class ShardState(NamedTuple):
    """State of the shard that an index was built from. Any other state needs another index."""

    version: Version
    size_bytes: int
    checksum: int


class IndexHead(NamedTuple):
    kind: ArchiveKind
    shard: ShardState
    body_checksum: int
    members: int
    names_bytes: int
    content_bytes: int
    """Size of the address space of members' offsets: the uncompressed tar, or the zip file."""
    seed: int
    hidden: int
    plan_bytes: int
    body_bytes: int
    has_methods: bool = False
    """Whether a tar has members that cannot be read. A zip always has the column of methods."""


class IndexBody(NamedTuple):
    """Views of one buffer; the columns are those of table.Columns."""

    hashes: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    name_at: npt.NDArray[np.uint64]
    checksums: npt.NDArray[np.uint32]
    listing: npt.NDArray[np.uint32]
    packed: npt.NDArray[np.uint64]
    methods: npt.NDArray[np.uint8]
    names: memoryview
    plan: memoryview


def encode_head(head: IndexHead) -> bytes:
    version = head.shard.version
    packed = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        head.kind,
        version.epoch,
        version.node,
        version.counter,
        head.shard.size_bytes,
        head.shard.checksum,
        head.body_checksum,
        head.members,
        head.names_bytes,
        head.content_bytes,
        head.seed,
        head.hidden,
        head.plan_bytes,
        head.body_bytes,
        head.has_methods,
        0,
    )
    return packed[:-4] + crc32c(packed[:-4]).to_bytes(4, "little")


def decode_head(data: bytes) -> IndexHead:
    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        raise ArchiveIndexError(f"not a member index: {len(data)} bytes that begin with {bytes(data[:8])!r}")
    fields = _HEADER.unpack_from(data)
    if crc32c(data[: HEADER_BYTES - 4]) != fields[-1]:
        raise ArchiveIndexError("the member index's header does not match its checksum")
    if fields[1] != FORMAT_VERSION:
        raise ArchiveIndexError(f"a member index of format {fields[1]}; this version reads format {FORMAT_VERSION}")
    if fields[2] not in ArchiveKind.__members__.values():
        raise ArchiveIndexError(f"a member index of an archive of kind {fields[2]}, which this version does not know")
    shard = ShardState(Version(fields[3], fields[5], fields[4]), fields[6], fields[7])
    return IndexHead(ArchiveKind(fields[2]), shard, *fields[8:17])


def encode_body(columns: MemberColumns, kind: ArchiveKind, plan: bytes) -> bytes:
    parts: list[bytes] = []
    little = {"u8": "<u8", "u4": "<u4", "u1": "<u1"}
    fields: list[tuple[npt.NDArray[Any], str]] = [
        (columns.hashes, "u8"),
        (columns.offsets, "u8"),
        (columns.sizes, "u8"),
        (columns.name_at, "u8"),
        (columns.checksums, "u4"),
        (columns.listing, "u4"),
    ]
    if kind is ArchiveKind.ZIP:
        fields.append((columns.packed, "u8"))
    if kind is ArchiveKind.ZIP or columns.methods.any():
        fields.append((columns.methods, "u1"))
    for values, dtype in fields:
        parts.append(_aligned(values.astype(little[dtype], copy=False).tobytes()))
    return b"".join([*parts, _aligned(columns.names), _aligned(plan)])


def decode_body(head: IndexHead, data: memoryview) -> IndexBody:
    """Decode the bytes after the header. Raises ArchiveIndexError for anything that `encode_body` would not write."""
    n = head.members
    is_zip = head.kind is ArchiveKind.ZIP
    lengths = [8 * n, 8 * n, 8 * n, 8 * (n + 1), 4 * n, 4 * n]
    has_methods = is_zip or head.has_methods
    lengths += [8 * n if is_zip else 0, n if has_methods else 0]
    lengths += [head.names_bytes, head.plan_bytes]
    if sum(map(_align, lengths)) != head.body_bytes or len(data) != head.body_bytes:
        raise ArchiveIndexError(
            f"a member index of {len(data)} bytes after its header, which announces {head.body_bytes} for {n} members"
        )
    if crc32c(data) != head.body_checksum:
        raise ArchiveIndexError("the member index does not match its checksum")
    views, at = [], 0
    for length in lengths:
        views.append(data[at : at + length])
        at += _align(length)
    sizes = np.frombuffer(views[2], "<u8")
    body = IndexBody(
        hashes=np.frombuffer(views[0], "<u8"),
        offsets=np.frombuffer(views[1], "<u8"),
        sizes=sizes,
        name_at=np.frombuffer(views[3], "<u8"),
        checksums=np.frombuffer(views[4], "<u4"),
        listing=np.frombuffer(views[5], "<u4"),
        packed=np.frombuffer(views[6], "<u8") if is_zip else sizes,
        methods=np.frombuffer(views[7], "u1") if has_methods else np.broadcast_to(np.uint8(STORED), (n,)),
        names=views[8],
        plan=views[9],
    )
    _check(head, body)
    return body


def _check(head: IndexHead, body: IndexBody) -> None:
    n, content = head.members, np.uint64(head.content_bytes)
    listed = np.zeros(n, np.bool_)
    if n and bool((body.listing < n).all()):
        listed[body.listing] = True
    stored = body.methods == STORED
    lies = {
        "rows are not sorted by hash": (body.hashes[1:] < body.hashes[:-1]).any(),
        "a member begins after the end": (body.offsets > content).any(),
        # Not offset + size, which could overflow.
        "a member ends after the end": n and (body.packed > content - np.minimum(body.offsets, content)).any(),
        "names overlap or leave gaps": body.name_at[0] != 0
        or body.name_at[-1] != head.names_bytes
        or (body.name_at[1:] < body.name_at[:-1]).any(),
        "a name is no text": not _is_text(body),
        "the listing does not list every member once": not listed.all(),
        "a stored member's sizes differ": (body.packed[stored] != body.sizes[stored]).any(),
    }
    for lie, found in lies.items():
        if found:
            raise ArchiveIndexError(f"a member index with matching checksums, but {lie}")


def _is_text(body: IndexBody) -> bool:
    """Whether all names are UTF-8 and none begins within a character. Decoded in pieces: they may take a GiB."""
    octets = np.frombuffer(body.names, "u1")
    begins = body.name_at[:-1][body.name_at[:-1] < body.name_at[1:]]
    if len(begins) and int(begins.max()) < len(octets) and (octets[begins] & 0xC0 == 0x80).any():
        return False
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(octets), _TEXT_BYTES):
            decoder.decode(body.names[at : at + _TEXT_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _align(length: int) -> int:
    return -(-length // 8) * 8


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
