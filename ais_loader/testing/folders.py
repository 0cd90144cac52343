"""Throwaway folders for stores, in memory if the machine has room for that.

A store syncs its drive at every start, so that tests would otherwise wait for a busy disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_MEMORY = "/dev/shm"
_ROOM_BYTES = 4 << 30


@cache
def _parent() -> str | None:
    """Return a file system in memory that keeps extended attributes, as stores need them. None for the usual place."""
    try:
        with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
            os.setxattr(folder, "user.ais_loader", b"probe")
        space = os.statvfs(_MEMORY)
    except OSError:
        return None
    return _MEMORY if space.f_bavail * space.f_frsize > _ROOM_BYTES else None


@contextmanager
def throwaway_folder() -> Iterator[Path]:
    """Create a folder that is removed at the end, with everything in it.

    Its name contains the process id, so that you can clean up after you have killed a process.
    """
    prefix = f"ais-loader-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=_parent(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)
