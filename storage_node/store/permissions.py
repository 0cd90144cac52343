"""Permissions of a store: its folders and files are accessible only to the user who runs it.

Modes are set when files and folders are created, independent of the umask: an embedded store is in a process that
creates files of its own. The folder of a drive keeps other users out. RocksDB creates the catalog's files by the
process's umask, in a folder that is closed to others.
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
