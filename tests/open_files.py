"""Open files of this process, which threads open and close while they are listed."""

from __future__ import annotations

import contextlib
import os


def open_files() -> dict[int, str]:
    """Return where each descriptor leads. A file that was removed has " (deleted)" behind its path."""
    found: dict[int, str] = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as that of the list itself
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return found
