"""Path expansion: the files that a call of fsspec concerns, and where they are copied.

A path is a pattern only if nothing has that very name, and paths in lists never are. fsspec takes each path with one of
`*?[` for a pattern: `rm("b/a[1].txt")` would remove `a1.txt`.

Interface: https://filesystem-spec.readthedocs.io/en/latest/copying.html
"""

from __future__ import annotations

import datetime
import io
import os
from typing import Any, TypeAlias

from ais_loader import ObjectInfo
from ais_loader.extras import needs
from ais_loader.name_matching import is_pattern

with needs("fsspec", "ais:// in other libraries"):
    from fsspec.utils import other_paths


def is_list(paths: Any) -> bool:
    return not isinstance(paths, str | os.PathLike)


def expanded(files: Any, path: Any, recursive: bool = False, maxdepth: int | None = None) -> dict[str, str]:
    """Return the types of the paths, and with `recursive` of all files and folders below them; "" if not known.

    `files`: their file system. Raises FileNotFoundError if there is none; a path without a pattern is not looked up.
    """
    roots = [files._strip_protocol(one) for one in (path if is_list(path) else [path])]
    if not is_list(path) and is_pattern(roots[0]) and not files.exists(roots[0]):
        roots = files.glob(roots[0], maxdepth=maxdepth)
        if maxdepth is not None:  # the pattern is the first level
            recursive, maxdepth = recursive and maxdepth > 1, maxdepth - 1
    found = dict.fromkeys(roots, "")
    if recursive:
        found = {}
        for root in roots:
            rows = files.find(root, maxdepth=maxdepth, withdirs=True, detail=True)
            found.update((name, row.get("type", "file")) for name, row in rows.items())
            if root not in found and files.exists(root):
                found[root] = ""
    if not found:
        raise FileNotFoundError(path)
    return found


def copy_pairs(
    source: Any, path: Any, target: Any, to: Any, recursive: bool = False, maxdepth: int | None = None
) -> tuple[list[str], list[str]]:
    """Return the files to copy, and the path of each in the file system `target`."""
    if is_list(path) and is_list(to):
        return list(path), list(to)
    types = expanded(source, path, recursive, maxdepth)
    found, is_below = sorted(types), False
    if not is_list(path):
        path = os.fspath(path)
        is_literal = source._strip_protocol(path) in types
        if not recursive and not (found := [one for one in found if not source.isdir(one)]):
            return [], []
        is_below = len(found) == 1
        if is_literal and not is_list(to):
            is_below = not path.endswith("/") and (os.fspath(to).endswith("/") or target.isdir(to))
    targets = other_paths(found, list(to) if is_list(to) else os.fspath(to), exists=is_below, flatten=is_list(path))
    # An object may have the name of a folder.
    pairs = [
        pair for pair in zip(found, targets, strict=True) if types[pair[0]] != "directory" or source.isfile(pair[0])
    ]
    return [one for one, _ in pairs], [one for _, one in pairs]


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
