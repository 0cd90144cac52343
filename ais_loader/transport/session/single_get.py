"""Single GET: small reads on the fastest path, on sessions that one caller uses at a time.

A shared session has a thread that distributes what arrives, and handing an answer from thread to thread costs as much
as the answer itself. Here the caller drives its own stream: one request, one batch of one entry, and all messages until
END. Anything but a complete and correct answer is left to the ordinary path, which retries, resumes and explains.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ais_loader.errors import SilenceTimeout, TransformError, TransformFailed, TransformTimeout
from ais_loader.transport.session.lane import Lane
from ais_loader.transport.session.stream_pool import PooledStream, StreamPool
from ais_loader.values.entry import entry_error
from ais_loader.wire.answer_check import AnswerCheck, compare_unchecked, digest_of_ok
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import (
    EntryFault,
    FrameError,
    decode_opened,
    decode_response,
    decode_single,
    decode_single_parts,
    single_prefix_bytes,
)
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb

_CREDIT_BYTES = 1 << 40
"""The caller wants all of the object in memory, so slowing the node down gains nothing."""
_APART_BYTES = 64 << 10
"""Objects of at least this size are received into memory of their own, not copied out of a message."""
T = TypeVar("T", bytes, memoryview)
R = TypeVar("R")


class SingleGet:
    """Single GETs on the streams of a pool. Thread-safe; belongs to the process that made it."""

    def __init__(self, pool: StreamPool, verify_payload: bool) -> None:
        self._pool = pool
        self._verify_payload = verify_payload

    def get(self, request: pb.BatchRequest, timeout_s: float) -> bytes | memoryview | None:
        """Return the bytes of the request's only entry, or None if the ordinary path has to be taken.

        Raises SilenceTimeout after `timeout_s` without a message. For an entry with transforms, raises their errors,
        because a failed transform is not requested twice.
        """
        request.receiver_checks = True
        return self._exchanged(self._exchange, request, timeout_s)

    def open(
        self, request: pb.BatchRequest, timeout_s: float
    ) -> tuple[bytes | memoryview, objects_pb.ObjectInfo] | None:
        """Return the bytes of the request's only entry, none if it has more than `whole_up_to`, and the object's
        description; or None if the object has to be looked up.

        Raises SilenceTimeout after `timeout_s` without a message.
        """
        request.receiver_checks = True
        return self._exchanged(self._exchange_to_open, request, timeout_s)

    def _exchanged(
        self, exchange: Callable[[PooledStream, pb.BatchRequest, float], R], request: pb.BatchRequest, timeout_s: float
    ) -> R | None:
        """Return the result of `exchange` on a stream of the pool; None if it fails."""
        request.initial_credit_bytes = _CREDIT_BYTES
        try:
            session = self._pool.take(time.monotonic() + timeout_s)
        except ValueError:  # gRPC's error for a channel that another thread has just closed
            return None
        keep = False
        found: R | None = None
        failure: TransformError | None = None
        with session.lock:
            try:
                found = exchange(session, request, timeout_s)
                keep = True
            except TransformError as error:
                keep, failure = True, error
            except Exception as error:  # the ordinary path meets the same failure and reports it
                if session.overdue:
                    raise SilenceTimeout(f"nothing arrived for {timeout_s:g} s; is the node alive?") from error
            finally:
                self._pool.release(session, keep=keep)
        if failure is not None:
            raise failure
        return found

    def _exchange(self, session: PooledStream, request: pb.BatchRequest, timeout_s: float) -> bytes | memoryview | None:
        """Send the request and receive the answer. Raises any error if the stream cannot be used again."""
        batch_id = next(session.batch_ids)
        encoded = pb.SessionRequest(batch_id=batch_id, request=request).SerializeToString()
        kinds = (pb.TRANSFORMED,) if request.transform else (pb.STORED, pb.UNCHECKED)
        if isinstance(session.stream, Lane):

            def cut(size_bytes: int) -> int:
                return single_prefix_bytes(batch_id, size_bytes) if size_bytes >= _APART_BYTES else 0

            prefix, payload = session.stream.exchange_in_parts(encoded, cut)
            for kind in kinds if prefix else ():
                if (checksum := decode_single_parts(prefix, payload, batch_id, digest_of_ok, kind)) is not None:
                    return self._compared(payload, checksum, kind)
            message = prefix + payload
        else:
            message = bytes(session.stream.exchange(encoded))  # gRPC returns bytes already
        for kind in kinds:
            if (single := decode_single(message, batch_id, digest_of_ok, kind)) is not None:
                return self._compared(*single, kind)
        gathered = self._gathered(session, request, message, batch_id, timeout_s)
        return None if gathered is None else gathered[0]

    def _exchange_to_open(
        self, session: PooledStream, request: pb.BatchRequest, timeout_s: float
    ) -> tuple[bytes | memoryview, objects_pb.ObjectInfo] | None:
        """Like `_exchange`, for an answer that describes the object."""
        batch_id = next(session.batch_ids)
        encoded = pb.SessionRequest(batch_id=batch_id, request=request).SerializeToString()
        message = session.stream.exchange(encoded)
        for kind in (pb.STORED, pb.UNCHECKED):
            if (opened := decode_opened(message, batch_id, digest_of_ok, kind)) is not None:
                payload, checksum, described = opened
                return self._compared(payload, checksum, kind), described
        response = decode_response(message)
        if response.frame is None and response.end is not None and response.batch_id == batch_id:
            return (b"", response.end.object) if response.end.HasField("object") else None
        gathered = self._gathered(session, request, message, batch_id, timeout_s)
        return None if gathered is None or not gathered[1].HasField("object") else (gathered[0], gathered[1].object)

    def _compared(self, data: T, checksum: int, kind: int) -> T:
        if (self._verify_payload or kind == pb.UNCHECKED) and crc32c(data) != checksum:
            raise FrameError("damaged, on its way or before")
        return data

    def _gathered(
        self,
        session: PooledStream,
        request: pb.BatchRequest,
        message: bytes | memoryview,
        batch_id: int,
        timeout_s: float,
    ) -> tuple[bytes | memoryview, pb.End] | None:
        """Return the entry and END from an answer that begins with this message and is not in the short form."""
        parts: list[memoryview] = []
        checksum, check, failure = 0, AnswerCheck(1), None
        while True:
            response = decode_response(message)
            if response.batch_id != batch_id:
                raise FrameError(f"an answer to request {response.batch_id} where {batch_id} was asked")
            if (frame := response.frame) is not None:
                compare_unchecked(frame)
                check.take(frame)
                if request.transform and frame.status[0]:
                    fault = frame.errors.get(0, EntryFault(""))
                    failure = entry_error(int(frame.status[0]), fault.message, fault.kind)
                elif request.transform and frame.checksum_kind[0] != pb.TRANSFORMED:
                    raise FrameError("an entry as it is stored")  # the ordinary path reports of which node
                if frame.begins_again:
                    parts.clear()
                parts.append(frame.payload)
                checksum = frame.checksum.item()
                session.deadline = time.monotonic() + timeout_s
            if response.reject is not None:
                return None
            if (end := response.end) is not None:
                break
            message = session.stream.receive()
        if isinstance(failure, TransformFailed | TransformTimeout):
            raise failure
        if end.entries != 1 or end.failed_entries:
            return None
        check.finish(end)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._verify_payload and crc32c(data) != checksum:
            raise FrameError("damaged on its way")
        return data, end
