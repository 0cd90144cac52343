"""What a node that took no part in a write says afterwards: never what was there before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import DriveFull, LoaderError
from ais_loader.testing import eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication import invalidation
from storage_node.cluster.replication.commit import CommitProtocol, SnapshotBarrier
from storage_node.cluster.replication.invalidation import InvalidationOutbox
from storage_node.cluster.replication.lease_keeper import ReadLeases
from tests.node.cluster_kit import LocalCluster
from tests.node.write_kit import DOUBT, NOTHING, Writer, name_with, said

OLD, NEW, ID = b"old", b"new", b"W1".rjust(16, b"i")
TIMEOUT_S = 180.0


def quick(root: Path, nodes: int = 3) -> LocalCluster:
    return LocalCluster(root, nodes, copies=2, linked=True, reach_timeout_s=0.3, repair_interval_s=600.0)


def has_new(cluster: LocalCluster, number: int, name: str) -> bool:
    """Whether a node says what is new: without a lease for a moment, it says nothing, but never what is old."""
    found = said(cluster, number, name)
    assert found in (NEW, DOUBT)
    return found == NEW


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


@pytest.mark.slow
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
        eventually(lambda: writer.put(name, NEW) and begun.is_set())  # a busy node may be left out
        eventually(lambda: has_new(cluster, 0, name))
        assert said(cluster, 1, name) == DOUBT


def test_a_node_that_refuses_the_call_was_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does whose clock is far from its caller's. When it takes calls again, it must not return old bytes."""
    refused: list[str] = []
    told = Repair.missed

    async def refuse(repair: Repair, request: wire.MissedRequest) -> wire.MissedResponse:
        if len(refused) < 4:
            refused.extend(request.name)
            raise LoaderError("the call is dated too far from this node's clock")
        return await told(repair, request)

    def fail(_: object) -> object:
        raise RuntimeError("a commit that fails in an unforeseen way")

    monkeypatch.setattr(Repair, "missed", refuse)  # nodes register it as they start
    with quick(tmp_path) as cluster, Writer(cluster.nodes[0].url) as writer:
        hold_fetching(cluster, monkeypatch)
        name = name_with(cluster, lambda owners: owners == [0, 1])
        writer.put(name, OLD)
        monkeypatch.setattr(cluster.batches(1).node.store, "commit_many", fail)
        writer.put(name, NEW)
        assert said(cluster, 1, name) == DOUBT
        eventually(lambda: refused == [name] * 4)  # it is not waited for where its lease was over


@pytest.mark.slow
def test_a_node_is_noted_as_told_of_all_after_a_failure_that_nobody_has_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[bytes] = []
    note = ReadLeases.note_caught_up

    async def fails_once(leases: ReadLeases, node_uuid: bytes) -> None:
        noted.append(node_uuid)
        if len(noted) == 1:
            raise RuntimeError("a fault that nobody has foreseen")
        await note(leases, node_uuid)

    with quick(tmp_path) as cluster, Writer(cluster.nodes[0].url) as writer:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        writer.put(name, OLD)
        monkeypatch.setattr(ReadLeases, "note_caught_up", fails_once)
        cluster.links[1].stall()
        writer.put(name, NEW)
        cluster.links[1].flow()
        eventually(lambda: len(noted) > 1)
        eventually(lambda: has_new(cluster, 1, name))


@pytest.mark.slow
def test_a_write_that_a_node_misses_while_it_is_noted_that_it_was_told_of_all_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting, go_on = threading.Event(), threading.Event()
    note = ReadLeases.note_caught_up

    async def slowly(leases: ReadLeases, node_uuid: bytes) -> None:
        noting.set()
        await asyncio.to_thread(go_on.wait, TIMEOUT_S)
        await note(leases, node_uuid)

    def fail(_: object) -> object:
        raise RuntimeError("a commit that fails in an unforeseen way")

    kept, keep = set[str](), InvalidationOutbox._keep

    def noted(outbox: InvalidationOutbox, endpoint: str, bucket: tuple[str, bytes], versions: dict[str, Any]) -> Any:
        line = keep(outbox, endpoint, bucket, versions)
        kept.update(versions)
        return line

    monkeypatch.setattr(InvalidationOutbox, "_keep", noted)
    monkeypatch.setattr(ReadLeases, "note_caught_up", slowly)
    with (
        LocalCluster(tmp_path, 3, copies=2, linked=True, repair_interval_s=600.0, read_lease_s=120.0) as cluster,
        Writer(cluster.nodes[0].url) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        hold_fetching(cluster, monkeypatch)
        first, second, third = (
            name_with(cluster, lambda owners: owners == [0, 1], prefix) for prefix in ("first", "second", "third")
        )
        for name in (first, second, third):
            writer.put(name, OLD)
        monkeypatch.setattr(cluster.batches(1).node.store, "commit_many", fail)
        try:
            writer.put(first, NEW)
            assert noting.wait(TIMEOUT_S)
            cluster.links[2].refuse()  # nobody else tells it
            writing = pool.submit(writer.put, second, NEW)
            eventually(lambda: second in kept)
        finally:
            go_on.set()
        writing.result(TIMEOUT_S)
        assert [said(cluster, 1, name) for name in (first, second, third)] == [DOUBT, DOUBT, OLD]


@pytest.mark.slow
def test_a_node_that_an_earlier_try_has_lost_is_told_before_the_repeat_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both tries are staged before the first one commits on two nodes, and the first one never tells the third."""
    arrived = [threading.Event(), threading.Event()]
    go_on = [threading.Event(), threading.Event()]
    committed, over = threading.Event(), threading.Event()
    passing, invalidate_lost = SnapshotBarrier.passing, CommitProtocol._invalidate_lost

    @asynccontextmanager
    async def late(barrier: SnapshotBarrier, buckets: Iterable[bytes]) -> AsyncIterator[None]:
        number = [event.is_set() for event in arrived].index(False)
        arrived[number].set()
        await asyncio.to_thread(go_on[number].wait, TIMEOUT_S)
        async with passing(barrier, buckets):
            yield

    async def stand_still_once(*arguments: Any) -> bool:
        if not committed.is_set():
            committed.set()
            await asyncio.to_thread(over.wait, TIMEOUT_S)
        return await invalidate_lost(*arguments)

    def fail(_: object) -> object:
        raise RuntimeError("a commit that fails in an unforeseen way")

    with (
        LocalCluster(tmp_path, 3, copies=3, repair_interval_s=600.0) as cluster,
        Writer(cluster.nodes[0].url) as first,
        Writer(cluster.nodes[1].url) as second,
        ThreadPoolExecutor(2) as pool,
    ):
        hold_fetching(cluster, monkeypatch)
        cluster.map.bucket[0].min_copies = 2
        cluster.learn()
        first.put("name", OLD)
        monkeypatch.setattr(SnapshotBarrier, "passing", late)
        monkeypatch.setattr(CommitProtocol, "_invalidate_lost", stand_still_once)
        monkeypatch.setattr(cluster.batches(2).node.store, "commit_many", fail)
        try:
            one = pool.submit(first.put, "name", NEW, condition=pb.PutCondition(write_id=ID))
            assert arrived[0].wait(TIMEOUT_S)
            other = pool.submit(second.put, "name", NEW, condition=pb.PutCondition(write_id=ID, repeat_ms=60_000))
            assert arrived[1].wait(TIMEOUT_S)
            go_on[0].set()
            assert committed.wait(TIMEOUT_S)
            go_on[1].set()
            assert other.result(TIMEOUT_S).size_bytes == len(NEW)
            eventually(lambda: has_new(cluster, 0, "name") and has_new(cluster, 1, "name"))
            assert said(cluster, 2, "name") == DOUBT
        finally:
            for event in (*go_on, over):
                event.set()
        assert one.result(TIMEOUT_S).version == other.result().version


@pytest.mark.slow
@pytest.mark.parametrize("change", ["put", pytest.param("delete", marks=pytest.mark.slow)])
def test_a_write_by_an_older_map_is_told_to_those_whom_the_newer_one_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """An owner that knows the newer map may have sent what it had to the new one, before it took part in the write."""

    async def nothing(self: object, *_: object) -> bool:
        return False

    monkeypatch.setattr("storage_node.cluster.map.sync.MapSync._ask", nothing)  # it hears of it from the write alone
    monkeypatch.setattr("storage_node.services.peer_check.PEERS_ASKED", 0)
    monkeypatch.setattr("storage_node.cluster.replication.lease_keeper.ReadLeases._learn", lambda *_: None)
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


@pytest.mark.slow
def test_a_write_whose_commit_takes_longer_than_it_is_believed_in_is_told_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invalidation, "GIVEN_UP_S", 0.5)
    with quick(tmp_path) as cluster, Writer(cluster.nodes[0].url) as writer:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        writer.put(name, OLD)
        eventually(lambda: said(cluster, 1, name) == OLD)
        here, there = cluster.batches(0).node.store, cluster.batches(1).node.store
        go_on, commit_many = threading.Event(), here.commit_many

        def slowly(uploads: object) -> object:
            assert go_on.wait(TIMEOUT_S)
            return commit_many(uploads)  # type: ignore[arg-type]

        def full(*_: object, **__: object) -> object:
            raise DriveFull("no room for a copy")

        monkeypatch.setattr(here, "commit_many", slowly)
        monkeypatch.setattr(there, "begin_put", full)
        cluster.links[2].refuse()  # nor has it a stand-in whose copy could be found
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(writer.put, name, NEW)
            eventually(lambda: said(cluster, 1, name) == DOUBT)
            cluster.links[2].accept()
            eventually(lambda: said(cluster, 1, name) == OLD, TIMEOUT_S)  # nobody has it, so far
            hold_fetching(cluster, monkeypatch)
            go_on.set()
            writing.result(TIMEOUT_S)
            assert said(cluster, 1, name) == DOUBT
