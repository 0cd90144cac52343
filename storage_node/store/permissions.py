"""Permissions of a store: its folders and files are accessible only to the user who runs it.

Modes are set when files and folders are created, independent of the umask: an embedded store is in a process that
creates files of its own. The folder of a drive keeps other users out. RocksDB creates the catalog's files by the
process's umask, in a folder that is closed to others.

What was made otherwise, such as a copy of a drive by a tool that does not keep modes, is found by `open_paths`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OF_CATALOGS = "catalog"
"""Beginning of the names of folders with RocksDB's files."""
log = logging.getLogger(__name__)


class OpenPath(NamedTuple):
    """A folder or file to which other users have access."""

    path: Path
    mode: int

    @property
    def wanted(self) -> int:
        """Mode that it should have."""
        return self.mode & ~OTHERS

    @property
    def problem(self) -> str:
        return (
            f"its mode is {self.mode:04o}, which gives other users of this machine access; {self.wanted:04o} closes it"
        )


def private(path: str | os.PathLike[str], flags: int) -> int:
    """Opener for `open` that creates files readable only by their owner."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def others_access(path: Path) -> str:
    """Describe the access that other users have to a folder or file; "" if they have none. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"its mode is {mode:04o}, which gives other users of this machine access" if mode & OTHERS else ""


def close_to_others(folder: Path) -> bool:
    """Close a folder to other users if necessary. Returns whether it is closed; a failure is logged."""
    access = ""
    try:
        if not (access := others_access(folder)):
            return True
        os.chmod(folder, stat.S_IMODE(folder.stat().st_mode) & ~OTHERS)
    except OSError as error:
        log.warning("%s: %s, and it cannot be changed: %s", folder, access, error.strerror)
        return False
    log.info("%s: %s; it is closed to them now", folder, access)
    return True


def open_paths(folder: Path) -> Iterator[OpenPath]:
    """Yield a folder and everything below it to which other users have access, except links, and files of catalogs.

    Files that disappear meanwhile, and folders that cannot be read, are left out.
    """
    with contextlib.suppress(OSError):
        mode = folder.stat().st_mode
        if mode & OTHERS:
            yield OpenPath(folder, stat.S_IMODE(mode))
    pending = [os.fspath(folder)]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                try:
                    mode = entry.stat(follow_symlinks=False).st_mode
                except OSError:
                    continue
                if stat.S_ISLNK(mode):
                    continue
                if mode & OTHERS:
                    yield OpenPath(Path(entry.path), stat.S_IMODE(mode))
                if stat.S_ISDIR(mode) and not entry.name.startswith(_OF_CATALOGS):
                    pending.append(entry.path)
