"""Throwaway stores for the duration of one test or experiment, and bytes to fill them with.

Their folders are in memory if the machine has room for that: a store syncs its drive at every start, so that tests
would otherwise wait for a busy disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from ais_loader.objects.client import Client, connect
from ais_loader.testing.node import NodeProcess


def seeded_bytes(size_bytes: int, seed: int = 0) -> bytes:
    """Return incompressible bytes that are the same in every run."""
    return np.random.Generator(np.random.PCG64(seed)).bytes(size_bytes)


_kept_bytes = cache(seeded_bytes)


class SeededObjects(Mapping[str, bytes]):
    """Objects of `seeded_bytes` by name, from their sizes and seeds.

    Each is created on first access and kept, so that a test module that is only collected costs no time or memory.
    """

    def __init__(self, size_and_seed: Mapping[str, tuple[int, int]]) -> None:
        self._size_and_seed = dict(size_and_seed)

    def __getitem__(self, name: str) -> bytes:
        return _kept_bytes(*self._size_and_seed[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._size_and_seed)

    def __len__(self) -> int:
        return len(self._size_and_seed)

    def __contains__(self, name: object) -> bool:
        return name in self._size_and_seed

    def __or__(self, other: SeededObjects) -> SeededObjects:
        return SeededObjects(self._size_and_seed | other._size_and_seed)


@contextmanager
def throwaway_store(objects: Mapping[str, bytes] | None = None, *, bucket: str = "data") -> Iterator[Client]:
    """Yield a client for an embedded store that is removed at the end.

    With `objects`, a mapping from names to bytes, they are put into `bucket`.
    """
    with throwaway_folder() as folder, connect(folder / "store") as client:
        _fill(client, bucket, objects)
        yield client


@contextmanager
def throwaway_node(objects: Mapping[str, bytes] | None = None, *, bucket: str = "data") -> Iterator[NodeProcess]:
    """Yield a node process whose store is removed at the end.

    With `objects`, a mapping from names to bytes, they are put into `bucket`.
    """
    with throwaway_folder() as folder, NodeProcess(folder / "store") as node:
        with connect(node.url) as client:
            _fill(client, bucket, objects)
        yield node


def _fill(client: Client, bucket: str, objects: Mapping[str, bytes] | None) -> None:
    if objects is not None:
        client.create_bucket(bucket, exist_ok=True).put_many(objects.items())


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
