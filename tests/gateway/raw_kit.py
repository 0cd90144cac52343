"""Requests over raw sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

DEADLINE_S = 180.0


def received(sock: socket.socket) -> bytes:
    """Return all that comes until the other side ends the connection."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(1 << 20):
            found += piece
    return bytes(found)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), DEADLINE_S)


def request(method: str, path: str, port: int, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the line and the headers of a request."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}\r\n".encode()


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers by names in lower case, and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split(" ")[1]), headers, body
