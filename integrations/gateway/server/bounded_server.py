"""HTTP server with bounds: disconnects clients that are too many or too slow, and counts and logs each request.

What is no request of HTTP is answered as S3 does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from ais_loader.extras import needs
from storage_node.limits.call_slots import peer_of_address
from storage_node.limits.pace import Pace

from .. import xml
from ..request import Refusal, S3Error
from .access_log import AccessLog
from .counters import GatewayCounters
from .exchange import MALFORMED, Exchange
from .options import LOOKS, Limits

with needs("aiohttp", "ais-loader gateway", extra="gateway"):
    from aiohttp import web
    from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)
PAGE_PREFIX = "/ui/"
"""Prefix of the paths of the store's page, if it is served."""
BACKLOG = 1024
"""Connections that wait to be accepted."""
_LINGER_S = 2.0
_READ_BYTES = 64 << 10
"""Bytes that are read from a connection at once. Twice as many may wait to be decoded."""
_MAX_MESSAGE = 200


def exchange_of(http: web.BaseRequest) -> Exchange:
    """Return the exchange of a request."""
    connection: Any = http.protocol
    exchange: Exchange = connection.exchange
    return exchange


def read_at_once(http: web.BaseRequest, size_bytes: int = _READ_BYTES) -> None:
    """Set how many bytes are read from a request's connection at once. Twice as many may wait to be decoded."""
    http.content.set_read_chunk_size(size_bytes)
    transport: Any = http.transport
    if hasattr(transport, "max_size"):
        transport.max_size = size_bytes


class BoundedServer(web.Server):
    """An HTTP server that keeps its clients within limits. Belongs to the event loop on which it is created."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: Limits,
        counters: GatewayCounters,
        *,
        access_log: AccessLog | None = None,
        page: web.Application | None = None,
    ) -> None:
        """`page`: an app to which the handler passes requests below PAGE_PREFIX, which are `web.Request`."""
        super().__init__(
            handler,
            access_log=None,
            logger=log,
            auto_decompress=False,
            keepalive_timeout=limits.idle_s,
            lingering_time=_LINGER_S,
            read_bufsize=_READ_BYTES,
            max_line_size=limits.line_bytes,
            max_field_size=limits.line_bytes,
            max_headers=limits.headers,
        )
        self.limits, self.counters, self.access_log = limits, counters, access_log
        self._page = page
        self._look: asyncio.TimerHandle | None = None
        self._look_at_clients()

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if hasattr(transport, "max_size"):  # of a plain connection; 256 KiB otherwise
            transport.max_size = _READ_BYTES
        self.counters.connections = len(self._connections)
        if len(self._connections) > self.limits.connections:
            self.counters.closed["limit"] += 1
            # Not at once: aiohttp cannot lose a connection before it has begun with it.
            self._loop.call_soon((self._greedy_idle(transport) or transport).abort)

    def _greedy_idle(self, transport: asyncio.Transport) -> asyncio.Transport | None:
        """Return the oldest idle connection of the address with most connections, unless it is that of `transport`."""
        held = Counter(_peer(one) for one in self._connections.values())
        own = _peer(transport)
        peer, most = max(held.items(), key=lambda item: item[1])
        if held[own] == most:
            return None
        for handler, one in self._connections.items():
            if _peer(one) == peer and isinstance(handler, _Connection) and handler.is_idle and not one.is_closing():
                return one
        return None

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.counters.connections = len(self._connections)

    def _make_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        protocol.begin(payload, writer)
        if self._page is not None and message.path.startswith(PAGE_PREFIX):
            return self._page._make_request(message, payload, protocol, writer, task)
        return super()._make_request(message, payload, protocol, writer, task)

    def _look_at_clients(self) -> None:
        now_s = self._loop.time()
        self._look = self._loop.call_at(now_s + self.limits.idle_s / LOOKS, self._look_at_clients)
        for connection, transport in list(self._connections.items()):
            if isinstance(connection, _Connection):
                connection.look(transport, now_s)
        self.counters.connections = len(self._connections)

    def cut(self) -> None:
        """End all connections, so that those that wait for a client end too."""
        for transport in list(self._connections.values()):
            cut(transport)

    async def shutdown(self, timeout: float | None = None) -> None:
        await super().shutdown(timeout)
        if self._look is not None:
            self._look.cancel()

    def ended(self, exchange: Exchange) -> None:
        """Count and log a request."""
        self.counters.ended(exchange)
        if self.access_log is not None:
            self.access_log.write(exchange)


def cut(transport: asyncio.BaseTransport) -> None:
    """End a connection, also if a thread sends on it, which has a handle of its own."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _peer(transport: asyncio.Transport) -> str:
    """Return the address by which a client is counted."""
    name = transport.get_extra_info("peername")
    return peer_of_address(str(name[0])) if isinstance(name, tuple) else ""


class ListenerSite(web.BaseSite):
    """Accepts connections from a socket that listens, perhaps in several processes."""

    def __init__(
        self, runner: web.ServerRunner, listener: socket.socket, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        """`timeout_s`: time limit for a TLS handshake, and for the end of a TLS connection."""
        super().__init__(runner, ssl_context=tls)
        self._listener, self._timeout_s = listener, timeout_s

    @property
    def name(self) -> str:
        return str(self._listener.getsockname())

    async def start(self) -> None:
        await super().start()
        of_tls = self._timeout_s if self._ssl_context is not None else None
        server = self._runner.server
        assert server is not None
        # asyncio accepts as many connections at once as the backlog. With one at a time, the processes that share the
        # socket share the connections of a burst.
        self._server = await asyncio.get_running_loop().create_server(
            server,
            sock=self._listener,
            backlog=1,
            ssl=self._ssl_context,
            ssl_handshake_timeout=of_tls,
            ssl_shutdown_timeout=of_tls,
        )
        self._listener.listen(BACKLOG)


class _Connection(RequestHandler):
    """A connection of a client."""

    __slots__ = (
        *("_bounds", "_headers_begun", "_payload", "_receiving", "_sending", "_sent_bytes", "_writer"),
        "exchange",
    )

    def __init__(self, server: BoundedServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._bounds = server
        self._headers_begun = False
        self._payload: Any = None
        self._writer: Any = None
        self._sent_bytes = 0  # by earlier writers
        self._receiving, self._sending = Pace(server.limits), Pace(server.limits)
        self.exchange = Exchange("", "", "", 0.0)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being received or answered, beyond headers that have not arrived."""
        return self._waiter is not None and not self._waiter.done()

    def begin(self, payload: Any, writer: Any) -> None:
        """Note the body of a request that begins, and the writer of its answer."""
        if self._writer is not None:
            self._sent_bytes += self._writer.output_size
        self._payload, self._writer = payload, writer

    def look(self, transport: asyncio.Transport, now_s: float) -> None:
        """Disconnect the client if it is too slow."""
        counters, waiting = self._bounds.counters, transport.get_write_buffer_size()
        written = self._sent_bytes + (self._writer.output_size if self._writer is not None else 0)
        if not waiting:
            self._sending.rest()
        elif self._sending.is_slow(now_s, written - waiting):
            counters.closed["slow_answer"] += 1
            transport.abort()
            return
        body = self._payload
        if body is None or body.is_eof() or body.exception() is not None or self._reading_paused:
            self._receiving.rest()
        elif self._receiving.is_slow(now_s, body.total_bytes):
            counters.closed["slow_body"] += 1
            body.set_exception(TimeoutError("the client sends too slowly"))

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        super().data_received(data)
        has_body = self._payload is not None and not self._payload.is_eof()
        self._headers_begun = bool(data) and self._request_count == before and not has_body

    def _process_keepalive(self) -> None:
        # All headers have to arrive within this time as well, however many pieces they come in.
        is_idle = self.is_idle
        super()._process_keepalive()
        if self._headers_begun and is_idle and self._force_close:
            self._bounds.counters.closed["slow_headers"] += 1

    async def _handle_request(self, request: Any, start_time: Any, request_handler: Any) -> Any:
        exchange = self.exchange = Exchange(
            request.remote or "", request.method, request._message.path, self._loop.time()
        )
        payload, writer = self._payload, self._writer
        self._bounds.counters.active += 1
        try:
            response, is_reset = await super()._handle_request(request, start_time, request_handler)
            if not is_reset:
                exchange.status = str(response.status)
            return response, is_reset
        finally:
            self._bounds.counters.active -= 1
            exchange.took_s = self._loop.time() - exchange.began_s
            exchange.received_bytes, exchange.sent_bytes = payload.total_bytes, writer.output_size
            self._bounds.ended(exchange)

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to what is no request of HTTP. Raises ConnectionError if an answer has been cut."""
        if isinstance(exc, ConnectionError) or request.writer.output_size:
            raise ConnectionError("the answer ended early")
        exchange = self.exchange
        if status < 500:
            exchange.call = MALFORMED
            why = (message or "").strip().partition("\n")[0][:_MAX_MESSAGE]
            error = S3Error("InvalidRequest", f"the request is not valid HTTP: {why}", status=status)
            log.info("request %s of %s is not valid HTTP: %s", exchange.request_id, exchange.client, why)
        else:
            error = S3Error("InternalError", "the request failed; the log of the gateway says why")
            log.error("request %s failed", exchange.request_id, exc_info=exc)
        answer = refusal(error, "/", exchange.request_id, has_body=True)
        answer.force_close()
        return answer


def refusal(error: Refusal, resource: str, request_id: str, *, has_body: bool) -> web.Response:
    """Return the answer with an error."""
    body = xml.error_document(error, resource, request_id) if has_body else b""
    answer = web.Response(status=error.status, body=body, headers=error.headers | own_headers(request_id))
    if body:
        answer.content_type = "application/xml"
    return answer


def own_headers(request_id: str) -> dict[str, str]:
    """Return the headers of every answer."""
    return {"x-amz-request-id": request_id, "server": "ais-loader"}
