"""Clients of a node with TLS: whom they trust, which names hold, and what they are told if something does not fit."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import ClusterOptions, Entry, connect
from ais_loader.errors import InvalidRequest, NodeUntrusted
from ais_loader.objects.client import CA_VARIABLE
from ais_loader.training.process_client import ProcessClient
from storage_node.security.identity.certified import node_uri
from storage_node.security.identity.credentials import TlsFiles
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.security.tls_kit import HOUR, forged

FOREVER_S = 600.0
"""Longer than a test may take: an error that no retry can mend comes at once."""


@pytest.fixture
def stored(node: NodeServer, identity: IdentityFolder) -> NodeServer:
    with connect(node.url, ca=identity.ca_file) as client:
        client.create_bucket("b").put("x", b"hello" * 1000)
    return node


def untrusted(url: str, ca: str | None = None) -> str:
    """Return the message of a refused connection."""
    with (
        connect(url, ca=ca, options=ClusterOptions(retry_s=FOREVER_S)) as client,
        pytest.raises(NodeUntrusted) as refused,
    ):
        client.buckets()
    return str(refused.value)


@pytest.mark.parametrize("lane", ["auto", "grpc"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_names_and_addresses_of_the_node_hold(
    stored: NodeServer, identity: IdentityFolder, host: str, lane: str
) -> None:
    options = ClusterOptions(lane=lane)  # type: ignore[arg-type]
    with connect(f"grpcs://{host}:{stored.port}", ca=identity.ca_file, options=options) as client:
        assert client.bucket("b").get("x") == b"hello" * 1000
        with client.get_batch([Entry("b", "x")]) as batch:
            assert [bytes(item.data) for item in batch] == [b"hello" * 1000]
        client.bucket("b").put("y", b"later")
        assert client.bucket("b").get("y") == b"later"


def test_an_ipv6_address_of_the_node_holds(tmp_path: Path, identity: IdentityFolder) -> None:
    with (
        NodeServer([tmp_path / "six"], ServerConfig(port=0, host="[::1]"), identity=identity.path) as node,
        connect(node.url, ca=identity.ca_file) as client,
    ):
        assert node.url.startswith("grpcs://[::1]:")
        assert client.buckets() == []


def test_a_pickled_client_and_a_dataset_carry_the_path_of_the_ca(
    stored: NodeServer, identity: IdentityFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CA_VARIABLE, str(identity.ca_file))
    with connect(stored.url) as client:
        pickled = pickle.dumps(client)
        dataset = pickle.dumps(ProcessClient(stored.url))
    monkeypatch.delenv(CA_VARIABLE)
    with pickle.loads(pickled) as client, pickle.loads(dataset).get() as of_dataset:
        assert client.bucket("b").get("x") == of_dataset.bucket("b").get("x") == b"hello" * 1000


@pytest.mark.slow
def test_without_a_ca_the_systems_are_asked(stored: NodeServer) -> None:
    message = untrusted(stored.url)
    assert "the CAs of this system (ca= names others)" in message
    assert "unable to get local issuer certificate" in message


@pytest.mark.slow
def test_a_system_that_trusts_the_ca_needs_no_path(stored: NodeServer, identity: IdentityFolder) -> None:
    import os
    import subprocess
    import sys

    code = f"import ais_loader; print(ais_loader.connect({stored.url!r}).bucket('b').get('x')[:5])"
    variables = {**os.environ, "SSL_CERT_FILE": str(identity.ca_file)}
    found = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=180)
    assert found.stdout == "b'hello'\n", found.stderr


def test_another_ca_is_told(tmp_path: Path, stored: NodeServer) -> None:
    other = IdentityFolder(tmp_path / "other")
    other.make()
    assert f"by the CAs in {other.ca_file}" in untrusted(stored.url, str(other.ca_file))


def test_plaintext_to_a_node_with_tls_says_what_to_use(stored: NodeServer) -> None:
    assert f"use grpcs://127.0.0.1:{stored.port}" in untrusted(stored.url.replace("grpcs", "grpc"))


def test_tls_to_a_node_without_it_says_what_to_use(tmp_path: Path, identity: IdentityFolder) -> None:
    with NodeServer([tmp_path / "plain"], ServerConfig(port=0)) as plain:
        message = untrusted(plain.url.replace("grpc", "grpcs"), str(identity.ca_file))
        assert f"use grpc://127.0.0.1:{plain.port}" in message


@pytest.fixture
def with_files(tmp_path: Path) -> Iterator[object]:
    """Start a node with these files."""
    from contextlib import ExitStack

    with ExitStack() as held:

        def started(files: TlsFiles) -> NodeServer:
            given = {"cert_file": files.cert_file, "key_file": files.key_file, "ca_file": files.ca_file}
            return held.enter_context(NodeServer([tmp_path / "own"], ServerConfig(port=0, **given)))

        yield started


@pytest.mark.parametrize(
    ("begins", "ends", "reason"),
    [(-3, -1, "certificate has expired"), (1, 3, "certificate is not yet valid")],
    ids=["expired", "not yet valid"],
)
def test_a_certificate_whose_time_is_off_by_an_hour_is_told(
    tmp_path: Path, identity: IdentityFolder, with_files: object, begins: int, ends: int, reason: str
) -> None:
    uri = node_uri(bytes(16))
    files = forged(tmp_path / "off", identity, uri, begins_in=begins * HOUR, ends_in=ends * HOUR)
    node = with_files(files)  # type: ignore[operator]
    assert reason in untrusted(node.url, str(identity.ca_file))


def test_a_certificate_for_another_host_is_told(tmp_path: Path, identity: IdentityFolder, with_files: object) -> None:
    node = with_files(forged(tmp_path / "elsewhere", identity, node_uri(bytes(16)), hosts=("10.0.0.5",)))  # type: ignore[operator]
    assert "the node's certificate is not for 127.0.0.1" in untrusted(node.url, str(identity.ca_file))


def test_a_ca_without_tls_or_that_is_none_is_refused(tmp_path: Path, identity: IdentityFolder) -> None:
    for url in ("grpc://127.0.0.1:9", str(tmp_path / "store")):
        with pytest.raises(InvalidRequest, match="goes with grpcs://"):
            connect(url, ca=identity.ca_file)
    with pytest.raises(InvalidRequest, match="No such file"):
        connect("grpcs://127.0.0.1:9", ca=tmp_path / "missing.pem")
    with pytest.raises(InvalidRequest, match="no certificates"):
        connect("grpcs://127.0.0.1:9", ca=identity.path / "ca-key.pem")
    with pytest.raises(InvalidRequest, match="for all endpoints"):
        connect("grpcs://127.0.0.1:9,grpc://127.0.0.1:10")


def test_settings_of_tls_are_all_or_none() -> None:
    with pytest.raises(ValueError, match="key_file and ca_file: TLS needs all"):
        ServerConfig(cert_file="/a.pem")
