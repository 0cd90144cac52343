"""Listing rows of objects, names with common beginnings as folders."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from ais_loader import ObjectInfo

Row: TypeAlias = dict[str, Any]


def file_row(info: ObjectInfo) -> Row:
    return {
        "name": f"{info.bucket}/{info.name}",
        "size": info.size_bytes,
        "type": "file",
        "version": info.version,
        "checksum": info.checksum,
        "mtime": datetime.datetime.fromtimestamp(info.modified_ns / 1e9, datetime.UTC),
        "metadata": info.metadata,
    }


def folder_row(path: str) -> Row:
    return {"name": path, "size": 0, "type": "directory"}


def rows_below(infos: Iterable[ObjectInfo], folder: str) -> Iterator[Row]:
    """One row for each object or folder right below; `infos` are all objects below, in the order of their names."""
    seen: set[str] = set()
    for info in infos:
        rest = f"{info.bucket}/{info.name}"[len(folder) + 1 :]
        head, slash, _ = rest.partition("/")
        if not slash:
            yield file_row(info)
        elif head not in seen:
            seen.add(head)
            yield folder_row(f"{folder}/{head}")
