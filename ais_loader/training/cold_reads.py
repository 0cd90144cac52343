"""Model of the reads of cold objects: the requests that each batch of a plan causes, and the copies that a cache keeps.

A store that knows the plan keeps the copies that are needed first; another one those that were read last.

Source: Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970: MIN and LRU.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ais_loader.wire.cold_reads import AHEAD_SHARE, is_whole, later_ranges, near_ranges


class Fetch(NamedTuple):
    """Requests to remote storage for one object, of which `waves` follow each other."""

    gets: int
    heads: int
    waves: int
    size_bytes: int
    is_whole: bool = True
    most_ahead_bytes: float = math.inf
    """The most bytes that are fetched ahead and not read yet, with these: a cache is full."""


@dataclass(slots=True, eq=False)
class ColdObject:
    """An object of a remote bucket, the steps that are to read it, and the bytes that were read of it in parts."""

    size_bytes: int
    is_stored: bool
    is_validated: bool
    """Whether a copy is compared with the remote object at each read."""
    uses: deque[int] = field(default_factory=deque)
    requested_bytes: int | None = None
    """None if the nodes have not asked for its size."""


class PartRead(NamedTuple):
    """A read of an object, or of its bytes from `start` to `stop`."""

    of: ColdObject
    start: int = 0
    stop: int = -1
    is_member: bool = False


class ColdReads:
    """
    Args:
        limits: The settings of the nodes, by name.
        cache_bytes: The most bytes of copies; 0 for no limit.
        is_ahead: Whether the nodes know the plan: they fetch objects ahead, as a whole.
    """

    def __init__(self, limits: Mapping[str, int], cache_bytes: int, *, is_ahead: bool) -> None:
        self._large, self._range = limits["remote_large_object_bytes"], limits["remote_range_bytes"]
        self._at_once, self._is_ahead = limits["remote_ranges_per_object"], is_ahead
        self._ahead_bytes = cache_bytes // AHEAD_SHARE if is_ahead else 0  # they take the room of copies
        self._cache_bytes, self._kept_bytes = cache_bytes - self._ahead_bytes or math.inf, 0
        self._ranks: dict[ColdObject, float] = {}
        """The copies, by their places in the order of eviction."""
        self._order: list[tuple[float, int, ColdObject]] = []
        self.hits = self.reads = 0

    def keep(self, of: ColdObject, step: int) -> None:
        """Note that an object is stored, and read by a step."""
        while of.uses and of.uses[0] <= step:
            of.uses.popleft()
        self._kept_bytes += 0 if of in self._ranks else of.size_bytes
        self._ranks[of] = rank = (-of.uses[0] if of.uses else -math.inf) if self._is_ahead else step
        if self._cache_bytes < math.inf:
            heapq.heappush(self._order, (rank, id(of), of))

    def fetches(self, step: int, reads: Iterable[PartRead]) -> list[Fetch]:
        """Return the requests of a step's batch. Steps come in their order."""
        found: list[Fetch] = []
        members, waves = defaultdict[ColdObject, list[tuple[int, int]]](list), defaultdict[ColdObject, int](lambda: 1)
        for of, start, stop, is_member in dict.fromkeys(reads):
            self.reads += 1
            if of in self._ranks:
                self.hits += 1
                self.keep(of, step)
                found += [Fetch(1, 0, 1, 0)] if of.is_validated else []
                continue
            is_part = stop >= 0 and not self._is_ahead
            if is_part:
                if of.requested_bytes is None:
                    of.requested_bytes, waves[of] = 0, 2
                    found.append(Fetch(0, 1, 1, 0, is_whole=False))
                of.requested_bytes += stop - start
                is_part = not is_whole(of.size_bytes, self._large, of.requested_bytes) and stop - start <= self._large
            if not is_part:
                later = len(later_ranges(of.size_bytes, self._large, self._range))
                most_bytes = math.inf if self._kept_bytes + of.size_bytes <= self._cache_bytes else self._ahead_bytes
                all_waves = waves[of] + math.ceil(later / self._at_once)
                found.append(Fetch(1 + later, 0, all_waves, of.size_bytes, most_ahead_bytes=most_bytes))
                of.requested_bytes = None
                self.keep(of, step)
            elif is_member:
                members[of].append((start, stop))
            else:
                found.append(Fetch(int(stop > start), 0, waves[of], stop - start, is_whole=False))
        for of, ranges in members.items():  # those of an archive that is fetched by now wait for it
            together = near_ranges(ranges, most_bytes=self._range) if of not in self._ranks else []
            found += [Fetch(1, 0, waves[of], one.stop - one.start, is_whole=False) for one in together]
        while self._kept_bytes > self._cache_bytes:
            rank, _, of = heapq.heappop(self._order)
            if self._ranks.get(of) == rank:  # it was not read since
                del self._ranks[of]
                self._kept_bytes -= of.size_bytes
        return found


def hit_rates(objects: Sequence[ColdObject], shares: Iterable[float]) -> Iterator[tuple[int, float]]:
    """Yield the sizes of caches for these shares of all bytes, and the share of reads whose reuse distance is within.

    It is the bytes of the objects that were read since the last read of the object, with its own.
    """
    reads = sorted((step, at) for at, one in enumerate(objects) for step in one.uses)
    for share in shares if reads else ():
        limit_bytes, hits = int(share * sum(one.size_bytes for one in objects)), 0
        kept, kept_bytes = OrderedDict[int, None](), 0
        for _, at in reads:
            hits += at in kept
            kept_bytes += 0 if at in kept else objects[at].size_bytes
            kept[at] = None
            kept.move_to_end(at)
            while kept_bytes > limit_bytes:
                kept_bytes -= objects[kept.popitem(last=False)[0]].size_bytes
        yield limit_bytes, hits / len(reads)
