"""change_map and its edits against running nodes: who learns what, what is refused and why, what outlives a node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agreement_kit import TIMEOUT_S, endpoint_of, endpoints_of, known_map, make_cluster, member, node_at, nodes_at

from ais_loader import connect
from ais_loader.errors import InvalidName, StoreFormatError
from ais_loader.testing import eventually
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.acceptor_store import decode
from storage_node.cluster.consensus.change import NodeConnections, change_map, drive
from storage_node.cluster.consensus.effects import Answers, Ask
from storage_node.cluster.consensus.errors import ChangeUnknown, NoMajority, OtherCluster
from storage_node.cluster.consensus.proposer import Proposer
from storage_node.cluster.map import mutations
from storage_node.cluster.map.mutations import (
    add_node,
    begin_leave,
    create_bucket,
    create_cluster,
    delete_bucket,
    remove_node,
    set_bucket,
)
from storage_node.cluster.repair.plan import finish_changes
from storage_node.ops.node_discovery import group_drives, wipe_node
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.drive import identity as identities
from tests.table import table


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeServer]]:
    with nodes_at(tmp_path, 3) as running:
        yield running


def changed(nodes: list[NodeServer], edit: object, timeout_s: float = TIMEOUT_S) -> pb.ClusterMap:
    return change_map(endpoints_of(nodes), edit, timeout_s=timeout_s)  # type: ignore[arg-type]


def version_of(node: NodeServer) -> int:
    map_ = known_map(node)
    return 0 if map_ is None else map_.version


def test_a_cluster_is_made_and_all_its_nodes_know(nodes: list[NodeServer]) -> None:
    map_ = make_cluster(nodes)
    assert map_.version == 1
    assert [(node.number, node.endpoint, node.state) for node in map_.node] == [
        (at, endpoint_of(node), pb.MapNode.ACTIVE) for at, node in enumerate(nodes, 1)
    ]
    assert all(known_map(node) == map_ for node in nodes)
    assert make_cluster(nodes) == map_, "making it again finds it"


def test_a_change_needs_one_endpoint_and_reaches_every_node(nodes: list[NodeServer]) -> None:
    make_cluster(nodes)
    map_ = changed(nodes[2:], create_bucket("b", copies=3, min_copies=2))
    assert map_.version == 2
    assert [(b.name, b.copies, b.min_copies, len(b.uuid)) for b in map_.bucket] == [("b", 3, 2, 16)]
    for node in nodes:
        assert known_map(node) == map_
        assert node.batches is not None and node.batches.node.store.bucket("b").uuid_bytes == map_.bucket[0].uuid


def test_an_edit_that_changes_nothing_makes_no_version(nodes: list[NodeServer]) -> None:
    map_ = make_cluster(nodes)
    assert changed(nodes, lambda known: known) == map_
    assert changed(nodes, add_node(map_.node[0])) == map_


@pytest.mark.slow
def test_a_cluster_is_not_made_while_one_of_its_nodes_is_away(nodes: list[NodeServer]) -> None:
    gone = endpoint_of(nodes[1])
    members = [member(node) for node in nodes]
    nodes[1].stop(0.0)
    with pytest.raises(NoMajority, match=gone) as raised:
        change_map([node.endpoint for node in members], create_cluster(members), timeout_s=1.0)
    assert raised.value.silent == [gone]
    assert all(known_map(node) is None for node in nodes if node is not nodes[1])


@pytest.mark.slow
def test_a_node_of_one_cluster_is_not_taken_by_another(tmp_path: Path, nodes: list[NodeServer]) -> None:
    make_cluster(nodes)
    with nodes_at(tmp_path / "others", 2) as others:
        mixed = [others[0], nodes[0]]
        with pytest.raises(ValueError, match="belongs to cluster"):
            make_cluster(mixed)
        make_cluster(others)
        with pytest.raises(OtherCluster, match=others[0].peer_endpoint):
            changed(nodes, add_node(member(others[0])))
        with pytest.raises(OtherCluster):
            change_map(endpoints_of(mixed), lambda known: known or pb.ClusterMap(), timeout_s=TIMEOUT_S)
    assert all(version_of(node) == 1 for node in nodes)


def test_a_minority_commits_nothing_and_says_who_is_missing(nodes: list[NodeServer]) -> None:
    make_cluster(nodes)
    gone = sorted(node.peer_endpoint for node in nodes[1:])
    for node in nodes[1:]:
        node.stop(0.0)
    with pytest.raises(NoMajority, match="majority of the 3 nodes") as raised:
        changed(nodes[:1], create_bucket("b"), timeout_s=1.0)
    assert raised.value.silent == gone
    assert version_of(nodes[0]) == 1


@pytest.mark.slow
def test_concurrent_changes_are_all_made(nodes: list[NodeServer]) -> None:
    make_cluster(nodes)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda at: changed([nodes[at % 3]], create_bucket(f"b{at}")), range(12)))
    map_ = known_map(nodes[0])
    assert map_ is not None and map_.version == 13
    assert sorted(bucket.name for bucket in map_.bucket) == sorted(f"b{at}" for at in range(12))


@pytest.mark.slow
def test_a_node_joins_and_another_leaves(tmp_path: Path, nodes: list[NodeServer]) -> None:
    make_cluster(nodes)
    changed(nodes, create_bucket("b", copies=3))
    leaving = nodes[0].membership.node_uuid
    with pytest.raises(ValueError, match="'b' has 3 copies, and 2 hosts would be left"):
        changed(nodes, begin_leave(leaving))
    with node_at(tmp_path / "fourth") as fourth:
        map_ = changed(nodes, add_node(member(fourth)))
        joined = map_.node[3]
        assert joined.state == pb.MapNode.JOINING and joined.number not in {node.number for node in map_.node[:3]}
        assert known_map(fourth) == map_
        assert fourth.batches is not None and fourth.batches.node.store.bucket("b").uuid_bytes == map_.bucket[0].uuid
        changed(nodes, finish_changes(map_.version))
        map_ = changed(nodes, begin_leave(leaving))
        assert map_.node[0].state == pb.MapNode.LEAVING
        map_ = changed(nodes, finish_changes(map_.version))
        assert [node.uuid for node in map_.node] == [node.membership.node_uuid for node in [*nodes[1:], fourth]]
        assert known_map(nodes[0]) == map_ and nodes[0].membership.position is None
        with pytest.raises(ValueError, match="3 copies"):
            changed(nodes, remove_node(joined.uuid))
        changed(nodes, delete_bucket("b"))
        assert len(changed(nodes, remove_node(joined.uuid)).node) == 2
        with node_at(tmp_path / "fifth") as fifth:
            again = changed(nodes[1:], add_node(member(fifth))).node[-1]
        assert again.number not in {joined.number, *range(1, 4)}, "a number is never given again"


def test_a_node_leaves_at_the_first_attempt_even_if_it_is_among_the_first_to_promise(
    nodes: list[NodeServer],
) -> None:
    """Two of three nodes may be a majority of the old map, and only one of two of the new one."""
    make_cluster(nodes)
    slow = nodes[1].peer_endpoint

    class OneIsSlow(NodeConnections):
        def ask(self, ask: Ask) -> Answers:
            first = {endpoint: request for endpoint, request in ask.requests.items() if endpoint != slow}
            if len(ask.requests) == 3 and all(isinstance(one, pb.PrepareRequest) for one in first.values()):
                return super().ask(Ask(first))
            return super().ask(ask)

    proposer = Proposer(endpoints_of(nodes[:2]), remove_node(nodes[2].membership.node_uuid), time.monotonic)
    with OneIsSlow() as channels:
        assert len(drive(proposer.run(timeout_s=0.0), channels).node) == 2


@pytest.mark.slow
def test_a_node_that_was_taken_out_comes_back_as_a_new_one_or_not_at_all(
    tmp_path: Path, nodes: list[NodeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drives have what was there when it left, and no tombstones of what was deleted since."""
    make_cluster(nodes)
    changed(nodes, create_bucket("b", copies=3))
    names = [f"{number:02d}" for number in range(20)]
    with connect(",".join(node.url for node in nodes)) as client:
        client.bucket("b").put_many((name, b"bytes") for name in names)
    lost = nodes[2].membership.node_uuid
    port = nodes[2].port
    nodes[2].stop(0.0)
    changed(nodes[:2], set_bucket("b", BucketSettings(copies=2)))
    map_ = changed(nodes[:2], remove_node(lost))
    assert list(map_.removed) == [lost]
    with connect(",".join(node.url for node in nodes[:2])) as client:
        client.bucket("b").delete_many(names)

    async def nothing(self: object, *_: object) -> bool:
        return False

    monkeypatch.setattr("storage_node.cluster.map.sync.MapSync._ask", nothing)  # it does not hear of it
    with node_at(tmp_path / "node-2", port) as back:
        with pytest.raises(ValueError, match=f"node {lost.hex()} was taken out of this cluster.*--wipe"):
            changed(nodes[:2], add_node(member(back)))

        # Nor while the map has forgotten so old a name, as long as the node itself knows that it was one of us.
        def forgetting(known: pb.ClusterMap | None) -> pb.ClusterMap:
            assert known is not None
            del known.removed[:]
            return add_node(member(back))(known)

        with pytest.raises(OtherCluster, match="was a node of this cluster by its map"):
            changed(nodes[:2], forgetting)
    (wiped,) = group_drives(
        {
            drive: identity
            for drive in (tmp_path / "node-2").iterdir()
            if (identity := identities.read(drive)) is not None
        }
    )
    made = wipe_node(wiped)
    assert made.drives == wiped.drives and made.uuid != wiped.uuid
    with node_at(tmp_path / "node-2", port) as back:
        changed(nodes[:2], add_node(member(back)))

        def settled() -> bool:
            map_ = known_map(nodes[0])
            return map_ is not None and [node.state for node in map_.node] == [pb.MapNode.ACTIVE] * 3

        eventually(settled, timeout_s=TIMEOUT_S)
        with connect(back.url) as client:
            assert list(client.bucket("b").objects()) == []


def test_a_map_remembers_some_thousands_of_nodes_that_were_taken_out() -> None:
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16, version=7)
    for number in range(mutations.REMOVED_KEPT + 2):
        gone = map_.node.add(uuid=number.to_bytes(16, "big"))
        mutations.take_out(map_, gone)
    assert [len(map_.removed), map_.removed[0], map_.removed[-1]] == [
        mutations.REMOVED_KEPT,
        (2).to_bytes(16, "big"),
        (mutations.REMOVED_KEPT + 1).to_bytes(16, "big"),
    ]


@pytest.mark.slow
def test_a_node_that_does_not_answer_cannot_be_added(tmp_path: Path, nodes: list[NodeServer]) -> None:
    make_cluster(nodes)
    with node_at(tmp_path / "fourth") as fourth:
        joining = member(fourth)
    with pytest.raises(NoMajority, match=joining.peer_endpoint):
        changed(nodes, add_node(joining), timeout_s=1.0)
    assert len(changed(nodes, lambda known: known).node) == 3


def test_one_node_goes_on_alone_when_the_second_is_lost_in_the_moment_in_which_it_joins(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 2) as (first, second):
        make_cluster([first])
        steps = Proposer(endpoints_of([first]), add_node(member(second)), time.monotonic).run(0.0)
        with NodeConnections() as channels, pytest.raises((NoMajority, ChangeUnknown)):
            step = next(steps)
            while True:
                assert isinstance(step, Ask)
                if any(isinstance(body, pb.AcceptRequest) for body in step.requests.values()):
                    second.stop(0.0)
                step = steps.send(channels.ask(step))
        map_ = changed([first], create_bucket("b"))
        assert [node.uuid for node in map_.node] == [first.membership.node_uuid]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (create_bucket("b", copies=4), "copies=4: need 1 to 3.*add hosts"),
        (create_bucket("b", copies=2, min_copies=3), "min_copies=3: need 1 to copies=2"),
        (delete_bucket("b"), "'b' does not exist"),
        (begin_leave(b"?" * 16), "add it first"),
        (lambda known: pb.ClusterMap(cluster_uuid=b"x" * 16, node=known.node), "keeps the uuid"),
        (lambda known: pb.ClusterMap(cluster_uuid=known.cluster_uuid), "at least one node"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused_and_changes_nothing(
    nodes: list[NodeServer], edit: object, message: str
) -> None:
    make_cluster(nodes)
    with pytest.raises(ValueError, match=message):
        changed(nodes, edit)
    assert all(version_of(node) == 1 for node in nodes)


def test_edits_check_what_they_are_given() -> None:
    with pytest.raises(InvalidName):
        create_bucket("a/b")
    with pytest.raises(ValueError, match="16 bytes"):
        create_cluster([pb.MapNode(uuid=b"x", host="h", endpoint="a:1")])
    with pytest.raises(ValueError, match="host:port"):
        add_node(pb.MapNode(uuid=b"x" * 16, host="h", endpoint="a"))
    with pytest.raises(ValueError, match="create one first"):
        create_bucket("b")(None)
    with pytest.raises(ValueError, match="at least one node"):
        change_map([], create_bucket("b"))


@pytest.mark.slow
def test_all_nodes_start_again_under_the_map_that_they_had(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 3) as nodes:
        make_cluster(nodes)
        map_ = changed(nodes, create_bucket("b", copies=2))
        ports = [node.port for node in nodes]
    for number, port in enumerate(ports):
        with node_at(tmp_path / f"node-{number}", port) as alone:
            assert known_map(alone) == map_, "at once, without asking anybody"


@pytest.mark.slow
def test_a_node_that_missed_changes_learns_them_by_itself(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 3) as nodes:
        make_cluster(nodes)
        first = changed(nodes, create_bucket("again"))
        changed(nodes, create_bucket("gone"))
        port = nodes[2].port
        nodes[2].stop(0.0)
        changed(nodes[:2], delete_bucket("gone"))
        changed(nodes[:2], delete_bucket("again"))
        map_ = changed(nodes[:2], create_bucket("again"))
        assert map_.bucket[0].uuid != first.bucket[0].uuid
        with node_at(tmp_path / "node-2", port) as back:
            assert eventually(lambda: known_map(back) == map_)
            assert back.batches is not None
            assert {name: b.uuid_bytes for name, b in back.batches.node.store.buckets().items()} == {
                "again": map_.bucket[0].uuid
            }


def test_a_node_that_comes_back_at_another_port_says_so_in_the_map(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 3) as nodes:
        make_cluster(nodes)
        nodes[2].stop(0.0)
        with node_at(tmp_path / "node-2") as back:
            assert endpoint_of(back) != endpoint_of(nodes[2])
            for node in (*nodes[:2], back):
                assert eventually(lambda node=node: version_of(node) == 2)  # type: ignore[misc]
                map_ = known_map(node)
                assert map_ is not None and map_.node[2].endpoint == endpoint_of(back)


@pytest.mark.slow
def test_a_node_says_how_it_wants_to_be_reached(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 3) as nodes:
        make_cluster(nodes)
        port = nodes[2].port
        nodes[2].stop(0.0)
        config = ServerConfig(port=port, advertise="localhost")
        with NodeServer([tmp_path / "node-2" / "drive-0"], config):
            assert eventually(lambda: version_of(nodes[0]) == 2)
            map_ = known_map(nodes[0])
            assert map_ is not None and map_.node[2].endpoint == f"localhost:{port}"


@pytest.mark.slow
def test_a_cluster_that_its_maker_told_nobody_of_comes_about_by_itself(nodes: list[NodeServer]) -> None:
    edit = create_cluster([member(node) for node in nodes])
    steps = Proposer(endpoints_of(nodes), edit, time.monotonic).run(TIMEOUT_S)
    with NodeConnections() as channels:
        step = next(steps)
        while isinstance(step, Ask) and not any(isinstance(body, pb.LearnRequest) for body in step.requests.values()):
            step = steps.send(channels.ask(step))
    assert isinstance(step, Ask)
    assert all(eventually(lambda node=node: version_of(node) == 1, timeout_s=TIMEOUT_S) for node in nodes)  # type: ignore[misc]
    assert known_map(nodes[0]) == known_map(nodes[1]) == known_map(nodes[2])


@pytest.mark.slow
def test_two_nodes_that_have_changed_places_are_not_taken_for_each_other(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 3) as nodes:
        make_cluster(nodes)
        ports = [node.port for node in nodes]
        nodes[1].stop(0.0)
        nodes[2].stop(0.0)
        with node_at(tmp_path / "node-1", ports[2]) as one, node_at(tmp_path / "node-2", ports[1]) as two:

            def settled() -> bool:
                map_ = known_map(nodes[0])
                assert map_ is not None
                return [node.endpoint for node in map_.node[1:]] == [endpoint_of(one), endpoint_of(two)]

            assert eventually(settled, timeout_s=TIMEOUT_S)
            map_ = changed(nodes[:1], create_bucket("b"))
            assert known_map(one) == known_map(two) == map_


class TestWhatIsOnTheDrives:
    def drives(self, folder: Path) -> list[Path]:
        return [folder / "node-0" / f"drive-{at}" / "cluster.json" for at in range(3)]

    def make(self, folder: Path) -> pb.ClusterMap:
        with nodes_at(folder, 1, drives=3) as nodes:
            return make_cluster(nodes)

    @pytest.mark.slow
    @table("damage", [None, b"", b"{}", b'{"format": 1, "checksum": 1, "cluster": "{}"}'])
    def test_damage_to_some_drives_is_repaired_from_the_others(self, tmp_path: Path, damage: bytes | None) -> None:
        map_ = self.make(tmp_path)
        files = self.drives(tmp_path)
        for file in files[:2]:
            file.unlink() if damage is None else file.write_bytes(damage)
        with node_at(tmp_path / "node-0", drives=3) as node:
            assert known_map(node) == map_
            uuid = node.membership.node_uuid.hex()
        assert [decode(file.read_bytes(), file, uuid).committed for file in files] == [map_] * 3

    def test_damage_to_all_drives_is_said_instead_of_a_promise_being_broken(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        for file in self.drives(tmp_path):
            file.write_bytes(file.read_bytes().replace(b"promise", b"premise"))
        with pytest.raises(StoreFormatError, match=r"agreed to in its cluster is lost.*checksum"):
            node_at(tmp_path / "node-0", drives=3).start()

    def test_the_file_of_another_format_is_refused(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        for file in self.drives(tmp_path):
            first, *_ = file.read_bytes().splitlines()
            file.write_text(json.dumps({**json.loads(first), "format": 99}))
        with pytest.raises(StoreFormatError, match="format 99"):
            node_at(tmp_path / "node-0", drives=3).start()

    def test_the_files_of_another_node_are_not_taken(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        with nodes_at(tmp_path / "other", 1) as others:
            make_cluster(others)
        stolen = (tmp_path / "other" / "node-0" / "drive-0" / "cluster.json").read_bytes()
        for file in self.drives(tmp_path):
            file.write_bytes(stolen)
        with pytest.raises(StoreFormatError, match="written by the node"):
            node_at(tmp_path / "node-0", drives=3).start()
