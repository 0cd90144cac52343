"""Nodes that are replaced one after another, as pods are: a client keeps no connection to those that have gone."""

from __future__ import annotations

import gc

from ais_loader import ClusterOptions
from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.grpc.connection import Connection
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb


def map_of(version: int, endpoints: dict[bytes, str]) -> cluster_pb.ClusterMap:
    nodes = [cluster_pb.MapNode(uuid=uuid, endpoint=endpoint, weight=1.0) for uuid, endpoint in endpoints.items()]
    return cluster_pb.ClusterMap(version=version, cluster_uuid=b"c" * 16, node=nodes)


def test_connections_to_nodes_that_the_map_has_no_more_are_closed() -> None:
    stays, restarts = b"s" * 16, b"r" * 16
    members = Members(ClusterView(map_of(1, {stays: "127.0.0.1:1", restarts: "127.0.0.1:2"})), ClusterOptions())

    def connection(node: bytes) -> Connection:
        return members.calls(node)._unlocked_connection()

    kept, before = connection(stays), [connection(restarts)]
    in_use = members.calls(restarts)
    for version in range(2, 6):
        assert members.learn(map_of(version, {stays: "127.0.0.1:1", restarts: f"127.0.0.1:{version + 1}"}))
        gc.collect()
        before.append(connection(restarts))  # those that nobody uses are closed when another one is opened
    assert [one.closed for one in before] == [False, True, True, True, False]
    del in_use
    assert members.learn(map_of(6, {stays: "127.0.0.1:1", b"n" * 16: "127.0.0.1:9"}))
    gc.collect()
    connection(b"n" * 16)
    assert all(one.closed for one in before) and not kept.closed
    assert connection(stays) is kept
    members.close()
    assert kept.closed
