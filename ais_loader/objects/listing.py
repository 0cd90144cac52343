"""Listing of objects, fetched page by page as it is iterated. A notebook can show it without advancing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ais_loader.values.entry import ObjectInfo
from ais_loader.values.html import html_of_objects


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
