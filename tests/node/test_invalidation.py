"""What a node that took no part in a write says afterwards: never what was there before it."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from ais_loader.errors import ObjectNotFound
from ais_loader.testing import eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.store.read.object_reader import open_object
from storage_node.store.stale_replicas import ReplicaStale
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import Writer, name_with

OLD, NEW = b"old", b"new"
DOUBT, NOTHING = "in doubt", "nothing"


def said(cluster: LocalCluster, number: int, name: str) -> bytes | str:
    """What a reader hears of a node."""
    try:
        with closing(open_object(cluster.batches(number).node.store, BUCKET, name)) as reader:
            return b"".join(reader)
    except ReplicaStale:
        return DOUBT
    except ObjectNotFound:
        return NOTHING


def quick(root: Path, nodes: int = 3) -> LocalCluster:
    return LocalCluster(root, nodes, copies=2, linked=True, reach_timeout_s=0.3, repair_interval_s=600.0)


def hold_fetching(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in doubt stays so: nobody fetches anything."""

    async def nothing(self: object) -> None:
        return

    monkeypatch.setattr("storage_node.cluster.repair.reconcile.Reconciler.resolve", nothing)


@pytest.mark.parametrize("change", ["put", pytest.param("put_many", marks=pytest.mark.slow), "delete"])
def test_a_node_that_did_not_answer_a_moment_ago_is_told_of_what_it_missed_and_of_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """It has not stood still, only its network has, and it answers reads all the while."""
    with quick(tmp_path) as cluster, Writer(cluster.nodes[0].url) as writer:
        hold_fetching(cluster, monkeypatch)
        first = name_with(cluster, lambda owners: owners == [0, 1], "first")
        second = name_with(cluster, lambda owners: owners == [0, 1], "second")
        for name in (first, second):
            writer.put(name, OLD)
        cluster.links[1].stall()
        writer.put(first, NEW)  # without the silent node
        cluster.links[1].flow()
        eventually(lambda: said(cluster, 1, first) == DOUBT)  # what could not be said then is said now
        if change == "put":
            writer.put(second, NEW)
        elif change == "put_many":
            assert writer.put_many({second: NEW})[0].HasField("info")
        else:
            writer.delete(second)
        assert said(cluster, 1, second) in ((NOTHING, DOUBT) if change == "delete" else (NEW, DOUBT))


def test_a_node_whose_connection_breaks_before_it_commits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quick(tmp_path) as cluster, Writer(cluster.nodes[0].url) as writer:
        hold_fetching(cluster, monkeypatch)
        name = name_with(cluster, lambda owners: owners == [0, 1])
        writer.put(name, OLD)
        store, begun = cluster.batches(1).node.store, threading.Event()
        commit_many = store.commit_many

        def break_first(uploads: object) -> object:
            if not begun.is_set():
                begun.set()
                raise RuntimeError("a commit that fails in an unforeseen way")
            return commit_many(uploads)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "commit_many", break_first)
        writer.put(name, NEW)
        assert begun.is_set()
        assert said(cluster, 0, name) == NEW
        assert said(cluster, 1, name) == DOUBT


@pytest.mark.parametrize("change", ["put", pytest.param("delete", marks=pytest.mark.slow)])
def test_a_write_by_an_older_map_is_told_to_those_whom_the_newer_one_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """An owner that knows the newer map may have sent what it had to the new one, before it took part in the write."""

    async def nothing(self: object, *_: object) -> bool:
        return False

    monkeypatch.setattr("storage_node.cluster.map.sync.MapSync._ask", nothing)  # it hears of it from the write alone
    with quick(tmp_path, 4) as cluster, Writer(cluster.nodes[0].url) as writer:
        hold_fetching(cluster, monkeypatch)
        newcomer = cluster.map.node[3]
        cluster.map.node.remove(newcomer)
        cluster.learn()
        newcomer.state = cluster_pb.MapNode.JOINING
        held = cluster.owners
        before = {name: held(name) for name in (f"n{at}" for at in range(200))}
        for name in before:
            if before[name][0] == 0:
                writer.put(name, OLD)
        cluster.map.node.append(newcomer)
        cluster.map.version += 1
        for number in (1, 2, 3):  # not yet the one that coordinates
            cluster.nodes[number].membership.learn(cluster.map)
        cluster.view = ClusterView(cluster.map)
        name = next(
            name
            for name in before
            if before[name][0] == 0 and 3 in cluster.owners(name) and len(cluster.holders(name)) == 3
        )
        eventually(lambda: said(cluster, 3, name) == OLD)  # repair, by the newer map
        assert cluster.nodes[0].membership.view is not None
        by_map = cluster.nodes[0].membership.view.version
        if change == "put":
            writer.put(name, NEW)
        else:
            writer.delete(name)
        assert by_map < cluster.map.version
        assert said(cluster, 3, name) in ((NOTHING, DOUBT) if change == "delete" else (NEW, DOUBT))
