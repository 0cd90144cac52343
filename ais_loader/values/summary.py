"""Summary of a bucket: the number and size of its objects, by prefix."""

from __future__ import annotations

from dataclasses import dataclass, field


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
