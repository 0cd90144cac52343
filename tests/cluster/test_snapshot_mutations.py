"""Changes of the map for snapshots: pure functions of the map."""

from __future__ import annotations

import pytest

from ais_loader.errors import BucketHasSnapshots, BucketNotFound, SnapshotExists, SnapshotNotFound, Unsupported
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.map import snapshot_mutations
from storage_node.cluster.map.mutations import delete_bucket
from storage_node.context.errors import TooFewCopies

UUID, MAKER = b"u" * 16, b"0" * 16
NODES = frozenset(bytes([48 + at]) * 16 for at in range(3))
MAKING = pb.MapSnapshot(name="s", cut=70, created_ns=5, maker=MAKER)
MADE = pb.MapSnapshot(name="s", cut=70, created_ns=5, objects=3, size_bytes=9)


def a_map(*snapshots: pb.MapSnapshot, state: pb.MapNode.State = pb.MapNode.ACTIVE) -> pb.ClusterMap:
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16, version=7)
    for uuid in sorted(NODES):
        map_.node.add(uuid=uuid, host=uuid.hex(), endpoint="h:1", weight=1.0)
    map_.node[2].state = state
    map_.bucket.add(name="b", uuid=UUID, copies=2, min_copies=1, snapshot=snapshots)
    return map_


def copy_of(map_: pb.ClusterMap) -> pb.ClusterMap:
    copy = pb.ClusterMap()
    copy.CopyFrom(map_)
    return copy


def test_one_that_is_being_made_is_kept_and_not_read() -> None:
    making = snapshot_mutations.begin_snapshot(UUID, MAKING, 7)(a_map())
    assert list(making.bucket[0].snapshot) == [MAKING]
    assert ClusterView(making).pinned == {} and ClusterView(making).to_read("b@s") is None
    assert snapshot_mutations.begin_snapshot(UUID, MAKING, 7)(copy_of(making)) == making
    made = snapshot_mutations.finish_snapshot(UUID, MADE, NODES)(copy_of(making))
    assert list(made.bucket[0].snapshot) == [MADE]
    pinned = ClusterView(made).to_read("b@s")
    assert pinned is not None and (pinned.name, pinned.uuid, pinned.copies) == ("b@s", UUID, 2)
    assert snapshot_mutations.finish_snapshot(UUID, MADE, NODES)(copy_of(made)) == made
    assert snapshot_mutations.abandon_snapshot(UUID, MAKING)(copy_of(made)) == made
    with pytest.raises(BucketHasSnapshots, match="s: delete"):
        delete_bucket("b")(copy_of(made))
    assert not snapshot_mutations.delete_snapshot(UUID, "s")(copy_of(made)).bucket[0].snapshot


def test_one_that_nobody_makes_any_more_is_taken_out_and_cannot_be_finished() -> None:
    left = snapshot_mutations.abandon_snapshot(UUID, MAKING)(a_map(MAKING))
    assert not left.bucket[0].snapshot
    with pytest.raises(TooFewCopies, match="took so long"):
        snapshot_mutations.finish_snapshot(UUID, MADE, NODES)(left)
    other = pb.MapSnapshot(name="s", cut=70, created_ns=6, maker=MAKER)
    assert list(snapshot_mutations.abandon_snapshot(UUID, MAKING)(a_map(other)).bucket[0].snapshot) == [other]
    with pytest.raises(TooFewCopies):
        snapshot_mutations.finish_snapshot(UUID, MADE, NODES)(a_map(other))
    with pytest.raises(SnapshotNotFound):
        snapshot_mutations.delete_snapshot(UUID, "s")(a_map(MAKING))


def test_the_nodes_of_the_map_are_those_that_hold() -> None:
    with pytest.raises(snapshot_mutations.MapChanged):
        snapshot_mutations.begin_snapshot(UUID, MAKING, 6)(a_map())
    for state in (pb.MapNode.JOINING, pb.MapNode.LEAVING):
        with pytest.raises(Unsupported, match="joining or leaving"):
            snapshot_mutations.begin_snapshot(UUID, MAKING, 7)(a_map(state=state))
        with pytest.raises(TooFewCopies, match="came or went"):
            snapshot_mutations.finish_snapshot(UUID, MADE, NODES)(a_map(MAKING, state=state))
    with pytest.raises(TooFewCopies, match="came or went"):
        snapshot_mutations.finish_snapshot(UUID, MADE, NODES - {MAKER})(a_map(MAKING))
    for taken in (MAKING, MADE):
        again = pb.MapSnapshot(name="s", cut=90, maker=MAKER)
        with pytest.raises(SnapshotExists, match="'s' already"):
            snapshot_mutations.begin_snapshot(UUID, again, 7)(a_map(taken))
    with pytest.raises(BucketNotFound):
        snapshot_mutations.begin_snapshot(b"x" * 16, MAKING, 7)(a_map())
