"""Permissions of a store: its folders and files are accessible only to the user who runs it.

Modes are set when files and folders are created, independent of the umask: an embedded store is in a process that
creates files of its own. The folder of a drive keeps other users out. RocksDB creates the catalog's files by the
process's umask, in a folder that is closed to others.

Files from which a node takes trust, such as public keys, settings and certificates, must be such that only this user
and root can change them: `trusted_bytes` reads them.

What was made otherwise, such as a copy of a drive by a tool that does not keep modes, is found by `open_paths`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
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
    """Opener for `open` that creates files readable only by their owner. Follows no link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)


def others_access(path: Path) -> str:
    """Describe the access that other users have to a folder or file; "" if they have none. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"its mode is {mode:04o}, which gives other users of this machine access" if mode & OTHERS else ""


def require_trusted(path: Path) -> None:
    """Require that no user but this one and root can change a file, or put another one in its place.

    Raises OSError; PermissionError, which says who can, and how that ends.
    """
    real, given = Path(os.path.realpath(path)), Path(os.path.abspath(path))
    # A pipe, as of a shell's <(...), has no folder.
    looked_at = (real, given, real.parent, given.parent) if real.exists() else (path,)
    for one in looked_at:
        found = one.lstat() if one is given else one.stat()
        mode, is_sticky = stat.S_IMODE(found.st_mode), stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (os.geteuid(), 0):
            why = f"it belongs to user {found.st_uid}, who can change it; it must be this user's, or root's"
        elif mode & _OTHERS_WRITE and not is_sticky and not stat.S_ISLNK(found.st_mode):
            why = f"its mode is {mode:04o}, which lets other users change it; `chmod go-w` ends that"
        else:
            continue
        raise PermissionError(errno.EPERM, why if one == path else f"{one}: {why}", str(path))


def trusted_bytes(path: Path) -> bytes:
    """Read a file from which trust is taken. Raises OSError; see `require_trusted`."""
    require_trusted(path)
    return path.read_bytes()


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
