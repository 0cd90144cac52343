"""The test kit does to nodes and connections what it says."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import ais_loader
from ais_loader.testing import NodeProcess, eventually, seeded_bytes, throwaway_node, throwaway_store
from tests.faulty_link import FaultyLink


def test_eventually_returns_the_first_true_value() -> None:
    answers = iter([0, None, "", "here"])
    assert eventually(lambda: next(answers)) == "here"


def test_eventually_gives_up_with_the_last_value() -> None:
    with pytest.raises(AssertionError, match="still 0"):
        eventually(lambda: 0, timeout_s=0.02)


def test_throwaway_store_holds_what_it_was_made_with_and_vanishes() -> None:
    with throwaway_store({"a": b"1", "b/c": b""}, bucket="x") as client:
        path = client.url.removeprefix("file://")
        assert [item.tobytes() for item in client.bucket("x").get_batch(["b/c", "a"])] == [b"", b"1"]
    assert not os.path.exists(path)


@pytest.mark.slow
def test_a_node_that_was_killed_comes_back_on_its_port_with_its_objects() -> None:
    with throwaway_node({"a": b"1"}) as node, ais_loader.connect(node.url) as client:
        port, pid = node.port, node.pid
        node.kill()
        assert not node.alive
        node.start()
        assert (node.port, node.pid != pid) == (port, True)
        assert client.bucket("data").get("a") == b"1"
        assert 1 << 20 < node.rss_bytes() <= node.peak_rss_bytes()
        assert node.stop() == 0


@pytest.mark.slow
def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"not a folder")
    with pytest.raises(RuntimeError, match="file"):
        NodeProcess(tmp_path / "file")


# -- links, against a server that sends back what it gets


@pytest.fixture
def echo_port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                return  # a test has cut the connection

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    accepting.join(180)


@pytest.fixture
def link(echo_port: int) -> Iterator[FaultyLink]:
    with FaultyLink(f"grpc://127.0.0.1:{echo_port}") as link:
        yield link


def dial(link: FaultyLink) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=180)


def receive(connection: socket.socket, size_bytes: int) -> bytes:
    """Up to `size_bytes`; fewer when the connection ends before."""
    data = b""
    while len(data) < size_bytes and (part := connection.recv(size_bytes - len(data))):
        data += part
    return data


def test_a_link_without_faults_passes_bytes_unchanged(link: FaultyLink) -> None:
    data = seeded_bytes(3_000_000)
    with dial(link) as connection:
        sending = threading.Thread(target=connection.sendall, args=(data,))
        sending.start()
        assert receive(connection, len(data)) == data
        sending.join(180)


def test_a_cut_link_resets_its_connections_and_accepts_new_ones(link: FaultyLink) -> None:
    with dial(link) as connection:
        connection.sendall(b"ping")
        assert receive(connection, 4) == b"ping"
        link.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with dial(link) as connection:
        connection.sendall(b"pong")
        assert receive(connection, 4) == b"pong"
    assert link.connections_made == 2


def test_a_link_is_cut_after_exactly_the_bytes_asked_for(link: FaultyLink) -> None:
    link.cut_after(bytes_to_client=100_000)
    with dial(link) as connection:
        connection.sendall(bytes(200_000))
        with pytest.raises(ConnectionResetError):
            receive(connection, 200_000)
            connection.recv(1)
    assert link.bytes_to_client == 100_000


def test_a_stalled_link_is_silent_until_it_flows_again(link: FaultyLink) -> None:
    with dial(link) as connection:
        link.stall()
        connection.sendall(b"ping")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        link.flow()
        connection.settimeout(180)
        assert receive(connection, 4) == b"ping"


def test_a_link_that_refuses_resets_new_connections(link: FaultyLink) -> None:
    link.refuse()
    with pytest.raises(ConnectionResetError), dial(link) as connection:
        connection.recv(1)
    link.accept()
    with dial(link) as connection:
        connection.sendall(b"ping")
        assert receive(connection, 4) == b"ping"


def test_latency_and_bandwidth_of_a_link_can_be_limited(link: FaultyLink) -> None:
    link.latency_s, link.bytes_per_s = 0.05, 1e6
    with dial(link) as connection:
        started = time.monotonic()
        connection.sendall(bytes(100_000))
        assert len(receive(connection, 100_000)) == 100_000
        assert time.monotonic() - started >= 0.1  # latency on the way there and on the way back


@pytest.mark.slow
def test_a_link_that_ends_while_connections_come_leaves_no_socket_open(
    echo_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_open: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda left: left_open.append(str(left.exc_value)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for _ in range(20):
            with FaultyLink(f"grpc://127.0.0.1:{echo_port}") as link:
                connections = [dial(link) for _ in range(4)]
            for connection in connections:
                connection.close()
        del link
        gc.collect()
    assert left_open == []
