"""How answers are sent: large bodies by the thread that reads them, on connections that are then used again."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.integrations.gateway.clients import Clients
from ais_loader.integrations.gateway.direct_send import DirectSend, head
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.testing import eventually
from tests.gateway.gateway_thread import GatewayThread
from tests.table import table

SIZES = (0, 1, 64 << 10, (64 << 10) + 1, 128 << 10, 1 << 20, (1 << 20) + 1, 9 << 20)
IDLE_S = 0.5


@pytest.fixture(scope="module")
def data() -> bytes:
    return random.Random(5).randbytes(max(SIZES))


@pytest.fixture
def clients(tmp_path: Path, data: bytes) -> Iterator[Clients]:
    with contextlib.closing(Clients(str(tmp_path / "store"), [])) as clients:
        bucket = clients.of(None).create_bucket("b")
        for size in SIZES:
            bucket.put(str(size), data[:size])
        yield clients


@pytest.fixture
def port(clients: Clients) -> Iterator[int]:
    """A gateway without keys that answers one request at once."""
    with GatewayThread(clients, None, limits=Limits(requests=1, idle_s=180.0)) as gateway:
        yield gateway.port


@pytest.fixture
def impatient_port(clients: Clients) -> Iterator[int]:
    """One that soon disconnects a client that takes nothing."""
    with GatewayThread(clients, None, limits=Limits(requests=1, idle_s=IDLE_S)) as gateway:
        yield gateway.port


def test_bodies_of_every_size_on_one_connection(port: int, data: bytes) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=180)) as connection:
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
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    sock.sendall(f"GET /b/{9 << 20} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return sock


def answers(port: int, data: bytes) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=180)) as connection:
        try:
            connection.request("GET", f"/b/{1 << 20}")
            return connection.getresponse().read() == data[: 1 << 20]
        except (ConnectionError, http.client.HTTPException):
            return False


def test_a_client_that_takes_nothing_is_disconnected(impatient_port: int, data: bytes) -> None:
    with requested(impatient_port) as sock:
        sock.recv(100)
        # There is one thread, which the other client held. On a busy machine this client may be cut off, too.
        eventually(lambda: answers(impatient_port, data))
        taken = 100
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(1 << 20):
                taken += len(piece)
        assert taken < 9 << 20


def test_a_slow_client_gets_everything(impatient_port: int, data: bytes) -> None:
    def gets_everything() -> bool:
        found, pause = bytearray(), threading.Event()
        with requested(impatient_port, 1 << 16) as sock, contextlib.suppress(ConnectionError):
            while len(found.partition(b"\r\n\r\n")[2]) < 9 << 20:
                if len(found) < 1 << 20:
                    pause.wait(IDLE_S / 50)
                piece = sock.recv(1 << 16)
                if not piece:
                    break
                found += piece
        head, _, body = bytes(found).partition(b"\r\n\r\n")
        assert data.startswith(body)
        return b"200 OK" in head and body == data

    # On a busy machine it may stand still for longer than it wants to, and is cut off; but not each time.
    eventually(gets_everything)


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


@contextlib.contextmanager
def sending() -> Iterator[tuple[DirectSend, socket.socket]]:
    """A sender, and the other end of its connection."""
    ours, theirs = pair()
    with ours, theirs:
        theirs.settimeout(60)
        direct = DirectSend(ours, Limits())
        try:
            yield direct, theirs
        finally:
            direct.close()


def test_stopping_ends_a_thread_that_waits() -> None:
    failed: list[BaseException] = []
    with sending() as (direct, theirs):

        def send() -> None:
            try:
                direct.send_all(b"", [bytes(16 << 20)], 16 << 20)
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        assert theirs.recv(1) == b"\0"
        direct.stop()
        thread.join(180)
        assert not thread.is_alive()
    assert len(failed) == 1
    assert not isinstance(failed[0], TimeoutError)


@pytest.mark.parametrize("size_bytes", [9, None])
def test_a_failing_body_is_sent_up_to_its_failure(size_bytes: int | None) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"abc"
        raise ValueError("damaged")

    with sending() as (direct, theirs):
        with pytest.raises(ValueError, match="damaged"):
            direct.send_all(b"head ", chunks(), size_bytes)
        assert theirs.recv(100) == (b"head abc" if size_bytes else b"head 3\r\nabc\r\n")
        assert direct.has_begun
        direct.stop()
        assert theirs.recv(100) == b""


def test_nothing_is_sent_of_a_body_that_fails_at_once() -> None:
    with sending() as (direct, theirs):
        with pytest.raises(ZeroDivisionError):
            direct.send_all(b"head", (b"%d" % (1 // number) for number in (0, 1)), None)
        assert not direct.has_begun
        direct.stop()
        assert theirs.recv(100) == b""


@table("chunks", [[b"abc", b"de"], [b"abc", b"def", b"g"], []])
def test_a_body_of_another_size_than_announced_is_an_error(chunks: list[bytes]) -> None:
    with sending() as (direct, theirs):
        with pytest.raises(ValueError, match="the 6 bytes that were announced"):
            direct.send_all(b"head ", chunks, 6)
        direct.stop()
        found = theirs.recv(100)
        assert b"head abcdef".startswith(found)


def test_more_buffers_than_the_kernel_takes_at_once_arrive_in_order() -> None:
    parts: list[bytes | memoryview] = [b"%d," % number for number in range(5000)]
    whole = b"".join(parts)
    with sending() as (direct, theirs):
        direct.send_all(b"head ", [parts, memoryview(b"last"), b""], None)
        direct.stop()
        with theirs.makefile("rb") as file:
            assert file.read() == b"head %x\r\n%s\r\n4\r\nlast\r\n0\r\n\r\n" % (len(whole), whole)


def test_a_header_cannot_carry_another_one() -> None:
    with pytest.raises(ValueError, match="control character"):
        head(200, [("x-amz-meta-a", "b\r\nset-cookie: c")], size_bytes=1, keep_alive=True)


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
def test_the_connection_ends_if_the_client_wants_it_to(port: int, data: bytes, version: str) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=180) as sock, sock.makefile("rb") as file:
        sock.sendall(f"GET /b/{1 << 20} {version}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        lines, _, body = file.read().partition(b"\r\n\r\n")
    assert f"{version} 200 OK".encode() in lines
    assert version == "HTTP/1.0" or b"connection: close" in lines.lower()
    assert body == data[: 1 << 20]


def test_requests_that_are_sent_before_their_answers_are_answered_in_order(port: int, data: bytes) -> None:
    sizes = (1 << 20, 1, 9 << 20, 0, 128 << 10)
    with socket.create_connection(("127.0.0.1", port), timeout=180) as sock, sock.makefile("rb") as file:
        sock.sendall(b"".join(f"GET /b/{size} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for size in sizes))
        for size in sizes:
            lines = list(iter(file.readline, b"\r\n"))
            assert lines[0] == b"HTTP/1.1 200 OK\r\n"
            assert f"content-length: {size}\r\n".encode() in map(bytes.lower, lines)
            assert file.read(size) == data[:size]
