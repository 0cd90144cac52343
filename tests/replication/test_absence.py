"""That an object is not there is said only by who may say it: not by a node that has handed it over, while those who
have it now are away or compare their copies; not by an older map."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ais_loader import Bucket, ClusterOptions, Status, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.store.format import CatalogEntry
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.patience import PATIENT_CLIENT
from tests.store.snapshot_kit import reap

pytestmark = pytest.mark.slow

Way = Callable[[Bucket, Sequence[str]], list[Status]]


def by_batch(assembly: str) -> Way:
    def ask(bucket: Bucket, names: Sequence[str]) -> list[Status]:
        return [item.status for item in bucket.get_batch(names, assembly=assembly, on_error="placeholder")]

    return ask


def one_by_one(call: Callable[[Bucket, str], object]) -> Way:
    def ask(bucket: Bucket, names: Sequence[str]) -> list[Status]:
        found = []
        for name in names[:2]:
            try:
                call(bucket, name)
                found.append(Status.OK)
            except errors.NotFound:
                found.append(Status.NOT_FOUND)
            except errors.NodeUnavailable:
                found.append(Status.UNAVAILABLE)
        return found

    return ask


WAYS = {
    "direct": by_batch("direct"),
    "target": by_batch("target"),
    "get": one_by_one(lambda bucket, name: bucket.get(name)),
    "head": one_by_one(lambda bucket, name: bucket.head(name)),
}
NAMES = [f"n{at:03}" for at in range(60)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two copies of each object; node 1 is leaving and has handed over all it had, node 3 is down."""
    with LocalCluster(tmp_path, 4, copies=2, linked=True, repair_interval_s=600.0, peer_timeout_s=0.3) as cluster:
        cluster.links[3].refuse()  # so that nobody finishes the change
        cluster.map.node[1].state = cluster_pb.MapNode.LEAVING
        cluster.learn()
        cluster.put({name: name.encode() for name in NAMES})
        cluster.nodes[3].stop(grace_s=0.2)
        yield cluster


def doubt(cluster: LocalCluster, number: int) -> None:
    """As a node that has restarted does until it has compared its copies."""
    cluster.batches(number).node.store.replicas.stale.mark_buckets([cluster.map.bucket[0].uuid])


def trust(cluster: LocalCluster, number: int) -> None:
    cluster.batches(number).node.store.replicas.stale.trust_bucket(cluster.map.bucket[0].uuid)


@pytest.mark.parametrize("way", WAYS)
def test_while_those_who_have_it_compare_or_are_away_nothing_is_said_to_be_missing(
    cluster: LocalCluster, way: str
) -> None:
    for number in (0, 2):
        doubt(cluster, number)
    with connect(cluster.nodes[1].url, options=ClusterOptions(retry_s=0.3)) as client:
        found = WAYS[way](client.bucket(BUCKET), [*NAMES, "never put"])
    assert set(found) == {Status.UNAVAILABLE}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_waited_for_comes_when_those_who_have_it_have_compared(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    refused: set[int] = set()

    def note(number: int) -> None:
        replicas = cluster.batches(number).node.store.replicas
        said = replicas.is_stale

        def is_stale(bucket_uuid: bytes, name: str, found: CatalogEntry | None) -> bool:
            stale = said(bucket_uuid, name, found)
            if stale:
                refused.add(number)
            return stale

        monkeypatch.setattr(replicas, "is_stale", is_stale)

    for number in (0, 2):
        doubt(cluster, number)
        note(number)
    here = [name for name in NAMES if {0, 2} & set(cluster.owners(name))]
    with (
        connect(cluster.nodes[1].url, options=PATIENT_CLIENT) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        asked = threads.submit(WAYS[way], client.bucket(BUCKET), here)
        eventually(lambda: refused)
        assert not asked.done()
        for number in (0, 2):
            trust(cluster, number)
        assert set(asked.result(180)) == {Status.OK}


@pytest.mark.parametrize("assembly", ["direct", "target"])
def test_what_was_handed_over_while_a_batch_went_on_is_found_where_it_is(tmp_path: Path, assembly: str) -> None:
    """The batch was looked up by one map; by the next, all objects are on the other node, and their files gone."""
    size = 256 << 10
    names = [f"o{at:03}" for at in range(100)]

    def content(name: str) -> bytes:
        return seeded_bytes(size, seed=int(name[1:]))

    with LocalCluster(tmp_path, 2, repair_interval_s=600.0) as cluster:
        cluster.map.node[1].weight = 1e-12
        cluster.learn()
        cluster.put({name: content(name) for name in names})
        assert all(cluster.owners(name) == [0] for name in names)
        with connect(cluster.nodes[0].url) as client:
            batch = client.bucket(BUCKET).get_batch(names, assembly=assembly)
            items = iter(batch)
            assert next(items).tobytes() == content(names[0])
            cluster.put_on(1, {name: content(name) for name in names})
            cluster.map.node[1].weight, cluster.map.node[0].weight = 1.0, 1e-12
            cluster.learn()
            store = cluster.batches(0).node.store
            for name in names:
                with suppress(errors.ObjectNotFound):  # repair was first
                    store.delete(BUCKET, name)
            reap(store)
            assert [item.tobytes() for item in items] == [content(name) for name in names[1:]]
