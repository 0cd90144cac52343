"""Whole shards: whether an archive is all that its writer wrote, as far as the archive itself can tell.

tarfile, on which WebDataset is built, takes a tar that is cut off at or inside a header for one that ends there: an
iteration over it is short and says nothing. Two things are known of a shard in the store that say more. Its index of
members, which the store makes by reading all of it, and refuses to make of one that ends inside a header or a member.
And its last block: a tar ends with blocks of zeros, which one that was cut off between two members has not got.

Source: POSIX.1-2017, pax, "ustar Interchange Format": two blocks of zeros end an archive.
"""

from __future__ import annotations

from contextlib import suppress

from ais_loader import Client, Entry, ObjectInfo, errors
from ais_loader.urls import ARCHIVE_EXTENSIONS

_BLOCK_BYTES = 512


def require_whole(client: Client, info: ObjectInfo, *, timeout_s: float, require_end: bool = True) -> None:
    """Of an archive by its name that the store could index if it is sound; nothing is asked of others.

    Args:
        require_end: of a plain tar, its end of archive. Some writers leave it out.

    Raises ArchiveDamaged, NotAnArchive, and what reading raises.
    """
    if not info.name.lower().endswith(ARCHIVE_EXTENSIONS):
        return
    with suppress(errors.ArchiveUnsupported, errors.ArchiveTooLarge, errors.LibraryMissing):
        try:
            next(client.bucket(info.bucket).members(info.name, page_size=1), None)
        except (errors.ArchiveDamaged, errors.NotAnArchive) as error:
            raise type(error)(f"{_url(info)} is no whole archive, put it again: {error}") from error
    if require_end and info.name.lower().endswith(".tar"):
        _require_end(client, info, timeout_s)


def _require_end(client: Client, info: ObjectInfo, timeout_s: float) -> None:
    start = max(0, info.size_bytes - _BLOCK_BYTES)
    last = Entry(info.bucket, info.name, start=start, length=info.size_bytes - start, version=info.version)
    with client.get_batch([last], timeout_s=timeout_s) as batch:
        [item] = batch
        if any(item.data):
            raise errors.ArchiveDamaged(
                f"{_url(info)} is no whole archive, put it again: it ends without an end of archive, so that it was "
                "cut off between two members, or written by what leaves it out (then say require_end=False)"
            )


def _url(info: ObjectInfo) -> str:
    return f"ais://{info.bucket}/{info.name}"
