"""Rules of reads of cold objects, which the store follows and a forecast counts: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WHOLE_SHARE = 0.25
"""When readers have asked for this share of a large object, it is stored."""
AHEAD_SHARE = 8
"""Objects fetched ahead take at most one part in this many of a budget that is full. A quarter of a cache for half the
objects costs a quarter more requests, an eighth an eighth: simulated for loaders of 4,000 objects."""
GAP_BYTES = 64 << 10
"""Members with at most this many bytes between them are read together: reading a gap takes less time than a request."""


class Together(NamedTuple):
    start: int
    stop: int
    of: Sequence[int]
    """Positions of the ranges that are within, in the order of their bytes."""


def near_ranges(ranges: Sequence[tuple[int, int]], *, gap_bytes: int = GAP_BYTES, most_bytes: int) -> list[Together]:
    """Group ranges (start, stop), so that each lies in one group. A group of several has at most `most_bytes`."""
    groups: list[tuple[int, int, list[int]]] = []
    for at in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[at]
        if groups:
            first, last, of = groups[-1]
            last = max(stop, last)
            if start - groups[-1][1] <= gap_bytes and last - first <= most_bytes:
                of.append(at)
                groups[-1] = first, last, of
                continue
        groups.append((start, stop, [at]))
    return [Together(*group) for group in groups]


def is_whole(size_bytes: int, large_bytes: int, requested_bytes: int) -> bool:
    """Whether an object is stored, and not read in parts, once readers have asked for so many bytes of it."""
    return size_bytes <= large_bytes or requested_bytes >= WHOLE_SHARE * size_bytes


def later_ranges(size_bytes: int, first_bytes: int, range_bytes: int) -> list[tuple[int, int]]:
    """Return the starts and lengths of the ranges that follow the first request for a whole object."""
    starts = range(min(size_bytes, first_bytes), size_bytes, range_bytes)
    return [(start, min(range_bytes, size_bytes - start)) for start in starts]
