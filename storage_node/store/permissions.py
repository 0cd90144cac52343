"""Permissions of a store: its folders and files are for the user who runs it.

Modes are given where things are created, and never by the umask: an embedded store is a guest in a process that has
files of its own to make. The folder of a drive is what keeps others out. RocksDB creates the files of the catalog by
the process's umask, in a folder that is closed.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OTHERS = stat.S_IRWXG | stat.S_IRWXO
log = logging.getLogger(__name__)


def private(path: str | os.PathLike[str], flags: int) -> int:
    """Opener for `open`, of a file that only its owner may read."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def others_access(path: Path) -> str:
    """The access that other users have to a folder or file, in words; "" if they have none. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"its mode is {mode:04o}, which gives other users of this machine access" if mode & OTHERS else ""


def close_to_others(folder: Path) -> bool:
    """Whether a folder is open to its owner alone, now at the latest. If it cannot be, that is logged."""
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
