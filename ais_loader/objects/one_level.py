"""One level of a bucket: the objects and folders directly below a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from ais_loader.transport.base import PAGE_SIZE
from ais_loader.values.entry import ObjectInfo

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket


def one_level(
    bucket: Bucket,
    prefix: str = "",
    *,
    page_size: int = PAGE_SIZE,
    on_missing_drive: Literal["raise", "skip"] = "raise",
) -> Iterator[ObjectInfo | str]:
    """List the objects and folders that begin with `prefix`, up to the first slash after its last folder, sorted by
    name. Folders are names that end with a slash. Lazy, like `Bucket.objects`.

    Nothing that is in a folder is listed, but for its first names.
    """
    return bucket.client._transport.level(
        bucket.name, prefix=prefix, page_size=page_size, skip_missing_drives=on_missing_drive == "skip"
    )
