"""Pinned reads: an object in one version and no other, through the calls that read the current one.

A version that has been replaced or deleted raises ObjectNotFound: other bytes are never delivered in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ais_loader.errors import ItemTooLarge, MemberNotFound, ObjectNotFound
from ais_loader.objects.opened_batch import opened_batch
from ais_loader.transport.base import OpenedObject, Transport
from ais_loader.values.entry import Entry, MemberInfo, ObjectInfo
from ais_loader.values.requests import BatchOptions
from ais_loader.wire.object_info import has_version

WHOLE_BYTES = 128 << 10
"""Largest object that comes with the answer to opening it. The beginning of a larger one would be in the way: the rest
is read in whole blocks, from files, and readers of tables begin at the end."""
_PART_BYTES = 64 << 20
"""Part size for an object that is too large for one batch entry."""
_MEMBER_PAGE = 100
"""Page size of a member listing that looks for a single member."""


def pinned_head(transport: Transport, bucket: str, name: str, version: str | None) -> ObjectInfo:
    """Return the object's info if it has this version (None: any). Raises ObjectNotFound, BucketNotFound."""
    info = transport.head(bucket, name)
    if version is not None and not has_version(info, version):
        raise _replaced(bucket, name, version, info.version)
    return info


def opened(
    transport: Transport,
    bucket: str,
    name: str,
    version: str | None,
    timeout_s: float,
    whole_up_to_bytes: int = WHOLE_BYTES,
) -> OpenedObject:
    """Return the object, to be read as a file, if it has this version (None: any). Raises as `pinned_head`.

    `whole_up_to_bytes`: an object of at most this size comes with its bytes.
    """
    found = transport.open_object(bucket, name, whole_up_to=whole_up_to_bytes, timeout_s=timeout_s)
    if version is not None and not has_version(found.info, version):
        raise _replaced(bucket, name, version, found.info.version)
    return found


def opened_member(
    transport: Transport, bucket: str, name: str, member: str, version: str | None, timeout_s: float
) -> OpenedObject:
    """Return a member, to be read as a file, if its archive has this version (None: any). Raises as `pinned_head` and
    `pinned_member`."""
    found = transport.open_member(bucket, name, member, whole_up_to=WHOLE_BYTES, timeout_s=timeout_s)
    if found is None:
        return OpenedObject(pinned_member(transport, pinned_head(transport, bucket, name, version), member))
    if version is not None and not has_version(found.info, version):
        raise _replaced(bucket, name, version, found.info.version)
    return found


def pinned_bytes(transport: Transport, entry: Entry, *, verify: bool, timeout_s: float) -> bytes:
    """Return the bytes of an entry with a version. Raises the errors of a batch."""
    options = BatchOptions(timeout_s=timeout_s, verify_ranges=verify)
    try:
        [item] = opened_batch(transport, [entry], options=options)
        return item.tobytes()
    except ItemTooLarge:
        if entry.member is not None:
            raise
    info = pinned_head(transport, entry.bucket, entry.name, entry.version)
    length = info.size_bytes - entry.start if entry.length is None else entry.length
    whole = entry.start == 0 and length == info.size_bytes
    stop = entry.start + length
    parts = [
        replace(entry, start=start, length=min(_PART_BYTES, stop - start))
        for start in range(entry.start, stop, _PART_BYTES)
    ]
    # A whole object is always verified, and so are parts of one version that form a whole object.
    options = replace(options, verify_ranges=verify or whole)
    return b"".join(item.data for item in opened_batch(transport, parts, options=options))


def pinned_members(
    transport: Transport, bucket: str, name: str, prefix: str, page_size: int, version: str
) -> Iterator[MemberInfo]:
    """Yield the members of the archive in this version. Raises ObjectNotFound, and the errors of listing members."""
    versions = {version, pinned_head(transport, bucket, name, version).version}
    listed = False
    for member in transport.list_members(bucket, name, prefix=prefix, page_size=page_size):
        if member.version not in versions:  # a remote object has another one once it is stored
            versions.add(pinned_head(transport, bucket, name, version).version)
        if member.version not in versions:
            raise _replaced(bucket, name, version, member.version)
        listed = True
        yield member
    if not listed:
        pinned_head(transport, bucket, name, version)  # another version may have no such members


def pinned_member(transport: Transport, archive: ObjectInfo, member: str) -> ObjectInfo:
    """Return the archive's info with size and checksum of one of its members. Raises MemberNotFound, and like
    `pinned_members`."""
    bucket, name, version = archive.bucket, archive.name, archive.version
    for found in pinned_members(transport, bucket, name, member, _MEMBER_PAGE, version):
        if found.name == member:
            return replace(archive, size_bytes=found.size_bytes, checksum=found.checksum)
    raise MemberNotFound(f"{bucket}/{name}: no member {member!r}")


def _replaced(bucket: str, name: str, version: str, newest: str) -> ObjectNotFound:
    return ObjectNotFound(f"{bucket}/{name}: version {version} is gone, the store has {newest}")
