"""Gate: the proxy of this process through which its clients of remote storage connect, each to one server.

A URL does not tell where a request ends: a name changes its address after it was looked at, and a server redirects.
obstore lets nobody decide about either, but it uses a proxy. This one, on loopback, has a key for each place. With a
key, only that place's host and port are reached, and only at addresses that it permits: what follows a redirect to
another server is refused here.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import secrets
import socket
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import NamedTuple
from urllib.parse import urlsplit

from storage_node.settings.host_patterns import HostPatterns, UrlOrigin

log = logging.getLogger(__name__)
_CONNECT_S = 5.0
_BUFFER_BYTES = 1 << 18


class Place(NamedTuple):
    """A server that may be reached."""

    origin: UrlOrigin
    hosts: HostPatterns | None
    """Permits its addresses; None permits all, for a server that the operator named."""

    def addresses(self) -> list[str]:
        """Look up the permitted addresses. Raises PermissionError if there is none, OSError."""
        found = socket.getaddrinfo(self.origin.host, self.origin.port, type=socket.SOCK_STREAM)
        all_ = list(dict.fromkeys(str(one[4][0]) for one in found))
        permitted = [one for one in all_ if self.hosts is None or self.hosts.admits(self.origin, one)]
        if not permitted:
            raise PermissionError(f"it is at {all_[0]}, which is not public; remote_hosts has to list that address")
        return permitted

    def connect(self) -> socket.socket:
        """Raises PermissionError if it has no permitted address, OSError."""
        *others, last = self.addresses()
        for address in others:
            with contextlib.suppress(OSError):
                return socket.create_connection((address, self.origin.port), _CONNECT_S)
        return socket.create_connection((last, self.origin.port), _CONNECT_S)


class Gate:
    """Listens from the first call of `url` until `close`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: _GateServer | None = None

    def url(self, place: Place) -> str:
        """Return the URL of the proxy, with the key of a place."""
        with self._lock:
            if self._server is None:
                self._server = _GateServer(("127.0.0.1", 0), _GateConnection)
                threading.Thread(target=self._server.serve_forever, name="gate", daemon=True).start()
            key = self._server.keys.setdefault(place, secrets.token_hex(16))
            self._server.places[key] = place
            return f"http://gate:{key}@127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Accept no more connections. Those that are open end with their clients."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            stopping = threading.Thread(target=server.shutdown)
            stopping.start()
            _end(server.socket)  # wakes the thread, which looks at `shutdown` every half second otherwise
            stopping.join()
            server.server_close()


class _GateServer(ThreadingTCPServer):
    daemon_threads, block_on_close, request_queue_size = True, False, 128

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.keys: dict[Place, str] = {}
        self.places: dict[str, Place] = {}

    def handle_error(self, *_: object) -> None:
        """Either side has closed the connection."""


class _GateConnection(BaseHTTPRequestHandler):
    """A connection of a client: a tunnel, or requests of HTTP. A second thread copies the answers."""

    protocol_version, timeout = "HTTP/1.1", _CONNECT_S
    server: _GateServer
    _target: socket.socket | None = None

    def _pass_on(self) -> None:
        is_tunnel = self.command == "CONNECT"
        origin = UrlOrigin.of(f"https://{self.path}" if is_tunnel else self.path)
        key = base64.b64decode(self.headers.get("proxy-authorization", "").removeprefix("Basic ")).decode()
        place = self.server.places.get(key.removeprefix("gate:"))
        try:
            if place is None or place.origin != origin:
                raise PermissionError(f"a redirect to {origin.host}:{origin.port} is not followed")
            if self._target is None:
                self._target = place.connect()
        except PermissionError as error:
            log.warning("a request to remote storage was refused: %s", error)  # obstore hides it for https://
            return self._answer("403 Forbidden", error)
        except OSError as error:
            self.close_connection = True
            return None if is_tunnel else self._answer("502 Bad Gateway", error)
        if self.connection.gettimeout() is not None:
            self.connection.settimeout(None)
            self._target.settimeout(None)
            if is_tunnel:
                self.connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            answers = self._target, self.connection
            threading.Thread(target=_copy, args=answers, name="gate", daemon=True).start()
        if is_tunnel:
            self.close_connection = True
            return _copy(self.connection, self._target)
        path = urlsplit(self.path)._replace(scheme="", netloc="").geturl() or "/"
        kept = [f"{name}: {value}" for name, value in self.headers.items() if not name.lower().startswith("proxy-")]
        head = "\r\n".join([f"{self.command} {path} {self.request_version}", *kept, "", ""])
        self._target.sendall(head.encode("latin-1"))
        for piece in self._body():
            self._target.sendall(piece)
        self.close_connection = False  # whoever closes, the other side is closed with the answer's last byte
        return None

    do_CONNECT = do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _body(self) -> Iterator[bytes]:
        left = int(self.headers.get("content-length", 0))
        while left and (piece := self.rfile.read1(min(left, _BUFFER_BYTES))):
            left -= len(piece)
            yield piece

    def _answer(self, status: str, error: OSError) -> None:
        self.close_connection = True
        deque(self._body(), 0)  # a connection that is closed with unread bytes loses the answer
        text = str(error)
        self.wfile.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
        )

    def finish(self) -> None:
        if self._target is not None:
            _end(self._target)
            self._target.close()
        with contextlib.suppress(OSError):
            super().finish()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until either ends, and let the other one end."""
    view = memoryview(bytearray(_BUFFER_BYTES))
    with contextlib.suppress(OSError):
        while count := source.recv_into(view):
            target.sendall(view[:count])
    _end(source)
    _end(target)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
