"""Listing of one level: the objects directly below a folder, and its subfolders in place of what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.names_block import after_folder

LevelItem: TypeAlias = ObjectInfo | str
"""An object, or the name of a folder up to its slash, which no object has."""


def name_of_item(item: LevelItem) -> str:
    return item if isinstance(item, str) else item.name


def folder_of(name: str, prefix: str) -> str | None:
    """Return the folder that contains a name one level below the last folder of the prefix; None if the name is on that
    level itself."""
    slash = name.find("/", prefix.rfind("/") + 1)
    return None if slash < 0 else name[: slash + 1]


def items_of(objects: Iterable[ObjectInfo], folders: Sequence[str], prefix: str) -> list[LevelItem]:
    """Return the items of a page, in the order of names. The objects may be below the level, too."""
    found: dict[str, LevelItem] = dict(zip(folders, folders, strict=True))
    for info in objects:
        folder = folder_of(info.name, prefix)
        if folder is None:
            found[info.name] = info
        else:
            found[folder] = folder
    return [found[name] for name in sorted(found)]


def level_of_objects(listed: Callable[[str], Iterator[ObjectInfo]], prefix: str, most: int) -> Iterator[LevelItem]:
    """Yield one level of a listing that has all objects.

    `listed`: begins the listing after a name. It begins anew behind a folder with `most` names, a page of it. In
    smaller folders, the names are skipped: another request would return more of them.
    """
    last, passed = "", 0
    listing = listed("")
    while (info := next(listing, None)) is not None:
        folder = folder_of(info.name, prefix)
        if folder is None:
            yield info
            continue
        if folder != last:
            last, passed = folder, 0
            yield folder
        passed += 1
        if passed == most:
            listing = listed(after_folder(folder))
