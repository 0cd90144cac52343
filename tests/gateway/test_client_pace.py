"""Pace of clients: who is slow by the limits, and what happens to them over real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ais_loader.integrations.gateway.server.certificate import Certificate
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.testing import eventually
from storage_node.limits.pace import Pace
from storage_node.security.identity.identity_folder import IdentityFolder
from tests.gateway.conftest import Served
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.raw_kit import connected, parsed, received, request

LIMITS = Limits(idle_s=10.0, rate_bytes_per_s=100.0, rate_window_s=60.0)


def pace(moves: list[tuple[float, int | None]]) -> float | None:
    """Return when a client is found slow, that has moved so many bytes at these times; None bytes: it is not waited
    for. Looks are 1 s apart."""
    one, moved = Pace(LIMITS), 0
    for second in range(int(moves[-1][0]) + 1):
        due = [bytes_ for at_s, bytes_ in moves if at_s <= second]
        if due[-1] is None:
            one.rest()
            continue
        moved = due[-1]
        if one.is_slow(float(second), moved):
            return float(second)
    return None


def test_a_client_that_moves_nothing_is_slow_after_the_idle_time() -> None:
    assert pace([(0, 0), (30, 0)]) == 10
    assert pace([(0, 0), (5, 1), (30, 1)]) == 15


def test_a_client_that_trickles_is_slow_after_the_window() -> None:
    assert pace([(second, second) for second in range(100)]) == 60


def test_a_client_at_the_rate_is_not_slow() -> None:
    assert pace([(second, second * 100) for second in range(200)]) is None
    assert pace([(second, second * 99) for second in range(200)]) == 60
    fast_first = [(second, 1_000_000 + second) for second in range(1, 200)]
    assert pace([(0, 0), *fast_first]) == 120  # the first window had enough


def test_a_client_is_not_slow_while_the_gateway_does_not_wait_for_it() -> None:
    assert pace([(0, 0), (5, None), (100, 0), (105, 0)]) is None
    assert pace([(0, 0), (5, None), (100, 0), (130, 0)]) == 110


# -- over sockets

SHORT = Limits(idle_s=0.5, rate_bytes_per_s=1000.0, rate_window_s=1.0)


def trickled(sock: socket.socket, data: bytes, pause_s: float) -> bytes:
    """Send one byte after another, and return what came once the gateway has ended the connection."""
    ends_s = time.monotonic() + 180
    sock.settimeout(pause_s)
    found = b""
    for at in range(len(data)):
        assert time.monotonic() < ends_s, "it is still connected"
        try:
            sock.sendall(data[at : at + 1])
            while piece := sock.recv(65536):
                found += piece
            return found
        except TimeoutError:
            continue
        except ConnectionError:
            return found
    raise AssertionError("all was sent")


@pytest.fixture(scope="module")
def short(served: Served) -> object:
    with GatewayThread(served.clients, None, limits=SHORT) as gateway:
        yield gateway


@pytest.mark.slow
def test_headers_and_bodies_that_trickle_are_cut(served: Served, bucket: str, short: GatewayThread) -> None:
    """Each byte comes in time, and all of them too late."""
    before = dict(short.gateway.counters.closed)
    with connected(short.port) as sock:
        assert trickled(sock, request("GET", "/", short.port)[:-4] + b"\r\nx: " + b"y" * 10_000, 0.1) == b""
    with connected(short.port) as sock:
        sock.sendall(request("PUT", f"/{bucket}/a", short.port, {"Content-Length": "100000"}))
        status, headers, body = parsed(trickled(sock, b"z" * 100_000, 0.1))
    assert (status, b"<Code>RequestTimeout</Code>" in body) == (400, True)
    assert headers["x-amz-request-id"].encode() in body
    closed = short.gateway.counters.closed
    eventually(lambda: closed["slow_headers"] == before["slow_headers"] + 1)
    assert closed["slow_body"] == before["slow_body"] + 1
    assert list(served.client.bucket(bucket)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["object", "listing"])
def test_an_answer_that_is_taken_too_slowly_is_cut(
    served: Served, bucket: str, short: GatewayThread, kind: str
) -> None:
    """A client takes a little again and again. Its receive buffer is small, so that the rest waits in the gateway."""
    if kind == "object":
        served.client.bucket(bucket).put("a", bytes(64 << 20))
        asked = request("GET", f"/{bucket}/a", short.port)
    else:
        served.client.bucket(bucket).put_many((f"{'n' * 900}{at}", b"") for at in range(1000))
        asked = request("GET", f"/{bucket}", short.port) * 30
    before = short.gateway.counters.closed["slow_answer"]
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", short.port))
        sock.sendall(asked)
        ends_s = time.monotonic() + 180
        with contextlib.suppress(ConnectionError):
            while short.gateway.counters.closed["slow_answer"] == before:
                assert time.monotonic() < ends_s, "it is still connected"
                assert sock.recv(10)
                time.sleep(0.1)  # the client is slow
    assert short.gateway.counters.closed["slow_answer"] == before + 1
    eventually(lambda: not short.gateway.counters.connections)


@pytest.mark.slow
def test_a_client_that_takes_its_time_within_the_limits_gets_all(
    served: Served, bucket: str, short: GatewayThread
) -> None:
    data = bytes(range(256)) * (16 << 10)
    served.client.bucket(bucket).put("a", data)

    def takes_all() -> bool:
        with socket.socket() as sock, contextlib.suppress(ConnectionError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.settimeout(60)
            sock.connect(("127.0.0.1", short.port))
            sock.sendall(request("GET", f"/{bucket}/a", short.port, {"Connection": "close"}))
            found = b""
            while piece := sock.recv(1 << 17):
                found += piece
                time.sleep(0.05)  # in all, longer than a window
            return found.endswith(data)
        return False

    def puts_all() -> bool:
        with connected(short.port) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(request("PUT", f"/{bucket}/b", short.port, {"Content-Length": "40000", "Connection": "close"}))
            for _ in range(40):
                sock.sendall(b"x" * 1000)
                time.sleep(0.04)
            return parsed(received(sock))[0] == 200
        return False

    # On a busy machine a client may stand still for longer than it wants to, and is cut; but not each time.
    eventually(takes_all)
    eventually(puts_all)
    assert served.client.bucket(bucket).get("b") == b"x" * 40_000


@pytest.mark.slow
def test_connections_that_say_nothing_end(short: GatewayThread) -> None:
    with contextlib.ExitStack() as held:
        socks = [held.enter_context(connected(short.port)) for _ in range(100)]
        for sock in socks[:50]:
            sock.sendall(b"GET / HT")
        assert [received(sock) for sock in socks] == [b""] * 100
    eventually(lambda: not short.gateway.counters.connections)


def test_connections_beyond_the_limit_are_closed(served: Served) -> None:
    with GatewayThread(served.clients, None, limits=Limits(connections=4)) as gateway, contextlib.ExitStack() as held:
        first = [held.enter_context(connected(gateway.port)) for _ in range(4)]
        eventually(lambda: gateway.gateway.counters.connections == 4)
        assert received(held.enter_context(connected(gateway.port))) == b""
        assert gateway.gateway.counters.closed["limit"] == 1
        first[0].sendall(request("GET", "/", gateway.port, {"Connection": "close"}))
        assert parsed(received(first[0]))[0] == 200


@pytest.mark.slow
def test_slow_clients_with_tls_are_cut_too(served: Served, bucket: str, tmp_path: Path) -> None:
    """A handshake that does not come, headers that trickle, and an answer that is not taken."""
    identity = IdentityFolder(tmp_path / "identity")
    identity.make()
    files = identity.node_files(bytes(16), ["127.0.0.1"])
    served.client.bucket(bucket).put("a", bytes(64 << 20))
    context = ssl.create_default_context(cafile=files.ca_file)
    certificate = Certificate(files.cert_file, files.key_file)
    with GatewayThread(served.clients, None, limits=SHORT, certificate=certificate) as gateway:
        closed = gateway.gateway.counters.closed

        def attempt(ask: Callable[[ssl.SSLSocket], bool]) -> bool:
            """On a busy machine a client may stand still for longer than it wants to, and is cut; but not each time."""
            with contextlib.suppress(OSError):
                sock = context.wrap_socket(connected(gateway.port), server_hostname="127.0.0.1")
                with contextlib.closing(sock):
                    return ask(sock)
            return False

        def trickles(sock: ssl.SSLSocket) -> bool:
            return trickled(sock, b"GET / HTTP/1.1\r\nx: " + b"y" * 10_000, 0.1) == b"" and bool(closed["slow_headers"])

        def takes_nothing(sock: ssl.SSLSocket) -> bool:
            sock.sendall(request("GET", f"/{bucket}/a", gateway.port))
            before_s = time.monotonic()
            while not closed["slow_answer"] and time.monotonic() < before_s + 20:
                time.sleep(0.05)  # the client takes nothing
            return bool(closed["slow_answer"])

        def takes_all(sock: ssl.SSLSocket) -> bool:
            sock.sendall(request("GET", f"/{bucket}/a", gateway.port, {"Connection": "close"}))
            return parsed(received(sock))[2] == bytes(64 << 20)

        with connected(gateway.port) as sock:
            sock.sendall(b"\x16\x03\x01")
            assert received(sock) == b""
        for ask in (trickles, takes_nothing, takes_all):
            eventually(partial(attempt, ask))
        eventually(lambda: not gateway.gateway.counters.connections)
