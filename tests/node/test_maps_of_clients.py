"""The map as clients get it: what they route by, without the code and the jobs that nodes keep in it."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from ais_loader import Client, Command, connect
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from storage_node.cluster.caller import OPERATOR
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_bucket, create_cluster
from storage_node.config import ServerConfig
from storage_node.server import NodeServer
from tests.peer_kit import operator_of, peer_of

SECRET = "what-the-code-says"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    config = ServerConfig(port=0, etl_code=True, etl_commands=("printf",), etl_workers=1)
    with NodeServer([tmp_path_factory.mktemp("node")], config) as node:
        member = pb.MapNode(
            uuid=node.membership.node_uuid,
            host="h",
            endpoint=node.endpoint,
            peer_endpoint=node.peer_endpoint,
            weight=1.0,
        )
        change_map([node.peer_endpoint], create_cluster([member]), timeout_s=20.0)
        with connect(node.url) as client:
            for name in ("from", "to"):
                client.create_bucket(name, copies=1)
            client.bucket("from").put("a", b"stored")
            client.etl.init("code", of_secret())
            client.etl.init("command", Command(["printf", SECRET]))
            client.bucket("from").transform("to", etl="code", names=["a"], name=SECRET)
        yield node


def of_secret(told: str = SECRET) -> object:
    return lambda data: told.encode()


def asked(channel: grpc.Channel) -> pb.ClusterMap:
    map_: pb.ClusterMap = rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=10).map
    return map_


def test_clients_get_neither_code_nor_commands_nor_jobs(node: NodeServer) -> None:
    with grpc.insecure_channel(node.endpoint) as channel:
        map_ = asked(channel)
    assert SECRET.encode() not in map_.SerializeToString()
    assert [bucket.name for bucket in map_.bucket] == ["from", "to"] and map_.node[0].endpoint == node.endpoint
    with connect(node.url) as client:
        assert SECRET.encode() not in view_of(client).SerializeToString()
        assert client.bucket("from").get("a", etl="code") == SECRET.encode()
        assert [one.name for one in client.etl.list()] == ["code", "command"]


def view_of(client: Client) -> pb.ClusterMap:
    client.buckets()  # it asks for the map before the first call
    found: pb.ClusterMap = client._transport._there().members.view.map  # type: ignore[attr-defined]
    return found


def test_nodes_and_operators_get_all_of_it_wherever_they_ask(node: NodeServer) -> None:
    with operator_of(node) as operator, peer_of(node, version=1) as peer:
        whole = [asked(operator), asked(peer)]
    with OPERATOR.through(grpc.insecure_channel(node.endpoint), node.endpoint) as where_clients_listen:
        whole.append(asked(where_clients_listen))
    for map_ in whole:
        assert [one.name for one in map_.transform] == ["code", "command"] and [one.name for one in map_.job] == [
            SECRET
        ]


def test_a_change_by_way_of_where_clients_listen_loses_nothing_of_it(node: NodeServer) -> None:
    made = change_map([node.endpoint], create_bucket("third", copies=1), timeout_s=20.0)
    assert [one.name for one in made.transform] == ["code", "command"] and [one.name for one in made.job] == [SECRET]
    with grpc.insecure_channel(node.endpoint) as channel:
        assert eventually(lambda: [bucket.name for bucket in asked(channel).bucket] == ["from", "to", "third"])
