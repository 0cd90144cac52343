"""What nodes find out by digests of ranges: every difference in what two of them share, and nothing else."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.errors import InvalidRequest, StoreFormatError
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.placement import object_hash
from storage_node.cluster.repair.range_table import (
    EVERYTHING,
    HEAD_BYTES,
    RANGE_NAMES,
    Entries,
    RangeTable,
    Span,
    placement_of,
    ranges_of,
)
from storage_node.store.format import CatalogEntry, Version, encode_entry, tombstone

NODES, COPIES = 4, 2
BUCKET_UUID = uuid.UUID(int=7).bytes
MAP = pb.ClusterMap(
    version=1,
    node=[pb.MapNode(uuid=bytes([at + 1]) * 16, host=f"h{at}", weight=1.0) for at in range(NODES)],
    bucket=[pb.MapBucket(name="b", uuid=BUCKET_UUID, copies=COPIES)],
)
VIEW = ClusterView(MAP)
BUCKET = VIEW.buckets["b"]
NAMES = [f"train/{at:05d}" for at in range(2000)]
OWNERS = dict(zip(NAMES, VIEW.concerned(BUCKET, NAMES), strict=True))
Have = dict[str, CatalogEntry]


def entry(counter: int) -> CatalogEntry:
    return CatalogEntry(1, counter, 1, 10, 5, 1000 + counter, 0, b"00/00/x.1", b"")


def owned(node: int) -> Have:
    return {name: entry(at) for at, name in enumerate(NAMES) if node in OWNERS[name]}


def part(have: Mapping[str, CatalogEntry], span: Span = EVERYTHING) -> Entries:
    names = sorted(name.encode() for name in have)
    names = [name for name in names if span[0] < name and (not span[1] or name <= span[1])]
    hashes = np.array([object_hash(BUCKET_UUID, name.decode()) for name in names], np.uint64)
    heads = [encode_entry(have[name.decode()])[:HEAD_BYTES] for name in names]
    return Entries([BUCKET_UUID + name for name in names], hashes, heads, span[1])


def table_of(node: int, have: Mapping[str, CatalogEntry], drives: int = 1) -> RangeTable:
    parts = [part({name: have[name] for name in list(have)[at::drives]}) for at in range(drives)]
    return ranges_of(VIEW, BUCKET, node, EVERYTHING, parts, int(time.time()))


def differing(one: RangeTable, node: int, other: RangeTable, with_strays: bool = False) -> list[Span]:
    """What the other, asked by `node`, finds to differ from this one's."""
    return one.differing(node, other.starts, other.digests(1 - node).tolist(), with_strays=with_strays)


def within(name: str, spans: list[Span]) -> bool:
    return any(start < name.encode() and (not stop or name.encode() <= stop) for start, stop in spans)


@given(seed=st.integers(0, 2**32), drives=st.integers(1, 3), changes=st.integers(0, 5))
@settings(max_examples=40)
def test_each_difference_in_what_two_nodes_share_is_in_a_range_that_differs(
    seed: int, drives: int, changes: int
) -> None:
    draw = random.Random(seed)
    here, there = owned(0), owned(1)
    shared = sorted(here.keys() & there.keys())
    changed = draw.sample(shared, changes)
    for name in changed:
        way = draw.choice(["missing here", "missing there", "newer", "deleted"])
        if way == "missing here":
            del here[name]
        elif way == "missing there":
            del there[name]
        else:
            version = Version(1, 10_000)
            there[name] = entry(10_000) if way == "newer" else tombstone(version, 1)
    found = differing(table_of(0, here, drives), 1, table_of(1, there))
    assert all(within(name, found) for name in changed)
    assert bool(found) == bool(changed)
    # A range that a missing name ended is compared together with the next one.
    assert sum(within(name, found) for name in shared) <= changes * 16 * RANGE_NAMES


def test_what_only_one_of_two_nodes_owns_is_no_difference_between_them() -> None:
    here = owned(0)
    for name in list(here):
        if 1 not in OWNERS[name]:
            here[name] = entry(99_999)
    assert differing(table_of(0, here), 1, table_of(1, owned(1))) == []


def test_what_a_node_keeps_for_another_is_a_difference_for_one_that_asks_for_it() -> None:
    stray = next(name for name in NAMES if 1 in OWNERS[name] and 0 not in OWNERS[name])
    here = owned(0) | {stray: entry(1)}
    assert differing(table_of(0, here), 1, table_of(1, owned(1))) == []
    found = differing(table_of(0, here), 1, table_of(1, owned(1)), with_strays=True)
    assert within(stray, found)


@given(cut=st.integers(0, 11), drives=st.integers(1, 2))
@settings(max_examples=20)
def test_ranges_that_are_read_again_are_as_if_all_had_been_read(cut: int, drives: int) -> None:
    have = owned(0)
    before = table_of(0, have)
    at = cut % len(before.starts)
    span = before.starts[at], before.starts[at + 1] if at + 1 < len(before.starts) else b""
    for name in list(have)[::7]:
        if within(name, [span]):
            del have[name]
    read = ranges_of(VIEW, BUCKET, 0, span, [part(have, span)], 5)
    after = before.with_ranges(span, read)
    fresh = table_of(0, have, drives)
    assert after.names == fresh.names
    assert [after.digests(node).sum() for node in range(NODES)] == [fresh.digests(node).sum() for node in range(NODES)]
    assert after.differing(1, fresh.starts, fresh.digests(1).tolist(), with_strays=False) == []


@pytest.mark.parametrize(
    ("starts", "digests"),
    [([], []), ([b"a"], [1]), ([b"", b"b", b"a"], [1, 2, 3]), ([b"", b"a", b"a"], [1, 2, 3]), ([b""], [1, 2])],
)
def test_a_request_that_divides_names_in_no_order_is_refused(starts: list[bytes], digests: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        table_of(0, owned(0)).differing(1, starts, digests, with_strays=False)


def test_a_value_that_is_damaged_is_no_entry_of_another_digest() -> None:
    whole = part(owned(0))
    with pytest.raises(StoreFormatError):
        ranges_of(VIEW, BUCKET, 0, EVERYTHING, [whole._replace(heads=[whole.heads[0][:7], *whole.heads[1:]])], 5)


def to_compare(table: RangeTable, **choice: object) -> set[str]:
    """The names that a pass compares."""
    chosen = table.to_compare(**{"differing": {}, "ripe_ns": 0, "read_s": 0, "most_old": 100, **choice})  # type: ignore[arg-type]
    return {name for name in NAMES for one in chosen if within(name, [one.span]) and one.nodes[OWNERS[name]].any()}


def test_a_pass_compares_what_differs_and_what_no_digest_can_tell() -> None:
    mine = owned(0)
    dead, stray = next(iter(mine)), next(name for name in NAMES if 0 not in OWNERS[name])
    one = table_of(0, mine)
    assert not to_compare(one)
    assert not to_compare(one, differing={1: [], 2: []})
    span = one.starts[2], one.starts[4]
    with_1 = {name for name in NAMES if 1 in OWNERS[name]}
    assert to_compare(one, differing={1: [span], 2: []}) == {name for name in with_1 if within(name, [span])}
    assert to_compare(one, differing={1: None, 2: []}) >= with_1 & mine.keys()
    assert stray in to_compare(table_of(0, mine | {stray: entry(1)}))
    buried = table_of(0, mine | {dead: tombstone(Version(1, 1), 5_000)})
    assert dead in to_compare(buried, ripe_ns=5_001)
    assert not to_compare(buried, ripe_ns=5_000)
    later_s = int(time.time()) + 10
    assert to_compare(one, read_s=later_s, most_old=len(one.starts)) == set(NAMES)
    oldest = (b"", one.starts[2])
    assert to_compare(one, read_s=later_s, most_old=2) == {name for name in NAMES if within(name, [oldest])}


def test_a_placement_is_another_as_soon_as_an_owner_may_be() -> None:
    changes: list[dict[str, object]] = [{"weight": 2.0}, {"host": "h9"}, {"state": pb.MapNode.LEAVING}]
    found = {placement_of(VIEW, BUCKET)}
    for change in changes:
        other = pb.ClusterMap()
        other.CopyFrom(MAP)
        for field, value in change.items():
            setattr(other.node[0], field, value)
        found.add(placement_of(ClusterView(other), BUCKET))
    found.add(placement_of(VIEW, pb.MapBucket(name="b", uuid=BUCKET_UUID, copies=3)))
    assert len(found) == 2 + len(changes)
    moved = pb.ClusterMap()
    moved.CopyFrom(MAP)
    moved.version, moved.node[0].endpoint = 2, "elsewhere:1"
    assert placement_of(ClusterView(moved), BUCKET) == placement_of(VIEW, BUCKET)
