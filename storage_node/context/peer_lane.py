"""Lane to another node, on the requesting side: complete messages in and out of a stream socket, on the event loop.

No task waits on the socket, because an event loop does not wake tasks that wait for a closed socket. Instead, the
transport calls this protocol, for received bytes and once for the end, whatever its reason.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import grpc.aio
import numpy as np

from ais_loader.errors import from_node
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.channel_options import set_tcp_options
from ais_loader.wire.frame import FrameError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.lane import ERRORS, GREETING, HEADER, MAGIC, MAX_RESPONSE_BYTES, MESSAGE, VERSION, WELCOME
from storage_node.context.errors import ReplicaLost

CONNECT_TIMEOUT_S = 1.0
LANE_AGAIN = Backoff(1.0, 60.0, jitter=0.5)
"""Delay before another lane is tried, after one could not be opened or has broken."""
LANE_ERRORS = (OSError, FrameError, ValueError, ReplicaLost, grpc.aio.AioRpcError, grpc.aio.UsageError)
_OPEN_LANE = "/ais_loader.v1.GetBatch/OpenLane"
_HEADS_BYTES = 4 << 10
"""Bytes received at once where a message may begin: its header, and small messages completely."""


class PeerLane(asyncio.BufferedProtocol):
    """One connection. Belongs to the event loop."""

    def __init__(self, token: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._token = token
        self._transport: Any = None
        self._heads = memoryview(bytearray(_HEADS_BYTES))
        self._heads_bytes = 0
        self._message: memoryview | None = None
        """The message being received, of kind `_kind`; `_filled` bytes of it have arrived."""
        self._filled = self._kind = 0
        self._why: Exception | None = None
        self.welcome: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.has_room = asyncio.Event()
        """Unset while much is buffered."""
        self.has_room.set()
        self._came: Callable[[memoryview], None] = lambda message: None
        self._ended: Callable[[Exception], None] = lambda why: None

    def deliver(self, came: Callable[[memoryview], None], ended: Callable[[Exception], None]) -> None:
        """Call `came` for each message, which it may keep, and `ended` once, with the reason, after the last message.
        A session exists only once its lane is open, so that the lane is made without these."""
        self._came, self._ended = came, ended

    def send(self, message: bytes, kind: int = MESSAGE, before: bytes = b"") -> None:
        """Send a message behind other bytes. Never waits: what the socket does not accept at once is buffered."""
        self._transport.write(before + HEADER.pack(len(message), kind) + message)

    def abort(self) -> None:
        """End the connection now, including messages in progress. `closed` is done when nothing of it is left."""
        self._transport.abort()

    # -- called by the transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(GREETING.pack(MAGIC, VERSION, self._token))

    def pause_writing(self) -> None:
        self.has_room.clear()

    def resume_writing(self) -> None:
        self.has_room.set()

    def get_buffer(self, _: int) -> memoryview:
        if self._message is None:
            return self._heads[self._heads_bytes :]
        return self._message[self._filled :]

    def buffer_updated(self, count: int) -> None:
        try:
            if self._message is None:
                self._heads_bytes += count
                self._take_heads()
            else:
                self._filled += count
                self._take_if_whole()
        except Exception as error:  # noqa: BLE001 - boundary of the transport: passed on to the waiting tasks
            self._why = error
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        is_partial = self._message is not None or self._heads_bytes
        ended = "the lane broke in the middle of a message" if is_partial else "the lane has ended"
        why = self._why or error or ConnectionError(ended)
        if not self.welcome.done():
            self.welcome.set_exception(why)
            self.welcome.exception()  # the opener may have been cancelled
        self.closed.set_result(None)
        self.has_room.set()
        self._ended(why)

    # -- receiving

    def _take_heads(self) -> None:
        """Process the received messages, and begin the last one if it is incomplete."""
        at, heads = 0, self._heads[: self._heads_bytes]
        while len(heads) - at >= HEADER.size:
            size_bytes, kind = HEADER.unpack_from(heads, at)
            if size_bytes > MAX_RESPONSE_BYTES or kind not in (MESSAGE, WELCOME, *ERRORS):
                raise FrameError(f"a header of kind {kind} that announces {size_bytes:,} bytes")
            at += HEADER.size
            # A bytearray would be filled with zeros first.
            self._message = np.empty(size_bytes, np.uint8).data
            self._kind, self._filled = kind, min(size_bytes, len(heads) - at)
            self._message[: self._filled] = heads[at : at + self._filled]
            at += self._filled
            self._take_if_whole()
        self._heads_bytes = len(heads) - at
        self._heads[: self._heads_bytes] = bytes(heads[at:])

    def _take_if_whole(self) -> None:
        message = self._message
        if message is None or self._filled < len(message):
            return
        self._message = None
        if self._kind in ERRORS:
            error = objects_pb.Error.FromString(bytes(message))
            raise ReplicaLost(error.message, from_node(error.kind, error.message))
        if (self._kind == WELCOME) is self.welcome.done():
            raise FrameError(f"a message of kind {self._kind} out of its turn")
        if self._kind == WELCOME:
            self.welcome.set_result(None)
        else:
            self._came(message)


async def open_lane(channel: Any, endpoint: str) -> PeerLane:
    """Open a lane to the peer listener at this endpoint: over a Unix socket if the node is on this machine, otherwise
    over TCP at the same host. `channel`: one to the endpoint.

    Raises one of LANE_ERRORS.
    """
    loop = asyncio.get_running_loop()
    host, _, port = endpoint.rpartition(":")
    ask = channel.unary_unary(
        _OPEN_LANE,
        request_serializer=pb.OpenLaneRequest.SerializeToString,
        response_deserializer=pb.OpenLaneResponse.FromString,
    )
    offer = await ask(pb.OpenLaneRequest(port=int(port), user=os.geteuid()), timeout=CONNECT_TIMEOUT_S)
    if not offer.token:
        raise OSError("none is offered")

    def lane() -> PeerLane:
        return PeerLane(offer.token)

    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        try:
            # The abstract name of a node on another machine, or in another network namespace, does not exist here.
            _, opened = await loop.create_unix_connection(lane, f"\0{offer.unix_name}")
        except OSError:
            if not offer.tcp_port:
                raise
            transport, opened = await loop.create_connection(lane, host.strip("[]"), offer.tcp_port)
            set_tcp_options(transport.get_extra_info("socket"))
        try:
            await opened.welcome
        except BaseException:
            opened.abort()
            raise
    return opened
