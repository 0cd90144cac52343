"""HostPlacement over a cluster's map: the same everywhere, fair, and moving only what it must."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ais_loader.wire.cluster_map import ClusterView, most_copies, object_hashes, sure_copies
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from tests.table import table

NAMES = [f"en/{number:06d}.wav" for number in range(20_000)]
BUCKET_UUID = bytes(range(16))
EXPECTED = [[0, 1, 4], [2, 4, 1], [3, 4, 0], [2, 3, 0], [3, 0, 4], [0, 1, 2]]


def cluster(*nodes: tuple[int, str, float, int], copies: int = 1, former: Sequence[int] = ()) -> ClusterView:
    """Of (number, host, weight, state)."""
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16, version=7)
    for number, host, weight, state in nodes:
        map_.node.add(
            uuid=bytes([number]) * 16, host=host, endpoint=f"{host}:1", weight=weight, state=state, number=number
        )
    bucket = map_.bucket.add(name="b", uuid=BUCKET_UUID, copies=copies, min_copies=1, former_copies=former)
    bucket.snapshot.add(name="s", cut=1)
    return ClusterView(map_)


def plain(count: int, copies: int = 1, former: Sequence[int] = ()) -> ClusterView:
    nodes = [(number, f"h{number}", 1.0, pb.MapNode.ACTIVE) for number in range(count)]
    return cluster(*nodes, copies=copies, former=former)


def test_owners_are_those_of_the_wire_contract() -> None:
    view = plain(5, copies=3)
    found = [view.owners(view.buckets["b"], name) for name in NAMES[:6]]
    assert found == EXPECTED, "a change of these moves every object of every cluster"


@pytest.mark.slow
@table("copies", [1, 2, 3, 9])
@table("hosts", [1, 3, 16, 17])
def test_one_object_is_placed_as_it_is_among_others(hosts: int, copies: int) -> None:
    view = cluster(
        *[
            (at, f"h{at % hosts}", 1.0 + at % 3, [pb.MapNode.ACTIVE, pb.MapNode.JOINING][at % 5 == 4])
            for at in range(2 * hosts)
        ],
        copies=copies,
    )
    bucket, names = view.buckets["b"], NAMES[:500]
    together = view.holders(bucket, names)
    assert [view.holders(bucket, [name])[0] for name in names] == together
    owners = view.placement.owners(object_hashes(BUCKET_UUID, names), copies).tolist()
    assert [view.owners(bucket, name) for name in names] == owners


def test_each_host_owns_its_share() -> None:
    view = cluster(*[(at, f"h{at}", 1.0 + at % 2, pb.MapNode.ACTIVE) for at in range(6)])
    owners = view.placement.owners(object_hashes(BUCKET_UUID, NAMES), 1)[:, 0]
    shares = np.bincount(owners, minlength=6) / len(NAMES)
    assert shares == pytest.approx([1 / 9, 2 / 9] * 3, abs=0.012)


def test_copies_are_on_distinct_hosts_and_spread_over_their_nodes() -> None:
    view = cluster(*[(at, f"h{at // 2}", 1.0, pb.MapNode.ACTIVE) for at in range(6)], copies=2)
    owners = view.placement.owners(object_hashes(BUCKET_UUID, NAMES), 2)
    assert (owners[:, 0] // 2 != owners[:, 1] // 2).all()
    for column in (0, 1):
        assert np.bincount(owners[:, column], minlength=6) / len(NAMES) == pytest.approx([1 / 6] * 6, abs=0.012)


def test_fewer_hosts_than_copies_means_fewer_copies() -> None:
    view = plain(2, copies=3)
    assert all(sorted(holders) == [0, 1] for holders in view.holders(view.buckets["b"], NAMES[:50]))


def test_a_new_host_takes_its_share_from_all_and_moves_nothing_else() -> None:
    hashes = object_hashes(BUCKET_UUID, NAMES)
    before, after = (plain(count).placement.owners(hashes, 1)[:, 0] for count in (4, 5))
    moved = before != after
    assert (after[moved] == 4).all()
    assert moved.mean() == pytest.approx(1 / 5, abs=0.01)
    assert np.bincount(before[moved], minlength=4) / moved.sum() == pytest.approx([1 / 4] * 4, abs=0.03)


def test_a_joining_node_owns_and_the_former_owners_are_asked_next() -> None:
    before = plain(3, copies=2)
    joining = cluster(
        *[(at, f"h{at}", 1.0, pb.MapNode.JOINING if at == 3 else pb.MapNode.ACTIVE) for at in range(4)], copies=2
    )
    after = plain(4, copies=2)
    old, now, holders = (view.holders(view.buckets["b"], NAMES[:500]) for view in (before, after, joining))
    assert [found[:2] for found in holders] == now
    assert all(set(found) == {*a, *b} for found, a, b in zip(holders, old, now, strict=True))


def test_a_leaving_node_owns_nothing_and_is_asked_last() -> None:
    leaving = cluster(*[(at, f"h{at}", 1.0, pb.MapNode.LEAVING if at == 0 else pb.MapNode.ACTIVE) for at in range(3)])
    holders = leaving.holders(leaving.buckets["b"], NAMES[:500])
    assert all(found[0] != 0 for found in holders)
    assert {tuple(found[1:]) for found in holders} == {(), (0,)}


@table(
    ("former", "copies", "read", "most", "sure"),
    [
        ((), 2, 2, 2, 2),
        ((2,), 3, 2, 3, 2),
        ((3,), 2, 3, 3, 2),
        ((2, 3), 2, 2, 3, 2),
        ((1, 3), 2, 1, 3, 1),
        ((3, 1), 2, 3, 3, 1),
    ],
)
def test_while_the_number_of_copies_changes_those_are_read_that_have_been_told_all_along(
    former: Sequence[int], copies: int, read: int, most: int, sure: int
) -> None:
    view, names = plain(5, copies, former), NAMES[:300]
    ranked = plain(5, 5).holders(plain(5, 5).buckets["b"], names)
    bucket = view.buckets["b"]
    assert view.holders(bucket, names) == [found[:read] for found in ranked]
    assert view.holders(view.pinned["b@s"], names) == [found[:read] for found in ranked]
    assert view.concerned(bucket, names) == [found[:most] for found in ranked]
    assert [view.owners(bucket, name) for name in names] == [found[:copies] for found in ranked]
    assert [view.sure_owners(bucket, name) for name in names] == [found[:sure] for found in ranked]
    assert (most_copies(bucket), sure_copies(bucket)) == (most, sure)
    assert (view.is_changing, view.is_moving(["b"]), view.is_moving(["b@s"]), view.is_moving(["c"])) == (
        bool(former),
        read > copies,
        read > copies,
        False,
    )


def test_the_number_of_copies_may_change_while_a_node_joins() -> None:
    states = [pb.MapNode.JOINING if at == 3 else pb.MapNode.ACTIVE for at in range(4)]
    nodes = [(at, f"h{at}", 1.0, state) for at, state in enumerate(states)]
    view, names = cluster(*nodes, copies=1, former=[2]), NAMES[:300]
    wide = cluster(*nodes, copies=2)
    assert view.concerned(view.buckets["b"], names) == wide.concerned(wide.buckets["b"], names)
    assert view.holders(view.buckets["b"], names) == wide.holders(wide.buckets["b"], names)
    assert view.is_changing and view.is_moving([])


def test_a_name_without_a_utf8_form_has_an_owner_that_will_not_find_it() -> None:
    view = plain(3)
    assert view.holders(view.buckets["b"], ["\ud800"])[0][0] in (0, 1, 2)


@table(("uuid", "weight"), [(b"short", 1.0), (b"x" * 16, 0.0), (b"x" * 16, float("nan"))])
def test_a_map_that_cannot_be_is_refused(uuid: bytes, weight: float) -> None:
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16)
    map_.node.add(uuid=uuid, host="h", endpoint="h:1", weight=weight)
    with pytest.raises(ValueError, match="every node"):
        ClusterView(map_)
