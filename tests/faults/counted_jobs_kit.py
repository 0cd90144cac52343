"""A job over ten thousand small objects, each run of which is counted outside of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ais_loader import Client

OBJECTS = 10_000
NAMES = {f"{at % 100:02d}/{at:05d}": b"text %d" % at for at in range(OBJECTS)}


def counting(folder: str) -> Callable[[memoryview], bytes]:
    """Upper case, not in a hurry: what happens in the middle of a job does so on a machine that stands still for ten
    seconds, too. Each run is a line in a file outside."""

    def transform(data: memoryview) -> bytes:
        import os
        import time

        time.sleep(0.015)

        fd = os.open(f"{folder}/{os.getpid()}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(fd, bytes(data) + b"\n")
        os.close(fd)
        return bytes(data).upper()

    return transform


def runs(folder: Path) -> list[bytes]:
    return [line for file in folder.iterdir() for line in file.read_bytes().splitlines()]


def require_right(client: Client) -> None:
    """Every source has one result, and nothing else is there."""
    to = client.bucket("to")
    assert sorted(to) == sorted(NAMES)
    names = list(NAMES)
    for start in range(0, OBJECTS, 2000):
        some = names[start : start + 2000]
        assert [bytes(data) for data in to.get_batch(some).tobytes()] == [NAMES[name].upper() for name in some]
