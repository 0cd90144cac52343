"""One level of a bucket: the objects and folders directly below a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from ais_loader.values.entry import ObjectInfo

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket

_PAGE_SIZE = 1000
_LAST = "\U0010ffff"
"""No character sorts after it."""


def one_level(
    bucket: Bucket,
    prefix: str = "",
    *,
    page_size: int = _PAGE_SIZE,
    on_missing_drive: Literal["raise", "skip"] = "raise",
) -> Iterator[ObjectInfo | str]:
    """List the objects and folders that begin with `prefix`, up to the first slash after its last folder, sorted by
    name. Folders are names that end with a slash. Lazy, like `Bucket.objects`.

    For a folder with more than a page of names, a page or two are fetched, and the listing continues behind it. In
    smaller folders, the names are skipped: another request would return more of them.
    """
    top = prefix[: prefix.rfind("/") + 1]
    folder, passed = "", 0
    listing = bucket.objects(prefix, page_size=page_size, on_missing_drive=on_missing_drive)
    while (info := next(listing, None)) is not None:
        head, slash, _ = info.name[len(top) :].partition("/")
        if not slash:
            yield info
            continue
        if (found := f"{top}{head}/") != folder:
            folder, passed = found, 0
            yield folder
        passed += 1
        if passed == page_size:
            listing = bucket.objects(
                prefix, start_after=folder + _LAST, page_size=page_size, on_missing_drive=on_missing_drive
            )
