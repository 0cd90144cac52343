"""Plain files, the baseline of reads, and copies of stores that share their files."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def plain_files(folder: Path, count: int, size_bytes: int) -> list[str]:
    """Write `count` objects to a file each; a store keeps several small ones in one file. Returns their paths."""
    folder.mkdir()
    pool = random.Random(0).randbytes(size_bytes + count)
    for at in range(count):
        (folder / str(at)).write_bytes(pool[at : at + size_bytes])
    return [str(folder / str(at)) for at in range(count)]


def read_files(paths: Sequence[str]) -> int:
    total = 0
    for path in paths:
        with open(path, "rb") as file:
            total += len(file.read())
    return total


def rate(count: int, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)
