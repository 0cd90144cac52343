"""Sub-request to a peer: its frames as they come, checked, its credit, and the errors that it can end in."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from ais_loader.wire.answer_check import AnswerCheck
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.batch_columns import entry_values
from ais_loader.wire.frame import Frame, FrameError, Response
from ais_loader.wire.generated import ais_batch_pb2 as pb

if TYPE_CHECKING:
    from storage_node.batch.peers import Peer

_LATE_S = 0.05
"""A timer that rings later than this says that the process, or its machine, stood still."""


class PeerError(Exception):
    """A peer did not answer a sub-request as it should have. One string argument."""


class PeerUnavailable(PeerError):
    """No connection, or one that broke."""


class PeerSilent(PeerError):
    """Nothing came for the whole time-out, with credit left to send."""


class PeerBusy(PeerError):
    """It told us to come back until our patience was over."""


class PeerAnswerWrong(PeerError):
    """What it sent does not add up."""


class PeerRefused(PeerError):
    """It cannot serve the sub-request as a whole; `kind` is END's."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class PeerStream:
    """One sub-request under way: frames in the order of its entries, checked as they come.

    Its owner grants credit and takes frames; `cancel` when nobody wants the rest. Frames carry the indexes
    0 .. n-1, so the request's first_index must be 0.
    """

    def __init__(self, peer: Peer, request: pb.BatchRequest, timeout_s: float) -> None:
        self.endpoint = peer.endpoint
        self._peer = peer
        self._request = request
        self._timeout_s = timeout_s
        self.credit_bytes = request.initial_credit_bytes
        """What the peer may still send; below 0 when its last frame was larger than what was left."""
        self._check = AnswerCheck(len(request.name), resume_offset=request.resume_offset)
        self._inbox: deque[Response | PeerError] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._rejected_since: float | None = None
        self._end: pb.End | None = None
        self._begin()

    def _begin(self) -> None:
        self._session, self._batch_id = self._peer.begin(self, self._request)

    @property
    def wait_us(self) -> int:
        """How long a read waits there before it begins, as its END said; 0 before."""
        return 0 if self._end is None else self._end.wait_us

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
        """The next frame; None when the answer has been found whole. Raises PeerError; the answer is over then."""
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
                self._peer.failed(error)
            self.cancel()
            raise

    async def _next(self) -> Response:
        stood_still = False
        while not self._inbox:
            self._changed.clear()
            expecting = self.credit_bytes > 0 or self._check.received == self._check.n
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout_s if expecting else None):
                    await self._changed.wait()
            except TimeoutError:
                if self._changed.is_set():
                    continue
                if not stood_still and time.monotonic() - began_s > self._timeout_s + _LATE_S:
                    stood_still = True  # it was this process that did: what has come meanwhile lies unread
                    continue
                self._session.give_up_if_silent(self._timeout_s)
                raise PeerSilent(
                    f"{self.endpoint} sent nothing for {self._timeout_s:g} s, after {self._check.received:,} of "
                    f"{self._check.n:,} entries"
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
        await asyncio.sleep(pause_s + Backoff(pause_s, pause_s).pause_s())
        if self._check.received or self._check.partial is not None:
            self._request = self._rest()
        self._begin()

    def _rest(self) -> pb.BatchRequest:
        """Of a peer that gave its place to others meanwhile: what has not come yet."""
        rest = pb.BatchRequest()
        rest.CopyFrom(self._request)
        came = self._check.received - self._request.first_index
        for values in entry_values(rest).values():
            del values[:came]
        rest.first_index = self._check.received
        rest.initial_credit_bytes = max(0, self.credit_bytes)
        self._check.ask_again()
        if (last := self._check.partial) is not None and last.piece is not None:
            rest.resume_offset = last.piece.offset + len(last.payload)
            rest.resume_checksum = int(last.checksum[0])
            rest.resume_version = last.piece.version
        elif came:
            rest.resume_offset, rest.resume_version = 0, ""
            rest.ClearField("resume_checksum")
        return rest

    # -- checking

    def _take(self, frame: Frame) -> None:
        self._rejected_since = None
        self.credit_bytes -= len(frame.payload)
        try:
            self._check.take(frame)
        except FrameError as wrong:
            raise PeerAnswerWrong(f"{self.endpoint}: {wrong}") from wrong

    def _finish(self, end: pb.End) -> None:
        self._ended = True
        self._session.forget(self._batch_id)
        if end.outcome == pb.End.REFUSED:
            raise PeerRefused(f"{self.endpoint}: {end.message}", end.error_kind)
        try:
            self._check.finish(end)
        except FrameError as wrong:
            raise PeerAnswerWrong(f"{self.endpoint}: {wrong}") from wrong
