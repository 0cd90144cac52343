"""Open files of this process, which threads open and close while they are listed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_files(below: Path | None = None) -> dict[int, str]:
    """Return where each descriptor leads. A file that was removed has " (deleted)" behind its path.

    `below`: of this folder and what is in it alone. Threads that other tests have left behind have files of theirs.
    """
    found: dict[int, str] = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as that of the list itself
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: path for fd, path in found.items() if below is None or Path(path).is_relative_to(below)}
