"""Sub-request to a peer: verifies its frames as they arrive, manages its credit, and defines its errors."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ais_loader.wire.answer_check import AnswerCheck
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.frame import Frame, FrameError, Response
from ais_loader.wire.generated import ais_batch_pb2 as pb

_LATE_S = 0.05
"""A timer that fires later than this shows that the process, or its machine, was suspended."""


class PeerError(Exception):
    """A peer did not answer a sub-request correctly. One string argument."""


class PeerUnavailable(PeerError):
    """There is no connection, or it broke."""


class PeerSilent(PeerError):
    """Nothing arrived for the whole time-out, although the peer had credit."""


class PeerBusy(PeerError):
    """The peer rejected the sub-request until the time-out was over."""


class PeerAnswerWrong(PeerError):
    """The peer's response failed verification."""


class PeerRefused(PeerError):
    """The peer cannot serve the sub-request as a whole; `kind` is the error kind in its END."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class PeerStream:
    """One sub-request in progress: frames in the order of its entries, verified as they arrive.

    Its owner grants credit and takes frames, and calls `cancel` if the rest is not needed. Frames carry the indexes 0
    .. n-1, so the request's first_index must be 0.
    """

    def __init__(
        self,
        endpoint: str,
        request: pb.BatchRequest,
        timeout_s: float,
        *,
        begin: Callable[[PeerStream, pb.BatchRequest], tuple[Any, int]],
        failed: Callable[[PeerError], None],
    ) -> None:
        """
        Args:
            begin: sends the request to the peer; returns the session and the batch's id on it.
            failed: called with the error if the peer fails.
        """
        self.endpoint = endpoint
        self._begin_on_peer, self._failed = begin, failed
        self._request = request
        self._timeout_s = timeout_s
        self.credit_bytes = request.initial_credit_bytes
        """Bytes that the peer may still send; negative if its last frame was larger than the credit."""
        self._check = AnswerCheck(len(request.name), resume_offset=request.resume_offset)
        self._inbox: deque[Response | PeerError] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._rejected_since: float | None = None
        self.end: pb.End | None = None
        """None before it has come."""
        self._begin()

    def _begin(self) -> None:
        self._session, self._batch_id = self._begin_on_peer(self, self._request)

    def deliver(self, event: Response | PeerError) -> None:
        self._inbox.append(event)
        self._changed.set()

    def grant(self, size_bytes: int) -> None:
        """Let the peer send more. Its silence is measured from now if it had no credit before."""
        if self._ended:
            return
        self.credit_bytes += size_bytes
        self._request.initial_credit_bytes += size_bytes  # in case the sub-request is sent again
        credit = pb.Credit(payload_bytes=size_bytes)
        self._session.send(pb.SessionRequest(batch_id=self._batch_id, credit=credit))
        self._changed.set()

    def cancel(self) -> None:
        """Abandon what has not arrived. Harmless after the end."""
        if not self._ended:
            self._ended = True
            self._session.send(pb.SessionRequest(batch_id=self._batch_id, cancel=pb.Cancel()))
            self._session.forget(self._batch_id)

    async def next_frame(self) -> Frame | None:
        """Return the next frame; None after the complete, verified response. Raises PeerError, after which the stream
        has ended."""
        try:
            while self.end is None:
                response = await self._next()
                if response.reject is not None:
                    await self._come_back(response.reject)
                    continue
                self.end = response.end
                if response.frame is not None:
                    self._take(response.frame)
                    return response.frame
            self._finish(self.end)
            return None
        except PeerError as error:
            if not isinstance(error, PeerRefused | PeerBusy):
                self._failed(error)
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
                    stood_still = True  # this process was suspended: frames may have arrived unread
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
        """Return the request for what has not arrived, after the peer has ended the batch in favor of others."""
        rest = self._check.rest_of(self._request, self._check.received - self._request.first_index)
        rest.initial_credit_bytes = max(0, self.credit_bytes)
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
