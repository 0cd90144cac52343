"""What a client holds at a node before the node knows who it is: connections, handshakes, and parts of messages."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.testing.waiting import eventually
from benchmarks.soak.half_messages import HalfMessages, pump_all
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.security.rights_kit import EVERYTHING, SecureNode, secure

MiB = 1 << 20
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01"
"""The first bytes of a TLS handshake."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SecureNode]:
    with secure(tmp_path) as node:
        yield node


def test_half_messages_without_a_token_end_at_once(node: SecureNode) -> None:
    assert node.server.batches is not None
    of_node = node.server.batches.node
    with ExitStack() as stack:
        connections = [stack.enter_context(HalfMessages("127.0.0.1", node.server.port)) for _ in range(4)]
        for connection in connections:
            for method in ("Objects/Put", "Objects/Head", "Objects/PutMany", "GetBatch/Session"):
                connection.call(f"/ais_loader.v1.{method}", 31 * MiB, 4 * MiB)
        eventually(lambda: pump_all(connections) and all(one.ended_calls == 4 for one in connections))
        streams = of_node.streams
        # A call is ended before the node has given back all that it had.
        eventually(lambda: (of_node.unread.held, streams.slots.held, streams.messages.held_bytes) == (0, 0, 0))
        with connect(node.url, token=node.token(EVERYTHING)) as client:
            client.create_bucket("b").put("x", b"bytes")


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1000) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.slow
def test_half_done_handshakes_end_after_ten_seconds_and_do_not_exceed_the_connections(tmp_path: Path) -> None:
    identity = IdentityFolder(tmp_path / "identity")
    identity.make()
    config = ServerConfig(port=0, max_connections=20)
    with ExitStack() as stack, NodeServer([tmp_path / "drive"], config, identity=identity.path) as node:
        began_s = time.monotonic()
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", node.port))) for _ in range(40)]
        for number, one in enumerate(silent):
            if number % 2:
                one.sendall(CLIENT_HELLO)
            one.setblocking(False)
        eventually(lambda: sum(map(is_closed, silent)) >= 20)
        eventually(lambda: all(map(is_closed, silent)))
        assert time.monotonic() - began_s > 5
        with connect(node.url, ca=identity.ca_file) as client:
            client.create_bucket("b").put("x", b"bytes")
