"""A folder for stores that no other program's disk traffic slows down.

The store syncs at every start; on a busy disk that is what its tests would wait for. Nothing here is about the disk:
a killed process leaves a file system in memory exactly as it leaves one on disk, and what a power cut leaves is
computed (tests/faults/power_kit.py).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MEMORY = Path("/dev/shm")


def _memory_keeps_attributes() -> bool:
    try:
        with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
            os.setxattr(folder, "user.ais_loader", b"probe")
    except OSError:
        return False
    return True


IN_MEMORY = _memory_keeps_attributes()


@contextlib.contextmanager
def folder_in_memory(otherwise: Path) -> Iterator[Path]:
    """A new folder in memory; `otherwise` where there is none, or none that keeps extended attributes."""
    if not IN_MEMORY:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY, prefix="ais-loader-test-") as folder:
        yield Path(folder)
