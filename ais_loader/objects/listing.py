"""Listing of objects, fetched page by page as it is iterated, and its objects as batch entries. A notebook can show a
listing without advancing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ais_loader.name_matching import Patterns, matcher, pattern_list
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.html import html_of_objects
from ais_loader.values.text_column import TextColumn


class Listing(Iterator[ObjectInfo]):
    """Result of `Bucket.objects`."""

    def __init__(self, title: str, listed: Callable[[], Iterator[ObjectInfo]]) -> None:
        """`listed` starts the listing from its beginning."""
        self._title, self._listed = title, listed
        self._objects = listed()

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self._objects

    def __next__(self) -> ObjectInfo:
        return next(self._objects)

    def __repr__(self) -> str:
        return f"<Listing of {self._title}>"

    def _repr_html_(self) -> str:
        return html_of_objects(self._title, self._listed())


def listed_entries(objects: Iterable[ObjectInfo], bucket: str, *, pattern: Patterns | None, pinned: bool) -> EntryTable:
    """See `Bucket.entries`."""
    if pattern is not None:
        fits = matcher(pattern_list("pattern", pattern))
        objects = (info for info in objects if fits(info.name))
    if pinned:
        names, versions = [], []
        for info in objects:
            info.require_pinnable()
            names.append(info.name.encode())
            versions.append(info.version.encode())
        return EntryTable(bucket, TextColumn.of(names), TextColumn.of(versions))
    return EntryTable(bucket, TextColumn.of([info.name.encode() for info in objects]))
