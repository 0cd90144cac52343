"""Model of the reads of a plan's cold objects: which requests each batch causes, and which copies a cache keeps.

A cache that knows the plan keeps what is needed first. One that does not keeps what was read last, and then the bytes
of other objects between two reads of an object (its reuse distance) decide whether the second finds a copy.

Source: Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970; for samples of
objects, Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ais_loader.wire.cold_reads import is_whole, later_ranges, near_ranges

_SAMPLED = 100_000
"""Reads of which distances are computed; of more, those of a part of the objects."""


class Fetch(NamedTuple):
    """Requests to remote storage for one object, of which `waves` follow each other."""

    gets: int
    heads: int
    waves: int
    size_bytes: int
    is_whole: bool = True


@dataclass(slots=True, eq=False)
class ColdObject:
    """An object of a remote bucket. `uses` are the rounds of the plan that read it, in order."""

    size_bytes: int
    is_cached: bool
    is_validated: bool = False
    """Whether a copy is compared with the remote object at each read."""
    is_known: bool = False
    """Whether the nodes have asked for its size."""
    uses: list[int] = field(default_factory=list)
    at: int = 0
    """Number of uses that have begun."""
    requested_bytes: int = 0


class PartRead(NamedTuple):
    """A distinct read of a batch: a whole object, or one of its bytes `start` to `stop`."""

    of: ColdObject
    start: int = 0
    stop: int = -1
    is_member: bool = False


class ColdReads:
    """
    Args:
        limits: The settings of the nodes, by name.
        cache_bytes: The most bytes of copies that are kept; 0 for no limit.
        is_ahead: Whether the nodes know the plan, fetch whole objects ahead, and keep what is needed first.
    """

    def __init__(self, limits: Mapping[str, int], cache_bytes: int, *, is_ahead: bool) -> None:
        self._large, self._range = limits["remote_large_object_bytes"], limits["remote_range_bytes"]
        self._ranges = limits["remote_ranges_per_object"]
        self._cache, self._is_ahead = cache_bytes or math.inf, is_ahead
        self._cached: dict[ColdObject, None] = {}
        self._order: list[tuple[float, int, ColdObject]] = []
        self.cached_bytes = 0
        self.hits = self.reads = 0

    def keep(self, one: ColdObject) -> None:
        """Note that an object is stored, or read again."""
        if one not in self._cached:
            self._cached[one] = None
            self.cached_bytes += one.size_bytes
        one.is_cached = True
        if self._cache < math.inf:
            heapq.heappush(self._order, (self._rank(one), id(one), one))

    def fetches(self, number: int, reads: Iterable[PartRead]) -> list[Fetch]:
        """Return the requests of the batch of round `number`. Rounds come in their order."""
        self._evict(number)
        found: list[Fetch] = []
        members: dict[ColdObject, list[tuple[int, int]]] = {}
        waves: dict[ColdObject, int] = {}
        for of, start, stop, is_member in dict.fromkeys(reads):
            if of.at < len(of.uses) and of.uses[of.at] == number:
                of.at += 1
            self.reads += 1
            if of.is_cached:
                self.hits += 1
                self.keep(of)
                found += [Fetch(1, 0, 1, 0)] if of.is_validated else []
                continue
            is_part = stop >= 0 and not self._is_ahead
            if is_part and not of.is_known:
                of.is_known, waves[of] = True, 1
                found.append(Fetch(0, 1, 1, 0, is_whole=False))
            of.requested_bytes += stop - start if is_part else 0
            if not is_part or stop - start > self._large or is_whole(of.size_bytes, self._large, of.requested_bytes):
                later = len(later_ranges(of.size_bytes, self._large, self._range))
                all_waves = 1 + waves.get(of, 0) + math.ceil(later / self._ranges)
                found.append(Fetch(1 + later, 0, all_waves, of.size_bytes))
                of.requested_bytes, of.is_known = 0, False
                self.keep(of)
            elif is_member:
                members.setdefault(of, []).append((start, stop))
            else:
                found.append(Fetch(int(stop > start), 0, 1 + waves.get(of, 0), stop - start, is_whole=False))
        for of, ranges in members.items():
            if not of.is_cached:  # otherwise it has become due, and its members wait for it
                for one in near_ranges(ranges, most_bytes=self._range):
                    found.append(Fetch(1, 0, 1 + waves.get(of, 0), one.stop - one.start, is_whole=False))
        return found

    def _rank(self, of: ColdObject) -> float:
        """Return the place of a copy in the order of eviction: by its next use, or by its last one without a plan."""
        if self._is_ahead:
            return -of.uses[of.at] if of.at < len(of.uses) else -math.inf
        return of.uses[of.at - 1] if of.at else -1

    def _evict(self, number: int) -> None:
        while self.cached_bytes > self._cache and self._order:
            rank, _, one = heapq.heappop(self._order)
            if one not in self._cached or rank != self._rank(one) or (self._is_ahead and rank == -number):
                continue  # it was read since, or is needed now
            del self._cached[one]
            one.is_cached = False
            self.cached_bytes -= one.size_bytes


def hit_rates(objects: Sequence[ColdObject], shares: Sequence[float]) -> list[tuple[int, float]]:
    """Return, for caches of these shares of all bytes, the bytes, and the share of reads that find a copy by their
    reuse distance."""
    total = sum(len(one.uses) for one in objects)
    step = 1 + total // _SAMPLED
    chosen = objects[::step]
    reads = sorted((number, at) for at, one in enumerate(chosen) for number in one.uses)
    tree, last, distances = [0] * (len(reads) + 1), dict[int, int](), Counter[int]()

    def add(place: int, size_bytes: int) -> None:
        while place < len(tree):
            tree[place] += size_bytes
            place += place & -place

    def before(place: int) -> int:
        found = 0
        while place:
            found += tree[place]
            place -= place & -place
        return found

    for place, (_, at) in enumerate(reads, 1):
        if (known := last.get(at)) is not None:
            distances[step * (before(place - 1) - before(known)) + chosen[at].size_bytes] += 1
            add(known, -chosen[at].size_bytes)
        add(place, chosen[at].size_bytes)
        last[at] = place
    all_bytes = sum(one.size_bytes for one in objects)
    sizes = [int(all_bytes * share) for share in shares]
    found = [sum(count for distance, count in distances.items() if distance <= size) for size in sizes]
    return [(size, count / len(reads)) for size, count in zip(sizes, found, strict=True)] if reads else []
