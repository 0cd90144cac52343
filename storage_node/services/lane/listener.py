"""Lane listener: accepts connections that present a token, and serves the session or the calls that each carries.

Two sockets listen. One is in the abstract namespace of Unix sockets, under a name drawn at each start, so that no file
is left behind and no other process's socket is met by accident. The other is TCP, for clients on other machines.
Neither serves a connection without a token that was issued over gRPC. An idle lane is a waiting task; it costs no
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ais_loader.errors import LoaderError, Overloaded, SilenceTimeout
from ais_loader.wire.channel_options import peer_of, set_tcp_options
from ais_loader.wire.closing import closing_fd
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.lane import CALL, FAILED, GREETING, HEADER, MAGIC, TOKEN_BYTES, VERSION, WELCOME
from storage_node.batch.session import BatchService
from storage_node.limits.call_slots import CallSlot, CallSlots, current_tenant, limit_of_tenant, peer_of_address
from storage_node.limits.load_monitor import is_reserved
from storage_node.limits.tasks import retrieve
from storage_node.security.audit.subject import LANE, ORIGIN, UNKNOWN, CallOrigin, source_of
from storage_node.security.rights.granted import GRANTED, Granted, lasting
from storage_node.services.lane.calls import LANE_CHECK, LaneCalls, error_message
from storage_node.services.lane.connection import LaneConnection

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 5.0
MAX_STRANGERS = 128
"""Maximum number of connections without a token. Beyond it, the oldest one of the peer with the most is closed."""
_IDLE_S = 1e-6
"""Idle time after which a lane without a call gives way to a new one: practically none."""
_WAITING_SHARE = 4
"""One in this many reader threads may wait for clients; none of fewer threads, so the event loop waits instead."""
CLOSED_BECAUSE = ("token", "strangers", "lanes", "tenant", "descriptors", "idle", "message")
"""Reasons for which the node itself closes or refuses connections of lanes."""
_BACKLOG = 1024
_READ_BYTES = 64 << 10
_SEND_BUFFER_BYTES = 4 << 20
_SO_PEERPIDFD = 77


LIFETIME_S = 10.0
MAX_PENDING = 4096


class LaneClient(NamedTuple):
    """The client to which a lane's token was given."""

    tenant: str
    granted: Granted | None
    """Rights of the client's own token; None if clients need none."""
    origin: CallOrigin = UNKNOWN
    """How the client has asked for the lane."""
    check: Callable[[], object] = bool
    """See LANE_CHECK."""


class LaneTokens:
    """Issued tokens. Belongs to the node's event loop."""

    def __init__(self) -> None:
        self._pending: dict[bytes, tuple[float, LaneClient, int | None]] = {}
        """Expiry, client and user of each token; oldest first."""

    def give(self, tenant: str, user: int | None = None) -> bytes:
        """Return a new token for the client of the current call, which only processes of this user may use, if one is
        given.

        If MAX_PENDING others are unused, the oldest of them becomes invalid.
        """
        now = time.monotonic()
        while self._pending and (len(self._pending) >= MAX_PENDING or next(iter(self._pending.values()))[0] < now):
            del self._pending[next(iter(self._pending))]
        token = secrets.token_bytes(TOKEN_BYTES)
        self._pending[token] = now + LIFETIME_S, LaneClient(tenant, GRANTED.get(), ORIGIN.get(), LANE_CHECK.get()), user
        return token

    def take(self, token: bytes, user: int | None = None) -> LaneClient | None:
        """Return the client of a token; None if it is wrong, used, expired or another user's. The token becomes
        invalid."""
        until_s, client, owner = self._pending.pop(token, (0.0, None, None))
        return client if until_s >= time.monotonic() and user == owner else None


class LaneListener:
    """Listener for lanes. Belongs to the node's event loop.

    Args:
        host: Address at which clients reach the node over TCP, as for gRPC. `port`: 0 picks a free one.
        max_request_bytes: Maximum size of one message.
        methods: gRPC's handlers of the methods that can also be called over lanes.
        secure: Whether there is no lane over TCP, and those of this machine are for the user who was offered them.
        of_peers: Whether other nodes call over the lanes: their calls have a budget and turns of their own.
    """

    def __init__(
        self,
        batches: BatchService,
        host: str,
        port: int,
        max_request_bytes: int,
        methods: Mapping[str, Any],
        *,
        secure: bool = False,
        of_peers: bool = False,
    ) -> None:
        self._batches = batches
        self._of_peers = of_peers
        self._max_request_bytes = max_request_bytes
        self._methods = methods
        config = batches.node.config
        self._message_timeout_s = config.limits.message_timeout_s
        self._idle: set[asyncio.Task[None]] = set()
        """Tasks of lanes without a call in progress."""
        self._slots = CallSlots(config.limits.max_lanes, _IDLE_S, tenant_limit=config.limits.max_lanes_per_peer)
        """Slots of lanes that have presented a token, by peer."""
        self._tenants: dict[CallSlot, str] = {}
        """Tenants of the lanes with a slot."""
        self._tenant_limit = limit_of_tenant(config.limits.max_lanes, config.limits.tenant_share)
        self._waits = threading.Semaphore(config.reads.read_threads // _WAITING_SHARE)
        """Limits the reader threads that wait for bytes of objects."""
        self.closed = dict.fromkeys(CLOSED_BECAUSE, 0)
        """Number of connections that the node itself has closed or refused, by reason."""
        self._stopping = False
        self._tokens = LaneTokens()
        self._unix_name = f"ais-loader-lane-{secrets.token_hex(16)}"
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.bind(f"\0{self._unix_name}")
        self._secure = secure
        self._listening = [unix]
        self.port = 0
        """The port of lanes over TCP; 0 if there are none."""
        try:
            if not secure:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                tcp = socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
                self._listening.append(tcp)
                self.port = tcp.getsockname()[1]
        except BaseException:
            unix.close()
            raise
        unix.listen(_BACKLOG)
        self._accepting: list[asyncio.Task[None]] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], str] = {}
        """Connections without a token, oldest first, with their peers."""

    @property
    def open_lanes(self) -> int:
        return len(self._serving)

    def start(self) -> None:
        for listening in self._listening:
            listening.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listening), name="lanes"))

    def close(self) -> None:
        """Stop listening. May be called again."""
        for task in self._accepting:
            task.cancel()
        for listening in self._listening:
            if listening.fileno() != -1 and self._accepting:
                asyncio.get_running_loop().remove_reader(listening)
            listening.close()

    async def stop(self, grace_s: float) -> None:
        """Accept no further connections; give those that exist `grace_s` to end."""
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

    def offer(self, tenant: str, user: int | None = None) -> pb.OpenLaneResponse:
        """Return the addresses and a token for opening one lane; nothing if there is no lane for this caller.

        `user`: The number of the user whose process will open it, by the caller's own account.
        """
        if not self._secure:
            user = None
        elif user is None:
            return pb.OpenLaneResponse()
        token = self._tokens.give(tenant, user)
        return pb.OpenLaneResponse(
            token=token,
            lifetime_ms=int(LIFETIME_S * 1000),
            unix_name=self._unix_name,
            tcp_port=self.port,
            method=list(self._methods),
        )

    async def _accept(self, listening: socket.socket) -> None:
        loop, come = asyncio.get_running_loop(), asyncio.Event()

        def heard() -> None:
            loop.remove_reader(listening)  # or it would be called again and again until the connection is accepted
            come.set()

        while True:
            # Not `sock_accept`: cancelled as a connection comes, it leaves that one open.
            come.clear()
            loop.add_reader(listening, heard)
            await come.wait()
            try:
                sock, _ = listening.accept()
                sock.setblocking(False)
            except BlockingIOError:
                continue
            except OSError as error:  # no descriptor is left, or the client has disconnected
                log.warning("a lane could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            if (peer := self._admitted(sock)) is None:
                sock.close()
                continue
            if listening.family == socket.AF_UNIX:
                # The maximum that the system permits (net.core.wmem_max): a frame is then sent in one call.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            else:
                # Also during a message that the client no longer receives: its frames stay in memory until then.
                set_tcp_options(sock, idle_s=60, probes=3)
            task = asyncio.create_task(self._serve(sock, peer), name="lane")
            self._serving.add(task)
            self._strangers[task] = peer
            task.add_done_callback(self._serving.discard)
            task.add_done_callback(retrieve)
            # The token may have arrived already: check it before another connection can displace this one.
            await asyncio.sleep(0)

    def _admitted(self, sock: socket.socket) -> str | None:
        """Return the peer of a new connection, after making room for it; None if there is no room."""
        try:
            peer = _peer_of(sock)
        except OSError:  # it has disconnected
            return None
        if is_reserved(sock.fileno()) and not (self._end_stranger() or self._end_idle()):
            self.closed["descriptors"] += 1
            return None
        if len(self._strangers) >= MAX_STRANGERS:
            self._end_stranger()
        return peer

    def _end_stranger(self) -> bool:
        """End the oldest connection without a token, of the peer that has most of them."""
        if not self._strangers:
            return False
        (most, _), *_ = Counter(self._strangers.values()).most_common(1)
        oldest = next(task for task, peer in self._strangers.items() if peer == most)
        del self._strangers[oldest]
        self.closed["strangers"] += 1
        oldest.cancel()
        return True

    def _end_idle(self) -> bool:
        """End the lane without a call, or else the session, that has been idle the longest."""
        ended = self._slots.reclaim(_any) or self._batches.session_slots.reclaim(_any)
        return ended is not None

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        node = self._batches.node
        connection = LaneConnection(
            sock, self._max_request_bytes, self._message_timeout_s, self._batches.resources.requests, node.read
        )
        try:
            client = await self._greeted(connection, peer_of(sock)[1] if self._secure else None)
            if client is None:
                self.closed["token"] += 1
                await connection.write(
                    error_message("lane-token", "no token of this node, or one that was used"), FAILED
                )
                return
            try:
                GRANTED.set(client.granted)
                LANE_CHECK.set(client.check)
                source = "" if sock.family == socket.AF_UNIX else str(sock.getpeername()[0])
                ORIGIN.set(client.origin._replace(source=source_of(source), transport=LANE))
                async with lasting(client.granted):
                    connection.tenant = client.tenant
                    with self._slot(peer, client.tenant) as slot:
                        await connection.write(b"", WELCOME)
                        await self._serve_welcomed(sock, connection, client.tenant, slot)
            except LoaderError as error:
                if isinstance(error, SilenceTimeout):
                    self.closed["message"] += 1
                async with asyncio.timeout(self._message_timeout_s):
                    message = str(error) if client.granted is None else client.granted.told(str(error))
                    await connection.write(error_message(error.kind, message), FAILED)
        except (OSError, EOFError):  # a TimeoutError too
            """The client has disconnected or reads nothing, so the error cannot be sent."""
        finally:
            await connection.close()

    @contextlib.contextmanager
    def _slot(self, peer: str, tenant: str) -> Iterator[CallSlot]:
        """Context of a slot. Raises Overloaded."""
        task = asyncio.current_task()
        assert task is not None

        def evict() -> None:
            # The client notices it before its next call, and opens another lane.
            self.closed["idle"] += 1
            task.cancel()

        self._require_room(tenant)
        slot = self._slots.take(peer, evict)
        if slot is None:
            self.closed["lanes"] += 1
            if self._slots.held >= self._slots.limit:
                self._batches.session_slots.reclaim(_any)  # makes a slot available for the next attempt
            raise Overloaded(
                f"{self._slots.held:,} lanes are open (max_lanes={self._slots.limit:,}), or all that one peer may "
                "have (max_lanes_per_peer), and none of them is idle: go on by gRPC"
            )
        self._tenants[slot] = tenant
        try:
            yield slot
        finally:
            del self._tenants[slot]
            slot.give_back()

    def _require_room(self, tenant: str) -> None:
        """Check that a tenant may have one more lane, after closing an idle one of its own. Raises Overloaded."""
        if sum(one == tenant for one in self._tenants.values()) < self._tenant_limit:
            return
        if self._slots.reclaim(lambda slot: self._tenants.get(slot) == tenant) is None:
            self.closed["tenant"] += 1
            raise Overloaded(
                f"tenant {tenant!r} has {self._tenant_limit:,} lanes, as many as one tenant may have (tenant_share of "
                f"max_lanes={self._slots.limit:,}), and none of them is idle: go on by gRPC"
            )

    async def _serve_welcomed(
        self, sock: socket.socket, connection: LaneConnection, tenant: str, slot: CallSlot
    ) -> None:
        """Serve the session or the calls of a lane. Raises LoaderError, EOFError, OSError."""
        with self._waiting(slot):
            received = await connection.receive(_READ_BYTES)
            if len(received) < HEADER.size:
                try:
                    async with asyncio.timeout(self._message_timeout_s):
                        received += await connection.exactly(HEADER.size - len(received))
                except TimeoutError:
                    raise connection.too_slow() from None
        if HEADER.unpack_from(received)[1] != CALL:
            # Over TCP, sending small blocks from files is slower than reading and sending (see benchmarks/report).
            from_files = sock.family == socket.AF_UNIX
            await self._batches.serve(
                connection.requests(received), connection, tenant, connection, sends_files=from_files
            )
            return
        calls = LaneCalls(
            connection,
            self._methods,
            tenant,
            self._max_request_bytes,
            self._message_timeout_s,
            slot,
            self._batches.node.replica_streams if self._of_peers else self._batches.node.streams,
            self._waits,
        )
        calls.unread(received)
        if not self._of_peers:
            current_tenant.set(tenant)
        while await calls.serve() and not self._stopping:
            with self._waiting(slot):
                await calls.wait()

    @contextlib.contextmanager
    def _waiting(self, slot: CallSlot) -> Iterator[None]:
        """Context in which nothing is in progress for the client: its lane may be ended."""
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            with slot.waiting():
                yield
        finally:
            self._idle.discard(task)

    async def _greeted(self, connection: LaneConnection, user: int | None) -> LaneClient | None:
        """Return the client of the lane; None without a valid token. Raises EOFError, OSError."""
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                magic, version, token = GREETING.unpack(await connection.exactly(GREETING.size))
        except TimeoutError:
            return None
        finally:
            self._strangers.pop(task, None)
        return self._tokens.take(token, user) if (magic, version) == (MAGIC, VERSION) else None


def _any(_: CallSlot) -> bool:
    return True


def _peer_of(sock: socket.socket) -> str:
    """Return the peer: the process at the other end of a Unix socket, or the IP address. Of an IPv6 address, it is the
    network of 64 bits: one machine may use any address in it. Raises OSError."""
    if sock.family == socket.AF_UNIX:
        process, user = peer_of(sock)
        return f"process {process}" if process else _peer_without_number(sock, user)
    return peer_of_address(str(sock.getpeername()[0]))


def _peer_without_number(sock: socket.socket, user: int) -> str:
    """Return the peer if this node's pid namespace has no number for it, as in another container on the same network:
    the process by its inode, or all processes of the user if the kernel has no such inode (before Linux 6.9)."""
    try:
        descriptor = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return f"user {user}"
    with closing_fd(descriptor):
        return f"user {user}, process {os.fstat(descriptor).st_ino}"
