"""A bucket that a node has not heard of yet, while the client knows that there is one: that node is waited for, or
passed over, and never taken at its word that there is none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.transport.cluster.transport import RemoteTransport
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.map.sync import MapSync
from tests.node.cluster_kit import LocalCluster

NEW = "new"
RETRY_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Node 0 knows the bucket, which node 1 has not heard of; each has objects of its own in it."""

    async def never(map_sync: MapSync) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(MapSync, "run", never)  # nobody hears of a map by himself
    with LocalCluster(tmp_path, 2, repair_interval_s=600.0) as cluster:
        cluster.map.bucket.add(name=NEW, uuid=b"n" * 16, copies=1, min_copies=1)
        cluster.map.version += 1
        cluster.nodes[0].membership.learn(newest(cluster))
        yield cluster


def newest(cluster: LocalCluster) -> cluster_pb.ClusterMap:
    known = cluster_pb.ClusterMap()
    known.CopyFrom(cluster.map)
    return known


def hear(cluster: LocalCluster) -> None:
    cluster.nodes[1].membership.learn(newest(cluster))


def client_of(cluster: LocalCluster, first: int, held: ExitStack, retry_s: float) -> Bucket:
    """Of one that asks this node first for what any may answer."""
    uuid = cluster.nodes[first].membership.node_uuid
    while True:
        client = connect(cluster.nodes[0].url, options=ClusterOptions(retry_s=retry_s))
        transport = client._transport
        assert isinstance(transport, RemoteTransport)
        if transport.members.anybody()[0] == uuid:
            return held.enter_context(closing(client)).bucket(NEW)
        client.close()


def name_of(cluster: LocalCluster, number: int) -> str:
    view = ClusterView(newest(cluster))
    return next(name for at in range(100) if view.owners(view.buckets[NEW], name := f"n{at}") == [number])


def copied(cluster: LocalCluster, bucket: Bucket) -> None:
    assert bucket.copy(name_of(cluster, 0), name_of(cluster, 1)).size_bytes == len(b"there")


def deleted(cluster: LocalCluster, bucket: Bucket) -> None:
    with pytest.raises(errors.ObjectNotFound):
        bucket.delete(name_of(cluster, 1))


def put(cluster: LocalCluster, bucket: Bucket) -> None:
    bucket.put(name_of(cluster, 1), b"there")


ANYBODY: dict[str, Callable[[LocalCluster, Bucket], object]] = {
    "info": lambda cluster, bucket: bucket.info(),
    "summary": lambda cluster, bucket: bucket.summary(),
    "delete many": lambda cluster, bucket: bucket.delete_many([name_of(cluster, 0)]),
}
OWNER: dict[str, Callable[[LocalCluster, Bucket], object]] = {"copy": copied, "delete": deleted, "put": put}


@pytest.mark.parametrize("call", ANYBODY)
def test_what_any_node_may_answer_is_answered_by_one_that_has_heard_of_it(cluster: LocalCluster, call: str) -> None:
    with ExitStack() as held:
        bucket = client_of(cluster, 1, held, RETRY_S)
        bucket.put(name_of(cluster, 0), b"there")
        ANYBODY[call](cluster, bucket)


@pytest.mark.slow
@pytest.mark.parametrize("call", OWNER)
def test_an_owner_that_has_not_heard_of_it_is_waited_for(cluster: LocalCluster, call: str) -> None:
    with ExitStack() as held:
        impatient = client_of(cluster, 0, held, 0.3)
        impatient.put(name_of(cluster, 0), b"there")
        with pytest.raises(errors.NodeUnavailable):
            OWNER[call](cluster, impatient)
        patient = client_of(cluster, 0, held, RETRY_S)
        hearing = threading.Timer(0.5, hear, [cluster])
        hearing.start()
        held.callback(hearing.join)
        OWNER[call](cluster, patient)


def test_what_no_map_has_is_said_at_once(cluster: LocalCluster) -> None:
    hear(cluster)
    with ExitStack() as held:
        bucket = client_of(cluster, 0, held, 600.0)  # longer than a test may take
        bucket.put(name_of(cluster, 0), b"there")
        for call in (
            lambda: bucket.client.bucket("none").copy("a", "b", to_bucket=NEW),
            lambda: bucket.copy(name_of(cluster, 0), "b", to_bucket="none"),
            lambda: bucket.client.bucket("none").delete("a"),
            lambda: bucket.client.bucket("none").summary(),
            lambda: bucket.client.bucket("none").delete_many(["a"]),
        ):
            with pytest.raises(errors.BucketNotFound):
                call()
