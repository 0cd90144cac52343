"""The map as clients get it: what they route by, without the code and the jobs that nodes keep in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader import Client, Command, connect
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_etl_pb2_grpc as etl_rpc
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_bucket, create_cluster
from storage_node.context.channels import OPERATOR, Caller, make_secret, read_secret
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.cluster.agreement_kit import member
from tests.peer_kit import OPTIONS, operator_of, peer_of

TIMEOUT_S = 180.0

SECRET = "what-the-code-says"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    config = ServerConfig(port=0, etl_code=True, etl_workers=1)
    with NodeServer([tmp_path_factory.mktemp("node")], config) as node:
        member = pb.MapNode(
            uuid=node.membership.node_uuid,
            host="h",
            endpoint=node.endpoint,
            peer_endpoint=node.peer_endpoint,
            weight=1.0,
        )
        change_map([node.peer_endpoint], create_cluster([member]), timeout_s=180.0)
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
    map_: pb.ClusterMap = rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=180).map
    return map_


@pytest.mark.slow
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
    found: pb.ClusterMap = client._transport.members.view.map  # type: ignore[attr-defined]
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
    made = change_map([node.endpoint], create_bucket("third", copies=1), timeout_s=180.0)
    assert [one.name for one in made.transform] == ["code", "command"] and [one.name for one in made.job] == [SECRET]
    with grpc.insecure_channel(node.endpoint) as channel:
        assert eventually(lambda: [bucket.name for bucket in asked(channel).bucket] == ["from", "to", "third"])


def test_code_of_a_transform_is_shown_to_operators_alone(node: NodeServer) -> None:
    request = etl_pb.GetTransformRequest(name="code")
    with grpc.insecure_channel(node.endpoint, options=OPTIONS) as bare:
        claimed = OPERATOR.through(bare, node.endpoint)
        for channel in (bare, claimed):  # where clients listen, nobody is more than a client
            found = etl_rpc.EtlStub(channel).GetTransform(request, timeout=TIMEOUT_S).transform
            assert (found.name, found.python.qualified_name != "", found.python.pickle) == ("code", True, b"")
            stopped = etl_rpc.EtlStub(channel).SetTransform(etl_pb.SetTransformRequest(name="code"), timeout=TIMEOUT_S)
            assert stopped.transform.python.pickle == b""
    with peer_of(node, version=1) as peer, operator_of(node) as operator:
        assert etl_rpc.EtlStub(peer).GetTransform(request, timeout=TIMEOUT_S).transform.python.pickle == b""
        found = etl_rpc.EtlStub(operator).GetTransform(request, timeout=TIMEOUT_S).transform
        assert SECRET.encode() in found.python.pickle


def test_a_client_that_calls_itself_an_operator_gets_no_map_with_code_in_it(tmp_path: Path) -> None:
    make_secret(tmp_path / "secret")
    operator = Caller(read_secret(tmp_path / "secret"))
    config = ServerConfig(port=0, peer_secret_file=str(tmp_path / "secret"))
    with NodeServer([tmp_path / "drive"], config) as node:
        made = create_cluster([member(node)])
        change_map([node.endpoint], made, caller=operator)
        for caller in (OPERATOR, Caller("another-secret-of-nobody")):
            with caller.through(grpc.insecure_channel(node.endpoint, options=OPTIONS), node.endpoint) as channel:
                with pytest.raises(grpc.RpcError) as caught:
                    asked(channel)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        # A proof for one listener does not do for the other.
        with (
            operator.through(grpc.insecure_channel(node.endpoint, options=OPTIONS), node.peer_endpoint) as channel,
            pytest.raises(grpc.RpcError, match="no address of this node"),
        ):
            asked(channel)
        with operator.through(grpc.insecure_channel(node.endpoint, options=OPTIONS), node.endpoint) as channel:
            assert len(asked(channel).node) == 1
        with grpc.insecure_channel(node.endpoint, options=OPTIONS) as channel:
            assert len(asked(channel).node) == 1
