"""Batch stream over sessions: keeps credit flowing, resumes when a session breaks, checks that the answer is whole.

Every entry arrives exactly once. When a session breaks, the rest is asked for anew, from the first entry that is
missing; a large entry goes on from its last byte, in the version it began with. END's counts and digest are compared
with what arrived, so a short or altered answer is an error and never a short batch.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ais_loader import errors
from ais_loader.checksum import crc32c
from ais_loader.transport.backoff import Patience
from ais_loader.transport.session.answers import Answers
from ais_loader.transport.session.session import Broken
from ais_loader.wire.frame import U8, U32, Frame, Response
from ais_loader.wire.generated import ais_batch_pb2 as pb


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """When a batch gives up."""

    timeout_s: float
    """Longest silence of a node that is connected."""
    retry_s: float
    """How long to go on reconnecting, or being told to come back, without any progress."""
    verify_payload: bool


class GrpcStream:
    """A `FrameStream`. Belongs to one thread, but for `close`.

    Args:
        ask: sends a request, with the credit that it begins with; raises NodeUnavailable, Closed.
    """

    def __init__(
        self, request: pb.BatchRequest, ask: Callable[[pb.BatchRequest], Answers], policy: StreamPolicy
    ) -> None:
        self._request = request
        self._ask = ask
        self._policy = policy
        self._pid = os.getpid()
        self._n = len(request.name)
        self._status: U8 = np.zeros(self._n, np.uint8)
        self._checksum: U32 = np.zeros(self._n, np.uint32)
        self._received = 0
        """Entries that have arrived whole; the next one is due."""
        self._base = 0
        """First entry that the current session was asked for."""
        self._partial: Frame | None = None
        self._patience = Patience(policy.retry_s)
        self.retries = self.hedged = 0
        self.paused_s = 0.0
        """Spent waiting before those."""
        self._taken_bytes = 0
        """Of the last frame, which the consumer has until it comes for the next."""
        self._done = self._closed = False
        self._answers: Answers | None = None
        self._failure: errors.LoaderError | None = None
        """Of asking: nothing has been sent."""
        self._begin(self._request)

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        if self._pid != os.getpid():
            raise errors.Closed("this batch was begun before a fork, in the parent: begin a new one here")
        while not self._done:
            if self._closed:
                raise errors.Closed("this batch has been closed")
            if self._taken_bytes and self._answers is not None:
                self._answers.grant(self._taken_bytes)
                self._taken_bytes = 0
            event = self._wait()
            if isinstance(event, Broken):
                self._try_again(event.error)
            elif event.reject is not None:
                busy = errors.Overloaded(f"the node is too busy: {event.reject.reason}")
                self._try_again(busy, event.reject.retry_after_ms / 1000)
            else:
                if event.frame is not None:
                    self._take(event.frame)
                if event.end is not None:
                    self._finish(event.end)
                if event.frame is not None:
                    self._taken_bytes = len(event.frame.payload)
                    return event.frame
        raise StopIteration

    def read_all(self) -> list[bytes] | None:
        return None  # what crosses a network comes in frames

    def close(self) -> None:
        self._closed = True
        if self._answers is not None and self._pid == os.getpid() and not self._done:
            self._answers.cancel()

    # -- asking

    def _begin(self, request: pb.BatchRequest) -> None:
        self._answers = None
        try:
            self._answers = self._ask(request)
        except errors.NodeUnavailable as error:
            self._failure = error
            return
        if self._closed:  # by another thread, meanwhile
            self._answers.cancel()

    def _resume(self) -> None:
        """Ask for what has not arrived yet."""
        rest = pb.BatchRequest()
        rest.CopyFrom(self._request)
        for column in ("bucket_index", "name", "member", "start", "length", "version"):
            values = getattr(rest, column)
            if values:
                kept = values[self._received :]
                del values[:]
                values.extend(kept)
        rest.first_index = self._request.first_index + self._received
        self._base = self._received
        if self._partial is not None and self._partial.piece is not None:
            rest.resume_offset = self._partial.piece.offset + len(self._partial.payload)
            rest.resume_checksum = int(self._partial.checksum[0])
            rest.resume_version = self._partial.piece.version
        self._begin(rest)

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
                f"nothing arrived for {self._policy.timeout_s:g} s, after {self._received:,} of {self._n:,} entries; "
                "is the node alive? Retry, or raise timeout_s"
            ) from None

    # -- receiving

    def _take(self, frame: Frame) -> None:
        first = int(frame.index[0]) - self._request.first_index if len(frame.index) else self._received
        stop = first + len(frame.index)
        gaps = len(frame.index) > 1 and (np.diff(frame.index.astype(np.int64)) != 1).any()
        if first != self._received or stop > self._n or gaps:
            self._fail(f"entry {first} arrived where {self._received} was due")
        if frame.piece is not None or self._partial is not None:
            self._check_piece(frame)
        if self._policy.verify_payload:
            self._verify(frame)
        self._patience.progress()
        if not frame.completes_entry:
            self._partial = frame
            return
        self._partial = None
        self._status[first:stop] = frame.status
        self._checksum[first:stop] = frame.checksum
        self._received = stop

    def _check_piece(self, frame: Frame) -> None:
        if not frame.continues(self._partial):
            after = self._partial.piece if self._partial is not None else "nothing"
            self._fail(f"entry {self._received}: {frame.piece or 'a whole entry'} arrived after {after}")

    def _verify(self, frame: Frame) -> None:
        # A piece's checksum covers the entry from its beginning.
        seed = int(self._partial.checksum[0]) if frame.piece is not None and self._partial is not None else 0
        if (index := damaged_entry(frame, seed)) is not None:
            self._fail(f"entry {index} was damaged on its way")

    def _finish(self, end: pb.End) -> None:
        self._done = True
        if end.outcome == pb.End.REFUSED:
            raise errors.from_kind(end.error_kind, end.message)
        status, checksum = self._status[self._base : self._received], self._checksum[self._base : self._received]
        got = (self._received - self._base, int(np.count_nonzero(status)), digest(status, checksum))
        said = (end.entries, end.failed_entries, end.digest)
        if got != said:
            self._fail(f"(entries, failed, digest) should be {said}, are {got}")
        stopped = end.outcome == pb.End.STOPPED and self._request.fail_fast and len(status) and status[-1]
        if self._received != self._n and not stopped:
            self._fail(f"it ended after {self._received:,} of {self._n:,} entries")

    def _fail(self, message: str) -> None:
        self.close()
        self._done = True
        raise errors.LoaderError(f"the node's answer does not add up: {message}")


def damaged_entry(frame: Frame, seed: int) -> int | None:
    """The first entry whose bytes have not the checksum that came with them. `seed`: that of the pieces before."""
    start = 0
    for index, size, expected in zip(frame.index.tolist(), frame.size.tolist(), frame.checksum.tolist(), strict=True):
        if size and crc32c(frame.payload[start : start + size], seed) != expected:
            return int(index)
        start += size
    return None


def digest(status: U8, checksum: U32) -> int:
    """END's, of entries in index order."""
    return crc32c(checksum.astype("<u4", copy=False).tobytes(), crc32c(status.tobytes()))
