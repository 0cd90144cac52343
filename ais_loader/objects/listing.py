"""Listing of objects, fetched page by page as it is iterated, and its objects as batch entries. A notebook can show a
listing without advancing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ais_loader.name_matching import Patterns, matcher, pattern_list
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.html import html_of_objects
from ais_loader.values.text_column import TextColumn
from ais_loader.wire.names_block import NamesBlock


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


def table_of_names(blocks: Iterable[NamesBlock], bucket: str, pattern: Patterns | None) -> EntryTable:
    """Return a table of the names that match one of the patterns, or of all."""
    if pattern is None:
        blocks = list(blocks)
        return EntryTable.of_columns(bucket, [block.lengths for block in blocks], [block.names for block in blocks])
    fits = matcher(pattern_list("pattern", pattern))
    chosen = [name for block in blocks for name in block.to_list() if fits(name.decode())]
    return EntryTable(bucket, TextColumn.of(chosen))


def pinned_table(objects: Iterable[ObjectInfo], bucket: str, pattern: Patterns | None) -> EntryTable:
    """Return a table of the objects whose names match one of the patterns, or of all, pinned to their versions.

    Raises InvalidRequest for a cold object without an ETag.
    """
    fits = None if pattern is None else matcher(pattern_list("pattern", pattern))
    names, versions = [], []
    for info in objects:
        if fits is None or fits(info.name):
            info.require_pinnable()
            names.append(info.name.encode())
            versions.append(info.version.encode())
    return EntryTable(bucket, TextColumn.of(names), TextColumn.of(versions))
