"""Peer sessions: a pool of GetBatch sessions to the nodes that own the entries of batches gathered here.

A node is a client of its peers, over the same GetBatch session that trainers use. One session per peer carries the
sub-requests of all batches; it stays open between them and is closed when it has been idle for a while. Its reader
never waits: the credit of each stream bounds what a peer may send, so no stream delays another.

A session starts over gRPC at once. A lane is opened beside it, through gRPC, and later sub-requests use the lane. If
there is no lane or it breaks, gRPC is used again, and lanes are retried after a delay.

A peer that fails counts as failing until it sends anything, even the response to a probe. Batches ask a failing peer
last, and once it has been failing for the time-out, they do not wait for it any more.

Everything here belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from ais_loader.wire.backoff import Backoff, Suspects
from ais_loader.wire.channel_options import CHANNEL_OPTIONS, CONNECT_TIMEOUT, with_changes
from ais_loader.wire.frame import FrameError, decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.batch.peer_stream import PeerAnswerWrong, PeerError, PeerSilent, PeerStream, PeerUnavailable
from storage_node.context.call_lanes import CallLanes
from storage_node.context.channels import Caller, newer_map
from storage_node.context.peer_lane import LANE_AGAIN, PeerLane

log = logging.getLogger(__name__)

_SESSION = "/ais_loader.v1.GetBatch/Session"
_PROBE = Backoff(1.0, 1.0, jitter=0.5)
"""Interval of probes (empty requests) to a peer that has failed, until it answers or no batch needs it any more."""
_UNTIL_IT_ANSWERS = Backoff(math.inf, math.inf, jitter=0)
_OPTIONS = with_changes(CHANNEL_OPTIONS, CONNECT_TIMEOUT)


class PeerPool:
    """Persistent sessions to peers, by endpoint.

    Args:
        timeout_s: Maximum silence of a peer that may send.
        transform_timeout_s: The same for a peer that runs transforms first.
        idle_s: A session without a stream is closed after this time.
        caller: Identity with which the peers are called.
    """

    def __init__(self, *, timeout_s: float, idle_s: float, caller: Caller, transform_timeout_s: float = 0.0) -> None:
        self.timeout_s = timeout_s
        self._transform_timeout_s = max(timeout_s, transform_timeout_s)
        self._idle_s = idle_s
        self._caller = caller
        self._peers: dict[str, Peer] = {}
        self._suspects: Suspects[str] = Suspects()

    @property
    def open_sessions(self) -> int:
        return sum(peer.session is not None for peer in self._peers.values())

    @property
    def open_lanes(self) -> int:
        """Number of these sessions that use a lane. May be read from any thread."""
        sessions = [peer.session for peer in list(self._peers.values())]
        return sum(isinstance(session, _LaneSession) and not session.broken for session in sessions)

    def open(self, endpoint: str, request: pb.BatchRequest) -> PeerStream:
        """Send a sub-request, connecting if needed. Never waits: the stream reports whether the peer is reachable.

        Raises PeerUnavailable if it is known to be unreachable, or if the pool has been closed.
        """
        failing_s = self.failing_s(endpoint)
        peer = self._peer(endpoint)
        peer.wanted_at = time.monotonic()
        if failing_s >= self.timeout_s:
            raise PeerUnavailable(f"{endpoint} has not answered for {failing_s:.0f} s: {peer.last_error}")
        timeout_s = self._transform_timeout_s if request.transform else self.timeout_s
        return peer.open(request, timeout_s)

    def _peer(self, endpoint: str) -> Peer:
        peer = self._peers.get(endpoint)
        if peer is None:
            peer = self._peers[endpoint] = Peer(endpoint, self.timeout_s, self._idle_s, self._suspects, self._caller)
        return peer

    def failing_s(self, endpoint: str) -> float:
        """Return how long this peer has been failing, since it last sent anything; 0 if it is not failing."""
        return self._suspects.failing_s(endpoint)

    def is_failing(self, endpoint: str) -> bool:
        """Return whether this peer's most recent event was a failure. May be called from any thread."""
        peer = self._peers.get(endpoint)
        if peer is None or endpoint not in self._suspects:
            return False
        peer.wanted_at = time.monotonic()
        return True

    def stands_still(self, endpoint: str) -> None:
        """Mark a peer as failing, until it sends anything, because it was silent until another node had answered in its
        place."""
        if (peer := self._peers.get(endpoint)) is not None:
            peer.failed(PeerSilent(f"{endpoint} was silent while others answered"))

    async def newer_map(self, endpoint: str, known: cluster_pb.ClusterMap) -> cluster_pb.ClusterMap | None:
        """Return a peer's map if it is newer and the peer answers."""
        return await self._peer(endpoint).newer_map(known)

    async def close(self) -> None:
        """End all sessions permanently. Open streams see their peer as unavailable."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))


class Peer:
    """One other node: its channel, which reconnects by itself, and the session on it."""

    def __init__(self, endpoint: str, timeout_s: float, idle_s: float, suspects: Suspects[str], caller: Caller) -> None:
        self.endpoint = endpoint
        self.suspects = suspects
        self.session: PeerSession | None = None
        self.last_error = ""
        self.wanted_at = 0.0
        """Time at which a batch last needed it."""
        self._closed = False
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._caller = caller
        self._channel: Any = None
        self._generation = 0
        self._idle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._probe: asyncio.Task[None] | None = None
        self._relieved: set[PeerSession] = set()
        """gRPC sessions that were replaced by a lane and end with their last stream."""
        self._lanes = CallLanes(lambda _: self._channel)

    def open(self, request: pb.BatchRequest, timeout_s: float) -> PeerStream:
        """Start a sub-request. Raises PeerUnavailable if this node is stopping."""
        return PeerStream(self.endpoint, request, timeout_s, begin=self._begin, failed=self.failed)

    def _begin(self, stream: PeerStream, request: pb.BatchRequest) -> tuple[PeerSession, int]:
        """Send a sub-request on the current session. Raises PeerUnavailable if this node is stopping."""
        channel, before = self._connected(), self.session
        is_by_lane = isinstance(before, _LaneSession) and not before.broken
        if not is_by_lane and self.endpoint not in self.suspects and (lane := self._lanes.take(self.endpoint)):
            self.session = _LaneSession(self, lane)
            if before is not None and not before.broken:
                self._relieved.add(before)
                self.rest(before)
        if self.session is None or self.session.broken:
            self.session = _GrpcSession(self, channel.stream_stream(_SESSION))
        return self.session, self.session.begin(stream, request)

    def lane_broke(self, lasted_s: float) -> None:
        """Use gRPC until another lane is open. If the lane had existed for long, as when a node restarts, another one
        is tried at once."""
        if lasted_s < LANE_AGAIN.longest_s:
            self._lanes.failed(self.endpoint)

    def _connected(self) -> Any:
        if self._closed:
            raise PeerUnavailable(f"{self.endpoint}: this node is stopping")
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._channel is not None and not self._busy and self._generation != self._caller.generation:
            self._reclaim()  # its certificate was renewed
        if self._channel is None:
            self._generation = self._caller.generation
            self._channel = self._caller.aio_channel(self.endpoint, _OPTIONS)
        return self._channel

    async def newer_map(self, known: cluster_pb.ClusterMap) -> cluster_pb.ClusterMap | None:
        try:
            return await newer_map(self._connected(), known, self._timeout_s)
        finally:
            self.rest()

    def rest(self, session: PeerSession | None = None) -> None:
        """Start the idle timer if nothing is in progress. `session`: the session on which a stream has ended."""
        if session is not None and session in self._relieved and not session.streams:
            self._relieved.discard(session)
            self._run(session.close())
        if not self._busy and self._idle is None and not self._closed:
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._reclaim)

    @property
    def _busy(self) -> bool:
        return bool(self._relieved) or (self.session is not None and bool(self.session.streams))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"peer {self.endpoint}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def failed(self, error: PeerError) -> None:
        self.last_error = str(error)
        self.suspects.failed(self.endpoint, _UNTIL_IT_ANSWERS)
        if self._probe is None and not self._closed:
            self._probe = asyncio.create_task(self._ask_for_nothing(), name=f"probe {self.endpoint}")

    async def _ask_for_nothing(self) -> None:
        try:
            while self.endpoint in self.suspects and time.monotonic() - self.wanted_at < self._idle_s:
                await asyncio.sleep(_PROBE.pause_s())
                with suppress(PeerError):
                    stream = self.open(pb.BatchRequest(ordered=True, local=True), self._timeout_s)
                    try:
                        await stream.next_frame()
                    finally:
                        stream.cancel()
        finally:
            self.suspects.answered(self.endpoint)
            self._probe = None

    def _reclaim(self) -> None:
        self._idle = None
        if not self._busy:
            self._run(_close_all(*self._detached()))

    def _detached(self) -> tuple[list[PeerSession], Any]:
        sessions = [*self._relieved] if self.session is None else [self.session, *self._relieved]
        self.session, self._relieved = None, set()
        self._lanes.distrust(self.endpoint)
        channel, self._channel = self._channel, None
        return sessions, channel

    async def close(self) -> None:
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait([self._probe])
        await self._lanes.close()
        await _close_all(*self._detached())
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _close_all(sessions: list[PeerSession], channel: Any) -> None:
    for session in sessions:
        await session.close()
    if channel is not None:
        await channel.close()


class PeerSession(ABC):
    """One open session. When it breaks, `broken` is set and its streams are notified."""

    def __init__(self, peer: Peer) -> None:
        self.streams: dict[int, PeerStream] = {}
        self.broken: PeerError | None = None
        self._peer = peer
        self._closing = False
        self._ids = itertools.count(1)
        self._received_at = time.monotonic()

    def begin(self, stream: PeerStream, request: pb.BatchRequest) -> int:
        batch_id = next(self._ids)
        self.streams[batch_id] = stream
        self.send(pb.SessionRequest(batch_id=batch_id, request=request))
        return batch_id

    def send(self, request: pb.SessionRequest) -> None:
        if self.broken is None:
            self._send(request.SerializeToString())

    @abstractmethod
    def _send(self, message: bytes) -> None:
        """Send a message. Never waits."""

    @abstractmethod
    def _give_up(self) -> None:
        """End the session soon; `_broke` follows."""

    @abstractmethod
    async def close(self) -> None:
        """End the session; return when nothing of it is left. Open streams see their peer as unavailable."""

    def forget(self, batch_id: int) -> None:
        if self.streams.pop(batch_id, None) is not None:
            self._peer.rest(self)

    def give_up_if_silent(self, timeout_s: float) -> None:
        """Called when a stream has received nothing for this time: if no stream has, end the session, because a new
        connection may work."""
        if self.broken is None and time.monotonic() - self._received_at >= timeout_s:
            self._give_up()

    def _came(self, message: bytes | memoryview) -> None:
        """Process a message. Raises FrameError."""
        self._peer.suspects.answered(self._peer.endpoint)
        self._received_at = time.monotonic()
        response = decode_response(message)
        if (stream := self.streams.get(response.batch_id)) is not None:  # otherwise it was cancelled
            stream.deliver(response)

    def _broke(self, error: PeerError) -> None:
        self.broken = error
        if not self._closing:
            self._peer.failed(error)
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.deliver(error)
        self._peer.rest(self)


class _GrpcSession(PeerSession):
    def __init__(self, peer: Peer, open_call: Any) -> None:
        super().__init__(peer)
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._call = open_call(self._messages())
        self._reader = asyncio.create_task(self._read(), name=f"peer {peer.endpoint}")

    async def _messages(self) -> AsyncIterator[bytes]:
        while (message := await self._outgoing.get()) is not None:
            yield message

    def _send(self, message: bytes) -> None:
        self._outgoing.put_nowait(message)

    def _give_up(self) -> None:
        self._reader.cancel()

    async def _read(self) -> None:
        error: PeerError
        endpoint = self._peer.endpoint
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._came(message)
            error = PeerUnavailable(f"{endpoint} ended the session: {await self._call.details() or 'no reason given'}")
        except FrameError as malformed:
            error = PeerAnswerWrong(f"{endpoint} sent what is not a frame: {malformed}")
        except grpc.aio.AioRpcError as failure:
            error = PeerUnavailable(f"{endpoint}: {failure.details()}")
        except asyncio.CancelledError:
            error = PeerUnavailable(f"{endpoint}: the session was given up, as idle or as silent")
        except Exception as failure:  # noqa: BLE001 - of read() on a cancelled call, too; its streams have to hear of it
            error = PeerUnavailable(f"{endpoint}: {failure}")
        self._outgoing.put_nowait(None)
        self._call.cancel()
        self._broke(error)

    async def close(self) -> None:
        self._closing = True
        self._reader.cancel()
        await asyncio.wait([self._reader])


class _LaneSession(PeerSession):
    def __init__(self, peer: Peer, lane: PeerLane) -> None:
        super().__init__(peer)
        self._lane = lane
        self._opened_s = self._received_at
        self._given_up = self._started = False
        lane.deliver(self._came, self._ended)

    def _send(self, message: bytes) -> None:
        self._started = True
        self._lane.send(message)

    def _give_up(self) -> None:
        self._given_up = True
        self._lane.abort()

    def _ended(self, why: Exception) -> None:
        endpoint = self._peer.endpoint
        if not self._started:  # nothing was lost: the node may need the slot
            self._closing = True
        if not self._closing or not self._started:
            self._peer.lane_broke(time.monotonic() - self._opened_s)
        if isinstance(why, FrameError):
            self._broke(PeerAnswerWrong(f"{endpoint} sent what is not a frame: {why}"))
        elif self._closing or self._given_up:
            self._broke(PeerUnavailable(f"{endpoint}: the session was given up, as idle or as silent"))
        else:
            self._broke(PeerUnavailable(f"{endpoint} ended the session: {why}"))

    async def close(self) -> None:
        self._closing = True
        self._lane.abort()
        await asyncio.wait([self._lane.closed])
