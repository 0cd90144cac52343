"""Fault proxy: an HTTP/1.1 hop between nodes and a cloud, which counts their requests and has faults that a test
chooses.

    proxy.on("GET", "corpus/a", times=2, fault=Fault(status=503))

Of several rules, the first that applies is taken; later rules see only what earlier ones let pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from xml.sax.saxutils import escape

from ais_loader.testing import eventually
from tests.loop_listener import AcceptedConnection, LoopListener

_CHUNK_BYTES = 256 << 10
_PACE_S = 0.02
"""Bodies of a limited bandwidth go in pieces of this time, and may be that late without losing any of it."""
_POLL_S = 0.01
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 429: "TooManyRequests", 503: "SlowDown"}


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of an answer. Several kinds can be combined."""

    delay_s: float = 0.0
    """Silence before anything is answered."""
    status: int | None = None
    """Answered by the proxy instead of the server, with an S3 error as the body."""
    message: str = "told to fail"
    """The message of that error."""
    redirect_to: str = ""
    """The URL, such as http://127.0.0.1:80, to which a 307 sends the client; its path stays the same."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the answer that are added or replaced, such as `ETag` and `Retry-After`."""
    length_delta: int = 0
    """What Content-Length says beyond the body that is sent: positive truncates, negative is overlong. The connection
    is closed after the body."""
    flips: int | None = None
    """Position of a byte of the body that is changed."""
    extra: bytes = b""
    """Bytes sent after the body, beyond its length. The connection is closed after them."""
    cut_after: int | None = None
    """The number of bytes of the body after which the connection is closed."""
    is_reset: bool = False
    """Whether that cut is a reset (RST) instead of an end (FIN)."""
    call_after: tuple[int, Callable[[], object]] | None = None
    """The number of bytes of the body, and a function that is called, in another thread, once they are sent. The rest
    follows when it returns."""


@dataclass(slots=True, eq=False)
class Request:
    """A request that the proxy has seen. It is updated until it is done."""

    method: str
    path: str
    """Unquoted, without the query."""
    query: str
    headers: dict[str, str]
    """Their names are in lower case."""
    began_s: float
    """On the monotonic clock."""
    status: int | None = None
    """None until there is an answer."""
    received_bytes: int = 0
    sent_bytes: int = 0
    """Bytes of the bodies."""
    done: bool = False
    """Whether its answer is sent. The client can have it a little earlier."""

    @property
    def range(self) -> str | None:
        return self.headers.get("range")

    def matches(self, method: str, key: str) -> bool:
        """Whether `key` is the path, or its last components; "*" stands for every method or key."""
        if method not in ("*", self.method):
            return False
        path = self.path.strip("/")
        return key == "*" or path == key.strip("/") or path.endswith("/" + key.strip("/"))


class Rule:
    """A rule of a proxy: which requests have its fault. As a context manager, it is removed at the end."""

    def __init__(
        self, proxy: FaultProxy, method: str, key: str, fault: Fault, skip: int, times: int | None, for_s: float | None
    ) -> None:
        self.fault = fault
        self.matched = 0
        """The number of requests that matched, even if they were skipped or the rule was used up."""
        self._proxy, self._method, self._key = proxy, method, key
        self._skip, self._times = skip, times
        self._until_s = None if for_s is None else time.monotonic() + for_s

    def applies(self, request: Request) -> bool:
        if not request.matches(self._method, self._key):
            return False
        self.matched += 1
        at = self.matched - self._skip
        if at <= 0 or (self._times is not None and at > self._times):
            return False
        return self._until_s is None or time.monotonic() < self._until_s

    def remove(self) -> None:
        """May be called again."""
        self._proxy.remove(self)

    def __enter__(self) -> Rule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Held(Rule):
    """A rule whose requests wait until it is released."""

    def __init__(self, proxy: FaultProxy, method: str, key: str, skip: int, times: int | None, after: int) -> None:
        super().__init__(proxy, method, key, Fault(), skip, times, None)
        self.waiting = 0
        """The number of requests that wait now. Those whose client has gone do not count."""
        self.after = after
        self._released = threading.Event()

    def wait_for(self, count: int, timeout_s: float = 180.0) -> None:
        """Wait until `count` requests wait at the same time. Raises AssertionError."""
        eventually(lambda: self.waiting >= count, timeout_s)

    def release(self) -> None:
        """Let all pass, including later ones."""
        self._released.set()

    async def hold(self, client: asyncio.StreamReader) -> None:
        """Raises ConnectionResetError if the client goes."""
        self.waiting += 1
        try:
            while not self._released.is_set():
                if client.at_eof() or client.exception() is not None:
                    raise ConnectionResetError("the client has gone")
                await asyncio.sleep(_POLL_S)
        finally:
            self.waiting -= 1

    def remove(self) -> None:
        self.release()
        super().remove()


class FaultProxy(LoopListener):
    """A proxy that listens on loopback at `url` and forwards to the HTTP server at `target` (http://host:port).

    It is thread-safe, and a context manager.
    """

    def __init__(self, target: str) -> None:
        parts = urllib.parse.urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 80)
        self.latency_s = 0.0
        """The time added to each request. May be set at any time."""
        self.bytes_per_s: float | None = None
        """The bandwidth that all bodies share, in both directions. None means unlimited. May be set at any time."""
        self.in_flight = self.most_in_flight = 0
        """The number of requests between their headers and the end of their answers, now and at most."""
        self._rules: list[Rule] = []
        self._seen: list[Request] = []
        self._paced_until_s = 0.0
        super().__init__("fault proxy")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Request]:
        """All requests, in the order in which their headers came."""
        return list(self._seen)

    def count(self, method: str = "*", key: str = "*") -> int:
        """Return how many requests there were. A key is a path, or its last components."""
        return sum(request.matches(method, key) for request in self.requests)

    def forget(self) -> None:
        """Count from zero again."""
        self._command(self._seen.clear)
        self.most_in_flight = self.in_flight

    # -- faults

    def on(
        self,
        method: str,
        key: str,
        fault: Fault,
        *,
        skip: int = 0,
        times: int | None = None,
        for_s: float | None = None,
    ) -> Rule:
        """Add a rule for requests with this method and key ("*" for every one).

        Args:
            method: Such as GET.
            key: The path, or its last components.
            fault: What happens to them.
            skip: The number of matching requests that pass before.
            times: The number of requests with the fault. By default, all that follow.
            for_s: The time in seconds, from now, in which the rule applies. By default, until it is removed.
        """
        return self._add(Rule(self, method, key, fault, skip, times, for_s))

    @contextlib.contextmanager
    def held(
        self, method: str, key: str, *, skip: int = 0, times: int | None = None, after: int = -1
    ) -> Iterator[Held]:
        """Hold the matching requests until they are released, or the block ends.

        By default, they are held before they reach the server; with `after`, once that many bytes of the answer's body
        are sent.
        """
        held = Held(self, method, key, skip, times, after)
        self._add(held)
        try:
            yield held
        finally:
            held.remove()

    def remove(self, rule: Rule) -> None:
        with contextlib.suppress(ValueError):
            self._rules.remove(rule)

    def clear(self) -> None:
        """Remove all rules."""
        for rule in list(self._rules):
            rule.remove()

    def close(self) -> None:
        self.clear()
        super().close()

    def _add(self, rule: Rule) -> Rule:
        self._rules.append(rule)
        return rule

    # -- on the loop

    async def _serve(self, sock: socket.socket, connection: AcceptedConnection) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=sock, limit=_CHUNK_BYTES)
            connection.add(writer)
            while await self._exchange(reader, writer, connection):
                pass
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            connection.reset()
        except asyncio.CancelledError:
            connection.reset()  # by the end of the loop: a cancelled task would be printed as an error
        finally:
            self._forget(connection)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: AcceptedConnection
    ) -> bool:
        """Answer one request, and return whether the connection is usable for another."""
        try:
            first, headers = await _read_head(reader)
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise
            return False
        method, target, _ = first.split(" ", 2)
        path, _, query = target.partition("?")
        named = {name.lower(): value for name, value in headers}
        request = Request(method, urllib.parse.unquote(path), query, named, time.monotonic())
        self._seen.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            rule = next((rule for rule in list(self._rules) if rule.applies(request)), None)
            exchange = _Exchange(self, request, rule, reader, writer)
            await asyncio.sleep(self.latency_s + exchange.fault.delay_s)
            if exchange.held is not None and exchange.held.after < 0:
                await exchange.held.hold(reader)
            if "100-continue" in named.get("expect", ""):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if exchange.fault.status is not None or exchange.fault.redirect_to:
                return await exchange.answer_itself(target)
            server_reader, server_writer = await self._connect(self._target, connection)
            try:
                await exchange.pass_request(first, headers, server_writer)
                return await exchange.pass_answer(server_reader)
            finally:
                connection.close(server_writer)
        finally:
            self.in_flight -= 1
            request.done = True

    async def pace(self, size_bytes: int) -> None:
        """Wait for the turn of these bytes in the bandwidth."""
        if self.bytes_per_s is None:
            return
        now_s = self._loop.time()
        self._paced_until_s = max(now_s - _PACE_S, self._paced_until_s) + size_bytes / self.bytes_per_s
        await asyncio.sleep(self._paced_until_s - now_s)

    def piece_bytes(self) -> int:
        if self.bytes_per_s is None:
            return _CHUNK_BYTES
        return max(1024, min(_CHUNK_BYTES, int(self.bytes_per_s * _PACE_S)))


class _Exchange:
    """One request and its answer. Each method returns whether the client's connection is usable for another."""

    def __init__(
        self,
        proxy: FaultProxy,
        request: Request,
        rule: Rule | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.fault = Fault() if rule is None else rule.fault
        self.held = rule if isinstance(rule, Held) else None
        self._proxy, self._request, self._reader, self._writer = proxy, request, reader, writer

    async def answer_itself(self, target: str) -> bool:
        async for chunk in _body(self._reader, self._request.headers, self._proxy.piece_bytes):
            self._request.received_bytes += len(chunk)
        status = 307 if self.fault.redirect_to else self.fault.status or 0
        code = "TemporaryRedirect" if status == 307 else _CODES.get(status, "InternalError")
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
            f"<Message>{escape(self.fault.message)}</Message><Resource>{escape(self._request.path)}</Resource>"
            "<RequestId>fault-proxy</RequestId></Error>"
        ).encode()
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        if self.fault.redirect_to:
            headers.append(("Location", self.fault.redirect_to.rstrip("/") + target))

        async def pieces() -> AsyncIterator[bytes]:
            yield body

        return await self._send(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", status, headers, pieces())

    async def pass_request(self, first: str, headers: list[tuple[str, str]], server: asyncio.StreamWriter) -> None:
        kept = [(name, value) for name, value in headers if name.lower() not in ("connection", "expect", "keep-alive")]
        server.write(_head(first, [*kept, ("Connection", "close")]))
        is_chunked = _is_chunked(self._request.headers)
        async for chunk in _body(self._reader, self._request.headers, self._proxy.piece_bytes):
            await self._proxy.pace(len(chunk))
            self._request.received_bytes += len(chunk)
            server.write(_chunk(chunk) if is_chunked else chunk)
            await server.drain()
        if is_chunked:
            server.write(b"0\r\n\r\n")
        await server.drain()

    async def pass_answer(self, server: asyncio.StreamReader) -> bool:
        status = 100
        while status < 200:
            first, headers = await _read_head(server)
            status = int(first.split(" ", 2)[1])
        named = {name.lower(): value for name, value in headers}
        kept = [(name, value) for name, value in headers if name.lower() not in ("connection", "keep-alive")]
        return await self._send(first, status, kept, _body(server, named, self._proxy.piece_bytes, is_answer=True))

    async def _send(self, first: str, status: int, headers: list[tuple[str, str]], body: AsyncIterator[bytes]) -> bool:
        fault, replaced = self.fault, {name.lower() for name in self.fault.headers}
        headers = [(name, value) for name, value in headers if name.lower() not in replaced]
        headers += fault.headers.items()
        length = next((at for at, (name, _) in enumerate(headers) if name.lower() == "content-length"), None)
        is_last = self._request.headers.get("connection", "").lower() == "close"
        has_body = self._request.method != "HEAD" and status not in (204, 304)
        is_chunked = _is_chunked({name.lower(): value for name, value in headers})
        if length is not None:
            headers[length] = ("Content-Length", str(max(0, int(headers[length][1]) + fault.length_delta)))
        elif has_body and not is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
            is_chunked = True
        if has_body and (fault.length_delta or fault.extra or "content-length" in replaced):
            is_last = True
        if is_last:
            headers.append(("Connection", "close"))
        self._request.status = status
        self._writer.write(_head(first, headers))
        try:
            if has_body:
                await self._send_body(body, is_chunked)
        except _Cut:
            await self._writer.drain()
            if fault.is_reset:
                await _wait_until_sent(self._writer)
                raise ConnectionResetError from None
            return False
        await self._writer.drain()
        return not is_last

    async def _send_body(self, body: AsyncIterator[bytes], is_chunked: bool) -> None:
        stops = self._stops()
        await self._send_piece(b"", stops, is_chunked)
        async for chunk in body:
            at = -1 if self.fault.flips is None else self.fault.flips - self._request.sent_bytes
            if 0 <= at < len(chunk):
                chunk = chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :]
            await self._send_piece(chunk, stops, is_chunked)
        if self.fault.extra:
            self._writer.write(_chunk(self.fault.extra) if is_chunked else self.fault.extra)
        if is_chunked:
            self._writer.write(b"0\r\n\r\n")

    async def _send_piece(
        self, chunk: bytes, stops: list[tuple[int, Callable[[], Awaitable[None]]]], is_chunked: bool
    ) -> None:
        while True:
            stops_at = stops[0][0] - self._request.sent_bytes if stops else len(chunk) + 1
            part, chunk = chunk[:stops_at], chunk[stops_at:]
            if part:
                await self._proxy.pace(len(part))
                self._request.sent_bytes += len(part)  # a client never has more than what is counted
                self._writer.write(_chunk(part) if is_chunked else part)
                await self._writer.drain()
            if not stops or self._request.sent_bytes < stops[0][0]:
                return
            await stops.pop(0)[1]()

    def _stops(self) -> list[tuple[int, Callable[[], Awaitable[None]]]]:
        """What happens after which number of bytes of the body, in order."""
        stops: list[tuple[int, Callable[[], Awaitable[None]]]] = []
        if self.held is not None and self.held.after >= 0:
            held = self.held
            stops.append((held.after, lambda: held.hold(self._reader)))
        if self.fault.call_after is not None:
            at, function = self.fault.call_after

            async def call() -> None:
                await asyncio.to_thread(function)

            stops.append((at, call))
        if self.fault.cut_after is not None:

            async def cut() -> None:
                raise _Cut

            stops.append((self.fault.cut_after, cut))
        return sorted(stops, key=lambda stop: stop[0])


class _Cut(Exception):
    pass


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, list[tuple[str, str]]]:
    """Return the first line, and the headers."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    pairs = (line.partition(":") for line in lines[1:])
    return lines[0], [(name, value.strip()) for name, _, value in pairs]


def _head(first: str, headers: list[tuple[str, str]]) -> bytes:
    return "\r\n".join([first, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("latin-1")


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return "chunked" in headers.get("transfer-encoding", "").lower()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _body(
    reader: asyncio.StreamReader, headers: Mapping[str, str], piece_bytes: Callable[[], int], *, is_answer: bool = False
) -> AsyncIterator[bytes]:
    """Read a body in pieces, without its chunk headers. Only that of an answer can last until the connection's end."""
    if _is_chunked(headers):
        while left := int((await reader.readline()).partition(b";")[0], 16):
            while left:
                piece = await reader.read(min(left, piece_bytes()))
                if not piece:
                    raise EOFError("within a chunk")
                left -= len(piece)
                yield piece
            await reader.readline()
        while (await reader.readline()).strip():
            pass  # trailers
        return
    length = headers.get("content-length")
    left = int(length) if length is not None else -1 if is_answer else 0
    while left:
        piece = await reader.read(piece_bytes() if left < 0 else min(left, piece_bytes()))
        if not piece:
            if left < 0:
                return
            raise EOFError("within a body")
        left -= len(piece) if left > 0 else 0
        yield piece


async def _wait_until_sent(writer: asyncio.StreamWriter, timeout_s: float = 60.0) -> None:
    """Wait until the client's machine has it all: a reset throws away the rest."""
    sock, deadline_s = writer.get_extra_info("socket"), time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        (queued,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))
        if not queued and not writer.transport.get_write_buffer_size():
            return
        await asyncio.sleep(_POLL_S)
