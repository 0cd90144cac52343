"""Every method of every service at both listeners of a node that needs tokens, by what its caller shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader import connect
from storage_node.server import NodeServer
from storage_node.services.call_table import TABLE, Role
from storage_node.settings.config import ServerConfig
from tests.node.contract_kit import methods
from tests.peer_kit import OPTIONS, operator_of, outcome, peer_of
from tests.security.rights_kit import EVERYTHING, SecureNode, key_in
from tests.table import table

SECRET = "5ecret-of-this-very-node-0"
WRONG = SECRET[::-1]
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
ALL = sorted(methods())
ENDLESS = {"GetBatch/Session"}
"""Methods that an empty message does not end."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "secret").write_text(f"{SECRET}\n")
    key = key_in(folder / "keys")
    config = ServerConfig(port=0, token_key_file=f"{key}.pub", peer_secret_file=str(folder / "secret"))
    with NodeServer([folder / "drive"], config) as server:
        yield SecureNode(server, key)


@pytest.fixture(scope="module")
def clients(node: SecureNode) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        yield channel


@pytest.fixture(scope="module")
def bare(node: SecureNode) -> Iterator[grpc.Channel]:
    """A channel to the peer listener that shows nothing."""
    with grpc.insecure_channel(node.server.peer_endpoint, options=OPTIONS) as channel:
        yield channel


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


@pytest.mark.slow
@table("method", ALL)
def test_the_listener_of_clients(node: SecureNode, clients: grpc.Channel, method: str) -> None:
    of_clients = bool(TABLE[method].by & Role.CLIENT)
    expected = UNAUTHENTICATED if of_clients else UNIMPLEMENTED
    for shown in ((), (bearer("x"),), (bearer(node.expired()),), (("authorization", "Basic x"),)):
        assert outcome(clients, method, *shown) is expected, shown
    assert outcome(clients, method, ("ais-role", "operator")) is expected  # a role alone proves nothing
    if of_clients:
        two = (bearer(node.token(EVERYTHING)),) * 2
        assert outcome(clients, method, *two) is UNAUTHENTICATED
    else:
        assert outcome(clients, method, bearer(node.token(EVERYTHING))) is UNIMPLEMENTED
    if method not in ENDLESS:
        sufficient = outcome(clients, method, bearer(node.token(EVERYTHING)))
        assert (sufficient not in (UNAUTHENTICATED, UNIMPLEMENTED)) == of_clients


@pytest.mark.slow
@table("method", ALL)
def test_the_listener_of_peers_without_a_proof(node: SecureNode, bare: grpc.Channel, method: str) -> None:
    for shown in ((), (bearer(node.token(EVERYTHING)),), (("ais-role", "operator"),), (("ais-role", "node"),)):
        assert outcome(bare, method, *shown) is UNAUTHENTICATED, shown


@pytest.mark.slow
def test_the_listener_of_peers_with_a_wrong_proof(node: SecureNode) -> None:
    with operator_of(node.server, WRONG) as operator, peer_of(node.server, secret=WRONG) as peer:
        for method in ALL:
            assert outcome(operator, method) is UNAUTHENTICATED, method
            assert outcome(peer, method) is UNAUTHENTICATED, method


def test_the_listener_of_peers_with_a_proof(node: SecureNode) -> None:
    """The proof is sufficient for the methods of its role, and insufficient for those of another."""
    with operator_of(node.server, SECRET) as operator, peer_of(node.server, secret=SECRET) as peer:
        for method in ALL:
            if method in ENDLESS:
                continue
            for channel, role in ((operator, Role.OPERATOR), (peer, Role.PEER)):
                code = outcome(channel, method)
                if TABLE[method].by & role:
                    assert code not in (UNAUTHENTICATED, UNIMPLEMENTED), (method, role)
                else:
                    assert code is DENIED, (method, role)


def test_a_client_is_served_meanwhile(node: SecureNode, tmp_path: Path) -> None:
    with connect(node.url, token=node.token(EVERYTHING)) as client:
        client.create_bucket("b").put("x", b"bytes")
        assert client.bucket("b").get("x") == b"bytes"
