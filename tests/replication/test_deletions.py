"""Many objects of several copies deleted with one request: tombstones on all owners, and few messages between nodes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader import ClusterOptions, connect, errors
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_contents_pb2 as pb
from ais_loader.wire.generated import ais_contents_pb2_grpc as rpc
from storage_node.cluster.replication.write_plan import PendingWrite
from storage_node.context.errors import TooFewCopies
from storage_node.services.contents import ContentsReplicaService
from storage_node.services.replicas import ReplicaService
from storage_node.store.format import Version
from storage_node.store.replica_state import ReplicaState
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import CALL_TIMEOUT_S, Writer, cluster_of, copies_of, held, name_with


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_of(tmp_path) as running:
        yield running


def delete(cluster: LocalCluster, number: int, names: list[str]) -> dict[int, str]:
    """By this node; kinds of the errors, by the places of their names."""
    with grpc.insecure_channel(cluster.nodes[number].url.removeprefix("grpc://")) as channel:
        request = pb.DeleteManyRequest(bucket=BUCKET, name=names)
        answer = rpc.ContentsStub(channel).DeleteMany(request, timeout=CALL_TIMEOUT_S)
    return {failure.position: failure.error.kind for failure in answer.failure}


def put(cluster: LocalCluster, names: list[str]) -> dict[str, str]:
    """Their versions."""
    with Writer(cluster.nodes[0].url) as writer:
        return {result.info.name: result.info.version for result in writer.put_many(dict.fromkeys(names, b"x"))}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Of nodes that are started from now on, from other nodes."""
    calls: Counter[str] = Counter()
    for service, method in ((ReplicaService, "Newest"), (ContentsReplicaService, "BuryMany")):
        known = getattr(service, method)

        async def counted(self: object, request: object, context: object, name: str = method, call=known) -> object:  # type: ignore[no-untyped-def]
            calls[name] += 1
            return await call(self, request, context)

        monkeypatch.setattr(service, method, counted)
    return calls


@pytest.mark.slow
def test_all_owners_have_tombstones_of_one_version_for_few_messages(calls: Counter[str], cluster: LocalCluster) -> None:
    names = [f"n{at}" for at in range(300)]
    versions = put(cluster, names)
    assert delete(cluster, 3, [*names, "none", names[0]]) == {300: "object-not-found", 301: "object-not-found"}
    assert calls["BuryMany"] <= 3
    assert calls["Newest"] < len(names) / 3  # repair asks, too
    kept = [held(cluster.batches(number).node.store) for number in range(4)]
    for name in names:
        tombstones = {number: kept[number][name] for number in range(4) if name in kept[number]}
        assert set(tombstones) == set(cluster.owners(name)) and len(set(tombstones.values())) == 1
        version, data = tombstones[cluster.owners(name)[0]]
        assert data is None and _parsed(version) > _parsed(versions[name])
    assert not any("none" in one for one in kept)


@pytest.mark.slow
def test_without_one_owner_the_next_host_keeps_the_tombstone(cluster: LocalCluster) -> None:
    names = [f"n{at}" for at in range(80)]
    put(cluster, names)
    cluster.nodes[2].stop()
    absent = name_with(cluster, lambda owners: 2 not in owners, "none")
    assert delete(cluster, 0, [*names, absent]) == {80: "object-not-found"}
    kept = {number: held(cluster.batches(number).node.store) for number in (0, 1, 3)}
    for name in names:
        there = [number for number in kept if name in kept[number] and kept[number][name][1] is None]
        assert len(there) == 2 and set(there) >= set(cluster.owners(name)) - {2}
    missing = name_with(cluster, lambda owners: 2 in owners, "none")
    assert delete(cluster, 0, [missing]) == {}
    # The owner that could not be asked may have it: it finds the tombstone.
    assert any(missing in held(cluster.batches(number).node.store) for number in (0, 1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
def test_a_deletion_that_takes_away_what_is_put_meanwhile_does_not_say_that_there_was_none(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    name = name_with(cluster, lambda owners: 3 in owners and 0 not in owners)
    cluster.nodes[3].stop()
    choose, versions = ReplicaState.next_version, []

    def choose_after_a_put(replicas: ReplicaState, *arguments: object) -> Version:
        monkeypatch.setattr(ReplicaState, "next_version", choose)
        with Writer(cluster.nodes[1].url) as writer:
            versions.append(writer.put(name, b"new").version)
        return choose(replicas, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ReplicaState, "next_version", choose_after_a_put)
    if many:
        assert delete(cluster, 0, [name]) == {}
    else:
        with Writer(cluster.nodes[0].url) as writer:
            writer.delete(name)
    assert versions
    kept = [found[name] for number in range(3) if name in (found := held(cluster.batches(number).node.store))]
    assert len(kept) >= 2 and all(data is None and _parsed(at) > _parsed(versions[0]) for at, data in kept)


@contextlib.contextmanager
def one_that_leaves(folder: Path) -> Iterator[tuple[LocalCluster, list[str]]]:
    """Three nodes, the last of which is leaving and has not moved anything; the names of what they have."""
    with cluster_of(folder, 3, copies=1) as cluster:
        names = [f"n{at}" for at in range(60)]
        put(cluster, names)
        cluster.map.node[2].state = cluster_pb.MapNode.LEAVING
        cluster.learn()
        yield cluster, names


@pytest.mark.slow
def test_what_no_owner_was_asked_about_is_deleted_rather_than_not_found(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: set(owners) == {2, 3}, "n")
    also = name_with(cluster, lambda owners: set(owners) == {3, 2}, "m")
    put(cluster, [name, also])
    for owner in (2, 3):
        cluster.nodes[owner].stop()
    assert delete(cluster, 0, [name]) == {}
    with Writer(cluster.nodes[0].url) as writer:
        writer.delete(also)
    for gone in (name, also):  # the owners find it when they come back
        kept = [held(cluster.batches(number).node.store)[gone] for number in (0, 1)]
        assert [data for _, data in kept] == [None, None]
    assert delete(cluster, 0, [name, also]) == {}  # of those that stood in nobody knows what came after them


@pytest.mark.slow
def test_while_nodes_leave_what_a_silent_former_owner_may_have_is_deleted(tmp_path: Path) -> None:
    with one_that_leaves(tmp_path) as (cluster, names):
        moved = [name for name in names if cluster.owners(name)[0] == 0 and cluster.holders(name)[-1] == 2]
        assert moved
        cluster.nodes[2].stop()
        assert delete(cluster, 0, moved) == {}
        with Writer(cluster.nodes[0].url) as writer:
            writer.delete(moved[0])
        for name in moved:
            assert held(cluster.batches(0).node.store)[name][1] is None


def test_with_too_few_nodes_each_name_says_so_and_nothing_goes(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, min_copies=2) as cluster:
        put(cluster, ["a", "b"])
        cluster.nodes[1].stop()
        assert delete(cluster, 0, ["a", "b", "a//b"]) == {
            0: "node-unavailable",
            1: "node-unavailable",
            2: "object-not-found",
        }
        assert {name: data for name, (_, data) in held(cluster.batches(0).node.store).items()} == {"a": b"x", "b": b"x"}


@pytest.mark.slow
def test_while_objects_move_a_deletion_finds_what_only_the_former_owner_has(tmp_path: Path) -> None:
    with one_that_leaves(tmp_path) as (cluster, names):
        moved = [name for name in names if cluster.holders(name)[-1] == 2]
        assert moved
        assert delete(cluster, 0, names) == {}
        for name in moved:
            assert all(data is None for _, data in copies_of(cluster, name).values())
            assert set(copies_of(cluster, name)) >= set(cluster.owners(name))


def _parsed(version: str) -> Version:
    return Version(*map(int, version.split(".")))


def test_a_denial_is_tried_again_for_names_whose_owners_have_changed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{at}" for at in range(6)]
    put(cluster, names)
    outdated, refused, asked = PendingWrite._outdated, {"n1": 2, "n4": 1}, list[tuple[str, ...]]()

    def changed(self: PendingWrite, newest: ClusterView | None) -> errors.LoaderError | None:
        if refused.get(self.name, 0) > 0:
            refused[self.name] -= 1
            return TooFewCopies(f"{self.name}: its owners have changed meanwhile; try again, nothing was changed")
        return outdated(self, newest)

    deny = NodeCalls.deny

    def noted(self: NodeCalls, request: pb.DenyRequest) -> list[errors.LoaderError | None]:
        asked.append(tuple(request.name))
        return deny(self, request)

    monkeypatch.setattr(PendingWrite, "_outdated", changed)
    monkeypatch.setattr(NodeCalls, "deny", noted)
    with connect(cluster.nodes[0].url, options=ClusterOptions(retry_s=180.0)) as client:
        bucket = client.bucket(BUCKET)
        found = bucket.deny([*names, "never put"], reason="order")
        assert [one.name for one in found.names] == ["n0", "n1", "n2", "n3", "n4", "n5", "never put"]
        assert list(dict.fromkeys(asked)) == [(*names, "never put"), ("n1", "n4"), ("n1",)]
        refused["n2"] = 1
        assert bucket.allow(["n2", "n3"]) == 2
        assert list(dict.fromkeys(asked))[3:] == [("n2", "n3"), ("n2",)]
    with connect(cluster.nodes[0].url, options=ClusterOptions(retry_s=0.0)) as impatient:
        refused["n2"] = 1000
        with pytest.raises(errors.NodeUnavailable, match="n2: its owners have changed meanwhile"):
            impatient.bucket(BUCKET).deny(["n2", "n3"], reason="order")
        assert {one.name for one in impatient.bucket(BUCKET).denied().names} == {*names, "never put"} - {"n2"}
