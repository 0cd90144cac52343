"""Listing rows of objects, with common beginnings of names as folders."""

from __future__ import annotations

import datetime
import io
from typing import Any, TypeAlias

from ais_loader import ObjectInfo

Row: TypeAlias = dict[str, Any]


def split(path: str) -> tuple[str, str]:
    """Return bucket and name. Either may be empty."""
    bucket, _, name = path.partition("/")
    return bucket, name


def no_writing(path: str, mode: str) -> Exception:
    return io.UnsupportedOperation(f"{path}: mode {mode!r}: objects are read, or written whole: 'rb', 'wb' or 'xb'")


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


def level_row(bucket: str, one: ObjectInfo | str) -> Row:
    """Return the row of an object, or of a folder, whose name in the bucket ends with a slash."""
    return file_row(one) if isinstance(one, ObjectInfo) else folder_row(f"{bucket}/{one[:-1]}")
