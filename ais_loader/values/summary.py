"""Descriptions of a bucket: the number and size of its objects by prefix, its snapshots, and its inventory.

A snapshot is read under the name `bucket@snapshot`, and shows the bucket as it was at creation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class PrefixSummary:
    """The number and total size of the objects in one folder."""

    objects: int
    """The number of objects."""
    size_bytes: int
    """Their total size."""


@dataclass(frozen=True, slots=True)
class BucketSummary:
    """The number and size of the objects whose names begin with a prefix.

    Each object counts once, regardless of how many copies it has.
    """

    bucket: str
    """The bucket's name."""
    prefix: str
    """The prefix that the call was given."""
    objects: int
    """The number of objects."""
    size_bytes: int
    """Their total size."""
    by_prefix: dict[str, PrefixSummary] = field(default_factory=dict)
    """The same for each folder, in the order of names. Each object counts only in the deepest folder that is told
    apart, so that the folders add up to the total. A folder's name ends with "/" or is empty."""
    complete: bool = True
    """False if so many nodes of the cluster did not answer that they may hold all copies of some objects."""
    silent: tuple[str, ...] = ()
    """The nodes that did not report everything that they hold, each with the reason."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryInfo:
    """Contents of the inventory of a remote bucket."""

    prefix: str
    """The prefix of all names. Listings of others ask the remote storage."""
    count: int
    """The number of objects."""
    size_bytes: int
    """The total size of the objects."""
    skipped: int
    """The number of names that were left out, because no object here can have them."""
    skipped_names: tuple[str, ...]
    """The first of these names."""
    listed_at: datetime
    """The time at which the listing began, in UTC."""


def when(listed_ns: int) -> datetime:
    """Return a time in nanoseconds since the epoch as a datetime in UTC."""
    return datetime.fromtimestamp(listed_ns / 1e9, UTC)
