"""Batch stream over sessions: grants credit, resumes when a session breaks, and verifies that the answer is complete.

Every entry arrives exactly once. When a session breaks, the rest is requested again, from the first missing entry on. A
large entry continues at the byte where it stopped, in the version it began with. The counts and the digest in END are
compared with what arrived, so a short or altered answer is an error and never a short batch.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from ais_loader import errors
from ais_loader.transport.retry import RetryBudget
from ais_loader.transport.session.session import Broken, Event, Inbox, Session
from ais_loader.wire.answer_check import AnswerCheck, DamagedEntry, compare_unchecked
from ais_loader.wire.frame import Frame, FramedStream, FrameError, Response
from ais_loader.wire.gather.frame_edit import torn
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits

WINDOW_BYTES = 8 << 20
"""Payload that a node may send ahead of the consumer, for each batch on a shared session."""


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """Limits after which a batch gives up."""

    timeout_s: float
    """Longest silence of a connected node."""
    retry_s: float
    """Time for which reconnects and rejections are retried without any progress."""
    verify_payload: bool


class Answers(Protocol):
    """Answers to one batch request. Belongs to one thread, except `cancel`."""

    def next(self, timeout_s: float) -> Event:
        """Wait for the next event. Raises queue.Empty after `timeout_s`. No event follows END, a reject or Broken."""

    def grant(self, payload_bytes: int) -> None:
        """Grant credit: the consumer has released this many bytes, and the node may send as many more."""

    def cancel(self) -> None:
        """Abandon the batch; a thread that waits in `next` is notified. Never blocks, may be called repeatedly."""


class SharedAnswers:
    """Answers through a session, whose reading thread distributes the events of several batches."""

    def __init__(self, session: Session, request: pb.BatchRequest) -> None:
        request.initial_credit_bytes = WINDOW_BYTES
        self._session = session
        self._inbox: Inbox = queue.SimpleQueue()
        self._unreturned_bytes = 0
        self._batch_id = session.begin(request, self._inbox)

    def next(self, timeout_s: float) -> Event:
        return self._inbox.get(timeout=timeout_s)

    def grant(self, payload_bytes: int) -> None:
        """Return credit in steps of a quarter of the window."""
        self._unreturned_bytes += payload_bytes
        if self._unreturned_bytes >= WINDOW_BYTES // 4:
            self._session.grant(self._batch_id, self._unreturned_bytes)
            self._unreturned_bytes = 0

    def cancel(self) -> None:
        self._session.cancel(self._batch_id)
        self._inbox.put(Broken(errors.Closed("this batch has been closed")))  # another thread may be waiting


class GrpcStream(FramedStream):
    """A `FrameStream`. Belongs to one thread, except `close`.

    Args:
        ask: sends a request with its initial credit; raises NodeUnavailable, Closed.
        node: name of the node, for messages.
    """

    def __init__(
        self, request: pb.BatchRequest, start: Callable[[pb.BatchRequest], Answers], policy: StreamPolicy, node: str
    ) -> None:
        self._node = node
        self._request = request
        self._start = start
        self._policy = policy
        self._pid = os.getpid()
        self._check = AnswerCheck(
            len(request.name), request.first_index, may_stop=request.fail_fast, verify=policy.verify_payload
        )
        self._patience = RetryBudget(policy.retry_s)
        self.retries = self.hedged = 0
        self.paused_s = 0.0
        """Time spent waiting before those retries."""
        self.waits = NodeWaits()
        self._consumed_bytes = 0
        """Payload of the last frame, which the consumer may use until it requests the next one."""
        self._done = self._closed = False
        self._answers: Answers | None = None
        self._failure: errors.LoaderError | None = None
        """Error of a request that could not be sent."""
        request.receiver_checks = True
        self._begin(self._request)

    def node_of(self, index: int) -> str:
        return self._node

    def __next__(self) -> Frame:
        if self._pid != os.getpid():
            raise errors.Closed(
                "this batch was requested by the parent process before it forked: request a new one in this process"
            )
        while not self._done:
            if self._closed:
                raise errors.Closed("this batch has been closed")
            if self._consumed_bytes and self._answers is not None:
                self._answers.grant(self._consumed_bytes)
                self._consumed_bytes = 0
            event = self._wait()
            if isinstance(event, Broken):
                self._try_again(event.error)
            elif event.reject is not None:
                busy = errors.Overloaded(f"the node is too busy: {event.reject.reason}")
                self._try_again(busy, event.reject.retry_after_ms / 1000)
            else:
                try:
                    frame = None if event.frame is None else self._checked(event.frame)
                except DamagedEntry:
                    self._request_checked()
                    continue
                if event.end is not None:
                    self._finish(event.end)
                if frame is not None:
                    self._consumed_bytes = len(frame.payload)
                    return frame
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        if self._answers is not None and self._pid == os.getpid() and not self._done:
            self._answers.cancel()

    # -- asking

    def _begin(self, request: pb.BatchRequest) -> None:
        self._answers = None
        try:
            self._answers = self._start(request)
        except errors.NodeUnavailable as error:
            self._failure = error
            return
        if self._closed:  # closed by another thread in the meantime
            self._answers.cancel()

    def _resume(self) -> None:
        """Request the entries that have not arrived yet."""
        self._begin(self._check.rest_of(self._request, self._check.received))

    def _request_checked(self) -> None:
        """Request the rest with verification by the node: bytes that the node had not verified were wrong."""
        if self._answers is not None:
            self._answers.cancel()
        self._request.receiver_checks = False
        self._request.verify_ranges = True  # otherwise the node would not verify a range before it sends it
        self.retries += 1
        self._resume()

    def _try_again(self, error: errors.LoaderError, at_least_s: float = 0.0) -> None:
        began_s = time.perf_counter()
        try:
            self._patience.pause(error, at_least_s)
        except errors.LoaderError:
            self._done = True
            raise
        finally:
            self.paused_s += time.perf_counter() - began_s
        self.retries += 1
        self._resume()

    def _wait(self) -> Response | Broken:
        if self._answers is None:
            assert self._failure is not None
            return Broken(self._failure)
        try:
            return self._answers.next(self._policy.timeout_s)
        except queue.Empty:
            self.close()
            self._done = True
            raise errors.SilenceTimeout(
                f"nothing arrived for {self._policy.timeout_s:g} s, after {self._check.received:,} of "
                f"{self._check.n:,} entries; is the node alive? Retry, or raise timeout_s"
            ) from None

    # -- receiving

    def _checked(self, frame: Frame) -> Frame:
        last = self._check.partial
        compare_unchecked(frame)
        try:
            self._check.take(frame)
        except FrameError as error:
            self._fail(error)
        self._patience.progress()
        return frame if last is None or last.piece is None else torn(frame, last.piece.offset + len(last.payload))

    def _finish(self, end: pb.End) -> None:
        self._done = True
        if end.outcome == pb.End.REFUSED:
            raise errors.from_node(end.error_kind, end.message)
        try:
            self._check.finish(end)
            self.waits.add(end.waits)
        except FrameError as error:
            self._fail(error)

    def _fail(self, error: FrameError) -> NoReturn:
        self.close()
        self._done = True
        raise errors.LoaderError(f"the node's answer does not add up: {error}") from error
