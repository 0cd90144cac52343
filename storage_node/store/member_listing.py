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
    """Version of the archive."""
    members: list[Member]
    """In the order of the archive."""
    next: int
    """Position at which the next page begins; 0 if this is the last one."""
    hidden: int
    """Number of regular files in the archive that are not members, because a later entry has the same name."""


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
    """List members whose names begin with `prefix`, after skipping the first `first` of the archive.

    `page_bytes` is the size of names after which a page ends. Builds the index if there is none. Raises ArchiveError,
    and what `open_object` raises.
    """

    def page(drive: Drive, entry: CatalogEntry) -> MemberPage:
        index = drive.shards.open(entry, name).archive.index
        found: list[Member] = []
        size_bytes = 0
        for at, member in index.listed(start=first):
            if member.name.startswith(prefix):
                if len(found) == page_size or size_bytes >= page_bytes:
                    return MemberPage(str(entry.version), found, at, index.hidden)
                found.append(member)
                size_bytes += len(member.name)
        return MemberPage(str(entry.version), found, 0, index.hidden)

    return open_current(store, bucket, name, version, page)
