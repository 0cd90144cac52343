"""Mixed listener: one port for connections with TLS and without it, while a cluster goes from one to the other.

The first byte of a connection tells them apart: a handshake of TLS begins with 0x16, and HTTP/2 in the clear with "P".
Each connection is handed on, byte by byte, to the gRPC server's own listener for its kind, which is a Unix socket. TLS
therefore ends in gRPC, as it does without this listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import socket
import time

from storage_node.settings.config import EVERY_ADDRESS

FIRST_BYTE_TIMEOUT_S = 10.0
"""Time for a connection to say something; gRPC waits as long for a handshake."""
_HANDSHAKE = 0x16
_BACKLOG = 1024
_PIECE_BYTES = 256 << 10
_AGAIN_S = 0.1
LOG_INTERVAL_S = 60.0
"""Interval of messages about connections without TLS, by which an operator learns who still makes them."""
log = logging.getLogger(__name__)


class MixedListener:
    """Listener of one port. Belongs to an event loop, on which `start` and `close` are called.

    Args:
        host: Address to listen on. `port`: 0 picks a free one.
        most: Maximum number of connections; further ones are closed at once.

    Raises OSError if it cannot listen.
    """

    def __init__(self, host: str, port: int, most: int) -> None:
        bare = host.strip("[]")
        self._socket = socket.create_server(
            (bare, port),
            family=socket.AF_INET6 if ":" in bare else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=":" in bare and host in EVERY_ADDRESS and socket.has_dualstack_ipv6(),
        )
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._most = most
        name = secrets.token_hex(16)
        self._names = {True: f"ais-loader-tls-{name}", False: f"ais-loader-plaintext-{name}"}
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._logged_s = -math.inf
        self._in_the_clear: dict[str, int] = {}
        """Numbers of connections without TLS since the last message, by the address that they came from."""

    @property
    def tls_address(self) -> str:
        """Address, for gRPC, at which connections with TLS arrive."""
        return f"unix-abstract:{self._names[True]}"

    @property
    def plaintext_address(self) -> str:
        """Address, for gRPC, at which connections without TLS arrive."""
        return f"unix-abstract:{self._names[False]}"

    def start(self) -> None:
        self._accepting = asyncio.create_task(self._accept(), name="accepting with and without TLS")

    async def refuse(self) -> None:
        """Accept no more connections."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._accepting = None
        self._socket.close()

    async def close(self) -> None:
        """End all connections. May be called again."""
        await self.refuse()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def release(self) -> None:
        """Free the port of a listener that was never started."""
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("no connection can be accepted: %s", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            if len(self._connections) >= self._most:
                sock.close()
                continue
            task = asyncio.create_task(self._serve(sock, str(peer[0])))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, sock: socket.socket, host: str) -> None:
        loop = asyncio.get_running_loop()
        with sock, contextlib.suppress(OSError):  # one side has ended the connection
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(FIRST_BYTE_TIMEOUT_S):  # a TimeoutError is an OSError
                first = await loop.sock_recv(sock, _PIECE_BYTES)
            if not first:
                return
            has_tls = first[0] == _HANDSHAKE
            if not has_tls:
                self._note_plaintext(host)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inner:
                inner.setblocking(False)
                await loop.sock_connect(inner, f"\0{self._names[has_tls]}")
                await loop.sock_sendall(inner, first)
                await _exchange(sock, inner)

    def _note_plaintext(self, host: str) -> None:
        self._in_the_clear[host] = self._in_the_clear.get(host, 0) + 1
        if (now_s := time.monotonic()) - self._logged_s >= LOG_INTERVAL_S:
            listed = ", ".join(f"{number:,} from {one}" for one, number in sorted(self._in_the_clear.items()))
            log.info("port %d: connections without TLS: %s", self.port, listed)
            self._logged_s = now_s
            self._in_the_clear.clear()


async def _exchange(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes on in both directions until both have ended, or one of them fails."""
    tasks = [asyncio.create_task(_pass_on(one, other)), asyncio.create_task(_pass_on(other, one))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while size := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(target, buffer[:size])
    target.shutdown(socket.SHUT_WR)
