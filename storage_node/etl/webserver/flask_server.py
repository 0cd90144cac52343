"""Transform server on Flask, served by Werkzeug's server with a thread for each connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any

from ais_loader.extras import needs
from storage_node.etl.webserver.answer import answer
from storage_node.etl.webserver.http_server import PersistentHandler, ThreadedServer
from storage_node.etl.webserver.protocol import CHUNK_BYTES, HEALTH_PATH, TRANSFORM_PATH, TransformRequest

if TYPE_CHECKING:
    import flask


class FlaskServer(ThreadedServer):
    """hpush and hpull with Flask. `app` may be passed to another WSGI server, as `gunicorn module:server.app`."""

    def __init__(self) -> None:
        super().__init__()
        self.app = self._build_app()

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

    def _server_on(self, listener: socket.socket) -> BaseServer:
        from werkzeug.serving import ThreadedWSGIServer

        class Server(ThreadedWSGIServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore the error: the client has disconnected."""

        host, port = listener.getsockname()[:2]
        return Server(host, port, self.app, _handler(), fd=listener.fileno())


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
    """Return Werkzeug's handler with persistent connections. Its own closes the connection after each response."""
    from werkzeug.serving import WSGIRequestHandler

    class Handler(PersistentHandler, WSGIRequestHandler):
        def run_wsgi(self) -> None:
            if self.path != TRANSFORM_PATH and self.command not in ("GET", "HEAD"):
                self.close_connection = True  # a route of the author may have left some of the body unread
            started: list[Any] = []

            def start_response(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
                started[:] = status, headers

            output: Any = self.server.app(self.make_environ(), start_response)
            try:
                self.send(int(started[0].partition(" ")[0]), started[1], output)
            finally:
                output.close()

        def log(self, type: str, message: str, *args: object) -> None:
            """Log nothing: errors are logged where they occur."""

    return Handler
