"""Growing file: a small file that is replaced whole, or extended by a line that says what has changed.

Writing a value of many parts whole costs as much as the value is large, although one part changes at a time. So the
change is appended, until all changes are as long as the value was, and then the value is written whole again. On
average, that costs three times the length of the change. LevelDB's manifest works in the same way.

A line is complete with its newline. What a crash leaves of the last one was never acknowledged, and `whole_lines`
ignores it. A line is appended only to a file that is as this process has left it: the first write of a process, one
after an error, and one after somebody else has replaced the file are whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ais_loader.wire.closing import closing_fd
from storage_node.store.permissions import private

T = TypeVar("T")
_ROOM_BYTES = 4096
"""Changes of a small value may be longer than it: a page is written in either case."""


class GrowingFile(Generic[T]):
    """File with a value, for one writer at a time.

    Args:
        encode: returns a value as a line, or what has changed since the value given second.
        failpoint: called before a write is complete.
    """

    def __init__(self, encode: Callable[[T, T | None], bytes], failpoint: Callable[[], None] = lambda: None) -> None:
        self._encode = encode
        self._failpoint = failpoint
        self._left: tuple[T, tuple[int, int, int]] | None = None
        """The value in the file, and the file as this object has left it; None if that is not known."""
        self._most_bytes = 0

    def write(self, path: Path, value: T) -> None:
        """Put a value into the file, durably. Raises OSError; the file then has the value, or the one before."""
        left, self._left = self._left, None
        found = None if left is None else self._append(path, self._encode(value, left[0]), left[1])
        if found is None:
            write_atomically(path, self._encode(value, None), self._failpoint)
            found = os.stat(path)
            self._most_bytes = 2 * found.st_size + _ROOM_BYTES
        self._left = value, _identity(found)

    def _append(self, path: Path, line: bytes, left: tuple[int, int, int]) -> os.stat_result | None:
        """Append a line to the file that was left like this. Returns None, with nothing done, if it is another one."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with open(fd, "wb") as file:
            if _identity(os.fstat(fd)) != left or left[1] + len(line) > self._most_bytes:
                return None
            for part in (line[:-1], line[-1:]):  # a line with its end is whole: pages are stored in any order
                file.write(part)
                file.flush()
                os.fsync(fd)
                self._failpoint()
            return os.fstat(fd)


def whole_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file, without an unfinished last one. One that ends without any newline counts as whole, so
    that a file cut short is reported as damaged."""
    *lines, last = data.split(b"\n")
    return lines or [last]


def write_atomically(path: Path, data: bytes, before_rename: Callable[[], None] | None = None) -> None:
    """Write, sync, rename, sync the folder: afterwards the file is either the old one or the new one, whole.

    Only its owner may read it.
    """
    staged = path.with_name(path.name + ".new")
    try:
        with open(staged, "wb", opener=private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before_rename is not None:
            before_rename()
        os.rename(staged, path)
    except OSError:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    with closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns
