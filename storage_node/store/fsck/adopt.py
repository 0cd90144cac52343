"""Repair steps on a drive that is open for writing. Each step leaves the drive consistent."""

from __future__ import annotations

from storage_node.store import format as fmt
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry, Identity
from storage_node.store.fsck.file_identity import object_key, read_checksums, record_of


def adopt_file(drive: Drive, identity: Identity, path: bytes) -> bool:
    """Add a file to the catalog, in place of an older version; False if its bytes do not match its identity.

    Raises OSError, LoaderError.
    """
    entry = record_of(drive.files, identity, path)
    size, whole, blocks = read_checksums(drive.files, entry)
    if (size, whole) != (entry.size_bytes, entry.checksum):
        return False
    drive.changes.replace_entry(object_key(identity), entry, blocks)
    return True


def restore_blocks(drive: Drive, key: bytes, entry: CatalogEntry) -> bool:
    """Recompute the block checksums of an object; False if the whole does not match its checksum."""
    size, whole, blocks = read_checksums(drive.files, entry)
    if (size, whole) != (entry.size_bytes, entry.checksum):
        return False
    drive.changes.replace_entry(key, entry, blocks)
    return True


def restore_identity(drive: Drive, key: bytes, entry: CatalogEntry) -> bool:
    """Write an object's identity to its file; False if the file system cannot store it.

    An object in a segment with a damaged index is moved to a file of its own if its bytes match their checksum. Raises
    OSError, LoaderError.
    """
    ended = fmt.ended_of_retained(key) if key.startswith(fmt.RETAINED_PREFIX) else None
    is_written = drive.files.own(entry.path, fmt.encode_identity(_identity_of(key, entry)))
    if not is_written and entry.offset:
        moved = _own_file(drive, key, entry)
        is_written, entry = moved is not None, moved or entry
    if is_written:
        drive.files.set_ended(entry.path, ended)
    return is_written


def _own_file(drive: Drive, key: bytes, entry: CatalogEntry) -> CatalogEntry | None:
    """Copy an object out of its segment. Returns its new entry, or None if its bytes do not match their checksum."""
    generation = drive.generations.take()
    name = fmt.name_of_key(fmt.object_key_of(key))
    own = entry._replace(offset=0, path=fmt.file_path(fmt.bucket_of_key(key), name, generation))
    staged = drive.stage()
    try:
        for part in drive.files.read(entry):
            staged.write(part)
        if (staged.size_bytes, staged.checksum) != (entry.size_bytes, entry.checksum):
            return None
        drive.files.set_identity(staged.fd, fmt.encode_identity(_identity_of(key, own)))
        staged.sync()
        drive.files.make_lasting_folders([own.path])
        drive.files.publish(staged, own.path)
        drive.files.sync_names([own.path])
    finally:
        staged.discard()
    drive.changes.replace_entry(key, own)
    return own


def _identity_of(key: bytes, entry: CatalogEntry) -> Identity:
    return Identity(
        fmt.bucket_of_key(key),
        fmt.name_of_key(fmt.object_key_of(key)),
        entry.version,
        entry.generation,
        entry.size_bytes,
        entry.checksum,
        entry.modified_ns,
        entry.metadata,
    )
