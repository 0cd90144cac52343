"""Certificates that change while a node runs, and connections that never finish their handshake."""

from __future__ import annotations

import select
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ais_loader import ClusterOptions, Entry, connect
from ais_loader.errors import NodeUntrusted
from ais_loader.testing import eventually
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_cluster
from storage_node.security.identity import credentials
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.permissions import trusted_bytes
from tests.cluster.agreement_kit import member
from tests.security.tls_kit import asked, caller, forged

DEADLINE_S = 180.0


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LOOK_INTERVAL_S", 0.01)


def shown(node: NodeServer) -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", node.port)) as sock, context.wrap_socket(sock) as tls:
        der = tls.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def reissued(identity: IdentityFolder, node: NodeServer) -> None:
    """Issue another certificate for a node, in the same files."""
    uuid = node.membership.node_uuid
    (identity.path / f"node-{uuid.hex()}.pem").unlink()
    identity.node_files(uuid, ["127.0.0.1"])


def changed(node: NodeServer, before: int) -> int:
    return eventually(lambda: now if (now := shown(node)) != before else None, interval_s=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_a_stream_of_batches_continues_while_the_certificate_changes(
    node: NodeServer, identity: IdentityFolder, lane: str
) -> None:
    names = [f"object-{number}" for number in range(200)]
    options = ClusterOptions(lane=lane)  # type: ignore[arg-type]
    with connect(node.url, ca=identity.ca_file, options=options) as client:
        bucket = client.create_bucket("b")
        bucket.put_many({name: name.encode() * 1000 for name in names}.items())
        serial = shown(node)
        wanted = [[Entry("b", name) for name in names]] * 20
        for number, batch in enumerate(client.get_batches(iter(wanted))):
            if number in (3, 9):
                reissued(identity, node)
                serial = changed(node, serial)
            assert [bytes(item.data) for item in batch] == [name.encode() * 1000 for name in names]
        with connect(node.url, ca=identity.ca_file) as later:
            assert later.bucket("b").get(names[0]) == names[0].encode() * 1000


@pytest.mark.slow
def test_half_of_a_renewal_leaves_the_former_certificate_in_use(node: NodeServer, identity: IdentityFolder) -> None:
    before = shown(node)
    key = identity.path / f"node-{node.membership.node_uuid.hex()}-key.pem"
    whole = key.read_bytes()
    key.write_bytes(whole[: len(whole) // 2])
    assert shown(node) == before
    key.unlink()
    assert shown(node) == before
    key.write_bytes(whole)
    reissued(identity, node)
    changed(node, before)


def test_files_that_are_replaced_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: IdentityFolder
) -> None:
    old, new = (forged(tmp_path / name, identity) for name in ("old", "new"))
    came = list[Path]()

    def replaced(path: Path) -> bytes:
        contents = trusted_bytes(path)
        if not came:
            Path(new.cert_file).replace(old.cert_file)
            Path(new.key_file).replace(old.key_file)
        came.append(path)
        return contents

    monkeypatch.setattr(credentials, "trusted_bytes", replaced)
    contents = old.read()
    certificate = x509.load_pem_x509_certificate(contents.cert)
    key = serialization.load_pem_private_key(contents.key, None)
    assert certificate.public_key() == key.public_key()


def test_another_ca_takes_over_without_a_restart(tmp_path: Path, node: NodeServer, identity: IdentityFolder) -> None:
    former = tmp_path / "former.pem"
    former.write_bytes(identity.ca_file.read_bytes())
    operator = caller(identity.operator_files())
    asked(operator, node.peer_endpoint)
    before = shown(node)
    for name in ("ca.pem", "ca-key.pem", "operator.pem", "operator-key.pem"):
        (identity.path / name).unlink()
    identity.make()
    reissued(identity, node)
    changed(node, before)
    with connect(node.url, ca=identity.ca_file) as client:
        assert client.buckets() == []
    with connect(node.url, ca=former) as client, pytest.raises(NodeUntrusted):
        client.buckets()
    assert asked(operator, node.peer_endpoint).node_uuid == node.membership.node_uuid  # it follows its own files


def test_half_done_handshakes_hold_up_nobody(node: NodeServer, identity: IdentityFolder) -> None:
    ports = (node.port, node.peer_port)
    for _ in range(5):
        silent = [socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(100)]
        try:
            for sock in silent[::2]:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the first bytes of a ClientHello
            with connect(node.url, ca=identity.ca_file) as client:
                client.create_bucket("b", exist_ok=True).put("x", b"x")
                assert client.bucket("b").get("x") == b"x"
            asked(caller(identity.operator_files()), node.peer_endpoint)
            if not select.select(silent, [], [], 0)[0]:
                return  # else a machine that stood still has ended them first
        finally:
            for sock in silent:
                sock.close()
    raise AssertionError("they were ended first")


@pytest.mark.slow
def test_half_done_handshakes_are_ended(node: NodeServer) -> None:
    with socket.create_connection(("127.0.0.1", node.port)) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        sock.settimeout(DEADLINE_S)
        assert sock.recv(1) == b""


def test_nodes_go_on_with_each_other_when_their_certificates_and_the_ca_change(
    tmp_path: Path, node: NodeServer, identity: IdentityFolder
) -> None:
    """Channels of a former certificate could not connect again: each node is restarted where it listened."""
    operator = caller(identity.operator_files())
    with NodeServer([tmp_path / "second"], ServerConfig(port=0), identity=identity.path) as second:
        members = [member(one, str(one.port)) for one in (node, second)]
        change_map([one.endpoint for one in members], create_cluster(members), timeout_s=DEADLINE_S, caller=operator)
        with connect(node.url, ca=identity.ca_file) as client:
            client.create_bucket("b", copies=2, min_copies=2).put("before", b"before")
        serials = shown(node), shown(second)
        for name in ("ca.pem", "ca-key.pem", "operator.pem", "operator-key.pem"):
            (identity.path / name).unlink()
        identity.make()
        for one, serial in zip((node, second), serials, strict=True):
            reissued(identity, one)
            changed(one, serial)
    # Its connections have ended, and are made again with the new certificates.
    config = ServerConfig(port=second.port, peer_port=second.peer_port)
    options = ClusterOptions(retry_s=DEADLINE_S)
    with (
        NodeServer([tmp_path / "second"], config, identity=identity.path),
        connect(node.url, ca=identity.ca_file, options=options) as client,
    ):
        client.bucket("b").put("after", b"after")  # needs both nodes
        assert client.bucket("b").get("before") == b"before"
        batch = client.get_batch([Entry("b", "before"), Entry("b", "after")])
        assert [bytes(item.data) for item in batch] == [b"before", b"after"]
