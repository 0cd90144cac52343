"""Stage of a transform that is a server: its attempts, limits and connections.

A node sends objects and tokens to the address in a client's transform. Therefore it connects only to origins (scheme,
host and port) that its operator has listed, follows no redirects, and uses no proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import SplitResult, urlsplit

from ais_loader.errors import (
    NodeUnavailable,
    TransformError,
    TransformFailed,
    TransformGone,
    TransformRefused,
    TransformTimeout,
)
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.servers.channel import CONNECT_S, Channel, OutputReceiver, PutFailed, ServerFailed, Unanswered
from storage_node.etl.servers.http_channel import HttpChannel
from storage_node.etl.servers.websocket_channel import WebSocketChannel
from storage_node.etl.signed_tokens import SignedTokenRefused
from storage_node.etl.transform_http import PutTarget
from storage_node.etl.values import Content, Origin, PutResult, ResultDestination
from storage_node.etl.webserver.protocol import MAX_ARGS_BYTES, TransformRequest
from storage_node.etl.worker.stage_context import StageContext
from storage_node.settings.config import is_loopback

_PORTS = {"http": 80, "https": 443}


def require_allowed(server: pb.TransformServer, allowed: Iterable[str]) -> str:
    """Return the address without a trailing slash. "*" allows any address. Raises TransformRefused."""
    address = server.address
    origin = _origin(address)
    allowed = list(allowed)
    if "*" not in allowed and origin not in {_origin(other) for other in allowed}:
        raise TransformRefused(
            f"{address} is not among the servers that the operator allows: see the setting etl_servers"
        )
    return address.rstrip("/")


def _origin(address: str) -> tuple[str, str, int]:
    try:
        parts: SplitResult = urlsplit(address)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise TransformRefused(f"{address}: {error}") from error
    wrong = parts.scheme not in _PORTS or parts.username is not None or parts.query or parts.fragment
    if wrong or not parts.hostname or not port:
        raise TransformRefused(f"{address}: need http://HOST:PORT, with a path at most, as http://127.0.0.1:9000")
    return parts.scheme, parts.hostname, port


GONE_AFTER_S = 10.0
"""Time without any connection after which a server is considered gone; long enough for a restart."""
CLOSE_S = 5.0
"""Time that running objects get when a stage is closed."""
DEFAULT_RETRIES = 2
"""Number of retries of an object during which the server broke off."""
_PAUSES = Backoff(0.05, 1.0)
_Communication = pb.TransformServer


class ServerStage:
    """One version of a transform that is a server. Belongs to the node's event loop."""

    def __init__(self, transform: pb.Transform, context: StageContext, *, gone_after_s: float = GONE_AFTER_S) -> None:
        """Check the address. Raises TransformRefused if the operator has not listed it, or a library is missing."""
        self._transform, self._context, self._gone_after_s = transform, context, gone_after_s
        self._server = server = transform.server
        limits, etl = transform.limits, context.config.etl
        address = require_allowed(server, etl.servers)
        self._timeout_s = min(limits.timeout_s or etl.timeout_s, etl.timeout_s)
        self._max_bytes = min(limits.output_bytes or etl.output_bytes, etl.output_bytes)
        self._retries = limits.retries or DEFAULT_RETRIES
        self._channel = self._new_channel(address)
        self._by_file = server.fqn and is_loopback(_origin(address)[1])
        connections = server.connections or max(4, 2 * len(os.sched_getaffinity(0)))
        self._free = asyncio.Semaphore(connections)
        self._unreached_since: float | None = None
        self._last_unreached = 0.0
        self._closed = False
        self._running = 0
        self._nothing_runs = asyncio.Event()
        self._nothing_runs.set()

    def _new_channel(self, address: str) -> Channel:
        match self._server.communication:
            case _Communication.WEBSOCKET:
                return WebSocketChannel(address)
            case _Communication.HPULL:
                return HttpChannel(address, self._context.transform_http, 2 * self._timeout_s)
            case _:
                return HttpChannel(address, None)

    async def run(self, origin: Origin, content: Content, args: str) -> Content:
        """See `Stage`."""
        return (await self._tried(origin, content, self._request(origin, content, args)))[0].content()

    async def run_to(self, origin: Origin, content: Content, args: str, target: PutTarget) -> PutResult:
        """Pass one input through; the server itself puts the output to `target`. The input remains the caller's.

        Raises TransformFailed, TransformTimeout, TransformGone. Raises NodeUnavailable if the output was made but not
        accepted: it may have been stored, and a condition of the token decides whether it may be stored again.
        """
        request = replace(self._request(origin, content, args), put_url=target.url, put_token=target.token)
        try:
            _, receipt = await self._tried(origin, content, request)
            return self._context.transform_http.stored(target, receipt)
        except PutFailed as error:
            raise NodeUnavailable(f"{self._transform.name}: {origin}: was not put: {error}") from error
        except SignedTokenRefused as error:
            raise TransformFailed(f"{self._transform.name}: {origin}: the server's receipt: {error}") from error

    def target(self, destination: ResultDestination) -> PutTarget:
        """Return a target for `run_to`. Raises ValueError if it does not fit into a token."""
        return self._context.transform_http.target(
            destination.url,
            destination.bucket,
            destination.name,
            max_bytes=self._max_bytes,
            lifetime_s=(self._retries + 1) * self._timeout_s + self._gone_after_s,
            extra=destination.extra,
        )

    async def close(self) -> None:
        """Wait some seconds for running objects; the others are broken off and fail as gone."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._nothing_runs.wait()
        await self._channel.close()

    def _request(self, origin: Origin, content: Content, args: str) -> TransformRequest:
        by_header = self._server.communication in (_Communication.HPUSH, _Communication.HPULL)
        if by_header and len(args.encode()) > MAX_ARGS_BYTES:
            raise self._failed(origin, f"{len(args):,} characters of arguments, of {MAX_ARGS_BYTES:,} at most")
        return TransformRequest(str(origin), args, content.path if self._by_file else "")

    def _receiver(self, content: Content) -> OutputReceiver:
        inflation = self._transform.limits.inflation
        inflated = int(inflation * content.size_bytes) if inflation else self._max_bytes
        if inflated < self._max_bytes:
            return OutputReceiver(inflated, f"{inflation:g} times its input", self._context.spool.new_file)
        return OutputReceiver(self._max_bytes, "the most that it may", self._context.spool.new_file)

    async def _tried(self, origin: Origin, content: Content, request: TransformRequest) -> tuple[OutputReceiver, str]:
        """Return the output or the receipt, retrying as often as permitted."""
        broken = failures = 0
        while True:
            async with self._free:
                if self._closed:
                    text = f"{self._transform.name}: {origin}: it was stopped, deleted or replaced meanwhile"
                    raise TransformGone(text)
                try:
                    return await self._once(origin, content, request)
                except TransformFailed:
                    if not request.file or os.path.exists(request.file):
                        raise
                    request = replace(request, file="")  # the object was replaced or deleted, and its file with it
                except Unanswered as error:
                    if error.connected:
                        broken += 1
                        if broken > self._retries:
                            raise self._failed(origin, f"{error}, in {broken} tries") from error
                    else:
                        self._require_reached(origin, error)
            await asyncio.sleep(_PAUSES.pause_s(failures))
            failures += 1

    async def _once(self, origin: Origin, content: Content, request: TransformRequest) -> tuple[OutputReceiver, str]:
        receiver = self._receiver(content)
        self._running += 1
        self._nothing_runs.clear()
        try:
            async with asyncio.timeout(self._timeout_s):
                receipt = await self._channel.ask(request, origin, content, receiver)
            self._unreached_since = None
            return receiver, receipt
        except BaseException as error:
            receiver.discard()
            if isinstance(error, TimeoutError):
                text = f"{self._transform.name}: {origin}: took longer than {self._timeout_s:g} s"
                raise TransformTimeout(text) from error
            if isinstance(error, ServerFailed | TransformError):
                raise self._failed(origin, str(error)) from error
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._nothing_runs.set()

    def _require_reached(self, origin: Origin, error: Unanswered) -> None:
        """Raise TransformGone if the server has been unreachable for too long. All objects share this time, which
        covers a restart."""
        now_s = asyncio.get_running_loop().time()
        # Pauses between attempts are never longer than this. After a longer gap there were no attempts, so the time
        # starts over.
        between_s = self._gone_after_s + _PAUSES.longest_s + CONNECT_S
        if self._unreached_since is None or now_s - self._last_unreached > between_s:
            self._unreached_since = now_s
        self._last_unreached = now_s
        if now_s - self._unreached_since >= self._gone_after_s:
            text = f"{self._transform.name}: {origin}: {error}, for {self._gone_after_s:g} s"
            raise TransformGone(text) from error

    def _failed(self, origin: Origin, problem: str) -> TransformFailed:
        return TransformFailed(f"{self._transform.name}: {origin}: {problem}")
