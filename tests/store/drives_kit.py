"""Helpers for tests of changing drives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from storage_node.store.files.object_files import RawFiles
from storage_node.store.store import Store
from tests.store.store_kit import put, store_at

WANTED = {f"{number:03}": b"%d" % number * 3 for number in range(90)}


@contextlib.contextmanager
def store_with(objects: Mapping[str, bytes], *roots: Path) -> Iterator[Store]:
    with store_at(*roots) as store:
        for name, data in objects.items():
            put(store, name, data)
        yield store


def move_all(store: Store) -> int:
    """Every step, each of them checked; how many entries went."""
    moved = 0
    for _ in range(1000):
        step = store.pool.move_some(20, 1 << 20)
        moved += step.objects
        assert step.objects <= 20 and not step.problem, step
        if not step.left_estimate:
            assert not store.pool.moving
            return moved
    raise AssertionError("it does not end")


def files_on(root: Path) -> int:
    """Of objects, those that share one counted each."""
    with contextlib.closing(RawFiles(root, writable=False)) as files:
        return sum(1 for _ in files.walk())
