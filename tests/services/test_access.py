"""Who may call what: no method is anybody's by accident, and what nodes ask of each other no client can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest

from ais_loader import connect
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as objects_rpc
from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from ais_loader.wire.generated import ais_replica_pb2_grpc as replica_rpc
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import add_node, create_cluster, remove_node
from storage_node.context.channels import Caller
from storage_node.context.node import Node
from storage_node.security.rights.scopes import Right
from storage_node.server import NodeServer
from storage_node.services.call_path import CallPath, Methods
from storage_node.services.call_table import ANYONE, TABLE, Call, Role
from storage_node.settings.config import ServerConfig
from tests.cluster.agreement_kit import member, node_at, nodes_at
from tests.node.cluster_kit import LocalCluster
from tests.node.contract_kit import methods
from tests.node.node_kit import serving
from tests.node.write_kit import Writer, copies_of
from tests.peer_kit import OPTIONS, TIMEOUT_S, operator_of, outcome, peer_of

SECRET = "5ecret-of-this-very-cluster"
STRANGER = b"stranger" * 2
INSIDE = [method for method in methods() if method in TABLE and not TABLE[method].by & Role.CLIENT]


def of_client(node: NodeServer) -> grpc.Channel:
    return grpc.insecure_channel(node.endpoint, options=OPTIONS)


def bare(node: NodeServer) -> grpc.Channel:
    return grpc.insecure_channel(node.peer_endpoint, options=OPTIONS)


def test_every_method_stands_in_the_table_and_no_other() -> None:
    assert sorted(methods()) == sorted(TABLE)


def test_a_method_that_is_not_in_the_table_is_served_to_nobody() -> None:
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    methods, bare_path = Methods(), CallPath(cast(Node, None))
    methods.add_registered_method_handlers("ais_loader.v1.Objects", {"Get": handler, "Forge": handler})
    methods.add_registered_method_handlers("elsewhere.Objects", {"Get": handler})

    def served(path: str, role: Role) -> bool:
        return methods.served_to(role, bare_path).service(SimpleNamespace(method=path)) is not None

    for role in (*Role, ANYONE):
        assert served("/ais_loader.v1.Objects/Get", role)
        assert not served("/ais_loader.v1.Objects/Forge", role)
        assert not served("/elsewhere.Objects/Get", role)


def test_rights_without_a_bucket_that_they_are_needed_on_are_no_row() -> None:
    with pytest.raises(ValueError, match="Objects/Get needs rights on the buckets"):
        Call("Objects/Get", ANYONE, Right.READ)


def test_a_stream_whose_messages_would_not_be_checked_is_not_served() -> None:
    handler = grpc.stream_stream_rpc_method_handler(lambda requests, context: None)
    methods = Methods()
    methods.add_registered_method_handlers("ais_loader.v1.Objects", {"Head": handler})
    with pytest.raises(ValueError, match="Objects/Head: the messages of a stream are checked only where"):
        methods.served_to(ANYONE, CallPath(cast(Node, None)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


def test_where_clients_listen_nothing_else_is_served(cluster: LocalCluster) -> None:
    assert len(INSIDE) > 20
    node = cluster.nodes[0]
    with of_client(node) as channel:
        assert {method: outcome(channel, method) for method in INSIDE} == dict.fromkeys(
            INSIDE, grpc.StatusCode.UNIMPLEMENTED
        )
        claimed = Caller("", node.membership.node_uuid, lambda: 1).through(channel, node.endpoint)
        assert outcome(claimed, "Cluster/Learn") is grpc.StatusCode.UNIMPLEMENTED
        assert outcome(channel, "Cluster/GetMap") is grpc.StatusCode.OK


def test_who_does_not_say_who_it_is_gets_nothing_where_peers_listen(cluster: LocalCluster) -> None:
    with bare(cluster.nodes[0]) as channel:
        for method in methods():
            assert outcome(channel, method) is grpc.StatusCode.UNAUTHENTICATED, method
        wrong = (
            (("ais-role", "client"),),
            (("ais-role", "node"),),
            (("ais-role", "node"), ("ais-node", "ab"), ("ais-map-version", "1")),
            (("ais-role", "node"), ("ais-node", "a" * 32), ("ais-map-version", "-1")),
            (("ais-role", "node"), ("ais-node", "a" * 32), ("ais-map-version", str(1 << 64))),
            (("ais-role", "node"), ("ais-node", "a" * 32), ("ais-map-version", "1e3")),
        )
        for metadata in wrong:
            with pytest.raises(grpc.RpcError) as caught:
                rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=TIMEOUT_S, metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, metadata


def test_nodes_and_operators_get_what_is_theirs(cluster: LocalCluster) -> None:
    refused = grpc.StatusCode.PERMISSION_DENIED
    with peer_of(cluster.nodes[0]) as peer, operator_of(cluster.nodes[0]) as operator:
        for method in methods():
            if method == "GetBatch/Session":
                continue  # it does not end because of an empty message
            assert (outcome(peer, method) is refused) == (not TABLE[method].by & Role.PEER), method
            if method.partition("/")[0] not in ("Buckets", "Drives"):
                assert (outcome(operator, method) is refused) == (not TABLE[method].by & Role.OPERATOR), method


def test_clients_are_told_the_arguments_of_commands_and_operators_their_text(tmp_path: Path) -> None:
    def limits(channel: grpc.Channel) -> dict[str, str]:
        described = objects_rpc.NodeStub(channel).Describe(objects_pb.DescribeRequest(), timeout=TIMEOUT_S)
        assert dict(described.etl_command) == {"wav": "rate:int"}
        return dict(described.limits)

    with (
        serving(tmp_path, etl_commands={"wav": "/opt/encoder --key s3cret {rate:int}"}) as node,
        grpc.insecure_channel(node.endpoint) as client,
        operator_of(node) as operator,
    ):
        told, whole = limits(client), limits(operator)
    assert "s3cret" not in str(told)
    assert whole["etl_commands"] == "wav=/opt/encoder --key s3cret {rate:int}"
    assert told.items() <= whole.items() and whole.keys() - told.keys() == {"etl_commands"}


def test_the_secret_of_a_cluster_is_asked_of_nodes_and_operators(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    with LocalCluster(tmp_path, 2, copies=2, peer_secret_file=str(file)) as cluster:
        for kit in (peer_of, operator_of):
            for secret in ("", SECRET[:-1], SECRET + "x", SECRET.swapcase()):
                with kit(cluster.nodes[0], secret=secret) as channel:
                    assert outcome(channel, "Repair/Progress") is grpc.StatusCode.UNAUTHENTICATED
            with kit(cluster.nodes[0], secret=SECRET) as channel:
                assert outcome(channel, "Repair/Progress") is grpc.StatusCode.OK
        # The nodes have it, and clients need none.
        with connect(cluster.nodes[0].url) as client:
            client.bucket("b").put("a", b"bytes")
        expected = dict.fromkeys(range(2), b"bytes")
        eventually(lambda: {number: data for number, (_, data) in copies_of(cluster, "a").items()} == expected)


def test_a_secret_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    for text in ("", "short", "two lines of\nsome length each", "a" * 2000):
        (tmp_path / "secret").write_text(text)
        with pytest.raises(ValueError, match="a secret is one line of 16 to 1024"):
            NodeServer([tmp_path / "drive"], ServerConfig(port=0, peer_secret_file=str(tmp_path / "secret"))).start()


# -- who is in the map


def newest(node: NodeServer, uuid: bytes, version: int) -> tuple[grpc.StatusCode, str]:
    """What becomes of a node's question there."""
    with peer_of(node, uuid, version) as channel:
        request = replica_pb.NewestRequest(bucket=replica_pb.BucketRef(name="none", uuid=STRANGER), name=["a"])
        try:
            replica_rpc.ReplicaStub(channel).Newest(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return error.code(), dict(error.trailing_metadata() or ()).get("ais-error-kind", "")
    return grpc.StatusCode.OK, ""


@pytest.mark.slow
def test_a_node_that_is_not_in_the_map_is_not_listened_to(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 3) as nodes:
        uuids = [node.membership.node_uuid for node in nodes]
        endpoints = [node.endpoint for node in nodes]
        assert newest(nodes[0], uuids[1], 1) == (grpc.StatusCode.UNAVAILABLE, "node-unavailable")
        change_map(endpoints, create_cluster([member(node) for node in nodes]))
        assert newest(nodes[0], uuids[1], 1)[1] == "bucket-not-found"
        change_map(endpoints[:2], remove_node(uuids[2]))
        for version in (0, 1, 2):
            assert newest(nodes[0], uuids[2], version) == (grpc.StatusCode.ABORTED, "stale-map")
        # It may ask for the map, by which it learns that it is out.
        with peer_of(nodes[0], uuids[2], 1) as channel:
            assert outcome(channel, "Cluster/GetMap") is grpc.StatusCode.OK
            assert outcome(channel, "Cluster/Prepare") is grpc.StatusCode.ABORTED
        # One with a newer map than this node's is not called a stranger, and is not believed either.
        assert newest(nodes[0], uuids[2], 3) == (grpc.StatusCode.UNAVAILABLE, "node-unavailable")


@pytest.mark.slow
def test_a_node_learns_a_newer_map_before_it_judges_who_calls(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 3) as nodes, node_at(tmp_path / "late") as late:
        endpoints = [node.endpoint for node in nodes]
        change_map(endpoints, create_cluster([member(node) for node in nodes]))
        changed = change_map(endpoints, add_node(member(late)))
        before = pb.ClusterMap()
        before.CopyFrom(changed)
        behind = nodes[0].membership
        view = behind.view
        assert view is not None
        del before.node[3:]
        before.version -= 1
        behind.view = type(view)(before)  # as if it had not heard
        assert newest(nodes[0], late.membership.node_uuid, changed.version)[1] == "bucket-not-found"
        assert behind.view.version == changed.version


@pytest.mark.slow
def test_a_node_that_was_taken_out_acknowledges_no_write_to_clients_that_do_not_know(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2) as cluster:
        name = next(f"{number}" for number in range(1000) if 1 in cluster.owners(f"{number}"))
        cluster.map.version += 1
        del cluster.map.node[1]
        for number in (0, 2):
            cluster.nodes[number].membership.learn(cluster.map)
        with Writer(cluster.nodes[1].url) as writer:
            for condition in (None, objects_pb.PutCondition(if_absent=True, write_id=b"m" * 16)):
                with pytest.raises(grpc.RpcError) as caught:
                    writer.put(name, b"bytes", **({"condition": condition} if condition else {}))
                assert caught.value.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)
