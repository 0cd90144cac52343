"""One level of a bucket: what is named right below a folder, without the names that are in the folders there."""

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
    """What begins with `prefix`, as far as the first slash behind that of its last folder, in the order of names:
    objects, and folders by their names, which end with a slash. Lazy, as `Bucket.objects`.

    Of a folder that has more than a page of names a page or two are fetched: the listing goes on behind it. In smaller
    ones the names are passed over, as another request would bring more.
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
