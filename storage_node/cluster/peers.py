"""Sessions to the other nodes: what a node that gathers a batch asks of the nodes that own its entries.

A node is a client of its peers, over the same GetBatch session that trainers use. One session per peer carries the
sub-requests of all batches; it stays open between them and is given up when it has been idle for a while. Its reader
never waits for anybody: what a peer may send is bounded by the credit of each lane, so no lane holds up another one.

Everything here belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import grpc
import grpc.aio
import numpy as np

from protos import ais_batch_pb2 as pb
from protos.frame import U8, U32, Frame, FrameError, Response, decode_response
from storage_node.store.batch import digest

_SESSION = "/ais_loader.v1.GetBatch/Session"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # how long one attempt may take, in truth; a refusal ends it at once
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class PeerError(Exception):
    """A peer did not answer a sub-request as it should have. One string argument."""

    lasting: ClassVar[bool] = False
    """Whether the same peer would answer the same again."""


class PeerUnavailable(PeerError):
    """No connection, or one that broke."""


class PeerSilent(PeerError):
    """Nothing came for the whole time-out, with credit left to send."""


class PeerBusy(PeerError):
    """It told us to come back until our patience was over."""


class PeerAnswerWrong(PeerError):
    """What it sent does not add up."""

    lasting = True


class PeerRefused(PeerError):
    """It cannot serve the sub-request as a whole; `kind` is END's."""

    lasting = True

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class PeerPool:
    """Persistent sessions to peers, by endpoint.

    Args:
        timeout_s: longest silence of a peer that may send.
        idle_s: a session without a lane is given up after this time.
    """

    def __init__(self, *, timeout_s: float, idle_s: float) -> None:
        self.timeout_s = timeout_s
        self._idle_s = idle_s
        self._peers: dict[str, _Peer] = {}

    @property
    def open_sessions(self) -> int:
        return sum(peer.session is not None for peer in self._peers.values())

    def open(self, endpoint: str, request: pb.BatchRequest) -> PeerLane:
        """Send a sub-request; connects if need be. Never waits: whether anybody is there, the lane tells.

        Raises PeerUnavailable once the pool has been closed.
        """
        peer = self._peers.get(endpoint)
        if peer is None:
            peer = self._peers[endpoint] = _Peer(endpoint, self._idle_s)
        return PeerLane(peer, request, self.timeout_s)

    def failing_s(self, endpoint: str) -> float:
        """For how long this peer has been failing, since it last sent anything; 0 when it is not."""
        peer = self._peers.get(endpoint)
        return 0.0 if peer is None or peer.failing_since is None else time.monotonic() - peer.failing_since

    def is_failing(self, endpoint: str) -> bool:
        """Whether the last that happened with this peer was a failure. May be asked from any thread."""
        peer = self._peers.get(endpoint)
        return peer is not None and peer.failing_since is not None

    async def close(self) -> None:
        """End all sessions, for good. Lanes that are still open see their peer as unavailable."""
        for peer in self._peers.values():
            peer.closed = True
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))


class _Peer:
    """One other node: its channel, which reconnects by itself, and the session on it."""

    def __init__(self, endpoint: str, idle_s: float) -> None:
        self.endpoint = endpoint
        self.session: _Session | None = None
        self.failing_since: float | None = None
        self.closed = False
        self._idle_s = idle_s
        self._channel: Any = None
        self._idle: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def begin(self, lane: PeerLane, request: pb.BatchRequest) -> tuple[_Session, int]:
        """Raises PeerUnavailable when this node is stopping."""
        if self.closed:
            raise PeerUnavailable(f"{self.endpoint}: this node is stopping")
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.endpoint, options=_OPTIONS)
        if self.session is None or self.session.broken:
            self.session = _Session(self, self._channel.stream_stream(_SESSION))
        return self.session, self.session.begin(lane, request)

    def lane_ended(self, session: _Session) -> None:
        if session is self.session and not session.lanes and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._reclaim)

    def failed(self) -> None:
        if self.failing_since is None:
            self.failing_since = time.monotonic()

    def _reclaim(self) -> None:
        self._idle = None
        if self.session is None or not self.session.lanes:
            task = asyncio.create_task(self.close(), name=f"reclaim {self.endpoint}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        session, self.session = self.session, None
        channel, self._channel = self._channel, None
        if session is not None:
            await session.close()
        if channel is not None:
            await channel.close()


class _Session:
    """One open stream. It has broken once `broken` is set; its lanes know by then."""

    def __init__(self, peer: _Peer, open_call: Any) -> None:
        self.lanes: dict[int, PeerLane] = {}
        self.broken: PeerError | None = None
        self._peer = peer
        self._ids = itertools.count(1)
        self._heard_at = time.monotonic()
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._call = open_call(self._messages())
        self._reader = asyncio.create_task(self._read(), name=f"peer {peer.endpoint}")

    async def _messages(self) -> AsyncIterator[bytes]:
        while (message := await self._outgoing.get()) is not None:
            yield message

    def begin(self, lane: PeerLane, request: pb.BatchRequest) -> int:
        batch_id = next(self._ids)
        self.lanes[batch_id] = lane
        self.send(pb.SessionRequest(batch_id=batch_id, request=request))
        return batch_id

    def send(self, request: pb.SessionRequest) -> None:
        if self.broken is None:
            self._outgoing.put_nowait(request.SerializeToString())

    def forget(self, batch_id: int) -> None:
        if self.lanes.pop(batch_id, None) is not None:
            self._peer.lane_ended(self)

    def give_up_if_silent(self, timeout_s: float) -> None:
        """After a lane has heard nothing for so long: when no lane has, a new connection may do better."""
        if self.broken is None and time.monotonic() - self._heard_at >= timeout_s:
            self._reader.cancel()

    async def _read(self) -> None:
        error: PeerError
        endpoint = self._peer.endpoint
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._peer.failing_since = None
                self._heard_at = time.monotonic()
                response = decode_response(message)
                if (lane := self.lanes.get(response.batch_id)) is not None:  # else it was cancelled meanwhile
                    lane.deliver(response)
            error = PeerUnavailable(f"{endpoint} ended the session: {await self._call.details() or 'no reason given'}")
        except FrameError as malformed:
            error = PeerAnswerWrong(f"{endpoint} sent what is not a frame: {malformed}")
        except grpc.aio.AioRpcError as failure:
            error = PeerUnavailable(f"{endpoint}: {failure.details()}")
        except asyncio.CancelledError:
            error = PeerUnavailable(f"{endpoint}: the session was given up, as idle or as silent")
        except grpc.aio.UsageError as failure:  # read() on a call that has been cancelled
            error = PeerUnavailable(f"{endpoint}: {failure}")
        self._break(error)

    def _break(self, error: PeerError) -> None:
        self.broken = error
        self._peer.failed()
        self._outgoing.put_nowait(None)
        self._call.cancel()
        lanes, self.lanes = list(self.lanes.values()), {}
        for lane in lanes:
            lane.deliver(error)

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])


class PeerLane:
    """One sub-request under way: frames in the order of its entries, checked as they come.

    Its owner grants credit and takes frames; `cancel` when nobody wants the rest. Frames carry the indexes
    0 .. n-1, so the request's first_index must be 0.
    """

    def __init__(self, peer: _Peer, request: pb.BatchRequest, timeout_s: float) -> None:
        self.endpoint = peer.endpoint
        self._peer = peer
        self._request = request
        self._timeout_s = timeout_s
        self.credit_bytes = request.initial_credit_bytes
        """What the peer may still send; below 0 when its last frame was larger than what was left."""
        self._n = len(request.name)
        self._status: U8 = np.zeros(self._n, np.uint8)
        self._checksum: U32 = np.zeros(self._n, np.uint32)
        self._received = 0
        self._resume_offset = request.resume_offset
        self._partial: Frame | None = None
        self._inbox: deque[Response | PeerError] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._rejected_since: float | None = None
        self._end: pb.End | None = None
        self._begin()

    def _begin(self) -> None:
        self._session, self._batch_id = self._peer.begin(self, self._request)

    def deliver(self, event: Response | PeerError) -> None:
        self._inbox.append(event)
        self._changed.set()

    def grant(self, size_bytes: int) -> None:
        """Let the peer send more. The time of its silence begins anew when it could not send before."""
        if self._ended:
            return
        self.credit_bytes += size_bytes
        self._request.initial_credit_bytes += size_bytes  # for the case that the batch has to be asked for again
        credit = pb.Credit(payload_bytes=size_bytes)
        self._session.send(pb.SessionRequest(batch_id=self._batch_id, credit=credit))
        self._changed.set()

    def cancel(self) -> None:
        """Abandon what has not come yet; harmless when it has ended."""
        if not self._ended:
            self._ended = True
            self._session.send(pb.SessionRequest(batch_id=self._batch_id, cancel=pb.Cancel()))
            self._session.forget(self._batch_id)

    async def next_frame(self) -> Frame | None:
        """The next frame; None when the answer has been found whole. Raises PeerError; the lane is over then."""
        try:
            while self._end is None:
                response = await self._next()
                if response.reject is not None:
                    await self._come_back(response.reject)
                    continue
                self._end = response.end
                if response.frame is not None:
                    self._take(response.frame)
                    return response.frame
            self._finish(self._end)
            return None
        except PeerError as error:
            if not isinstance(error, PeerRefused | PeerBusy):
                self._peer.failed()
            self.cancel()
            raise

    async def _next(self) -> Response:
        while not self._inbox:
            self._changed.clear()
            expecting = self.credit_bytes > 0 or self._received == self._n
            try:
                async with asyncio.timeout(self._timeout_s if expecting else None):
                    await self._changed.wait()
            except TimeoutError:
                if self._changed.is_set():
                    continue
                self._session.give_up_if_silent(self._timeout_s)
                raise PeerSilent(
                    f"{self.endpoint} sent nothing for {self._timeout_s:g} s, after {self._received:,} of {self._n:,} "
                    "entries"
                ) from None
        event = self._inbox.popleft()
        if isinstance(event, PeerError):
            raise event
        return event

    async def _come_back(self, reject: pb.Reject) -> None:
        now = time.monotonic()
        self._rejected_since = self._rejected_since or now
        if now - self._rejected_since > self._timeout_s:
            raise PeerBusy(f"{self.endpoint} was too busy for {self._timeout_s:g} s: {reject.reason}")
        self._session.forget(self._batch_id)
        pause_s = max(0.001, reject.retry_after_ms / 1000)
        await asyncio.sleep(random.uniform(pause_s, 2 * pause_s))
        self._begin()

    # -- checking

    def _take(self, frame: Frame) -> None:
        self._rejected_since = None
        self.credit_bytes -= len(frame.payload)
        count = len(frame.index)
        first, stop = self._received, self._received + count
        if not count or stop > self._n or (frame.index != np.arange(first, stop, dtype=np.uint32)).any():
            raise PeerAnswerWrong(f"{self.endpoint}: entries {frame.index.tolist()[:4]} came where {first} was due")
        if frame.piece is not None or self._partial is not None or (first == 0 and self._resume_offset):
            self._check_piece(frame)
        if not frame.completes_entry:
            self._partial = frame
            return
        self._partial = None
        self._status[first:stop] = frame.status
        self._checksum[first:stop] = frame.checksum
        self._received = stop

    def _check_piece(self, frame: Frame) -> None:
        before, piece = self._partial, frame.piece
        if before is not None:
            assert before.piece is not None
            due = before.piece.offset + len(before.payload)
        else:
            due = self._resume_offset if self._received == 0 else 0
        if piece is None:
            fits = bool(frame.status[0] != pb.OK)
        else:
            fits = piece.offset == due
            if fits and before is not None and before.piece is not None:
                fits = (piece.entry_size, piece.version) == (before.piece.entry_size, before.piece.version)
        if not fits:
            raise PeerAnswerWrong(
                f"{self.endpoint}: {piece or 'a whole entry'} came where the piece at {due:,} was due"
            )

    def _finish(self, end: pb.End) -> None:
        self._ended = True
        self._session.forget(self._batch_id)
        if end.outcome == pb.End.REFUSED:
            raise PeerRefused(f"{self.endpoint}: {end.message}", end.error_kind)
        status, checksum = self._status[: self._received], self._checksum[: self._received]
        got = (self._received, int(np.count_nonzero(status)), digest(status, checksum))
        said = (end.entries, end.failed_entries, end.digest)
        if got != said or self._received != self._n:
            raise PeerAnswerWrong(
                f"{self.endpoint}: (entries, failed, digest) should be {said}, are {got}, of {self._n:,} entries"
            )
