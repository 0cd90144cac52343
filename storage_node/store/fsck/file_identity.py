"""File identities: what object files record about themselves, for comparing them with a catalog or rebuilding one."""

from __future__ import annotations

import errno
import os

from ais_loader.errors import StoreFormatError
from ais_loader.wire.closing import closing_fd
from storage_node.store import format as fmt
from storage_node.store.checksum import crc32c
from storage_node.store.files.object_files import RawFiles, read_fully
from storage_node.store.files.segment_format import is_slot
from storage_node.store.format import BLOCK_BYTES, CatalogEntry, Identity


def keeps_identity(files: RawFiles) -> bool:
    """Whether the file system stores extended attributes. Checks without writing."""
    try:
        os.getxattr(files.objects_fd, fmt.XATTR_NAME)
    except OSError as error:
        return error.errno == errno.ENODATA
    return True


def read_identity(files: RawFiles, path: bytes) -> Identity | None:
    """Return a file's identity; None if it has none, or one that is unreadable or contradicts the file's name.

    Raises OSError.
    """
    raw = files.identity(path)
    if raw is None:
        return None
    try:
        identity = fmt.decode_identity(raw)
    except StoreFormatError:
        return None
    if is_slot(path):
        return identity if fmt.generation_of_path(path) == identity.generation else None
    expected = fmt.file_path(identity.bucket_uuid, identity.name, identity.generation)
    return identity if expected == path else None


def object_key(identity: Identity) -> bytes:
    return fmt.object_key(identity.bucket_uuid, identity.name)


def record_of(files: RawFiles, identity: Identity, path: bytes) -> CatalogEntry:
    """Return the catalog entry for a file's identity, without metadata if the identity had no room for it. Raises
    OSError."""
    version = identity.version
    return CatalogEntry(
        version.epoch,
        version.counter,
        version.node,
        identity.size_bytes,
        identity.checksum,
        identity.modified_ns,
        files.offset(path),
        path,
        fmt.encode_metadata(identity.metadata or {}),
    )


def read_checksums(files: RawFiles, entry: CatalogEntry) -> tuple[int, int, list[int]]:
    """Return the size of an object's file, the CRC-32C of its bytes, and those of its blocks (empty for at most one
    block).

    A file of another size than the object's is not read: its checksums are 0 and []. Raises OSError.
    """
    whole, blocks = 0, []
    with closing_fd(files.open(entry.path)) as fd:
        size = _bytes_in(fd, entry)
        if size != entry.size_bytes:
            return size, 0, []
        for offset in range(0, entry.size_bytes, BLOCK_BYTES):
            wanted = min(BLOCK_BYTES, entry.size_bytes - offset)
            block = read_fully(fd, wanted, entry.offset + offset)
            if len(block) < wanted:
                return offset + len(block), 0, []  # truncated meanwhile
            blocks.append(crc32c(block))
            whole = crc32c(block, whole)
    return size, whole, blocks if entry.size_bytes > BLOCK_BYTES else []


def compare(files: RawFiles, entry: CatalogEntry, *, read: bool) -> tuple[tuple[str, str] | None, list[int]]:
    """Compare an object's file with its entry. Returns the kind and message of a finding, or None, and the checksums of
    its blocks. What is not `read` has only its size compared, and no checksums."""
    try:
        if read:
            size, whole, blocks = read_checksums(files, entry)
        else:
            size, whole, blocks = stored_bytes(files, entry), entry.checksum, []
    except OSError as error:
        return unreadable(error), []
    if size != entry.size_bytes:
        return ("wrong-size", f"the file has {size:,} bytes, the object {entry.size_bytes:,}"), []
    if whole != entry.checksum:
        return ("corrupt", "the bytes do not match the checksum"), []
    return None, blocks


def unreadable(error: OSError) -> tuple[str, str]:
    """Return the kind and message of the finding for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "missing-file", "the file is gone"
    return "unreadable", f"{error.strerror} (errno {error.errno})"


def stored_bytes(files: RawFiles, entry: CatalogEntry) -> int:
    """Return the number of an object's bytes that exist. Raises OSError, FileNotFoundError if they are gone."""
    if entry.offset and not files.exists(entry.path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    with closing_fd(files.open(entry.path)) as fd:
        return _bytes_in(fd, entry)


def _bytes_in(fd: int, entry: CatalogEntry) -> int:
    file_bytes = os.fstat(fd).st_size
    # In a segment, other objects follow.
    return max(0, min(file_bytes - entry.offset, entry.size_bytes)) if entry.offset else file_bytes
