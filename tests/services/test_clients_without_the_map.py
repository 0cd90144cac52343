"""Clients whose map lacks a bucket, or the node behind them: they see all objects of it, or get an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from tests.cluster.agreement_kit import make_cluster, nodes_at
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.patience import PATIENT_CLIENT
from tests.table import table

pytestmark = pytest.mark.slow
NAMES = [f"n{at:02}" for at in range(40)]
READS: dict[str, Callable[[Bucket], list[str]]] = {
    "objects": lambda bucket: [info.name for info in bucket.objects(page_size=5)],
    "names": lambda bucket: [entry.name for entry in bucket.entries()],
    "level": lambda bucket: [
        getattr(one, "name", one) for one in bucket.client._transport.level(bucket.name, prefix="", page_size=5)
    ],
    "heads": lambda bucket: [bucket.head(name).name for name in NAMES],
    "many heads": lambda bucket: [
        getattr(one, "name", type(one).__name__) for one in bucket.client._transport.head_names(bucket.name, NAMES)
    ],
    "downloads": lambda bucket: [bytes(bucket.get(name)).decode() for name in NAMES],
    "batches": lambda bucket: [item.tobytes().decode() for item in bucket.get_batch(NAMES)],
}


@table("read", READS)
def test_a_new_bucket_is_read_whole_while_nodes_are_slow_to_tell_their_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    with LocalCluster(tmp_path) as cluster, connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        assert [bucket.name for bucket in client.buckets()] == [BUCKET]
        with connect(cluster.nodes[1].url, options=PATIENT_CLIENT) as other:
            other.create_bucket("new").put_many((name, name.encode()) for name in NAMES)
        ask, left = NodeCalls.cluster_map, 7

        def slow(self: NodeCalls, *arguments: Any, **named: Any) -> cluster_pb.ClusterMap:
            nonlocal left
            if (left := left - 1) >= 0:
                raise errors.SilenceTimeout("no answer in time")
            return ask(self, *arguments, **named)

        monkeypatch.setattr(NodeCalls, "cluster_map", slow)
        assert READS[read](client.bucket("new")) == NAMES


@table("read", ["objects", "names", "level", "heads"])
def test_no_object_is_missing_because_no_node_tells_its_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    def silent(*arguments: Any, **named: Any) -> cluster_pb.ClusterMap:
        raise errors.SilenceTimeout("no answer in time")

    impatient = ClusterOptions(retry_s=0.5)
    with LocalCluster(tmp_path) as cluster, connect(cluster.nodes[0].url, options=impatient) as client:
        assert [bucket.name for bucket in client.buckets()] == [BUCKET]
        with connect(cluster.nodes[1].url, options=PATIENT_CLIENT) as other:
            other.create_bucket("new").put_many((name, name.encode()) for name in NAMES)
        monkeypatch.setattr(NodeCalls, "cluster_map", silent)
        with pytest.raises(errors.NodeUnavailable, match="map"):
            READS[read](client.bucket("new"))


@table("read", READS)
def test_a_client_of_a_node_that_joins_a_cluster_reads_all_of_its_buckets(tmp_path: Path, read: str) -> None:
    with nodes_at(tmp_path, 2) as nodes, connect(nodes[0].url, options=PATIENT_CLIENT) as client:
        assert list(client.buckets()) == []
        make_cluster(nodes)
        with connect(nodes[1].url, options=PATIENT_CLIENT) as other:
            other.create_bucket("new").put_many((name, name.encode()) for name in NAMES)
            assert READS[read](client.bucket("new")) == NAMES
            assert client.bucket("new").delete_prefix("n").deleted == len(NAMES)
            assert list(other.bucket("new")) == []
        assert len(client.describe()["nodes"]) == 2  # type: ignore[arg-type]


def test_a_client_asks_nodes_that_joined_and_not_those_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noting(answer: Any) -> Any:
        return lambda self, *_, **__: asked.append(self.url) or answer

    monkeypatch.setattr(NodeCalls, "denied", noting(contents_pb.ListDeniedResponse()))
    monkeypatch.setattr(NodeCalls, "pending_uploads", noting(remote_pb.PendingUploadsResponse()))
    monkeypatch.setattr(NodeCalls, "remote_usage", noting(remote_pb.RemoteUsageResponse()))
    monkeypatch.setattr(NodeCalls, "describe", noting({"version": "1"}))
    with LocalCluster(tmp_path, 3) as cluster:
        third = cluster.map.node[2]
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            transport = client._transport
            calls = (
                lambda: transport.denied(BUCKET),
                lambda: transport.pending_uploads(BUCKET, "", 0.0),
                transport.remote_usage,
                client.describe,
            )
            client.describe()
            for call in calls:
                del cluster.map.node[2:]
                cluster.learn()
                del asked[:]
                call()
                assert asked == [node.url for node in cluster.nodes[:2]]
                cluster.map.node.add().CopyFrom(third)
                cluster.learn()
                del asked[:]
                call()
                assert asked == [node.url for node in cluster.nodes]
