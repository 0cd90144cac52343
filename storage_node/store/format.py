"""Codec of catalog keys and values, and of the identity stored with each file. Pure; FORMAT.md describes the format."""

from __future__ import annotations

import json
import re
import struct
from typing import NamedTuple

import xxhash

from ais_loader.errors import StoreFormatError
from ais_loader.wire.reserved import ALLOWED, DENIED, REMOTE_ETAG, REMOTE_PENDING

FORMAT_VERSION = 2
BLOCK_BYTES = 256 << 10
"""Objects larger than one block have a checksum for each block, so that a range can be verified without the rest."""
BLOCKS_PER_CHUNK = 1024
"""Number of block checksums in one value: 4 KiB for each 256 MiB of an object."""

OBJECT_PREFIX = b"o"
INTENT_PREFIX = b"i"
GARBAGE_PREFIX = b"g"
BLOCKS_PREFIX = b"b"
RETAINED_PREFIX = b"s"
MARK_PREFIX = b"k"
DELETION_PREFIX = b"d"
PENDING_PREFIX = b"p"
SPARSE_PREFIX = b"c"
USAGE_PREFIX = b"q"
DENIAL_PREFIX = b"x"
COUNTER_KEY = b"m:counter"
"""Key of a number that exceeds every generation issued so far."""
MAX_GENERATION = (1 << 62) - 1
CLOCK_KEY = b"m:clock"
"""Key of a number that exceeds every number that the version clock has issued or heard of."""
FORGOTTEN_KEY = b"m:forgotten"
"""Key of the time of the newest deletion that was dropped from the deletion log."""

_FILES_TOGETHER = 256
_PENDING_MARK, _COPY_MARK, _DENIED_MARK, _ALLOWED_MARK = (
    f'"{key}":"'.encode() for key in (REMOTE_PENDING, REMOTE_ETAG, DENIED, ALLOWED)
)
"""A value cannot contain them: its quotation marks are escaped."""
EVICTED = b"{" + _COPY_MARK + b'"}'
"""Metadata of the deletion of a copy of a remote object that was evicted."""

XATTR_NAME = "user.ais_loader"
ENDED_XATTR_NAME = "user.ais_loader.ended"
MAX_XATTR_BYTES = 1536

_OBJECT_KIND, _TOMBSTONE_KIND, _CODED_KIND = 1, 2, 3
_CODED = b"coded/"
_CODED_PATH = re.compile(rb"coded/[0-9a-f]{32}")
_VALUE = struct.Struct("<BBHIQIQIQQH")
DENIAL_BIT = 1 << 16
"""Bit of an epoch that makes a tombstone a denial. Denying an object takes the next epoch with this bit, allowing it
again the next one without: each outranks all writes that have not seen it, in whatever order they reach a node. The
bits below are the epoch of the store."""
WRITE_ID = slice(1, 17)
"""Part of the write memory that contains the id; see `write_memory`."""
_IDENTITY = struct.Struct("<B16sIQIQQIQHB")
_COUNTER, _COUNTER_AT = struct.Struct("<Q"), 8
_CONTENT, _CONTENT_AT = struct.Struct("<QI"), 20


class Version(NamedTuple):
    """Version of an object, which orders its states on all nodes with replicas of it: an epoch, a number of the version
    clock, and the number of the node that issued it.

    A standalone store uses its record's epoch and node 0. In a cluster the node that coordinates a write issues one
    version for all replicas.
    """

    epoch: int
    counter: int
    node: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}.{self.node}"


class CatalogEntry(NamedTuple):
    """Catalog entry of one object, or of its deletion. A tuple, because batches decode thousands of them."""

    epoch: int
    counter: int
    node: int
    size_bytes: int
    checksum: int
    """CRC-32C of the whole object."""
    modified_ns: int
    offset: int
    """Offset of the object in its file, or in its group."""
    path: bytes
    """Path of the file, relative to the drive's `objects` folder; empty for a tombstone. Names the group of a coded
    object."""
    raw_metadata: bytes
    writes: bytes = b""
    """Write memory: the id of its write, and the outcomes of earlier ones; see `write_memory`."""

    @property
    def version(self) -> Version:
        return Version(self.epoch, self.counter, self.node)

    @property
    def generation(self) -> int:
        """Number of the file on this drive, independent of the version. Raises StoreFormatError if it has no file."""
        return generation_of_path(self.path)

    @property
    def is_tombstone(self) -> bool:
        return not self.path

    @property
    def is_denied(self) -> bool:
        """Whether this is the tombstone of an object that nobody may read or write."""
        return bool(self.epoch & DENIAL_BIT) and not self.path

    @property
    def is_coded(self) -> bool:
        """Whether its bytes are in the fragments of a group, which other nodes have."""
        return self.path.startswith(_CODED)

    @property
    def group(self) -> bytes:
        """UUID of the group of a coded object."""
        return bytes.fromhex(self.path[len(_CODED) :].decode())

    @property
    def has_file(self) -> bool:
        return bool(self.path) and not self.is_coded

    @property
    def metadata(self) -> dict[str, str]:
        return decode_metadata(self.raw_metadata)

    @property
    def write_id(self) -> bytes:
        """Id of the write that created it; empty if that had none."""
        write_id = self.writes[WRITE_ID]
        return write_id if any(write_id) else b""


def object_key(bucket_uuid: bytes, name: str) -> bytes:
    return OBJECT_PREFIX + bucket_uuid + name.encode()


NAME_AT = 17
"""Where the name begins in the key of an object."""


def name_of_key(key: bytes) -> str:
    return key[NAME_AT:].decode()


def bucket_of_key(key: bytes) -> bytes:
    return key[1:17]


def tombstone(version: Version, modified_ns: int, writes: bytes = b"", raw_metadata: bytes = b"") -> CatalogEntry:
    """Create the entry of a deleted object, with which replicas on other nodes are compared."""
    return CatalogEntry(version.epoch, version.counter, version.node, 0, 0, modified_ns, 0, b"", raw_metadata, writes)


def pending_key(key: bytes) -> bytes:
    """Return the key under which the journal of pending uploads names an object, given the object's key."""
    return PENDING_PREFIX + key[1:]


def is_pending(raw_metadata: bytes) -> bool:
    """Whether an object, or its deletion, is still to be uploaded to the remote storage of its bucket."""
    return _PENDING_MARK in raw_metadata


def is_remote_copy(raw_metadata: bytes) -> bool:
    """Whether an object is a copy of a remote one, which can be fetched again."""
    return _COPY_MARK in raw_metadata


def denial_key(key: bytes) -> bytes:
    """Return the key of the row that tells where the bytes of a denied object were, given the object's key."""
    return DENIAL_PREFIX + key[1:]


def is_denying(raw_metadata: bytes) -> bool:
    """Whether a tombstone with this metadata denies its object."""
    return _DENIED_MARK in raw_metadata


def is_allowing(raw_metadata: bytes) -> bool:
    """Whether a tombstone with this metadata ends a denial."""
    return _ALLOWED_MARK in raw_metadata


def epoch_of_deletion(epoch: int, raw_metadata: bytes) -> int:
    """Return the epoch of a tombstone with this metadata above an entry of epoch `epoch`."""
    changes = is_denying(raw_metadata) if not epoch & DENIAL_BIT else is_allowing(raw_metadata)
    return epoch + DENIAL_BIT if changes else epoch


def store_epoch(epoch: int) -> int:
    """Return the part of a version's epoch that is the store's."""
    return epoch & (DENIAL_BIT - 1)


def generation_key(prefix: bytes, generation: int) -> bytes:
    return prefix + generation.to_bytes(8, "big")


def blocks_key(generation: int, chunk: int) -> bytes:
    return BLOCKS_PREFIX + generation.to_bytes(8, "big") + chunk.to_bytes(4, "big")


def retained_prefix(bucket_uuid: bytes, name: str) -> bytes:
    """Return the key prefix of all retained versions of one object. The final NUL, which names cannot contain,
    preserves the order of names."""
    return RETAINED_PREFIX + bucket_uuid + name.encode() + b"\0"


def retained_key(bucket_uuid: bytes, name: str, ended: int) -> bytes:
    """Return the key of a retained version. `ended` is the counter at which it was replaced or deleted."""
    return retained_prefix(bucket_uuid, name) + ended.to_bytes(8, "big")


def object_key_of(key: bytes) -> bytes:
    """Return the key of the current object for an entry's key, or a retained version's."""
    return OBJECT_PREFIX + key[1:-9] if key.startswith(RETAINED_PREFIX) else key


def name_of_retained(key: bytes) -> str:
    return key[17:-9].decode()


def ended_of_retained(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def usage_key(bucket_uuid: bytes, stripe: int | None = None) -> bytes:
    """Return the key of a part of a bucket's count; without a stripe, of the mark that all parts are there."""
    return USAGE_PREFIX + bucket_uuid + (b"" if stripe is None else bytes([stripe]))


def chunk_count(size_bytes: int) -> int:
    """Return the number of values that hold the block checksums of an object of this size; 0 for one block or less."""
    return -(-size_bytes // (BLOCK_BYTES * BLOCKS_PER_CHUNK)) if size_bytes > BLOCK_BYTES else 0


def file_path(bucket_uuid: bytes, name: str, generation: int) -> bytes:
    """Return the path of an object's file: two levels of 64 folders each, then a hash of the identity, and the
    generation. It is never reused, and cannot leave the `objects` folder.

    Files with consecutive generations are in one folder, _FILES_TOGETHER of them: creating a folder takes as long as
    writing half a megabyte, and syncing one for each file would take longer than everything else.
    """
    run = generation // _FILES_TOGETHER
    digest = xxhash.xxh3_128_digest(bucket_uuid + name.encode())
    return b"%02x/%02x/%s.%x" % (run >> 6 & 63, run & 63, digest[2:].hex().encode(), generation)


def coded_path(group: bytes) -> bytes:
    """Return the path in the entry of an object whose bytes are in the group with this UUID."""
    return _CODED + group.hex().encode()


def generation_of_path(path: bytes) -> int:
    """Return the generation at the end of a file's name. Raises StoreFormatError for other names."""
    try:
        generation = int(path.rpartition(b".")[2], 16)
    except ValueError:
        generation = -1
    if not 0 <= generation <= MAX_GENERATION:
        raise StoreFormatError(f"{path!r} is not the name of an object file")
    return generation


def encode_entry(entry: CatalogEntry) -> bytes:
    kind = (_CODED_KIND if entry.is_coded else _OBJECT_KIND) if entry.path else _TOMBSTONE_KIND
    head = _VALUE.pack(FORMAT_VERSION, kind, len(entry.writes), *entry[:7], len(entry.path))
    return head + entry.path + entry.writes + entry.raw_metadata


def encode_place(entry: CatalogEntry) -> bytes:
    """Encode a coded entry for the node that reads its bytes."""
    return encode_entry(entry._replace(raw_metadata=b"", writes=b""))


def decode_entry(value: bytes) -> CatalogEntry:
    """Decode a catalog value. Raises StoreFormatError for one that this version did not write."""
    try:
        fields = _VALUE.unpack_from(value)
    except struct.error as error:
        raise StoreFormatError(f"damaged catalog value of {len(value)} bytes: {error}") from error
    end = _VALUE.size + fields[10]
    metadata_at = end + fields[2]
    kind = _OBJECT_KIND if fields[10] else _TOMBSTONE_KIND
    if fields[1] == _CODED_KIND and _CODED_PATH.fullmatch(value, _VALUE.size, end):
        kind = _CODED_KIND
    if fields[0] != FORMAT_VERSION or fields[1] != kind or len(value) < metadata_at:
        raise StoreFormatError(
            f"catalog value of format {fields[0]}, kind {fields[1]}, {len(value)} bytes; "
            f"this version reads format {FORMAT_VERSION}"
        )
    return CatalogEntry._make((*fields[3:10], value[_VALUE.size : end], value[metadata_at:], value[end:metadata_at]))


def counter_of_value(value: bytes) -> int:
    """Return the version's counter in a catalog value, without decoding it; 0 if the value is too short."""
    found: int = _COUNTER.unpack_from(value, _COUNTER_AT)[0] if len(value) >= _VALUE.size else 0
    return found


def content_of_value(value: bytes) -> tuple[int, int]:
    """Return checksum and size in a catalog value, without decoding it; 0 if the value is too short."""
    size_bytes, checksum = _CONTENT.unpack_from(value, _CONTENT_AT) if len(value) >= _VALUE.size else (0, 0)
    return checksum, size_bytes


def is_tombstone(value: bytes) -> bool:
    """Whether a catalog value is that of a deleted object, without decoding it."""
    return value[1:2] == b"\2"


def has_file(value: bytes) -> bool:
    """Whether a catalog value is that of an object in a file, without decoding it."""
    return value[1:2] == b"\1"


_OBJECT_HEADS = tuple(bytes((FORMAT_VERSION, kind)) for kind in (_OBJECT_KIND, _CODED_KIND))
_TOMBSTONE_HEAD = bytes((FORMAT_VERSION, _TOMBSTONE_KIND))


def is_object(value: bytes) -> bool:
    """Whether a catalog value is that of an object, without decoding it. Raises StoreFormatError for one that is
    neither that of an object nor of a deleted one."""
    head = value[:2]
    if head in _OBJECT_HEADS:
        return True
    if head != _TOMBSTONE_HEAD:
        decode_entry(value)
    return False


def encode_metadata(metadata: dict[str, str]) -> bytes:
    return json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode() if metadata else b""


def decode_metadata(raw: bytes) -> dict[str, str]:
    """Decode metadata. Raises StoreFormatError for anything that encode_metadata did not write."""
    try:
        metadata: dict[str, str] = json.loads(raw) if raw else {}
    except ValueError as error:
        raise StoreFormatError(f"damaged metadata: {error}") from error
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise StoreFormatError("damaged metadata: not a mapping of strings")
    return metadata


class Identity(NamedTuple):
    """Identity stored with a file, so that a lost catalog can be rebuilt from the files."""

    bucket_uuid: bytes
    name: str
    version: Version
    generation: int
    size_bytes: int
    checksum: int
    modified_ns: int
    metadata: dict[str, str] | None
    """None if it did not fit: a rebuilt catalog lacks it, and reports that."""


def identity_of_entry(bucket_uuid: bytes, name: str, entry: CatalogEntry) -> bytes:
    """Encode the identity of an object's file, as `identity_of` does."""
    content = entry.generation, entry.size_bytes, entry.checksum, entry.modified_ns
    return identity_of(bucket_uuid, name, entry.version, *content, entry.raw_metadata)


def identity_of(
    bucket_uuid: bytes,
    name: str,
    version: tuple[int, int, int],
    generation: int,
    size_bytes: int,
    checksum: int,
    modified_ns: int,
    raw_metadata: bytes,
) -> bytes:
    """Encode an identity in at most MAX_XATTR_BYTES, from the fields that a commit has for every object. Metadata that
    does not fit is omitted, which is recorded."""
    raw_name = name.encode()
    fits = _IDENTITY.size + len(raw_name) + len(raw_metadata) <= MAX_XATTR_BYTES
    content = generation, size_bytes, checksum, modified_ns
    head = _IDENTITY.pack(FORMAT_VERSION, bucket_uuid, *version, *content, len(raw_name), fits)
    return head + raw_name + raw_metadata if fits else head + raw_name


def decode_identity(value: bytes) -> Identity:
    """Decode an identity. Raises StoreFormatError for anything that `identity_of` did not write."""
    try:
        format_version, bucket_uuid, epoch, counter, node, *fields = _IDENTITY.unpack_from(value)
        generation, size, checksum, modified, name_bytes, complete = fields
        if format_version != FORMAT_VERSION:
            raise StoreFormatError(f"file identity of format {format_version}; this version reads {FORMAT_VERSION}")
        end = _IDENTITY.size + name_bytes
        if len(value) < end:
            raise StoreFormatError("file identity ends within the name")
        metadata = decode_metadata(value[end:]) if complete else None
        name = value[_IDENTITY.size : end].decode()
        version = Version(epoch, counter, node)
        return Identity(bucket_uuid, name, version, generation, size, checksum, modified, metadata)
    except (struct.error, ValueError) as error:
        raise StoreFormatError(f"damaged file identity of {len(value)} bytes: {error}") from error
