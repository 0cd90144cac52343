"""Throwaway folders for stores: in memory where the machine has room for that, since a store syncs its drive at every
start, and a busy disk is then what a test waits for.
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
    """A file system in memory that keeps extended attributes, as stores want them; None for the usual place."""
    try:
        with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
            os.setxattr(folder, "user.ais_loader", b"probe")
        space = os.statvfs(_MEMORY)
    except OSError:
        return None
    return _MEMORY if space.f_bavail * space.f_frsize > _ROOM_BYTES else None


@contextmanager
def throwaway_folder() -> Iterator[Path]:
    """A new folder, which vanishes with everything in it. Its name has the process: whoever ends one can clear up."""
    prefix = f"ais-loader-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=_parent(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)
