"""When a drive has failed too often, and when nothing is lost by giving it up."""

from __future__ import annotations

import pytest

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.drives.health import ErrorWindow, Neighbour, why_groups_need, why_kept
from tests.table import table


def test_errors_count_together_only_within_the_window() -> None:
    window = ErrorWindow(3, 10.0)
    assert not window.note(0.0, 2)
    assert not window.note(9.9, 2)
    assert window.recent(9.9) == 2
    assert not window.note(10.0, 3), "the first two are forgotten"
    assert not window.note(19.0, 4)
    assert window.note(19.5, 5)
    assert window.recent(40.0) == 0


def test_errors_from_before_a_drive_was_opened_anew_do_not_count() -> None:
    window = ErrorWindow(3, 10.0, total=100)
    assert not window.note(1.0, 102)
    assert window.recent(1.0) == 2


def view_of(*hosts: str, **copies: int) -> ClusterView:
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16, version=3)
    for number, host in enumerate(hosts):
        map_.node.add(
            uuid=bytes([number] * 16), host=host, peer_endpoint=f"{host}:{number}", weight=1.0, number=number + 1
        )
    for name, count in copies.items():
        map_.bucket.add(name=name, uuid=name[:1].encode() * 16, copies=count, min_copies=1)
    return ClusterView(map_)


def well(endpoint: str = "b:1") -> Neighbour:
    return Neighbour(endpoint, pb.ListDrivesResponse(drive=[pb.DriveCondition(path="/d")]), wire.ProgressResponse())


def test_a_drive_may_go_when_every_bucket_has_copies_on_nodes_that_are_well() -> None:
    assert why_kept(view_of("a", "b", "c", x=2, y=3), [well(), well("c:2")], ()) == ""


@table(
    ("view", "neighbours", "own", "reason"),
    [
        (None, [], (), "in no cluster"),
        (view_of("a", x=2), [], (), "in no cluster"),
        (view_of("a", "b", x=2, y=1), [well()], (), "'y' keeps one copy"),
        (view_of("a", "a", x=2), [well()], (), "'x' keeps one copy"),
        (view_of("a", "b", x=2), [well()], ["old"], "'old' is this node's alone"),
        (view_of("a", "b", x=2), [Neighbour("b:1", None, None)], (), "b:1 does not answer"),
        (view_of("a", "b", x=2), [Neighbour("b:1", well().drives, None)], (), "b:1 does not answer"),
    ],
)
def test_a_drive_is_kept_when_it_may_have_the_only_copy(
    view: ClusterView | None, neighbours: list[Neighbour], own: tuple[str, ...], reason: str
) -> None:
    assert reason in why_kept(view, neighbours, own)


@pytest.mark.parametrize("state", [pb.DriveCondition.MISSING, pb.DriveCondition.DISABLED])
def test_a_drive_is_kept_while_another_node_lacks_one(state: pb.DriveCondition.State) -> None:
    lacks = pb.ListDrivesResponse(drive=[pb.DriveCondition(path="/d"), pb.DriveCondition(path="/gone", state=state)])
    kept = why_kept(view_of("a", "b", x=2), [Neighbour("b:1", lacks, wire.ProgressResponse())], ())
    assert "without its drive /gone" in kept


@pytest.mark.parametrize(
    "progress", [wire.ProgressResponse(doubtful_names=1), wire.ProgressResponse(doubtful_bucket=["x"])]
)
def test_a_drive_is_kept_while_another_node_has_copies_in_doubt(progress: wire.ProgressResponse) -> None:
    kept = why_kept(view_of("a", "b", x=2), [Neighbour("b:1", well().drives, progress)], ())
    assert "still bringing its own copies up to date" in kept
    refilling = pb.ListDrivesResponse(refilling=True)
    assert "still bringing" in why_kept(
        view_of("a", "b", x=2), [Neighbour("b:1", refilling, wire.ProgressResponse())], ()
    )


def test_a_drive_is_kept_until_groups_of_coded_objects_can_do_without_it() -> None:
    view = view_of("a", "b", x=2)
    mine, other = (node.uuid for node in view.nodes)
    assert why_groups_need(view, mine, 9.0, {}) == "", "no bucket is coded"
    view.map.bucket.add(name=".coded.x", uuid=b"y" * 16, copies=1, min_copies=1, coded_of=b"x" * 16)
    view = ClusterView(view.map)

    def why(**found: object) -> str:
        theirs = wire.CodingProgress(**({"looked_s_ago": 8.0} | found))  # type: ignore[arg-type]
        return why_groups_need(view, mine, 9.0, {"a:0": wire.CodingProgress(looked_s_ago=1.0), "b:1": theirs})

    assert why() == ""
    assert why(lacking={mine.hex(): 7}) == "", "what it lacks itself is written again when it is given up"
    assert "7 groups of b:1 still lack fragments of other nodes" in why(lacking={mine.hex(): 2, other.hex(): 7})
    assert "3 groups of b:1 have fewer fragments" in why(unsafe_groups=3)
    assert "b:1 has not looked" in why(looked_s_ago=9.5)
    assert "b:1 has not looked" in why(looked_s_ago=None)
    assert "a:0 has not looked" in why_groups_need(view, mine, 9.0, {"b:1": wire.CodingProgress(looked_s_ago=1.0)})
