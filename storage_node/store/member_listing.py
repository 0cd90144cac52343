"""Paged listing of the members of one archive."""

from __future__ import annotations

from typing import NamedTuple

from storage_node.store.archives.member import Member
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry
from storage_node.store.read.object_reader import open_current
from storage_node.store.store import Store


class MemberPage(NamedTuple):
    version: str
    """Of the archive."""
    members: list[Member]
    """In the order of the archive."""
    next: int
    """Where the next page begins; 0 when this is the last one."""
    hidden: int
    """Regular files of the archive that are no members, because a later entry has their name."""


def list_members(
    store: Store,
    bucket: str,
    name: str,
    prefix: str = "",
    first: int = 0,
    page_size: int = 1000,
    version: str = "",
    page_bytes: int = 1 << 20,
) -> MemberPage:
    """Members whose names begin with `prefix`, `first` of the archive passed over.

    `page_bytes`: of names, after which a page ends, too.
    Makes the index if there is none. Raises ArchiveError, and what `open_object` raises.
    """

    def page(drive: Drive, record: CatalogEntry) -> MemberPage:
        index = drive.shards.open(record, name).archive.index
        found: list[Member] = []
        size_bytes = 0
        for at, member in index.listed(start=first):
            if member.name.startswith(prefix):
                if len(found) == page_size or size_bytes >= page_bytes:
                    return MemberPage(str(record.version), found, at, index.hidden)
                found.append(member)
                size_bytes += len(member.name)
        return MemberPage(str(record.version), found, 0, index.hidden)

    return open_current(store, bucket, name, version, page)
