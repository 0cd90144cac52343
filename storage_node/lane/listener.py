"""Lane listener: takes connections that bring a token, and serves the session, or the calls, that each carries.

Two sockets listen: one in the abstract namespace of Unix sockets, by a name drawn at each start, so that nothing is
left in a folder and nobody else's can be met; and one by TCP, for clients on other machines. Neither serves anybody
without a token that gRPC has given. An idle lane is a task that waits: it costs no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.lane import CALL, FAILED, GREETING, HEADER, MAGIC, VERSION, WELCOME
from storage_node.batch.session import BatchService
from storage_node.lane.calls import LaneCalls, error_message
from storage_node.lane.connection import LaneConnection
from storage_node.lane.tokens import LIFETIME_S, LaneTokens
from storage_node.tasks import retrieve

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 5.0
MAX_STRANGERS = 256
"""Connections that have not shown a token yet; further ones are closed."""
_BACKLOG = 1024
_READ_BYTES = 64 << 10
_SEND_BUFFER_BYTES = 4 << 20
_UNTAKEN_MS = 20_000


class LaneListener:
    """Belongs to the node's event loop.

    Args:
        host: where clients reach the node by TCP, as for gRPC. `port`: 0 picks a free one.
        max_request_bytes: of one message.
        methods: gRPC's handlers of those whose calls lanes carry too.
    """

    def __init__(
        self, batches: BatchService, host: str, port: int, max_request_bytes: int, methods: Mapping[str, Any]
    ) -> None:
        self._batches = batches
        self._max_request_bytes = max_request_bytes
        self._methods = methods
        self._idle: dict[asyncio.Task[None], None] = {}
        """Of the lanes that are served, those that carry nothing now, the one used the least lately first; not those of
        sessions, which have places."""
        self._max_idle = batches.node.config.max_sessions
        self._stopping = False
        self._tokens = LaneTokens()
        self._unix_name = f"ais-loader-lane-{secrets.token_hex(16)}"
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.bind(f"\0{self._unix_name}")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            tcp = socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
        except BaseException:
            unix.close()
            raise
        unix.listen(_BACKLOG)
        self._listening = (unix, tcp)
        self.port: int = tcp.getsockname()[1]
        self._accepting: list[asyncio.Task[None]] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._strangers = 0

    @property
    def open_lanes(self) -> int:
        return len(self._serving)

    def start(self) -> None:
        for listening in self._listening:
            listening.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listening), name="lanes"))

    def close(self) -> None:
        """Listen no more. May be called again."""
        for task in self._accepting:
            task.cancel()
        for listening in self._listening:
            listening.close()

    async def stop(self, grace_s: float) -> None:
        """Take no further connection; let those that are there end for `grace_s`."""
        self.close()
        self._stopping = True
        for task in self._idle:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=grace_s)
        left = list(self._serving)
        for task in left:
            task.cancel()
        await asyncio.gather(*self._accepting, *left, return_exceptions=True)

    def offer(self, tenant: str) -> pb.OpenLaneResponse:
        """Where one lane may be opened. Raises Overloaded."""
        token = self._tokens.give(tenant)
        return pb.OpenLaneResponse(
            token=token,
            lifetime_ms=int(LIFETIME_S * 1000),
            unix_name=self._unix_name,
            tcp_port=self.port,
            method=list(self._methods),
        )

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:  # no descriptor left, or a connection that has gone already
                log.warning("a lane could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            if self._strangers >= MAX_STRANGERS:
                sock.close()
                continue
            if listening.family == socket.AF_UNIX:
                # As much as the system allows (net.core.wmem_max): a frame then leaves in one go.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            else:
                _set_tcp_options(sock)
            task = asyncio.create_task(self._serve(sock), name="lane")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            task.add_done_callback(retrieve)

    async def _serve(self, sock: socket.socket) -> None:
        connection = LaneConnection(sock, self._max_request_bytes, self._batches.node.read)
        # By TCP, sending from files was found to be slower than reading and sending (benchmarks/lane.md).
        from_files = sock.family == socket.AF_UNIX
        try:
            tenant = await self._greeted(connection)
            if tenant is None:
                await connection.write(
                    error_message("lane-token", "no token of this node, or one that was used"), FAILED
                )
                return
            await connection.write(b"", WELCOME)
            with self._waiting():
                begun = await connection.receive(_READ_BYTES)
                while len(begun) < HEADER.size:
                    begun += await connection.receive(_READ_BYTES)
            if HEADER.unpack_from(begun)[1] == CALL:
                calls = LaneCalls(connection, self._methods, tenant, self._max_request_bytes)
                calls.took(begun)
                while await calls.one() and not self._stopping:
                    with self._waiting():
                        await calls.begun()
                return
            try:
                await self._batches.serve(
                    connection.requests(begun), connection, tenant, connection, sends_files=from_files
                )
            except LoaderError as error:
                await connection.write(error_message(error.kind, str(error)), FAILED)
        except (OSError, EOFError):
            """The client has gone: nobody is there to be told."""
        finally:
            await connection.close()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Nothing of a client is under way: its lane may be ended."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._idle) >= self._max_idle:
            # Whoever keeps it finds out before a call is made, and opens another one.
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.cancel()
        self._idle[task] = None
        try:
            yield
        finally:
            self._idle.pop(task, None)

    async def _greeted(self, connection: LaneConnection) -> str | None:
        """The tenant whose lane it is; None for who brings no good token. Raises EOFError, OSError."""
        self._strangers += 1
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                magic, version, token = GREETING.unpack(await connection.exactly(GREETING.size))
        except TimeoutError:
            return None
        finally:
            self._strangers -= 1
        return self._tokens.take(token) if (magic, version) == (MAGIC, VERSION) else None


def _set_tcp_options(sock: socket.socket) -> None:
    """A message leaves at once; a client whose machine has gone without a word is found out."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    # Also in the middle of a message that it does not take any more: frames are held until then.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN_MS)
