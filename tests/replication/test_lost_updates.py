"""What changes while a node waits for something else is not lost: a mark, a record, a drive, a lane."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ais_loader import connect
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.acceptor_store import AcceptorStore
from storage_node.cluster.repair.copy_shortage import CopyShortage, Held
from storage_node.cluster.repair.peers import RepairPeers
from storage_node.cluster.repair.plan import Answer, NamePage, State
from storage_node.cluster.repair.range_comparison import RangeComparison
from storage_node.cluster.repair.reconcile import Reconciler
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication import invalidation, lease_keeper
from storage_node.cluster.replication.lease_keeper import ReadLeases
from storage_node.context import call_lanes
from storage_node.context.call_lanes import CallLanes
from storage_node.context.node import Node
from storage_node.store.format import Version
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.drive_kit import drive_cluster
from tests.node.write_kit import DOUBT, name_with, said

pytestmark = pytest.mark.slow
OLD, NEW = b"old", b"new"
TIMEOUT_S = 180.0
OTHER = b"other node".ljust(16, b".")


class Gate:
    """A step that is held up once, when it is armed."""

    def __init__(self) -> None:
        self.armed = False
        self.reached, self.go_on = threading.Event(), threading.Event()

    def wait(self) -> None:
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.go_on.wait(TIMEOUT_S)

    async def passed(self) -> None:
        await asyncio.to_thread(self.wait)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()


def leases_at(root: Path) -> ReadLeases:
    """The leases of a node in no cluster, with one drive."""

    async def read(function: Callable[..., Any], *arguments: object) -> Any:
        return await asyncio.to_thread(function, *arguments)

    node = SimpleNamespace(
        config=SimpleNamespace(cluster=SimpleNamespace(read_lease_s=1.0)),
        store=SimpleNamespace(drives=[SimpleNamespace(root=root)]),
        membership=None,
        caller=SimpleNamespace(generation=0),
        read=read,
    )
    unused = cast("Any", None)
    return ReadLeases(cast("Node", node), unused, unused, unused, unused)


def test_a_lease_is_withheld_for_a_second_caller_only_once_the_record_is_on_the_drives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that dies after it has answered, and comes back, must know whom it withholds the lease from."""
    write = lease_keeper._write
    with Gate() as gate:
        gate.armed = True

        def slowly(*arguments: Any) -> None:
            gate.wait()
            write(*arguments)

        monkeypatch.setattr(lease_keeper, "_write", slowly)

        async def both() -> set[bytes]:
            leases = leases_at(tmp_path)

            async def recorded() -> set[bytes]:
                await leases.withhold(OTHER)
                return lease_keeper._read([tmp_path])

            first = asyncio.create_task(recorded())
            await asyncio.to_thread(gate.reached.wait, TIMEOUT_S)
            second = asyncio.create_task(recorded())
            await asyncio.sleep(0)  # it has taken its first step
            gate.go_on.set()
            assert await first == {OTHER}
            return await second

        assert asyncio.run(both()) == {OTHER}


def test_a_lease_withheld_for_a_caller_that_was_cancelled_is_recorded_for_the_next_one(tmp_path: Path) -> None:
    async def again() -> set[bytes]:
        leases = leases_at(tmp_path)
        async with leases._keeping:  # another record is being written
            first = asyncio.create_task(leases.withhold(OTHER))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
        await leases.withhold(OTHER)
        return lease_keeper._read([tmp_path])

    assert asyncio.run(again()) == {OTHER}


def test_a_lane_is_opened_again_after_one_that_was_given_up_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    async def open_lane(_: object, endpoint: str) -> object:
        opened.append(endpoint)
        raise OSError("there is none")

    monkeypatch.setattr(call_lanes, "open_lane", open_lane)

    async def run() -> None:
        lanes = CallLanes(lambda endpoint: None)
        assert lanes.take("node:1") is None
        task = lanes._opening["node:1"]
        lanes.distrust("node:1")  # another call has found the node silent
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert lanes.take("node:1") is None
        await asyncio.wait([lanes._opening["node:1"]])

    asyncio.run(run())
    assert opened == ["node:1"]


def test_what_a_write_leaves_short_while_the_object_before_it_is_looked_after_is_not_taken_for_mended() -> None:
    mine = State(Version(1, 1), False, 10)
    view, bucket = cast("Any", SimpleNamespace(position={OTHER: 0})), pb.MapBucket(name=BUCKET, uuid=b"1")

    async def run() -> dict[bytes, list[str]]:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def held(bucket: str, names: object) -> Held:
            return []

        async def compare(*_: object) -> tuple[NamePage, dict[int, Answer]]:
            asked.set()
            await go_on.wait()
            return NamePage(["a", "b"], [mine, mine], [[0, 1], [0, 1]], [False, False]), {1: {"a": mine, "b": mine}}

        unused = cast("Any", None)
        membership = cast("Any", SimpleNamespace(node_uuid=OTHER))
        shortage = CopyShortage(membership, unused, held=held, compare=compare, push=unused)
        shortage.short.note(b"1", ["a", "b"])
        looking = asyncio.create_task(shortage.look_after(view, bucket, ["a", "b"], urgent=True))
        await asked.wait()
        shortage.short.note(b"1", ["a"])
        go_on.set()
        await looking
        return shortage.short.urgent()

    assert asyncio.run(run()) == {b"1": ["a"]}


def reconciler_at(cluster: LocalCluster, number: int) -> Callable[[Reconciler], bool]:
    """Whether a reconciler is that of this node."""
    return lambda one: one._membership is cluster.nodes[number].membership


def test_a_version_announced_again_while_nodes_are_asked_for_it_stays_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit took so long that nobody had it when they were asked, and everybody has when it is given up."""
    monkeypatch.setattr(invalidation, "GIVEN_UP_S", 0.0)
    newest, give_up, heard = RepairPeers.newest, Reconciler._give_up, list[bytes | str]()
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=600.0) as cluster, Gate() as gate:
        name, uuid = name_with(cluster, lambda owners: owners == [0, 1]), cluster.map.bucket[0].uuid
        cluster.put({name: OLD})
        eventually(lambda: said(cluster, 1, name) == OLD, TIMEOUT_S)
        stale, repair = cluster.batches(1).node.store.replicas.stale, cluster.nodes[1].repair
        version = Version(1, cluster.batches(0).node.store.replicas.clock + 1)
        assert repair is not None

        async def slowly(peers: RepairPeers, *arguments: Any, **options: Any) -> Any:
            answers = await newest(peers, *arguments, **options)
            if peers is repair.peers:
                await gate.passed()
            return answers

        async def noted(self: Reconciler, *arguments: Any) -> None:
            await give_up(self, *arguments)
            if reconciler_at(cluster, 1)(self):
                heard.append(said(cluster, 1, name))

        monkeypatch.setattr(RepairPeers, "newest", slowly)
        monkeypatch.setattr(Reconciler, "_give_up", noted)
        gate.armed = True
        stale.mark_names(uuid, {name: version})
        assert gate.reached.wait(TIMEOUT_S)
        cluster.put_on(0, {name: NEW}, {name: version})
        stale.mark_names(uuid, {name: version})  # as its coordinator does before it acknowledges the write
        gate.go_on.set()
        eventually(lambda: heard, TIMEOUT_S)
        assert heard[0] == DOUBT
        eventually(lambda: said(cluster, 1, name) == NEW, TIMEOUT_S)


def test_a_write_announced_in_a_bucket_whose_map_is_about_to_come_into_use_stays_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, learn, resolved = Reconciler.resolve, AcceptorStore.learn, list[Reconciler]()
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=600.0) as cluster, Gate() as gate:
        store, membership = cluster.batches(1).node.store, cluster.nodes[1].membership

        def slowly(self: AcceptorStore, map_: pb.ClusterMap) -> None:
            gate.wait()
            learn(self, map_)

        async def noted(self: Reconciler) -> None:
            await resolve(self)
            if reconciler_at(cluster, 1)(self):
                resolved.append(self)

        monkeypatch.setattr(AcceptorStore, "learn", slowly)
        monkeypatch.setattr(Reconciler, "resolve", noted)
        newer = pb.ClusterMap()
        newer.CopyFrom(cluster.map)
        newer.version += 1
        newer.bucket.add(name="later", uuid=OTHER, copies=2, min_copies=1)
        gate.armed = True
        with ThreadPoolExecutor(1) as pool:
            try:
                learning = pool.submit(membership.learn, newer)
                assert gate.reached.wait(TIMEOUT_S)
                assert store.bucket("later").uuid_bytes == OTHER  # so that announcements are accepted
                store.replicas.stale.mark_names(OTHER, {"a": Version(1, 7)})
                before = len(resolved)
                eventually(lambda: len(resolved) > before + 1, TIMEOUT_S)
                assert store.replicas.stale.wanted(OTHER, "a") == Version(1, 7)
            finally:
                gate.go_on.set()
            learning.result(TIMEOUT_S)


def test_what_a_node_missed_while_it_stood_still_in_a_comparison_is_compared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare, compare_all, heard = Reconciler._compare_existing, Reconciler._return, list[bytes | str]()
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=600.0) as cluster, Gate() as gate:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        cluster.put({name: OLD})
        eventually(lambda: said(cluster, 1, name) == OLD, TIMEOUT_S)
        stale, repair = cluster.batches(1).node.store.replicas.stale, cluster.nodes[1].repair
        assert repair is not None

        async def slowly(self: Reconciler, *arguments: Any) -> None:
            await compare(self, *arguments)
            if reconciler_at(cluster, 1)(self):
                await gate.passed()

        async def noted(self: Reconciler) -> None:
            await compare_all(self)
            if reconciler_at(cluster, 1)(self):
                heard.append(said(cluster, 1, name))

        monkeypatch.setattr(Reconciler, "_compare_existing", slowly)
        monkeypatch.setattr(Reconciler, "_return", noted)
        gate.armed = True
        repair.compare_all()
        assert gate.reached.wait(TIMEOUT_S)
        version = Version(1, cluster.batches(0).node.store.replicas.clock + 1)
        cluster.put_on(0, {name: NEW}, {name: version})
        with stale._lock:
            stale._until_s = 0.0  # it has promised to run by then
        eventually(lambda: stale._until_s > 0.0, TIMEOUT_S)  # it has noticed
        gate.go_on.set()
        eventually(lambda: heard, TIMEOUT_S)
        assert heard[0] != OLD
        eventually(lambda: said(cluster, 1, name) == NEW, TIMEOUT_S)


def test_a_pass_that_a_drive_was_away_from_for_a_while_says_nothing_of_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a node that leaves could be let go before it has handed them over."""
    to_compare, run_pass, found = RangeComparison.to_compare, Repair._pass, list[tuple[bool, bool]]()
    objects = {f"k{at:02}": seeded_bytes(100, seed=at) for at in range(30)}
    with drive_cluster(tmp_path, buckets={BUCKET: 1}, repair_interval_s=600.0) as cluster:
        with connect(cluster.url) as client:
            client.bucket(BUCKET).put_many(objects.items())
        cluster.copied(BUCKET, set(objects))
        node, store, drive = cluster.nodes[1], cluster.store(1), cluster.drive_uuid(1, 0)
        repair, is_away = node.repair, threading.Event()
        assert repair is not None

        async def without(self: RangeComparison, view: ClusterView) -> AsyncGenerator[Any, None]:
            if self is not repair.ranges or is_away.is_set():
                async for one in to_compare(self, view):
                    yield one
                return
            is_away.set()
            await asyncio.to_thread(store.pool.disable_drive, drive, "away for a moment")
            compared = [one async for one in to_compare(self, view)]
            for one in compared:
                yield one
            await asyncio.to_thread(store.pool.enable_drive, drive)

        async def noted(self: Repair, *arguments: Any) -> tuple[bool, bool]:
            done = await run_pass(self, *arguments)
            if self is repair and is_away.is_set():
                found.append(done)
            return done

        monkeypatch.setattr(RangeComparison, "to_compare", without)
        monkeypatch.setattr(Repair, "_pass", noted)
        repair.wake()
        eventually(lambda: found, TIMEOUT_S)
        assert found[0] == (False, False)
        repair.wake()
        eventually(lambda: found[-1] == (True, True), TIMEOUT_S)
