"""Transform server of the standard library: a thread for each connection, and no dependencies."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any

from storage_node.etl.webserver.answer import Answer, answer
from storage_node.etl.webserver.base import TransformServer
from storage_node.etl.webserver.protocol import CHUNK_BYTES, HEALTH_PATH, TRANSFORM_PATH, TransformRequest

IDLE_S = 300.0
"""Time after which an idle connection is closed."""
_LONGEST_LINE = 1 << 16


class ThreadedServer(TransformServer):
    """Base of the servers with a thread for each connection."""

    def __init__(self) -> None:
        super().__init__()
        self._server: BaseServer | None = None
        self._stopped = False

    @abstractmethod
    def _server_on(self, listener: socket.socket) -> BaseServer:
        """Return the server of a listening socket."""

    def _serve(self, listener: socket.socket) -> None:
        self._server = self._server_on(listener)
        try:
            if not self._stopped:
                self._server.serve_forever(0.1)
        finally:
            self._server.server_close()

    def stop(self) -> None:
        """Stop. Returns when no more connections are accepted."""
        self._stopped = True
        if self._server is not None:
            self._server.shutdown()


class HTTPMultiThreadedServer(ThreadedServer):
    """hpush and hpull with `http.server`."""

    def _server_on(self, listener: socket.socket) -> BaseServer:
        handler = type("Handler", (_Handler,), {"transforms": self})
        server = _Server(listener.getsockname(), handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        return server


class _Server(ThreadingHTTPServer):
    """A server that can close idle connections."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._open: set[socket.socket] = set()  # guarded by _lock
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: the client has disconnected."""

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)


class PersistentHandler(BaseHTTPRequestHandler):
    """Handler that keeps connections open. Every request must be read to its end."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    timeout = IDLE_S

    def send(self, status: int, headers: Iterable[tuple[str, str]], output: Iterable[bytes]) -> None:
        """Send a response, in chunks unless a header has its length."""
        self.send_response(status)
        chunked = status != 204
        for name, value in headers:
            self.send_header(name, value)
            chunked = chunked and name.lower() != "content-length"
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in filter(None, output):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
                self.wfile.flush()
        except Exception:
            self.close_connection = True  # without its end, the client sees that the response was aborted
            raise
        self.wfile.write(b"0\r\n\r\n" if chunked else b"")
        self.wfile.flush()


class _Handler(PersistentHandler):
    transforms: TransformServer
    server_version = "ais-loader"

    def do_GET(self) -> None:
        if self.path == HEALTH_PATH:
            self._send(Answer(200, b"running\n"))
        else:
            self._transform()

    def do_PUT(self) -> None:
        self._transform()

    def _transform(self) -> None:
        if self.path != TRANSFORM_PATH:
            self.close_connection = True
            self._send(Answer(404, f"there is nothing at {self.path[:200]}\n".encode()))
            return
        body = self._body()
        self._send(answer(self.transforms, TransformRequest.of_headers(self.headers), body))
        for _ in body:  # unread input; the next request starts after it
            pass

    def _body(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(_LONGEST_LINE).split(b";")[0], 16):
                while size:
                    chunk = self._read(min(size, CHUNK_BYTES))
                    size -= len(chunk)
                    yield chunk
                self.rfile.readline(_LONGEST_LINE)
            while self.rfile.readline(_LONGEST_LINE).strip():
                pass
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            chunk = self._read(min(left, CHUNK_BYTES))
            left -= len(chunk)
            yield chunk

    def _read(self, size: int) -> bytes:
        chunk = self.rfile.read(size)
        if len(chunk) < size:
            raise ConnectionError("the node broke off in the middle of the input")
        return chunk

    def _send(self, reply: Answer) -> None:
        headers = dict(reply.headers)
        if isinstance(reply.body, bytes) and reply.status != 204:
            headers["Content-Length"] = str(len(reply.body))
        self.send(reply.status, headers.items(), [reply.body] if isinstance(reply.body, bytes) else reply.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: errors are logged where they occur."""
