"""Single steps of a repair on a drive that is open for writing: each leaves the drive whole, whatever happens next."""

from __future__ import annotations

import os

from storage_node.store import format as fmt
from storage_node.store.drive import Drive
from storage_node.store.format import Identity, Record
from storage_node.store.survey import object_key, read_checksums, record_of


def adopt_file(drive: Drive, identity: Identity, path: bytes) -> bool:
    """Take a file back into the catalog, in place of an older version; False when its bytes are not what it says.

    Raises OSError, StoreError.
    """
    record = record_of(identity, path)
    size, whole, blocks = read_checksums(drive.files, record)
    if (size, whole) != (record.size_bytes, record.checksum):
        return False
    drive.replace_entry(object_key(identity), record, blocks)
    return True


def restore_blocks(drive: Drive, key: bytes, record: Record) -> bool:
    """Compute the block checksums of an object anew; False when the whole does not match its checksum."""
    size, whole, blocks = read_checksums(drive.files, record)
    if (size, whole) != (record.size_bytes, record.checksum):
        return False
    drive.replace_entry(key, record, blocks)
    return True


def restore_identity(drive: Drive, key: bytes, record: Record) -> bool:
    """Write on an object's file what it is; False where the file system cannot keep it."""
    ended = fmt.ended_of_retained(key) if key.startswith(fmt.RETAINED_PREFIX) else None
    identity = fmt.Identity(
        fmt.bucket_of_key(key), fmt.name_of_key(fmt.object_key_of(key)), record.version, record.generation,
        record.size_bytes, record.checksum, record.modified_ns, record.metadata,
    )  # fmt: skip
    fd = drive.files.open(record.path)
    try:
        drive.files.set_identity(fd, fmt.encode_identity(identity))
    finally:
        os.close(fd)
    drive.files.set_ended(record.path, ended)
    return drive.files.keeps_identity
