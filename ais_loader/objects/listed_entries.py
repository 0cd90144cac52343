"""Entries of a listing: the objects of a bucket as batch entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ais_loader.name_matching import Patterns, matcher, pattern_list
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.entry_table import EntryTable


def listed_entries(
    objects: Iterable[ObjectInfo], bucket: str, *, pattern: Patterns | None, pinned: bool
) -> Sequence[Entry]:
    """See `Bucket.entries`."""
    if pattern is not None:
        fits = matcher(pattern_list("pattern", pattern))
        objects = (info for info in objects if fits(info.name))
    if pinned:
        return [info.entry(pinned=True) for info in objects]
    return EntryTable(bucket, [info.name.encode() for info in objects])
