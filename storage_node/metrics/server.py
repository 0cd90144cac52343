"""HTTP server of a node's metrics, with a thread for each connection; there are few, and none may be idle for long."""

from __future__ import annotations

import contextlib
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

MAX_CONNECTIONS = 16
"""Maximum number of open connections. Beyond it, the oldest one is closed."""
SILENCE_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 5.0


class MetricsServer:
    """Serves a WSGI application until it is closed. Raises OSError if it cannot listen."""

    def __init__(self, host: str, port: int, app: Any) -> None:
        class Listening(_FewConnections):
            address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

        self._server = make_server(host, port, app, Listening, _MetricsHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="ais-loader metrics", daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(SHUTDOWN_TIMEOUT_S)


class _FewConnections(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[Any, None] = {}  # guarded by _lock; oldest first
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called for a new connection, on the thread that accepts them."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # its client has disconnected
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread notices, and closes it
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called for a connection that has been served, on its thread."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _MetricsHandler(WSGIRequestHandler):
    timeout = SILENCE_TIMEOUT_S

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client is silent, or has disconnected
            super().handle()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do nothing: requests are not logged."""
