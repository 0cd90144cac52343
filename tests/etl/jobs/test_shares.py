"""Shares of a job: each source has one taker among the nodes that answer, and parts are the whole only together."""

from __future__ import annotations

import itertools

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.jobs.shares import Division, is_complete, layout_of, takers, whole

UUIDS = [bytes([at]) * 16 for at in range(1, 5)]
NAMES = [f"{at}" for at in range(500)]
JOINING, LEAVING = cluster_pb.MapNode.JOINING, cluster_pb.MapNode.LEAVING


def view_of(copies: int = 2, states: tuple[int, ...] = (0, 0, 0, 0)) -> ClusterView:
    map_ = cluster_pb.ClusterMap(cluster_uuid=b"c" * 16, version=7)
    for at, (uuid, state) in enumerate(zip(UUIDS, states, strict=True)):
        map_.node.add(uuid=uuid, host=f"h{at}", weight=1.0, state=state, number=at + 1)
    map_.bucket.add(name="b", uuid=b"b" * 16, copies=copies, min_copies=1)
    return ClusterView(map_)


def test_each_source_is_its_first_owners_and_of_one_that_is_silent_the_next_ones() -> None:
    view = view_of()
    bucket = view.buckets["b"]
    owners = [view.owners(bucket, name) for name in NAMES]
    assert takers(view, bucket, NAMES, Division()) == [first for first, _ in owners]
    without = takers(view, bucket, NAMES, Division(0, (UUIDS[2],)))
    assert without == [second if first == 2 else first for first, second in owners]
    assert set(takers(view, bucket, NAMES, Division(0, tuple(UUIDS)))) == {-1}


def test_while_nodes_join_or_leave_those_that_had_the_objects_take_them_and_nothing_is_whole() -> None:
    before = view_of()
    view = view_of(states=(0, 0, LEAVING, 0))
    bucket = view.buckets["b"]
    assert takers(view, bucket, NAMES, Division()) == takers(before, bucket, NAMES, Division())
    assert not is_complete(view, bucket, Division(layout_of(view, bucket)))


def test_the_parts_are_whole_only_where_each_object_has_a_copy_on_a_node_that_answers() -> None:
    for copies, down in itertools.product((1, 2, 3), (0, 1, 2, 3)):
        view = view_of(copies)
        bucket = view.buckets["b"]
        division = Division(layout_of(view, bucket), tuple(sorted(UUIDS[:down])))
        assert is_complete(view, bucket, division) == (down < copies or not down)


def test_a_layout_stays_when_something_else_changes() -> None:
    view = view_of()
    changed = cluster_pb.ClusterMap()
    changed.CopyFrom(view.map)
    changed.version += 1
    changed.bucket.add(name="other", uuid=b"o" * 16, copies=1)
    assert layout_of(ClusterView(changed), view.buckets["b"]) == layout_of(view, view.buckets["b"])
    assert layout_of(view_of(3), view_of(3).buckets["b"]) != layout_of(view, view.buckets["b"])


def part_of(uuid: bytes, division: Division, *, finished: bool = True) -> pb.NodeJob:
    counts = pb.JobCounts(seen=1, busy_s=0.5)
    return pb.NodeJob(
        node_uuid=uuid, layout=division.layout, without=division.without, finished=finished, counts=counts
    )


def test_parts_are_the_whole_when_all_that_answer_have_finished_by_the_same_division() -> None:
    division = Division(5, (UUIDS[3],))
    parts = {uuid: part_of(uuid, division) for uuid in UUIDS[:3]}
    found = whole(parts, UUIDS, division)
    assert found is not None
    assert (found.seen, found.busy_s) == (3, 1.5)
    assert whole({**parts, UUIDS[0]: part_of(UUIDS[0], division, finished=False)}, UUIDS, division) is None
    assert whole({**parts, UUIDS[0]: part_of(UUIDS[0], Division(5, ()))}, UUIDS, division) is None
    assert whole({**parts, UUIDS[0]: part_of(UUIDS[0], Division(6, (UUIDS[3],)))}, UUIDS, division) is None
    assert whole(dict(list(parts.items())[:2]), UUIDS, division) is None
