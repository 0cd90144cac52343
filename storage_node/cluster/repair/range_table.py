"""Digests of ranges of names: how nodes find what differs without reading what does not. Pure functions, no I/O.

The problem. Two nodes share some of their names, those that both own, and each pair of nodes shares others. Each node
compares what it has with every other owner, all the time, and mostly they are equal.

The names of a bucket, in order, are divided into ranges. For each range and each other node, a node knows the sum of
the digests of the entries that both own. (Merkle trees compare in the same way: Dynamo, section 4.7; Riak's hashtree.)
Sums of adjacent ranges can be added. A range ends with each name whose hash is a multiple of `RANGE_NAMES`, so nodes
divide what they share at the same names without having to agree on them. Where only one of two nodes has such a name,
both take the sum of the next larger range that ends with a name that both have. If it differs, more names are read.

Equal sums of different entries are as unlikely as a collision of 64 bits, but a sum may also be wrong. So once a range
was read long enough ago, all its names are compared, whatever its sums say.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from ais_loader.errors import InvalidRequest, StoreFormatError
from ais_loader.wire.cluster_map import U64, ClusterView, mixed
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.store.format import DENIAL_BIT

RANGE_NAMES = 64
"""Average number of names in a range: of those that two nodes share, in a range that they compare."""
HEAD_BYTES = 40
"""The part of a catalog value that digests are made of; see FORMAT.md."""
_HEAD = np.dtype(
    {
        "names": ["kind", "epoch", "counter", "node", "modified_ns"],
        "formats": ["u1", "<u4", "<u8", "<u4", "<u8"],
        "offsets": [1, 4, 8, 16, 32],
        "itemsize": HEAD_BYTES,
    }
)
_OBJECT, _TOMBSTONE = 1, 2
_NAMES, _STRAYS, _OLDEST_NS, _READ_S, _FIXED = range(5)
"""Columns: entries, those that this node does not own, time of the oldest tombstone, time of reading; then the sums of
what each node of the map and this one own, then the number of entries that each owns and this one does not."""
Span = tuple[bytes, bytes]
"""Names after the first up to the second, in UTF-8; an empty second one: to the end."""
EVERYTHING: Span = b"", b""


def placement_of(view: ClusterView, bucket: pb.MapBucket) -> int:
    """Return a number of all that decides the owners of a bucket's names, and the order of the columns."""
    nodes = [(node.uuid, node.host, node.weight, node.state == pb.MapNode.LEAVING) for node in view.nodes]
    return xxhash.xxh3_64_intdigest(repr((bucket.copies, nodes)).encode())


class Entries(NamedTuple):
    """Entries of one drive between two names, in order."""

    keys: list[bytes]
    """The uuid of the bucket, then the name in UTF-8."""
    hashes: U64
    """See `object_hashes`."""
    heads: list[bytes]
    """The first HEAD_BYTES of each value."""
    read_to: bytes
    """The last name that belongs to what was read, whether there is an entry or not; empty: all that follow do."""


class Chosen(NamedTuple):
    """A range, and the names in it that count."""

    span: Span
    nodes: npt.NDArray[np.bool_]
    """For each node of the map, whether the names that it owns do."""


@dataclass(frozen=True, slots=True)
class RangeTable:
    """Ranges of a bucket on one node under one placement."""

    placement: int
    nodes: int
    starts: list[bytes]
    """The names after which ranges begin, in UTF-8 and in order; the first is empty."""
    columns: U64
    """Shape (ranges, 4 + 2 nodes)."""
    outdated: set[bytes]
    """Starts of ranges in which something has changed since they were read. Shared with the table's successors."""
    starts_bytes: int
    """Size of all starts."""

    @classmethod
    def empty(cls, view: ClusterView, bucket: pb.MapBucket, starts: list[bytes], now_s: int = 0) -> RangeTable:
        columns = np.zeros((len(starts), _FIXED + 2 * len(view.nodes)), np.uint64)
        columns[:, _OLDEST_NS], columns[:, _READ_S] = 2**64 - 1, now_s
        return cls(placement_of(view, bucket), len(view.nodes), starts, columns, set(), sum(map(len, starts)))

    def add(self, view: ClusterView, bucket: pb.MapBucket, local: int, entries: Entries) -> None:
        """Add entries of a drive to a table that is being made. Raises StoreFormatError for a damaged value."""
        if not {HEAD_BYTES}.issuperset(map(len, entries.heads)):
            raise StoreFormatError("a catalog value ends within its head")
        ends = [bisect_right(entries.keys, bucket.uuid + start) for start in self.starts[1:]]
        row = np.repeat(np.arange(len(self.starts)), np.diff([0, *ends, len(entries.keys)]))
        drawn, heads = entries.hashes, np.frombuffer(b"".join(entries.heads), _HEAD)
        owners = view.placement.owners(drawn, bucket.copies)
        is_mine = (owners == local).any(axis=1)
        is_dead = heads["kind"] == _TOMBSTONE
        origin = heads["epoch"].astype(np.uint64) << np.uint64(32) | heads["node"]
        kinds = np.where(is_dead, np.uint64(_TOMBSTONE), np.uint64(_OBJECT))  # coded or not, it is the same version
        digests = mixed(drawn ^ mixed(heads["counter"] ^ mixed(origin)) + kinds)
        self.columns[:, _NAMES] += np.bincount(row, minlength=len(self.starts)).astype(np.uint64)
        self.columns[:, _STRAYS] += np.bincount(row[~is_mine], minlength=len(self.starts)).astype(np.uint64)
        is_final = is_dead & ((heads["epoch"] & DENIAL_BIT == 0) | bool(bucket.coded_of))  # see `plan._is_final`
        np.minimum.at(self.columns[:, _OLDEST_NS], row[is_final], heads["modified_ns"][is_final])
        cells = row[:, None] * self.columns.shape[1] + _FIXED + owners + np.where(is_mine, 0, self.nodes)[:, None]
        added = np.repeat(np.where(is_mine, digests, np.uint64(1)), owners.shape[1])
        np.add.at(self.columns.reshape(-1), cells.ravel(), added)

    def start_of(self, name: bytes) -> bytes:
        """Return the start of the range that a name is in."""
        return self.starts[bisect_left(self.starts, name) - 1]

    def rows(self, span: Span) -> slice:
        """Return the positions of the ranges of a span, which begins and ends with starts of this table."""
        return slice(bisect_left(self.starts, span[0]), bisect_left(self.starts, span[1]) if span[1] else None)

    def with_ranges(self, span: Span, other: RangeTable) -> RangeTable:
        """Return the table with those of another one in the place of the ranges of a span. It may be this one."""
        rows = self.rows(span)
        if self.starts[rows] == other.starts:
            self.columns[rows] = other.columns
            return self
        left, right = slice(rows.start), slice(rows.stop or len(self.starts), None)
        return replace(
            self,
            starts=[*self.starts[left], *other.starts, *self.starts[right]],
            columns=np.concatenate([self.columns[left], other.columns, self.columns[right]]),
            starts_bytes=self.starts_bytes + other.starts_bytes - sum(map(len, self.starts[rows])),
        )

    @property
    def names(self) -> int:
        return int(self.columns[:, _NAMES].sum())

    def digests(self, node: int) -> U64:
        """Return the sum of each range, of the names that this node and another one own."""
        found: U64 = self.columns[:, _FIXED + node]
        return found

    def differing(self, node: int, starts: Sequence[bytes], digests: Sequence[int], *, with_strays: bool) -> list[Span]:
        """Return the ranges in which another node's sums differ, and with `with_strays` those with names that it owns
        and this node does not. Raises InvalidRequest."""
        if not starts or starts[0] or len(starts) != len(digests) or sorted(set(starts)) != list(starts):
            raise InvalidRequest("ranges begin after names in order, the first of which is empty, with one digest each")
        common = set(self.starts) & set(starts)
        here, there = ([at for at, start in enumerate(one) if start in common] for one in (self.starts, starts))
        differs = np.add.reduceat(self.digests(node), here) != np.add.reduceat(np.array(digests, np.uint64), there)
        if with_strays:
            differs |= np.add.reduceat(self.columns[:, _FIXED + self.nodes + node], here) > 0
        return spans(sorted(common), np.nonzero(differs)[0].tolist())

    def to_compare(
        self, differing: Mapping[int, Sequence[Span] | None], *, ripe_ns: int, read_s: int, most_old: int
    ) -> list[Chosen]:
        """Return the ranges, and whose names in them a repair pass has to compare one by one.

        Args:
            differing: by node, where it differs, from starts to starts of this table; None if it gave no answer.
            ripe_ns: a tombstone from before may be forgotten.
            read_s: ranges that were read before are compared in full, at most `most_old` of them.
        """
        wanted = np.zeros((len(self.starts), self.nodes), np.bool_)
        for node, where in differing.items():
            for rows in [self.digests(node) != 0] if where is None else map(self.rows, where):
                wanted[rows, node] = True
        wanted[(self.columns[:, _STRAYS] > 0) | (self.columns[:, _OLDEST_NS] < max(0, ripe_ns))] = True
        wanted[np.nonzero(self.columns[:, _READ_S] < max(0, read_s))[0][:most_old]] = True
        stops = [*self.starts[1:], b""]
        rows = np.nonzero(wanted.any(axis=1))[0].tolist()
        return [Chosen((self.starts[row], stops[row]), wanted[row]) for row in rows]

    def is_old(self, span: Span, read_s: int) -> bool:
        """Whether a range was read before this time."""
        return bool(self.columns[self.rows(span), _READ_S].min() < max(0, read_s))


def ranges_of(
    view: ClusterView, bucket: pb.MapBucket, local: int, span: Span, parts: Sequence[Entries], now_s: int
) -> RangeTable:
    """Return the ranges of a span, from all its entries; of the last one, what its drives have up to `read_to`."""
    at_ends = [(part, np.flatnonzero(part.hashes % RANGE_NAMES == 0).tolist()) for part in parts]
    ends = {part.keys[at].removeprefix(bucket.uuid) for part, found in at_ends for at in found}
    table = RangeTable.empty(view, bucket, [span[0], *sorted(ends - {span[1]})], now_s)
    for part in parts:
        table.add(view, bucket, local, part)
    return table


def spans(starts: Sequence[bytes], positions: Iterable[int]) -> list[Span]:
    """Return the ranges at these positions, adjacent ones together."""
    found: list[Span] = []
    for at in positions:
        stop = starts[at + 1] if at + 1 < len(starts) else b""
        if found and found[-1][1] == starts[at]:
            found[-1] = found[-1][0], stop
        else:
            found.append((starts[at], stop))
    return found
