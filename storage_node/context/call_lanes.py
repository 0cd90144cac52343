"""Lanes to other nodes, for sessions, and for writes of replicas: these take a fraction of the time of gRPC's streams.

A lane carries one session, or one write at a time. If no lane to a node is idle, gRPC is used, and a lane is opened
beside it for later. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from ais_loader.wire.backoff import Suspects
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.lane import CALL, DATA, HEADER, LAST, MESSAGE
from storage_node.context.peer_lane import LANE_AGAIN, LANE_ERRORS, PeerLane, open_lane

_METHOD = b"Replica/Write"
_BEGIN = HEADER.pack(len(_METHOD), CALL) + _METHOD
_MOST_IDLE = 16


class CallLanes:
    """Idle lanes, by endpoint. `channel` returns the gRPC channel to an endpoint."""

    def __init__(self, channel: Callable[[str], Any]) -> None:
        self._channel = channel
        self._idle: defaultdict[str, list[PeerLane]] = defaultdict(list)
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._without: Suspects[str] = Suspects()
        self._closed = False

    def begin(self, endpoint: str) -> LaneCall | None:
        """Begin a call. None if it has to go by gRPC."""
        lane = self.take(endpoint)
        return LaneCall(lane, partial(self._give_back, endpoint)) if lane is not None else None

    def take(self, endpoint: str) -> PeerLane | None:
        """Take a lane that is idle. None if there is none; one is then opened."""
        while idle := self._idle[endpoint]:
            if not (lane := idle.pop()).closed.done():
                return lane
        if not self._closed and endpoint not in self._opening and endpoint not in self._without:
            opening = self._opening[endpoint] = asyncio.create_task(self._open(endpoint), name=f"lane to {endpoint}")
            opening.add_done_callback(lambda _: self._opening.pop(endpoint))  # also of one cancelled before it begins
        return None

    async def _open(self, endpoint: str) -> None:
        try:
            self._give_back(endpoint, await open_lane(self._channel(endpoint), endpoint))
            self._without.answered(endpoint)
        except LANE_ERRORS:
            self.failed(endpoint)

    def _give_back(self, endpoint: str, lane: PeerLane) -> None:
        lane.deliver(lambda message: lane.abort(), lambda why: None)
        if self._closed or len(self._idle[endpoint]) >= _MOST_IDLE:
            lane.abort()
        else:
            self._idle[endpoint].append(lane)

    def failed(self, endpoint: str) -> None:
        """Open no lane for a while."""
        self._without.failed(endpoint, LANE_AGAIN)

    def distrust(self, endpoint: str) -> None:
        """End the idle lanes to a node that was silent: its machine may be gone."""
        if (opening := self._opening.get(endpoint)) is not None:
            opening.cancel()
        for lane in self._idle.pop(endpoint, ()):
            lane.abort()

    async def close(self) -> None:
        self._closed = True
        for endpoint in list(self._idle):
            self.distrust(endpoint)
        for task in list(self._opening.values()):
            task.cancel()
            await asyncio.wait([task])


class LaneCall:
    """A write of a replica, with the methods of a call of grpc.aio. They raise ReplicaLost if the node refuses it, an
    OSError if the lane ends."""

    def __init__(self, lane: PeerLane, give_back: Callable[[PeerLane], None]) -> None:
        self._lane, self._give_back = lane, give_back
        self._before, self._is_whole, self._is_over = _BEGIN, False, False
        self._owed = 0
        """Number of answers that have not come."""
        self._first: memoryview | bytes = b""
        self._come: asyncio.Queue[memoryview | Exception] = asyncio.Queue()
        lane.deliver(self._come.put_nowait, self._come.put_nowait)

    async def write(self, request: wire.WriteRequest) -> None:
        await self._lane.has_room.wait()
        if self._lane.closed.done():
            raise ConnectionError("the lane has ended")
        if request.HasField("data"):
            self._lane.send(request.data, DATA)
            return
        self._owed, self._is_whole = self._owed + 1, request.HasField("commit")
        self._lane.send(request.SerializeToString(), LAST if self._is_whole else MESSAGE, self._before)
        self._before = b""

    async def initial_metadata(self) -> None:
        """Wait for an answer, or for an empty message: the node is alive, and does not answer yet."""
        self._first = await self._next()

    async def read(self) -> wire.WriteResponse:
        message, self._first = self._first, b""
        while not message:
            message = await self._next()
        self._owed -= 1
        return wire.WriteResponse.FromString(bytes(message))

    async def _next(self) -> memoryview:
        if isinstance(come := await self._come.get(), Exception):
            self._come.put_nowait(come)
            raise come
        return come

    def cancel(self) -> None:
        """End the call. The node removes what was staged and not committed."""
        if self._is_over:
            return
        self._is_over = True
        if self._owed or self._lane.closed.done() or not self._lane.has_room.is_set():
            self._lane.abort()
            return
        if not (self._is_whole or self._before):
            self._lane.send(b"", LAST)
        self._give_back(self._lane)

    def done(self) -> bool:
        return self._lane.closed.done()
