"""Files of a folder from which a node removes some meanwhile, as those that are staged, and whole segments."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def files_below(*folders: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files and their status, but for those that are gone by then."""
    for folder in folders:
        for parent, _, names in os.walk(folder):  # which passes over folders that are gone
            for name in names:
                path = Path(parent) / name
                try:
                    found = path.lstat()
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(found.st_mode):
                    yield path, found


def bytes_of(path: Path) -> bytes | None:
    """Return the bytes of a file; None for one that is gone by then."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
