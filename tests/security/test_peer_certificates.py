"""The peer listener with TLS: the certificate decides who a caller is, whatever it says about itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from ais_loader import connect
from ais_loader.errors import NodeUntrusted
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import add_node, create_cluster, remove_node
from storage_node.security.identity.certified import OPERATOR_URI, node_uri
from storage_node.security.identity.credentials import TlsFiles
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.cluster.agreement_kit import member
from tests.security.tls_kit import HOUR, OPTIONS, TIMEOUT_S, asked, caller, forged, refusal

UNAUTHENTICATED, UNAVAILABLE = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE
OTHER = b"another node 016"


@pytest.fixture
def clustered(node: NodeServer, identity: IdentityFolder) -> Iterator[NodeServer]:
    """The node, in a cluster with another one that does not run."""
    operator = caller(identity.operator_files())
    change_map([node.endpoint], create_cluster([member(node, "a")]), timeout_s=TIMEOUT_S, caller=operator)
    yield node


def map_with_other(node: NodeServer) -> pb.ClusterMap:
    assert node.membership.view is not None
    map_ = pb.ClusterMap()
    map_.CopyFrom(node.membership.view.map)
    map_.node.add(uuid=OTHER, endpoint="127.0.0.1:9", peer_endpoint="127.0.0.1:9", weight=1.0, host="b", number=9)
    map_.version += 1
    return map_


def taught(node: NodeServer, identity: IdentityFolder, map_: pb.ClusterMap) -> None:
    with caller(identity.operator_files()).channel(node.peer_endpoint, OPTIONS) as channel:
        rpc.ClusterStub(channel).Learn(pb.LearnRequest(map=map_), timeout=TIMEOUT_S)


def test_a_node_and_an_operator_are_served_by_their_certificates(
    clustered: NodeServer, identity: IdentityFolder
) -> None:
    taught(clustered, identity, map_with_other(clustered))
    assert asked(caller(identity.node_files(OTHER, []), OTHER), clustered.peer_endpoint).map.version == 2
    assert asked(caller(identity.operator_files()), clustered.peer_endpoint).map.version == 2


def test_a_node_that_lies_about_its_uuid_is_refused(clustered: NodeServer, identity: IdentityFolder) -> None:
    taught(clustered, identity, map_with_other(clustered))
    liar = caller(identity.node_files(bytes(16), []), OTHER)
    code, reason = refusal(liar, clustered.peer_endpoint)
    assert code is UNAUTHENTICATED
    assert f"made as node {OTHER.hex()}, and its certificate is for node {bytes(16).hex()}" in reason


def test_a_node_is_no_operator_and_an_operator_no_node(clustered: NodeServer, identity: IdentityFolder) -> None:
    taught(clustered, identity, map_with_other(clustered))
    assert refusal(caller(identity.node_files(OTHER, [])), clustered.peer_endpoint)[0] is UNAUTHENTICATED
    code, reason = refusal(caller(identity.operator_files(), OTHER), clustered.peer_endpoint)
    assert (code, "its certificate is for an operator" in reason) == (UNAUTHENTICATED, True)


def test_a_certificate_for_anything_else_makes_no_node(
    tmp_path: Path, clustered: NodeServer, identity: IdentityFolder
) -> None:
    client = forged(tmp_path / "client", identity, "ais-loader:client:alice")
    for stated in (OTHER, b""):
        code, reason = refusal(caller(client, stated), clustered.peer_endpoint)
        assert code in (UNAUTHENTICATED, grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION), reason
    assert refusal(caller(client), clustered.peer_endpoint)[1].endswith("neither a node nor an operator")


def test_a_certificate_for_two_roles_is_refused_for_both(
    tmp_path: Path, clustered: NodeServer, identity: IdentityFolder
) -> None:
    taught(clustered, identity, map_with_other(clustered))
    for number, uris in enumerate(((node_uri(OTHER), OPERATOR_URI), (node_uri(OTHER), node_uri(bytes(16))))):
        files = forged(tmp_path / f"both-{number}", identity, *uris)
        for stated in (OTHER, b""):
            code, reason = refusal(caller(files, stated), clustered.peer_endpoint)
            assert code is UNAUTHENTICATED and " and " in reason
    files = forged(tmp_path / "another", identity, "spiffe://site/host", node_uri(OTHER))
    assert asked(caller(files, OTHER), clustered.peer_endpoint).map.version == 2  # names of others do not count


def test_a_certificate_for_another_use_neither_calls_nor_serves(
    tmp_path: Path, clustered: NodeServer, identity: IdentityFolder
) -> None:
    uuid = clustered.membership.node_uuid
    server_only = forged(tmp_path / "server", identity, node_uri(uuid), uses=(ExtendedKeyUsageOID.SERVER_AUTH,))
    assert refusal(caller(server_only, uuid), clustered.peer_endpoint)[0] is UNAVAILABLE
    client_only = forged(tmp_path / "client", identity, node_uri(uuid), uses=(ExtendedKeyUsageOID.CLIENT_AUTH,))
    pair = Path(client_only.key_file).read_bytes(), Path(client_only.cert_file).read_bytes()
    impostor = grpc.server(ThreadPoolExecutor(1))
    port = impostor.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    impostor.start()
    with (
        connect(f"grpcs://127.0.0.1:{port}", ca=identity.ca_file) as client,
        pytest.raises(NodeUntrusted, match="does not hold"),
    ):
        client.buckets()
    assert refusal(caller(identity.node_files(uuid, []), uuid), f"127.0.0.1:{port}")[0] is UNAVAILABLE
    impostor.stop(0).wait(TIMEOUT_S)


@pytest.mark.parametrize("uri", ["node", OPERATOR_URI])
def test_a_certificate_of_another_ca_does_not_even_connect(
    tmp_path: Path, clustered: NodeServer, identity: IdentityFolder, uri: str
) -> None:
    other = IdentityFolder(tmp_path / "other")
    other.make()
    uuid = OTHER if uri == "node" else b""
    issued = other.node_files(OTHER, []) if uuid else other.operator_files()
    files = TlsFiles(issued.cert_file, issued.key_file, str(identity.ca_file))  # it trusts the node
    assert refusal(caller(files, uuid), clustered.peer_endpoint)[0] is UNAVAILABLE


@pytest.mark.parametrize(("begins", "ends"), [(-3, -1), (1, 3)], ids=["expired", "not yet valid"])
def test_a_certificate_whose_time_is_off_by_an_hour_does_not_connect(
    tmp_path: Path, clustered: NodeServer, identity: IdentityFolder, begins: int, ends: int
) -> None:
    uri = node_uri(clustered.membership.node_uuid)
    files = forged(tmp_path / "off", identity, uri, begins_in=begins * HOUR, ends_in=ends * HOUR)
    assert refusal(caller(files, clustered.membership.node_uuid), clustered.peer_endpoint)[0] is UNAVAILABLE


def test_nobody_connects_without_a_certificate_or_without_tls(clustered: NodeServer, identity: IdentityFolder) -> None:
    ca = grpc.ssl_channel_credentials(identity.ca_file.read_bytes())
    for channel in (
        grpc.secure_channel(clustered.peer_endpoint, ca, options=OPTIONS),
        grpc.insecure_channel(clustered.peer_endpoint, options=OPTIONS),
        grpc.insecure_channel(clustered.endpoint, options=OPTIONS),
    ):
        with channel, pytest.raises(grpc.RpcError) as refused:
            rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=TIMEOUT_S)
        assert refused.value.code() is UNAVAILABLE


def test_a_role_that_is_stated_to_the_listener_of_clients_gets_no_map(
    clustered: NodeServer, identity: IdentityFolder
) -> None:
    """That listener sees no certificates. Without the map, nobody takes the part for clients for the whole."""
    operator = caller(identity.operator_files())
    with operator.channel(clustered.endpoint, OPTIONS) as channel:
        answer = rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=TIMEOUT_S)
    assert (answer.HasField("map"), answer.peer_endpoint) == (False, clustered.peer_endpoint)
    with operator.client_channel(clustered.endpoint, OPTIONS) as channel:
        assert rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=TIMEOUT_S).map.version == 1


@pytest.mark.slow
def test_the_map_changes_from_the_endpoints_of_clients_and_a_removed_node_is_refused(
    tmp_path: Path, clustered: NodeServer, identity: IdentityFolder
) -> None:
    operator = caller(identity.operator_files())
    with NodeServer([tmp_path / "second"], ServerConfig(port=0), identity=identity.path) as second:
        uuid = second.membership.node_uuid
        changed = change_map([clustered.endpoint], add_node(member(second, "b")), timeout_s=TIMEOUT_S, caller=operator)
        assert [one.uuid for one in changed.node] == [clustered.membership.node_uuid, uuid]
        assert second.membership.view is not None and second.membership.view.version == changed.version
        node = caller(identity.node_files(uuid, []), uuid)
        learn = pb.LearnRequest(map=changed)
        with node.channel(clustered.peer_endpoint, OPTIONS) as channel:
            rpc.ClusterStub(channel).Learn(learn, timeout=TIMEOUT_S)  # it is a member
            left = change_map([clustered.endpoint], remove_node(uuid), timeout_s=TIMEOUT_S, caller=operator)
            assert len(left.node) == 1
            with pytest.raises(grpc.RpcError) as refused:
                rpc.ClusterStub(channel).Learn(learn, timeout=TIMEOUT_S)
        assert f"node {uuid.hex()} is not in the cluster" in refused.value.details()
