"""Summary of a bucket: how much it holds, by prefix."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PrefixSummary:
    """The objects of one folder."""

    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BucketSummary:
    """The objects whose names begin with a prefix: each once, however many copies of it there are."""

    bucket: str
    prefix: str
    objects: int
    size_bytes: int
    by_prefix: dict[str, PrefixSummary] = field(default_factory=dict)
    """By the deepest folder told apart, which ends with "/" or is empty: no object is in two, and their sums are the
    whole. In the order of names."""
    complete: bool = True
    """False: so many nodes of the cluster were silent that they may have all copies of some objects."""
    silent: tuple[str, ...] = ()
    """Nodes that did not say all that they have, each with the reason."""
