"""Whole shards: checks whether an archive is complete, as far as the archive itself can tell.

tarfile, on which WebDataset is built, treats a tar that is truncated at or inside a header as one that ends there: an
iteration over it is short, without an error. Two properties of a shard in the store reveal more. The first is its index
of members: the store builds it by reading the entire archive, and refuses one that ends inside a header or a member.
The second is its last block: a tar ends with blocks of zeros, which are missing if it was truncated between members.

Source: POSIX.1-2017, pax, "ustar Interchange Format": two blocks of zeros end an archive.
"""

from __future__ import annotations

from contextlib import suppress

from ais_loader import Client, Entry, ObjectInfo, errors
from ais_loader.values.urls import ARCHIVE_EXTENSIONS

_BLOCK_BYTES = 512


def require_whole(client: Client, info: ObjectInfo, *, timeout_s: float, require_end: bool = True) -> None:
    """Check an object that is an archive by its name, and that the store can index if it is valid. Others pass.

    Args:
        require_end: Whether a plain tar must have an end of archive. Some writers leave it out.

    Raises ArchiveDamaged, NotAnArchive, and the errors of reading.
    """
    if not info.name.lower().endswith(ARCHIVE_EXTENSIONS):
        return
    with suppress(errors.ArchiveUnsupported, errors.ArchiveTooLarge, errors.LibraryMissing):
        try:
            next(client.bucket(info.bucket).members(info.name, page_size=1), None)
        except (errors.ArchiveDamaged, errors.NotAnArchive) as error:
            raise type(error)(f"{_url(info)} is not a complete archive, store it again: {error}") from error
    if require_end and info.name.lower().endswith(".tar"):
        _require_end(client, info, timeout_s)


def _require_end(client: Client, info: ObjectInfo, timeout_s: float) -> None:
    start = max(0, info.size_bytes - _BLOCK_BYTES)
    last = Entry(info.bucket, info.name, start=start, length=info.size_bytes - start, version=info.version)
    with client.get_batch([last], timeout_s=timeout_s) as batch:
        [item] = batch
        if any(item.data):
            raise errors.ArchiveDamaged(
                f"{_url(info)} is not a complete archive, store it again: it has no end-of-archive mark, so it "
                "was cut off between two members, or written by a tool that leaves the mark out (then pass "
                "require_end=False)"
            )


def _url(info: ObjectInfo) -> str:
    return f"ais://{info.bucket}/{info.name}"
