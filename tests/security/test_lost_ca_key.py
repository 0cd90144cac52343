"""Loss of the CA's key, another CA in its place, and a node that takes the place of another one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ais_loader import ClusterOptions, connect
from ais_loader.errors import NodeUntrusted, StoreError
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import add_node, create_cluster, remove_node
from storage_node.security.identity import credentials
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.cluster.agreement_kit import member
from tests.security.tls_kit import asked, caller, refusal

DEADLINE_S = 180.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LOOK_INTERVAL_S", 0.01)


@contextmanager
def other_node(folder: Path, identity: IdentityFolder, **config: int) -> Iterator[NodeServer]:
    with NodeServer([folder], ServerConfig(**{"port": 0, **config}), identity=identity.path) as node:
        yield node


def clustered(nodes: Sequence[NodeServer], identity: IdentityFolder) -> None:
    members = [member(node, f"host-{number}") for number, node in enumerate(nodes)]
    operator = caller(identity.operator_files())
    change_map([one.endpoint for one in members], create_cluster(members), timeout_s=DEADLINE_S, caller=operator)


def issued_again(identity: IdentityFolder, node: NodeServer) -> None:
    """As a node does every hour, and when it starts."""
    identity.node_files(node.membership.node_uuid, ["127.0.0.1"])


@pytest.mark.slow
def test_without_the_key_nodes_go_on_and_restart_and_none_is_added(
    tmp_path: Path, node: NodeServer, identity: IdentityFolder
) -> None:
    with other_node(tmp_path / "second", identity) as second:
        clustered([node, second], identity)
        with connect(node.url, ca=identity.ca_file) as client:
            client.create_bucket("b", copies=2, min_copies=2).put("before", b"before")
        ports = {"port": second.port, "peer_port": second.peer_port}
    (identity.path / "ca-key.pem").unlink()
    options = ClusterOptions(retry_s=DEADLINE_S)
    with (
        other_node(tmp_path / "second", identity, **ports),  # with the certificate that it has
        connect(node.url, ca=identity.ca_file, options=options) as client,
    ):
        client.bucket("b").put("after", b"after")  # needs both
        assert client.bucket("b").get("before") == b"before"
    asked(caller(identity.operator_files()), node.peer_endpoint)
    with pytest.raises(StoreError, match=r"no ca-key\.pem to issue node-"), other_node(tmp_path / "third", identity):
        pass


def commands_of_the_page() -> str:
    """The commands by which docs/security.md has another CA made, in the identity folder."""
    text = PAGE.read_text().partition("### A lost key of the CA")[2]
    block = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert block is not None
    lines = [line.removeprefix("$ ") for line in block[1].splitlines() if not line.startswith("$ cd ")]
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page uses openssl")
def test_another_ca_takes_over_while_both_are_trusted(
    tmp_path: Path, node: NodeServer, identity: IdentityFolder
) -> None:
    former = tmp_path / "former.pem"
    shutil.copy(identity.ca_file, former)
    with other_node(tmp_path / "second", identity) as second:
        clustered([node, second], identity)
        with connect(node.url, ca=identity.ca_file) as client:
            bucket = client.create_bucket("b", copies=2, min_copies=2)
            (identity.path / "ca-key.pem").unlink()
            subprocess.run(["bash", "-euc", commands_of_the_page()], cwd=identity.path, check=True, capture_output=True)
            assert (identity.path / "ca-key.pem").stat().st_mode & 0o777 == 0o600
            bucket.put("first", b"by former certificates")
            issued_again(identity, node)  # one node with a new certificate, and one with a former one
            eventually_served(identity, node)
            bucket.put("second", b"by both")
            issued_again(identity, second)
            identity.make()  # the operator's
            eventually_served(identity, second)
            bucket.put("third", b"by new ones")
    with connect(node.url, ca=identity.ca_file) as client:  # both
        assert client.bucket("b").head("first").size_bytes == len(b"by former certificates")
    with connect(node.url, ca=former) as client, pytest.raises(NodeUntrusted):
        client.buckets()


def eventually_served(identity: IdentityFolder, node: NodeServer) -> None:
    """Wait until an operator with a certificate of either CA is served, by the node's present one."""

    def is_served() -> bool:
        try:
            found = asked(caller(identity.operator_files()), node.peer_endpoint).node_uuid
        except grpc.RpcError:
            return False
        return found == node.membership.node_uuid

    eventually(is_served, interval_s=0.05)


def test_a_key_that_is_not_the_cas_issues_nothing(tmp_path: Path, identity: IdentityFolder) -> None:
    other = IdentityFolder(tmp_path / "other")
    other.make()
    shutil.copy(other.path / "ca-key.pem", identity.path / "ca-key.pem")
    with pytest.raises(StoreError, match=r"ca-key\.pem is not the key of the first certificate in ca\.pem"):
        identity.node_files(bytes(16), [])


@pytest.mark.slow
def test_a_node_in_the_place_of_another_has_its_own_certificate(
    tmp_path: Path, node: NodeServer, identity: IdentityFolder
) -> None:
    """Same folder, ports and name of the host; another uuid."""
    operator = caller(identity.operator_files())
    with other_node(tmp_path / "second", identity) as second:
        clustered([node, second], identity)
        former, ports = second.membership.node_uuid, {"port": second.port, "peer_port": second.peer_port}
        change_map([node.endpoint], remove_node(former), timeout_s=DEADLINE_S, caller=operator)
    shutil.rmtree(tmp_path / "second")
    with other_node(tmp_path / "second", identity, **ports) as replaced:
        uuid = replaced.membership.node_uuid
        assert uuid != former and replaced.peer_port == ports["peer_port"]
        change_map([node.endpoint], add_node(member(replaced, "host-1")), timeout_s=DEADLINE_S, caller=operator)
        asked(caller(identity.node_files(uuid, []), uuid), node.peer_endpoint)
        kept = identity.node_files(former, [])  # the file of the former one is still there
        code, reason = refusal(caller(kept, uuid), node.peer_endpoint)
        assert code is grpc.StatusCode.UNAUTHENTICATED and f"its certificate is for node {former.hex()}" in reason
        with caller(kept, former).channel(node.peer_endpoint, ()) as channel, pytest.raises(grpc.RpcError) as refused:
            rpc.ClusterStub(channel).Learn(pb.LearnRequest(), timeout=DEADLINE_S)
        assert f"node {former.hex()} is not in the cluster" in refused.value.details()
