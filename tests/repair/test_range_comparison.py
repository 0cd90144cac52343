"""Nodes that compare digests of ranges: what they ask each other, and what none of it may hide."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect, errors
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.repair import range_comparison, range_table
from storage_node.cluster.repair.range_comparison import RangeComparison
from storage_node.cluster.repair.range_table import RANGE_NAMES, RangeTable
from storage_node.cluster.repair.reconcile import Reconciler
from storage_node.cluster.replication import replica
from storage_node.context.channels import Channels
from storage_node.server import NodeServer
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET, LocalCluster

TIMEOUT_S, NEVER_S = 180.0, 3600.0
NAMES = [f"n{at:05}" for at in range(3000)]


def store_of(node: NodeServer) -> Store:
    assert node.batches is not None
    return node.batches.node.store


def table_of(node: NodeServer, ranges: RangeComparison | None = None) -> RangeTable:
    view = node.membership.view
    assert view is not None and node._loop is not None
    bucket = view.buckets[BUCKET]
    tables = (ranges or node.repair.ranges).tables(view, [bucket])
    return asyncio.run_coroutine_threadsafe(tables, node._loop).result(TIMEOUT_S)[bucket.uuid]


def fresh_table_of(node: NodeServer) -> RangeTable:
    repair = node.repair
    return table_of(node, RangeComparison(node.batches.node, node.membership, repair._peers))  # type: ignore[union-attr]


def pass_of(*nodes: NodeServer) -> None:
    """Have these nodes make a pass that begins from now on."""
    before = [node.repair.metrics.passes for node in nodes]
    for node in nodes:
        assert node._loop is not None
        node._loop.call_soon_threadsafe(node.repair.wake)
    eventually(lambda: all(node.repair.metrics.passes > at for node, at in zip(nodes, before, strict=True)), TIMEOUT_S)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many names nodes have asked each other for, by method."""
    found: Counter[str] = Counter()
    ask = Channels.ask

    async def counted(
        self: Channels, endpoint: str, stub: Any, method: str, request: Any, *rest: Any, **of: Any
    ) -> Any:
        answer = await ask(self, endpoint, stub, method, request, *rest, **of)
        if isinstance(request, wire.NewestRequest):
            found[method] += len(request.name)
        elif isinstance(answer, wire.VersionsResponse):
            found[method] += len(answer.object)
        return answer

    monkeypatch.setattr(Channels, "ask", counted)
    return found


@pytest.mark.slow
def test_a_pass_and_a_return_ask_for_the_names_in_ranges_that_differ_alone(tmp_path: Path, asked: Counter[str]) -> None:
    with LocalCluster(tmp_path, 3, copies=2, repair_interval_s=NEVER_S) as cluster:
        cluster.put({name: name.encode() for name in NAMES})
        pass_of(*cluster.nodes)
        asked.clear()
        pass_of(*cluster.nodes)
        assert not asked
        assert all(node.repair.metrics.clean_version == cluster.map.version for node in cluster.nodes)
        store = store_of(cluster.nodes[1])
        before = dict(store.objects(BUCKET))
        lost = random.Random(1).choice(sorted(before))
        store.delete(BUCKET, lost)
        pass_of(*cluster.nodes)
        eventually(lambda: dict(store.objects(BUCKET)).keys() == before.keys(), TIMEOUT_S)
        assert 0 < asked["Newest"] < len(NAMES) and not asked["Versions"]
        config = cluster.nodes[0].config.replace(port=cluster.nodes[0].port)
        cluster.nodes[0].stop(grace_s=0.2)
        missed = next(name for name in NAMES if set(cluster.owners(name)) == {0, 1})
        cluster.put_on(1, {missed: b"newer"})
        asked.clear()
        with NodeServer([tmp_path / "node-0"], config) as node:
            eventually(lambda: not store_of(node).replicas.stale.any, TIMEOUT_S)
            assert 0 < asked["Versions"] < 16 * RANGE_NAMES
            assert dict(store_of(node).objects(BUCKET))[missed].version == dict(store.objects(BUCKET))[missed].version


@pytest.mark.slow
def test_ranges_are_compared_together_if_a_request_has_no_room_for_each(
    tmp_path: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=NEVER_S) as cluster:
        cluster.put({name: name.encode() for name in NAMES})
        pass_of(*cluster.nodes)
        asked.clear()
        monkeypatch.setattr(range_comparison, "MOST_BYTES", 200)
        pass_of(*cluster.nodes)
        assert not asked
        store = store_of(cluster.nodes[1])
        before = dict(store.objects(BUCKET))
        store.delete(BUCKET, NAMES[1234])
        pass_of(*cluster.nodes)
        eventually(lambda: dict(store.objects(BUCKET)).keys() == before.keys(), TIMEOUT_S)


def test_what_changes_while_ranges_are_read_is_in_the_next_table(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=NEVER_S) as cluster:
        node, store = cluster.nodes[0], store_of(cluster.nodes[0])
        cluster.put_on(0, dict.fromkeys(NAMES, b"1"))
        over = threading.Event()

        def change(seed: int) -> None:
            draw = random.Random(seed)
            while not over.is_set():
                names = draw.sample(NAMES[seed::3], 5)
                cluster.put_on(0, dict.fromkeys(names, b"2"))
                store.delete(BUCKET, names[0])
                store.delete(BUCKET, names[1], keep_tombstone=True)

        writers = [threading.Thread(target=change, args=(seed,)) for seed in range(3)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(60):
                table_of(node)
        finally:
            over.set()
            for writer in writers:
                writer.join()
        kept, fresh = table_of(node), fresh_table_of(node)
        assert kept.names == fresh.names > 0
        assert kept.differing(1, fresh.starts, fresh.digests(1).tolist(), with_strays=False) == []
        assert not kept.outdated


@pytest.mark.slow
def test_a_wrong_digest_hides_a_lost_copy_only_until_its_range_is_old(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=NEVER_S, scrub_interval_s=NEVER_S) as cluster:
        one, other = cluster.nodes
        cluster.put(dict.fromkeys(NAMES[:500], b"x"))
        pass_of(one, other)
        right = replace(table_of(other), columns=table_of(other).columns.copy())
        store_of(other).delete(BUCKET, NAMES[7])
        wrong = table_of(other)
        assert wrong.differing(0, right.starts, right.digests(0).tolist(), with_strays=False)
        wrong.columns[:, :] = right.columns
        pass_of(one, other)
        assert NAMES[7] not in dict(store_of(other).objects(BUCKET))

        def is_back() -> bool:
            for node in (one, other):
                table_of(node).columns[:, range_table._READ_S] -= 2 * int(NEVER_S)
            pass_of(one, other)
            return NAMES[7] in dict(store_of(other).objects(BUCKET))

        eventually(is_back, TIMEOUT_S)


@pytest.mark.slow
def test_a_bucket_is_read_from_as_soon_as_it_has_been_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=NEVER_S) as cluster:
        cluster.map.bucket.add(name="later", uuid=bytes(range(16)), copies=2, min_copies=1)
        cluster.learn()
        cluster.put({"k": b"data"})
        config = cluster.nodes[0].config.replace(port=cluster.nodes[0].port)
        cluster.nodes[0].stop(grace_s=0.2)
        compared, go_on = Reconciler._compare_existing, threading.Event()

        async def slowly(self: Reconciler, view: Any, bucket: cluster_pb.MapBucket, node: cluster_pb.MapNode) -> None:
            while bucket.name == "later" and not go_on.is_set():
                await asyncio.sleep(0.01)
            await compared(self, view, bucket, node)

        monkeypatch.setattr(Reconciler, "_compare_existing", slowly)
        with NodeServer([tmp_path / "node-0"], config) as node, connect(node.url) as client:
            store = store_of(node)
            eventually(lambda: not store.replicas.stale.whole(cluster.map.bucket[0].uuid), TIMEOUT_S)
            assert store.replicas.stale.whole(cluster.map.bucket[1].uuid)
            assert client.bucket(BUCKET).get("k") == b"data"
            go_on.set()
            eventually(lambda: not store.replicas.stale.any, TIMEOUT_S)


def test_versions_are_listed_between_two_names_and_for_one_owner(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2, repair_interval_s=NEVER_S) as cluster:
        cluster.put(dict.fromkeys(NAMES[:90], b"x"))
        store, view = store_of(cluster.nodes[0]), cluster.nodes[0].membership.view
        assert view is not None
        request = wire.VersionsRequest(start_after=NAMES[10], until=NAMES[60], limit=7, owner_uuid=view.nodes[2].uuid)
        request.map_version = view.version
        request.bucket.name, request.bucket.uuid = BUCKET, cluster.map.bucket[0].uuid
        found, pages = [], 0
        while True:
            page = replica.versions(store, request, view)
            found += [one.name for one in page.object]
            pages += 1
            if not page.next:
                break
            request.start_after = page.next
        assert found == [name for name in NAMES[11:61] if set(cluster.owners(name)) == {0, 2}]
        request.map_version += 1  # by another map, a name may have had other owners when it was compared
        request.start_after, request.limit = NAMES[10], 0
        by_another = [one.name for one in replica.versions(store, request, view).object]
        assert by_another == [name for name in NAMES[11:61] if 0 in cluster.owners(name)]
        assert pages > 3


def test_a_comparison_by_another_placement_or_from_a_stranger_says_nothing(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=NEVER_S) as cluster:
        cluster.put({"k": b"x"})
        node, uuid = cluster.nodes[0], cluster.map.bucket[0].uuid
        placement = table_of(node).placement

        def answer(node_uuid: bytes, **asked: Any) -> wire.CompareResponse:
            bucket = wire.BucketDigests(**{"bucket_uuid": uuid, "placement": placement, "start": [b""], **asked})
            assert node._loop is not None
            request = wire.CompareRequest(node_uuid=node_uuid, bucket=[bucket])
            return asyncio.run_coroutine_threadsafe(node.repair.ranges.answer(request), node._loop).result(TIMEOUT_S)

        other = cluster.nodes[1].membership.node_uuid
        assert [list(one.start) for one in answer(other, digest=[0]).bucket] == [[b""]]
        assert [list(one.start) for one in answer(other, digest=[int(table_of(node).digests(1).sum())]).bucket] == [[]]
        assert not answer(b"s" * 16, digest=[0]).bucket
        assert not answer(other, digest=[0], placement=placement ^ 1).bucket
        assert not answer(other, digest=[0], bucket_uuid=b"u" * 16).bucket
        with pytest.raises(errors.InvalidRequest):
            answer(other, digest=[])
