"""Inventory of a remote bucket, as its users see it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


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
