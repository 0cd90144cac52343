"""From plaintext to TLS: nodes that serve both, and a cluster that goes over while it is read and written."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ais_loader import ClusterOptions, Entry, connect
from ais_loader.errors import NodeUntrusted
from ais_loader.testing.waiting import eventually
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_cluster
from storage_node.context.channels import Caller, make_secret, read_secret
from storage_node.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.cluster.agreement_kit import member
from tests.cluster.operator_kit import operating
from tests.security.tls_kit import asked, caller, refusal

NAMES = [f"en/{number:03d}" for number in range(60)]
PAUSE_S = 0.02
LARGE = bytes(range(256)) * 8192
"""2 MiB, many times what a socket buffers."""


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    make_secret(tmp_path / "secret")
    return tmp_path / "secret"


@contextmanager
def mixed(folder: Path, secret_file: Path, identity: IdentityFolder, plaintext: str) -> Iterator[NodeServer]:
    config = ServerConfig(port=0, read_threads=2, peer_secret_file=str(secret_file), plaintext=plaintext)
    with NodeServer([folder], config, identity=identity.path) as node:
        yield node


@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_a_node_serves_both_at_one_port(tmp_path: Path, identity: IdentityFolder, secret_file: Path, lane: Any) -> None:
    options = ClusterOptions(lane=lane)
    with mixed(tmp_path / "drive", secret_file, identity, "accepted") as node:
        assert node.url.startswith("grpcs://")
        with connect(f"grpc://127.0.0.1:{node.port}", options=options) as plain:
            bucket = plain.create_bucket("b")
            bucket.put("large", LARGE)
            bucket.put_many((name, name.encode() * 1000) for name in NAMES)
            with connect(node.url, ca=identity.ca_file, options=options) as client:
                assert client.bucket("b").get("large") == LARGE
                for one in (plain, client):
                    batch = one.get_batch([Entry("b", name) for name in NAMES])
                    assert [bytes(item.data) for item in batch] == [name.encode() * 1000 for name in NAMES]


def test_an_operator_without_a_certificate_proves_the_secret(
    tmp_path: Path, identity: IdentityFolder, secret_file: Path
) -> None:
    with mixed(tmp_path / "drive", secret_file, identity, "accepted") as node:
        in_the_clear = Caller(read_secret(secret_file))
        assert asked(in_the_clear, node.peer_endpoint).node_uuid == node.membership.node_uuid
        assert "no proof" in refusal(Caller(), node.peer_endpoint)[1]
        lying = caller(identity.operator_files(), node.membership.node_uuid)
        with_secret = Caller(read_secret(secret_file), lying.node_uuid, int, lying.credentials)
        assert "its certificate is for an operator" in refusal(with_secret, node.peer_endpoint)[1]


def test_a_node_logs_who_connects_without_tls(
    tmp_path: Path, identity: IdentityFolder, secret_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "storage_node.identity.mixed_listener")
    with mixed(tmp_path / "drive", secret_file, identity, "accepted") as node:
        with connect(node.url, ca=identity.ca_file) as client:
            assert client.buckets() == []
        assert "without TLS" not in caplog.text
        for _ in range(3):  # one message in a minute
            with connect(f"grpc://127.0.0.1:{node.port}") as client:
                assert client.buckets() == []
        assert caplog.text.count(f"port {node.port}: connections without TLS: 1 from 127.0.0.1") == 1


@pytest.mark.slow
def test_connections_that_say_nothing_or_nonsense_are_ended(
    tmp_path: Path, identity: IdentityFolder, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_node.identity import mixed_listener

    monkeypatch.setattr(mixed_listener, "FIRST_BYTE_TIMEOUT_S", 0.3)
    with mixed(tmp_path / "drive", secret_file, identity, "accepted") as node:
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100):
            with socket.create_connection(("127.0.0.1", node.port), timeout=60) as sock:
                sock.sendall(said)
                while sock.recv(4096):
                    pass
        with connect(node.url, ca=identity.ca_file) as client:
            assert client.buckets() == []


def test_what_a_migration_needs(tmp_path: Path, identity: IdentityFolder, secret_file: Path) -> None:
    alone = ServerConfig(port=0, plaintext="accepted")
    with pytest.raises(ValueError, match="needs peer_secret_file"):
        NodeServer([tmp_path / "drive"], alone, identity=identity.path).start()
    tokens = ServerConfig(
        host="0.0.0.0",
        port=0,
        plaintext="accepted",
        peer_secret_file=str(secret_file),
        token_key_file=str(tmp_path / "key.pub"),
    )
    with pytest.raises(ValueError, match="tokens are not sent in the clear"):
        NodeServer([tmp_path / "drive"], tokens, identity=identity.path).start()
    with NodeServer([tmp_path / "drive"], alone) as node:  # without effect
        assert node.url.startswith("grpc://")


@pytest.mark.slow
@pytest.mark.parametrize(
    "state", [("without", "used"), ("used", "used"), ("used", "accepted"), ("accepted", "refused")]
)
def test_nodes_of_neighboring_rounds_write_to_each_other(
    tmp_path: Path, identity: IdentityFolder, secret_file: Path, state: tuple[str, str]
) -> None:
    def config(plaintext: str) -> ServerConfig:
        settings = {} if plaintext == "without" else {"plaintext": plaintext}
        return ServerConfig(port=0, peer_secret_file=str(secret_file), reach_timeout_s=20.0, **settings)

    def server(number: int) -> NodeServer:
        folder = None if state[number] == "without" else identity.path
        return NodeServer([tmp_path / f"{number}"], config(state[number]), identity=folder)

    with server(0) as first, server(1) as second:
        members = [member(one, str(one.port)) for one in (first, second)]
        secret = read_secret(secret_file)
        credentials = caller(identity.operator_files()).credentials if state[1] != "used" else None
        operator = Caller(secret, credentials=credentials)
        change_map([one.endpoint for one in members], create_cluster(members), timeout_s=60.0, caller=operator)
        for one in (first, second):
            url = f"grpc://{one.endpoint}" if state[1] != "refused" else f"grpcs://{one.endpoint}"
            ca = identity.ca_file if state[1] == "refused" else None
            with connect(url, ca=ca, options=ClusterOptions(retry_s=240.0)) as client:
                if one is first:
                    client.create_bucket("b", copies=2, min_copies=2)
                bucket = client.bucket("b")
                bucket.put_many((name, one.endpoint.encode()) for name in NAMES)
                batch = client.get_batch([Entry("b", name) for name in NAMES], assembly="target")
                assert {bytes(item.data) for item in batch} == {one.endpoint.encode()}


def names_of(round_: int) -> list[str]:
    return [f"{round_:06d}/{number:02d}" for number in range(20)]


class Traffic:
    """A thread that writes and reads a cluster without TLS until it is ended; no call may fail.

    Each round has names of its own: a write that is repeated after many others of its name is in doubt.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.rounds = 0
        self.error: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with connect(self._url, options=ClusterOptions(retry_s=240.0)) as client:
                bucket = client.bucket("b")
                while not self._ending.is_set():
                    names = names_of(self.rounds)
                    bucket.put_many((name, name.encode()) for name in names)
                    batch = client.get_batch([Entry("b", name) for name in names])
                    assert [bytes(item.data).decode() for item in batch] == names
                    self.rounds += 1
                    self._ending.wait(PAUSE_S)
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            self.error = error

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def goes_on(self) -> None:
        before = self.rounds
        eventually(lambda: self.error is not None or self.rounds > before + 1)
        if self.error is not None:
            raise self.error


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cluster_goes_over_while_it_is_read_and_written() -> None:
    with operating() as operator:
        said = operator.json("up", "--nodes", "3", "--no-dashboard")
        plain = said["url"]
        assert plain.startswith("grpc://")
        with connect(plain) as client:
            client.create_bucket("b", copies=2, min_copies=1)
        assert "--migrate" in operator.error("up", "--secure")
        with Traffic(plain) as traffic:
            traffic.goes_on()
            said = operator.json("up", "--secure", "--migrate")
            assert [node["state"] for node in said["nodes"]] == ["serving"] * 3
            traffic.goes_on()
            with connect(said["url"], ca=said["ca_file"]) as client:  # both, at the same addresses
                assert said["url"] == plain.replace("grpc://", "grpcs://")
                assert client.bucket("b").get(names_of(0)[1]).decode() == names_of(0)[1]
            os.kill(next(iter(operator.nodes().values()))["pid"], signal.SIGKILL)  # and it comes back as it was
            traffic.goes_on()
            eventually(
                lambda: [node["state"] for node in operator.nodes().values()] == ["serving"] * 3, 90.0, interval_s=0.5
            )
            operator.json("up", "--secure", "--migrate")  # once more changes nothing
            traffic.goes_on()
        assert traffic.error is None
        said = operator.json("up", "--secure")
        with connect(plain) as client, pytest.raises(NodeUntrusted, match="use grpcs://"):
            client.buckets()
        with connect(said["url"], ca=said["ca_file"], options=ClusterOptions(retry_s=240.0)) as client:
            names = [name for round_ in range(traffic.rounds) for name in names_of(round_)]
            batch = client.get_batch([Entry("b", name) for name in names])
            assert [bytes(item.data).decode() for item in batch] == names
        for node in said["nodes"]:
            address = str(node["endpoint"]).rpartition(":")
            assert "CERTIFICATE" in ssl.get_server_certificate((address[0], int(address[2])), timeout=60)
