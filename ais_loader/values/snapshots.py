"""Snapshot values. A snapshot is read under the name `bucket@snapshot`, and shows the bucket as it was at creation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

SNAPSHOT_MARK = "@"
"""Separates the names of a bucket and of its snapshot. Neither can contain it."""
SnapshotAction: TypeAlias = Literal["create", "list", "delete"]


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot of a bucket. It never changes."""

    bucket: str
    """The bucket's name."""
    name: str
    """The snapshot's name."""
    created_ns: int
    """The creation time by the wall clock, in nanoseconds since the epoch. For display only."""
    objects: int
    """The number of objects in the snapshot."""
    size_bytes: int
    """Total size of these objects."""

    @property
    def pinned(self) -> str:
        """The name to use in place of the bucket's, in an Entry or a URL, to read from this snapshot."""
        return pinned_name(self.bucket, self.name)


def pinned_name(bucket: str, snapshot: str) -> str:
    return f"{bucket}{SNAPSHOT_MARK}{snapshot}"
