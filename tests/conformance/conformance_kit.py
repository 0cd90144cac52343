"""Helpers of the conformance tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import ais_loader
from ais_loader import Batch, Bucket, Client, Progress
from ais_loader.testing import seeded_bytes

MiB = 1 << 20


def fill(bucket: Bucket, objects: Mapping[str, bytes]) -> None:
    bucket.put_many(objects.items())


def samples(count: int, size_bytes: int = 1000, *, prefix: str = "s") -> dict[str, bytes]:
    """`count` objects of about `size_bytes`, no two with the same bytes."""
    return {f"{prefix}/{at:06d}": seeded_bytes(size_bytes + at % 7, seed=at) for at in range(count)}


def contents(batch: Batch | Iterable[ais_loader.Item]) -> list[bytes]:
    return [item.tobytes() for item in batch]


def names_in(client: Client, bucket: str) -> list[str]:
    return [info.name for info in client.bucket(bucket).objects()]


def statuses(batch: Batch) -> list[str]:
    return [item.status.name for item in batch]


class Heard:
    """A `progress` that keeps what it is called with; it raises `error` when so many objects are done."""

    def __init__(self, *, until: int | None = None, error: type[Exception] = RuntimeError) -> None:
        self.steps: list[Progress] = []
        self._until, self._error = until, error
        self._thread = threading.get_ident()

    def __call__(self, progress: Progress) -> None:
        assert threading.get_ident() == self._thread
        self.steps.append(progress)
        if progress.done == self._until:
            raise self._error(f"enough: {progress.done}")
