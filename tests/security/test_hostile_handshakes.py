"""Handshakes of clients that mean no good, at the listeners of clients and of peers; others are served meanwhile."""

from __future__ import annotations

import os
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from ais_loader import connect
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from tests.security.tls_kit import asked, caller

HANDSHAKE_S = 10.0
"""As docs/security.md says."""
LISTENERS: dict[str, Callable[[NodeServer], int]] = {
    "clients": lambda node: node.port,
    "peers": lambda node: node.peer_port,
}


def client_hello() -> bytes:
    """The first message of a handshake that a node would go on with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(received, sent).do_handshake()
    return sent.read()


def require_served(node: NodeServer, identity: IdentityFolder) -> None:
    """Others are served as ever."""
    with connect(node.url, ca=identity.ca_file) as client:
        assert client.buckets() == []
    asked(caller(identity.operator_files()), node.peer_endpoint)


@pytest.mark.slow
def test_a_handshake_of_one_byte_a_second_is_ended_and_holds_up_nobody(
    node: NodeServer, identity: IdentityFolder
) -> None:
    hello = client_hello()
    assert len(hello) > 3 * HANDSHAKE_S
    lasted_s: dict[str, float] = {}

    def dribble(name: str) -> None:
        with socket.create_connection(("127.0.0.1", LISTENERS[name](node))) as sock:
            sock.settimeout(1.0)
            began_s = time.monotonic()
            for byte in hello:
                try:
                    sock.sendall(bytes([byte]))
                    assert sock.recv(1) == b"", "a handshake that is not complete was answered"
                    break
                except TimeoutError:
                    continue  # the pause between two bytes
                except ConnectionError:
                    break
            else:
                raise AssertionError("it was not ended")
            lasted_s[name] = time.monotonic() - began_s

    served_meanwhile = 0
    for _ in range(3):  # a machine may stand still for as long as they last
        threads = [threading.Thread(target=dribble, args=[name]) for name in LISTENERS]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            require_served(node, identity)
            served_meanwhile += all(thread.is_alive() for thread in threads)
        if served_meanwhile:
            break
    assert sorted(lasted_s) == sorted(LISTENERS) and served_meanwhile
    assert all(seconds > HANDSHAKE_S - 2 for seconds in lasted_s.values()), lasted_s


@contextmanager
def openssl_client(
    node: NodeServer, identity: IdentityFolder, listener: str, version: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A connection with an operator's certificate. A line with one letter makes it do what few clients do."""
    files = identity.operator_files()
    words = ["-connect", f"127.0.0.1:{LISTENERS[listener](node)}", version, "-alpn", "h2", "-CAfile", files.ca_file]
    command = ["openssl", "s_client", *words, "-cert", files.cert_file, "-key", files.key_file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            said_by(process, b"Verify return code: 0 (ok)")  # and the rest that the node says by itself
            yield process
        finally:
            process.kill()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()


def said_by(process: subprocess.Popen[bytes], awaited: bytes) -> None:
    """Wait until a process has said this, and says nothing any more."""
    assert process.stdout is not None
    said = b""
    while select.select([process.stdout], [], [], 0.4 if awaited in said else 180)[0]:
        if not (piece := os.read(process.stdout.fileno(), 1 << 16)):
            break
        said += piece
    assert awaited in said, said


def command(process: subprocess.Popen[bytes], letter: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(letter + b"\n")
    process.stdin.flush()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="Python's ssl cannot renegotiate")
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_client_cannot_renegotiate(node: NodeServer, identity: IdentityFolder, listener: str) -> None:
    with openssl_client(node, identity, listener, "-tls1_2") as client:
        command(client, b"R")
        assert client.stdout is not None
        said = client.stdout.read()
        assert client.wait(180) != 0
    assert b"RENEGOTIATING" in said and b"unexpected eof" in said, said  # the node has ended the connection
    require_served(node, identity)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="Python's ssl cannot ask for new keys")
@pytest.mark.parametrize("listener", LISTENERS)
def test_new_keys_of_a_connection_are_limited(node: NodeServer, identity: IdentityFolder, listener: str) -> None:
    with openssl_client(node, identity, listener, "-tls1_3") as client:
        command(client, b"K")
        said_by(client, b"KEYUPDATE")
        assert client.poll() is None and client.stdout is not None  # one is served
        updates = 0
        with suppress(BrokenPipeError):
            while client.poll() is None:
                updates += 1
                assert updates < 100_000
                command(client, b"K")
                if select.select([client.stdout], [], [], 0.001)[0]:
                    os.read(client.stdout.fileno(), 1 << 16)
        assert client.wait(180) != 0
    require_served(node, identity)


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_version_before_tls_1_2_is_refused(node: NodeServer, identity: IdentityFolder, listener: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", LISTENERS[listener](node)), timeout=180) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock)
    require_served(node, identity)


@pytest.mark.parametrize("listener", LISTENERS)
def test_whoever_speaks_no_tls_is_disconnected(node: NodeServer, identity: IdentityFolder, listener: str) -> None:
    for said in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 70_000):
        with socket.create_connection(("127.0.0.1", LISTENERS[listener](node)), timeout=180) as sock:
            received = b""
            try:
                sock.sendall(said)
                while piece := sock.recv(4096):
                    received += piece
            except ConnectionError:
                pass
        assert len(received) < 64, "it is answered by an alert at most"
    require_served(node, identity)
