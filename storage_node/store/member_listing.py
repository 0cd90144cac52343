"""Paged listing of the members of one archive."""

from __future__ import annotations

import itertools
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


def list_members(
    store: Store, bucket: str, name: str, prefix: str = "", first: int = 0, page_size: int = 1000, version: str = ""
) -> MemberPage:
    """Members whose names begin with `prefix`, `first` of the archive passed over.

    Makes the index if there is none. Raises ArchiveError, and what `open_object` raises.
    """

    def page(drive: Drive, record: CatalogEntry) -> MemberPage:
        index = drive.shards.open(record, name).archive.index
        found: list[Member] = []
        for at, member in enumerate(itertools.islice(index, first, None), first):
            if member.name.startswith(prefix):
                if len(found) == page_size:
                    return MemberPage(str(record.version), found, at)
                found.append(member)
        return MemberPage(str(record.version), found, 0)

    return open_current(store, bucket, name, version, page)
