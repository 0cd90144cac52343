"""Transform server on Flask, served by Werkzeug's server with a thread for each connection."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ais_loader.extras import needs
from storage_node.etl.webserver.answer import answer
from storage_node.etl.webserver.base import TransformServer
from storage_node.etl.webserver.protocol import CHUNK_BYTES, HEALTH_PATH, TRANSFORM_PATH, TransformRequest

if TYPE_CHECKING:
    import flask

IDLE_S = 300.0
"""Time after which an idle connection is closed."""


class FlaskServer(TransformServer):
    """hpush and hpull with Flask. `app` may be passed to another WSGI server, as `gunicorn module:server.app`."""

    def __init__(self) -> None:
        super().__init__()
        self._require_framework()
        self.app = self._build_app()
        self._server: Any = None
        self._stopped = False

    def _require_framework(self) -> None:
        with needs("flask", "FlaskServer"):
            import flask  # noqa: F401

    def _build_app(self) -> flask.Flask:
        with needs("flask", "FlaskServer"):
            import flask
        app = flask.Flask(type(self).__name__, static_folder=None)

        def health() -> str:
            return "running\n"

        def transform() -> flask.Response:
            body = _chunks(flask.request.stream)
            reply = answer(self, TransformRequest.of_headers(flask.request.headers), body)
            if isinstance(reply.body, bytes):
                _drain(body)
                return flask.Response(reply.body, reply.status, reply.headers)
            return flask.Response(_and_drained(reply.body, body), reply.status, reply.headers)

        app.add_url_rule(HEALTH_PATH, view_func=health)
        app.add_url_rule(TRANSFORM_PATH, view_func=transform, methods=["GET", "PUT"])
        return app

    def _serve(self, listener: socket.socket) -> None:
        from werkzeug.serving import ThreadedWSGIServer

        class Server(ThreadedWSGIServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore the error: the client has disconnected."""

        host, port = listener.getsockname()[:2]
        self._server = Server(host, port, self.app, _handler(), fd=listener.fileno())
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


def _chunks(stream: Any) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _drain(body: Iterator[bytes]) -> None:
    """Read input that the transform did not use; the next request starts after it."""
    for _ in body:
        pass


def _and_drained(output: Iterator[bytes], body: Iterator[bytes]) -> Iterator[bytes]:
    yield from output
    _drain(body)


def _handler() -> type[Any]:
    """Return Werkzeug's handler with persistent connections. It would close the connection after each response; here
    every request is read to its end."""
    from werkzeug.serving import WSGIRequestHandler

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16
        timeout = IDLE_S

        def run_wsgi(self) -> None:
            if self.path != TRANSFORM_PATH and self.command not in ("GET", "HEAD"):
                self.close_connection = True  # a route of the author may have left some of the body unread
            started: list[Any] = []

            def start_response(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
                started[:] = status, headers

            output: Any = self.server.app(self.make_environ(), start_response)
            try:
                self._send(started[0], started[1], output)
            except Exception:
                self.close_connection = True  # without its end, the client sees that the response was aborted
                raise
            finally:
                output.close()

        def _send(self, status: str, headers: list[tuple[str, str]], output: Iterable[bytes]) -> None:
            code, _, reason = status.partition(" ")
            self.send_response(int(code), reason)
            for name, value in headers:
                self.send_header(name, value)
            chunked = code != "204" and all(name.lower() != "content-length" for name, _ in headers)
            if chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in output:
                if chunk:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n" if chunked else b"")
            self.wfile.flush()

        def log(self, type: str, message: str, *args: object) -> None:
            """Log nothing: errors are logged where they occur."""

    return Handler
