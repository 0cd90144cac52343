"""Helpers of the conformance tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import ais_loader
from ais_loader import Batch, Bucket, Client
from ais_loader.testing import seeded_bytes

MiB = 1 << 20


def fill(bucket: Bucket, objects: Mapping[str, bytes]) -> None:
    for _ in bucket.put_many(objects.items()):
        pass


def samples(count: int, size_bytes: int = 1000, *, prefix: str = "s") -> dict[str, bytes]:
    """`count` objects of about `size_bytes`, no two with the same bytes."""
    return {f"{prefix}/{at:06d}": seeded_bytes(size_bytes + at % 7, seed=at) for at in range(count)}


def contents(batch: Batch | Iterable[ais_loader.Item]) -> list[bytes]:
    return [item.tobytes() for item in batch]


def names_in(client: Client, bucket: str) -> list[str]:
    return [info.name for info in client.bucket(bucket).objects()]


def statuses(batch: Batch) -> list[str]:
    return [item.status.name for item in batch]
