"""The cluster's map with real processes: nodes and proposers that are killed, frozen, late, or have lost files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from ais_loader.testing import NodeProcess, eventually
from ais_loader.testing.node import peer_secret_file
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as objects_rpc
from storage_node.cluster.consensus.acceptor_store import decode
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.consensus.errors import NoMajority
from storage_node.cluster.map.mutations import create_bucket, create_cluster, delete_bucket
from tests.faults.changing_process import STEPS
from tests.peer_kit import PROCESS_OPERATOR

pytestmark = pytest.mark.slow  # real processes, killed and awaited

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 180.0


def endpoint_of(node: NodeProcess) -> str:
    return node.url.removeprefix("grpc://")


def ask_map(node: NodeProcess) -> pb.GetMapResponse:
    with grpc.insecure_channel(endpoint_of(node)) as channel:
        answer: pb.GetMapResponse = rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=TIMEOUT_S)
        return answer


class Cluster:
    """Node processes that have been made a cluster."""

    def __init__(self, nodes: Sequence[NodeProcess]) -> None:
        self.nodes = list(nodes)
        self.endpoints = [endpoint_of(node) for node in nodes]
        members = [
            pb.MapNode(
                uuid=ask_map(node).node_uuid,
                host=f"h{at}",
                endpoint=endpoint_of(node),
                peer_endpoint=node.peer_endpoint,
            )
            for at, node in enumerate(nodes)
        ]
        self.first = change_map(self.endpoints, create_cluster(members), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)

    def maps(self) -> list[pb.ClusterMap]:
        return [ask_map(node).map for node in self.nodes]

    def agreed(self) -> pb.ClusterMap | None:
        """The map that all nodes know; None while they do not know the same."""
        first, *others = self.maps()
        return first if all(other == first for other in others) else None

    def require_agreed(self, version: int) -> pb.ClusterMap:
        """Wait until all nodes know the same map, of this version or newer. One that was slow hears of it late."""

        def agreed() -> pb.ClusterMap | None:
            map_ = self.agreed()
            return map_ if map_ is not None and map_.version >= version else None

        map_ = eventually(agreed, timeout_s=TIMEOUT_S)
        assert map_ is not None
        return map_

    def change(self, edit: Edit) -> pb.ClusterMap:
        """Change the map, and wait until all nodes know it."""
        map_ = change_map(self.endpoints, edit, timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)
        assert self.require_agreed(map_.version) == map_
        return map_

    def change_elsewhere(self, buckets: Sequence[str], die: str = "") -> subprocess.Popen[str]:
        """Another process makes these buckets, one after another."""
        task = {
            "endpoints": self.endpoints,
            "buckets": list(buckets),
            "die": die,
            "peer_secret_file": str(peer_secret_file()),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.changing_process", json.dumps(task)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )


def names(map_: pb.ClusterMap) -> list[str]:
    return [bucket.name for bucket in map_.bucket]


def put(node: NodeProcess, bucket: str, name: str) -> None:
    """An object in a bucket with a copy on every node."""
    small = objects_pb.SmallObject(bucket=bucket, name=name, data=b"bytes")
    with grpc.insecure_channel(endpoint_of(node)) as channel:

        def is_stored() -> bool:
            sent = iter([objects_pb.PutManyRequest(object=[small])])
            (answer,) = objects_rpc.ObjectsStub(channel).PutMany(sent, timeout=TIMEOUT_S)
            [result] = answer.result
            assert not result.HasField("error") or result.error.kind in ("node-unavailable", "outcome-unknown"), answer
            return bool(result.HasField("info"))

        eventually(is_stored, timeout_s=TIMEOUT_S, interval_s=0.2)


def objects_on(node: NodeProcess, bucket: str) -> list[str]:
    """Once it has compared what it has with the others."""
    with grpc.insecure_channel(endpoint_of(node)) as channel:

        def listed() -> list[list[str]]:
            request = objects_pb.ListRequest(bucket=bucket)
            try:
                answer = objects_rpc.ObjectsStub(channel).List(request, timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:  # type: ignore[attr-defined]
                    raise
                return []
            return [[found.name for found in answer.object]]

        [names] = eventually(listed, timeout_s=TIMEOUT_S)
        return names


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as held:
        yield Cluster(
            [held.enter_context(NodeProcess([tmp_path / f"n{at}-0", tmp_path / f"n{at}-1"])) for at in range(3)]
        )


@pytest.mark.parametrize("die", STEPS)
@pytest.mark.sampled(4)
def test_a_change_whose_proposer_is_killed_is_made_on_all_nodes_or_on_none(cluster: Cluster, die: str) -> None:
    proposer = cluster.change_elsewhere(["half"], die)
    assert proposer.wait(TIMEOUT_S) == -9
    proposer.communicate()
    if die.startswith(("surveyed", "prepared")):
        assert cluster.require_agreed(0) == cluster.first
    elif die != "accepted:1":
        # A majority has it: nobody has to come and change something else for it to be finished.
        assert eventually(lambda: all(names(map_) == ["half"] for map_ in cluster.maps()), timeout_s=TIMEOUT_S)
    after = change_map(cluster.endpoints[:1], create_bucket("after"), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)
    assert names(after) in (
        [["half", "after"], ["after"]]
        if die == "accepted:1"
        else [["after"] if die.startswith(("surveyed", "prepared")) else ["half", "after"]]
    )
    assert after.version == 1 + len(names(after))
    assert eventually(lambda: cluster.agreed() == after, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("count", [2, 4])
def test_changes_made_at_once_by_several_processes_are_made_once_each(cluster: Cluster, count: int) -> None:
    wanted = [[f"p{at}-{number}" for number in range(8)] for at in range(count)]
    changers = [cluster.change_elsewhere(buckets) for buckets in wanted]
    versions = [json.loads(changer.communicate(timeout=TIMEOUT_S)[0])["version"] for changer in changers]
    map_ = cluster.require_agreed(max(versions))
    assert map_.version == max(versions) == 1 + 8 * count
    assert sorted(names(map_)) == sorted(name for buckets in wanted for name in buckets)
    for buckets in wanted:
        assert [name for name in names(map_) if name in buckets] == buckets, "in the order in which they were made"


def test_changes_go_on_while_nodes_are_killed_one_after_another(cluster: Cluster) -> None:
    wanted = [[f"p{at}-{number}" for number in range(30)] for at in range(2)]
    changers = [cluster.change_elsewhere(buckets) for buckets in wanted]
    for node in cluster.nodes:
        node.restart()
    for changer in changers:
        changer.communicate(timeout=TIMEOUT_S)
        assert changer.returncode == 0
    map_ = cluster.require_agreed(61)
    assert sorted(names(map_)) == sorted(name for buckets in wanted for name in buckets)
    assert map_.version == 61


def test_a_minority_cannot_commit_and_catches_up(cluster: Cluster) -> None:
    cut_off, *majority = cluster.nodes
    cut_off.pause()
    newer = change_map(cluster.endpoints[1:], create_bucket("b"), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)
    for node in majority:
        node.pause()
    cut_off.resume()
    wanted = sorted(node.peer_endpoint for node in majority)

    def only_these_are_silent() -> bool:
        """The other one is for a moment, too, after it stood still."""
        with pytest.raises(NoMajority) as raised:
            change_map(cluster.endpoints, create_bucket("elsewhere"), timeout_s=1.0, caller=PROCESS_OPERATOR)
        assert set(raised.value.silent) >= set(wanted)
        return raised.value.silent == wanted

    eventually(only_these_are_silent)
    # The others' change may have been on its way to it when it stood still, as nothing was lost.
    assert ask_map(cut_off).map in (cluster.first, newer)
    for node in majority:
        node.resume()
    assert eventually(lambda: cluster.agreed() == newer, timeout_s=TIMEOUT_S)


def test_all_nodes_are_killed_and_know_their_map_when_they_are_back(cluster: Cluster) -> None:
    map_ = cluster.change(create_bucket("b", copies=3))
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
        assert ask_map(node).map == map_
    assert (
        change_map(cluster.endpoints, create_bucket("c"), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR).version
        == map_.version + 1
    )


def test_a_bucket_deleted_and_made_again_while_a_node_was_down_is_a_new_one_there(cluster: Cluster) -> None:
    cluster.change(create_bucket("b", copies=3))
    cluster.change(create_bucket("gone", copies=3))
    late = cluster.nodes[2]
    for bucket in ("b", "gone"):
        put(late, bucket, "old")
        assert objects_on(late, bucket) == ["old"]
    late.kill()
    for edit in (delete_bucket("gone"), delete_bucket("b"), create_bucket("b", copies=3)):
        newest = change_map(cluster.endpoints[:2], edit, timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)
    late.start()
    assert eventually(lambda: cluster.agreed() == newest, timeout_s=TIMEOUT_S)
    assert objects_on(late, "b") == []
    with pytest.raises(grpc.RpcError) as raised:
        objects_on(late, "gone")
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["missing", "damaged", "old"])
def test_a_file_lost_on_one_drive_is_restored_from_the_other(cluster: Cluster, damage: str) -> None:
    node = cluster.nodes[0]
    one, other = (drive / "cluster.json" for drive in node.drives)
    uuid = ask_map(node).node_uuid.hex()
    old = one.read_bytes()
    map_ = cluster.change(create_bucket("b"))
    node.kill()
    kept = other.read_bytes()
    assert one.read_bytes() == kept != old
    if damage == "missing":
        one.unlink()
    else:
        one.write_bytes(old if damage == "old" else kept[:-20])
    node.start()
    states = [decode(file.read_bytes(), file, uuid) for file in (one, other)]
    assert states[0] == states[1] == decode(kept, other, uuid)
    assert ask_map(node).map == states[0].committed == map_


def test_a_node_whose_drives_have_all_lost_it_does_not_start(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    node.kill()
    for drive in node.drives:
        (drive / "cluster.json").write_bytes(b"\0" * 100)
    with pytest.raises(RuntimeError, match="agreed to in its cluster is lost"):
        node.start()
