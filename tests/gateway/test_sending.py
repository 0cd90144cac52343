"""How answers are sent: large bodies by the thread that reads them, on connections that are then used again."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.gateway.clients import Clients
from storage_node.gateway.direct_send import DirectSend
from storage_node.gateway.serve import GatewayThread
from storage_node.gateway.server.limits import Limits

SIZES = (0, 1, 64 << 10, (64 << 10) + 1, 128 << 10, 1 << 20, (1 << 20) + 1, 9 << 20)
IDLE_S = 0.5


@pytest.fixture(scope="module")
def data() -> bytes:
    return random.Random(5).randbytes(max(SIZES))


@pytest.fixture
def port(tmp_path: Path, data: bytes) -> Iterator[int]:
    """A gateway without keys that answers one request at once."""
    clients = Clients(str(tmp_path / "store"), [])
    try:
        bucket = clients.of(None).create_bucket("b")
        for size in SIZES:
            bucket.put(str(size), data[:size])
        with GatewayThread(clients, None, limits=Limits(requests=1, idle_s=IDLE_S)) as gateway:
            yield gateway.port
    finally:
        clients.close()


def test_bodies_of_every_size_on_one_connection(port: int, data: bytes) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        for size in (*SIZES, *reversed(SIZES)):
            connection.request("GET", f"/b/{size}")
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("content-length")) == (200, str(size))
            assert answer.read() == data[:size]
            if size > 100:
                connection.request("GET", f"/b/{size}", headers={"Range": f"bytes=7-{size - 9}"})
                assert connection.getresponse().read() == data[7 : size - 8]
        assert connection.sock is not None, "the gateway closed the connection"


def requested(port: int, receive_bytes: int = 4096) -> socket.socket:
    """Request a large object and take none of it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", port))
    sock.sendall(f"GET /b/{9 << 20} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return sock


def answers(port: int, data: bytes) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", f"/b/{1 << 20}")
        return connection.getresponse().read() == data[: 1 << 20]


def test_a_client_that_takes_nothing_is_disconnected(port: int, data: bytes) -> None:
    with requested(port) as sock:
        sock.recv(100)
        start = time.monotonic()
        assert answers(port, data)  # there is one thread, which the other client held
        assert time.monotonic() - start < 10 * IDLE_S + 5
        taken = 100
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(1 << 20):
                taken += len(piece)
        assert taken < 9 << 20


def test_a_slow_client_gets_everything(port: int, data: bytes) -> None:
    with requested(port, 1 << 16) as sock:
        found = bytearray()
        pause = threading.Event()
        while len(found) < 9 << 20:
            if len(found) < 1 << 20:
                pause.wait(IDLE_S / 50)
            piece = sock.recv(1 << 16)
            assert piece
            found += piece
        head, _, body = bytes(found).partition(b"\r\n\r\n")
        while len(body) < 9 << 20:
            body += sock.recv(1 << 20)
        assert b"200 OK" in head
        assert body == data


def test_a_client_that_disconnects_frees_its_thread(port: int, data: bytes) -> None:
    for _ in range(5):
        with requested(port) as sock:
            sock.recv(100)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    assert answers(port, data)


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


def test_stopping_ends_a_thread_that_waits() -> None:
    ours, theirs = pair()
    failed: list[BaseException] = []
    with ours, theirs, DirectSend(ours, Limits()) as direct:

        def send() -> None:
            try:
                direct.send_all([bytes(16 << 20)])
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        assert theirs.recv(1) == b"\0"
        direct.stop()
        thread.join(10)
        assert not thread.is_alive()
    assert len(failed) == 1
    assert not isinstance(failed[0], TimeoutError)


def test_a_failing_body_is_sent_up_to_its_failure() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"abc"
        raise ValueError("damaged")

    ours, theirs = pair()
    with theirs:
        with ours, DirectSend(ours, Limits()) as direct, pytest.raises(ValueError, match="damaged"):
            direct.send_all(chunks())
        assert direct.sent_bytes == 3
        assert theirs.recv(10) == b"abc"
        assert theirs.recv(10) == b""
