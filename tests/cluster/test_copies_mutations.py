"""How many copies a bucket has, changed in the map: pure functions of it."""

from __future__ import annotations

import pytest

from ais_loader.errors import Unsupported
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.drives.health import Neighbour, why_kept
from storage_node.cluster.map.mutations import begin_leave, set_bucket
from storage_node.cluster.map.snapshot_mutations import begin_snapshot
from storage_node.cluster.repair.plan import finish_changes
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.errors import TooFewCopies
from tests.table import table

UUID = b"u" * 16


def a_map(copies: int, min_copies: int = 1, snapshot: pb.MapSnapshot | None = None) -> pb.ClusterMap:
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16, version=7)
    for at in range(3):
        map_.node.add(uuid=bytes([48 + at]) * 16, host=f"h{at}", endpoint=f"h{at}:1", weight=1.0)
    bucket = map_.bucket.add(name="b", uuid=UUID, copies=copies, min_copies=min_copies)
    if snapshot is not None:
        bucket.snapshot.append(snapshot)
    return map_


def changed(map_: pb.ClusterMap, copies: int | None = None, min_copies: int | None = None) -> pb.MapBucket:
    return set_bucket("b", BucketSettings(copies, min_copies))(map_).bucket[0]


def test_the_numbers_before_are_kept_in_order_until_all_copies_are_where_they_belong() -> None:
    map_ = a_map(2)
    for copies, former in ((2, []), (3, [2]), (1, [2, 3]), (3, [2, 3, 1]), (2, [2, 3, 1])):
        bucket = changed(map_, copies)
        assert (bucket.copies, list(bucket.former_copies)) == (copies, former)
    assert list(finish_changes(6)(map_).bucket[0].former_copies) == [2, 3, 1], "clean by an older map"
    bucket = finish_changes(7)(map_).bucket[0]
    assert (bucket.copies, list(bucket.former_copies)) == (2, [])


@table(
    ("before", "wanted", "message"),
    [
        ((2, 1), (4, None), "copies=4: need 1 to 3.*add hosts"),
        ((2, 1), (0, None), "copies=0: need 1 to 3"),
        ((3, 3), (2, None), "min_copies=3: need 1 to copies=2"),
        ((3, 3), (2, 3), "min_copies=3: need 1 to copies=2"),
        ((2, 2), (None, 0), "min_copies=0: need 1 to copies=2"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    before: tuple[int, int], wanted: tuple[int | None, int | None], message: str
) -> None:
    map_ = a_map(*before)
    with pytest.raises(ValueError, match=message):
        changed(map_, *wanted)
    assert map_ == a_map(*before)


def test_a_bucket_may_need_fewer_hosts_than_it_has_copies_still() -> None:
    map_ = a_map(3)
    with pytest.raises(ValueError, match="3 copies, and 2 hosts would be left"):
        begin_leave(map_.node[0].uuid)(a_map(3))
    changed(map_, 2)
    assert begin_leave(map_.node[0].uuid)(map_).node[0].state == pb.MapNode.LEAVING


def test_snapshots_are_made_and_copies_changed_one_after_the_other() -> None:
    making = pb.MapSnapshot(name="s", cut=5, maker=b"0" * 16)
    with pytest.raises(TooFewCopies, match="a snapshot of bucket 'b' is being made"):
        changed(a_map(2, snapshot=making), 3)
    assert changed(a_map(2, snapshot=making), 2, 2).min_copies == 2
    assert changed(a_map(2, snapshot=pb.MapSnapshot(name="s", cut=5)), 3).copies == 3
    map_ = a_map(2)
    changed(map_, 3)
    with pytest.raises(Unsupported, match="'b' is being changed to copies=3"):
        begin_snapshot(UUID, making, 7)(map_)


def test_writes_take_their_versions_from_those_that_may_have_surplus_copies() -> None:
    map_ = a_map(3)
    changed(map_, 1)
    view = ClusterView(map_)
    replica_set = ReplicaSet(view, view.buckets["b"], 0)
    for name in ("a", "b", "c"):
        assert [*view.owners(replica_set.bucket, name), *replica_set.former(name)] == replica_set.rankings([name])[0]
    changed(map_, 3)
    view = ClusterView(map_)
    assert ReplicaSet(view, view.buckets["b"], 0).former("a") == []


def test_a_drive_is_kept_while_there_may_be_one_copy_of_what_is_on_it() -> None:
    map_ = a_map(1)
    neighbours = [Neighbour("h:1", None, None)]
    changed(map_, 2)
    assert "keeps one copy" in why_kept(ClusterView(map_), neighbours, ())
    assert "does not answer" in why_kept(ClusterView(finish_changes(7)(map_)), neighbours, ())
