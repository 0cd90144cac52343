"""Small reads with the shortest way there and back: sessions that are used by one caller at a time.

A shared session has a thread that sorts what arrives, and handing an answer from thread to thread costs as much as the
answer itself. Here the caller drives its own stream: one request, one batch of one entry, whatever comes until END.
Anything but a complete good answer is left to the ordinary way, which knows how to retry, resume and explain.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable

from ais_loader.checksum import crc32c
from ais_loader.errors import SilenceTimeout
from ais_loader.transport.direct import Stream
from protos import ais_batch_pb2 as pb
from protos.frame import FrameError, decode_response, decode_single

MAX_IDLE = 16
_CREDIT_BYTES = 1 << 40
"""The caller wants all of it in memory: nothing is gained by slowing the node down."""
_TICK_S = 0.25


_OK_SEED = crc32c(b"\0")


def _digest_of_ok(checksum: int) -> int:
    return crc32c(checksum.to_bytes(4, "little"), _OK_SEED)


class _Session:
    """One open session."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.batch_ids = itertools.count(1)
        self.deadline = float("inf")
        self.overdue = False
        self.last_use = False


class Exchange:
    """A pool of such sessions. Thread-safe; belongs to the process that made it."""

    def __init__(self, open_stream: Callable[[], Stream], verify_payload: bool) -> None:
        self._open_stream = open_stream
        self._verify_payload = verify_payload
        self._lock = threading.Lock()
        self._idle: list[_Session] = []  # guarded by _lock
        self._busy: set[_Session] = set()  # guarded by _lock
        self._watchdog: threading.Thread | None = None

    def get(self, request: pb.BatchRequest, timeout_s: float) -> bytes | memoryview | None:
        """The bytes of the request's one entry, or None when the ordinary way has to be taken.

        Raises SilenceTimeout when nothing arrives for `timeout_s`.
        """
        request.initial_credit_bytes = _CREDIT_BYTES
        try:
            session = self._take(timeout_s)
        except ValueError:  # gRPC's word for a channel that another thread has just closed
            return None
        keep = False
        try:
            data = self._ask(session, request, timeout_s)
            keep = True
        except Exception as error:  # whatever broke, the ordinary way meets it again and reports it
            if session.overdue:
                raise SilenceTimeout(f"nothing arrived for {timeout_s:g} s; is the node alive?") from error
            data = None
        finally:
            self._give_back(session, keep=keep)
        return data

    def _ask(self, session: _Session, request: pb.BatchRequest, timeout_s: float) -> bytes | memoryview | None:
        """Raises anything when the stream cannot be used again."""
        batch_id = next(session.batch_ids)
        message = session.stream.ask(pb.SessionRequest(batch_id=batch_id, request=request).SerializeToString())
        if (single := decode_single(message, batch_id, _digest_of_ok)) is not None:
            if self._verify_payload and crc32c(single[0]) != single[1]:
                raise FrameError("damaged on its way")
            return single[0]
        parts: list[memoryview] = []
        received, entry_size, status, checksum = 0, 0, 0, 0
        while True:
            response = decode_response(message)
            if response.batch_id != batch_id:
                raise FrameError(f"an answer to request {response.batch_id} where {batch_id} was asked")
            if (frame := response.frame) is not None:
                parts.append(frame.payload)
                received += len(frame.payload)
                status, checksum = frame.status.item(), frame.checksum.item()
                entry_size = frame.piece.entry_size if frame.piece is not None else received
                session.deadline = time.monotonic() + timeout_s
            if response.reject is not None:
                return None
            if (end := response.end) is not None:
                break
            message = session.stream.receive()
        if status or end.entries != 1 or end.failed_entries:
            return None
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if received != entry_size or end.digest != _digest_of_ok(checksum):
            raise FrameError("the answer does not add up")
        if self._verify_payload and crc32c(data) != checksum:
            raise FrameError("damaged on its way")
        return data

    # -- the pool

    def _take(self, timeout_s: float) -> _Session:
        with self._lock:
            session = self._idle.pop() if self._idle else _Session(self._open_stream())
            session.deadline = time.monotonic() + timeout_s
            self._busy.add(session)
            if self._watchdog is None:
                # A weak reference: an exchange that nobody uses any more ends its watchdog with itself.
                self._watchdog = threading.Thread(
                    target=_watch, args=(weakref.ref(self),), name="ais-loader watchdog", daemon=True
                )
                self._watchdog.start()
        return session

    def _give_back(self, session: _Session, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(session)
            keep = keep and not session.last_use and len(self._idle) < MAX_IDLE
            if keep:
                self._idle.append(session)
        if not keep:
            session.stream.close()

    def cancel_overdue(self) -> None:
        """End the streams that have been silent for too long; whoever waits for one is woken."""
        now = time.monotonic()
        with self._lock:
            overdue = [session for session in self._busy if session.deadline < now]
        for session in overdue:
            session.overdue = True
            session.stream.cancel()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
            for session in busy:
                session.last_use = True
        for session in idle:
            session.stream.close()
        for session in busy:  # whoever waits there wakes up and closes it
            session.stream.cancel()


def _watch(reference: weakref.ref[Exchange]) -> None:
    while (exchange := reference()) is not None:
        exchange.cancel_overdue()
        del exchange
        time.sleep(_TICK_S)
