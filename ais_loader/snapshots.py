"""Snapshot values: what a bucket was when one was made, read under the name `bucket@snapshot`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

SNAPSHOT_MARK = "@"
"""Between the names of a bucket and of its snapshot: neither can contain it."""
SnapshotAction: TypeAlias = Literal["create", "list", "delete"]


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot as the store knows it. It never changes."""

    bucket: str
    name: str
    created_ns: int
    """Wall clock, nanoseconds since the epoch. For people."""
    objects: int
    size_bytes: int
    """Of all these objects."""

    @property
    def pinned(self) -> str:
        """What stands for the bucket's name wherever it is to be read as it was: in an Entry, in a URL."""
        return pinned_name(self.bucket, self.name)


def pinned_name(bucket: str, snapshot: str) -> str:
    return f"{bucket}{SNAPSHOT_MARK}{snapshot}"
