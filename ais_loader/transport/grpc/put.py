"""PUTs through a lane or over gRPC: one attempt for one object, and the stream of many small ones.

Groups of small objects are sent ahead of their acknowledgements, and sent again if the stream breaks before an
acknowledgement arrived.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grpc

from ais_loader import errors
from ais_loader.transport.base import PutSpec, object_info, require_bucket, require_metadata, require_text
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.watchdog import CALL_TIMEOUT_S, Watchdog
from ais_loader.transport.retry import RetryBudget, WriteTries, leaves_doubt
from ais_loader.transport.session.call_lane import PUT, CallLane
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.source import Source
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import DATA, LAST, MAX_PUT_MESSAGE_BYTES

LARGE_BYTES = 4 << 20
"""Objects of at least this size are PUTs of their own, which may continue as long as their bytes move."""


def put_object(conn: Connection, header: pb.PutHeader, spec: PutSpec, source: Source) -> pb.ObjectInfo:
    """Make one attempt. Raises LoaderError, gRPC's errors, and what the caller's own file raises."""
    spec.tries.begin(all_sent=False)
    set_condition(header.condition, spec)
    # A node rejects a header that is too large with a gRPC error.
    by_lane = header.ByteSize() <= MAX_PUT_MESSAGE_BYTES // 2
    if by_lane and (lane := conn.put_lanes.take(PUT)) is not None:
        return _put_by_lane(conn, lane, header, spec, source)
    failure: list[Exception] = []
    messages = put_messages(header, spec, source, failure)
    try:
        if source.size_bytes is not None and source.size_bytes < LARGE_BYTES:
            stored: pb.ObjectInfo = conn.objects.Put(messages, timeout=CALL_TIMEOUT_S)
            return stored
        return _put_large(conn, messages)
    except grpc.RpcError:
        if failure:
            raise failure[0] from None
        raise


def put_header(spec: PutSpec) -> pb.PutHeader:
    """Build the header, without its condition. Raises BucketNotFound, InvalidName, InvalidRequest for values that no
    message can carry."""
    _check(spec)
    return pb.PutHeader(
        bucket=spec.bucket, name=spec.name, metadata=spec.metadata, size_bytes=spec.size_bytes, checksum=spec.checksum
    )


def set_condition(condition: pb.PutCondition, spec: PutSpec) -> None:
    tries = spec.tries
    condition.write_id = tries.write_id
    if spec.if_absent:
        condition.if_absent = True
    if spec.if_version:
        condition.if_version = spec.if_version
    if tries.in_doubt:
        condition.repeat_ms = tries.repeat_ms


def put_messages(
    header: pb.PutHeader, spec: PutSpec, source: Source, failure: list[Exception]
) -> Iterator[pb.PutRequest]:
    """Yield the messages of one attempt of a PUT, from its header to its end.

    An exception of the caller's own file is appended to `failure`. The stream then ends early, and nothing is stored.
    """
    yield pb.PutRequest(header=header)
    size_bytes = checksum = 0
    try:
        for chunk in source.chunks():
            data = bytes(chunk)
            size_bytes, checksum = size_bytes + len(data), crc32c(data, checksum)
            yield pb.PutRequest(data=data)
    except Exception as error:  # noqa: BLE001 - raised again by the thread that called put()
        failure.append(error)
        return
    spec.tries.sent()
    yield pb.PutRequest(end=pb.PutEnd(size_bytes=size_bytes, checksum=checksum))


def _put_by_lane(
    conn: Connection, lane: CallLane, header: pb.PutHeader, spec: PutSpec, source: Source
) -> pb.ObjectInfo:
    with lane.call(PUT, conn.lane_broke) as call:
        call.send(pb.PutRequest(header=header).SerializeToString(), more=True)
        size_bytes = checksum = 0
        for chunk in source.chunks(copied=False):
            call.send(chunk, DATA, more=True)
            # Computed while the node writes the chunks; the node compares after the last one.
            size_bytes, checksum = size_bytes + len(chunk), crc32c(chunk, checksum)
            if call.is_answered:
                break
        else:
            spec.tries.sent()
            end = pb.PutEnd(size_bytes=size_bytes, checksum=checksum)
            call.send(pb.PutRequest(end=end).SerializeToString(), LAST)
        return pb.ObjectInfo.FromString(call.answer())


def _put_large(conn: Connection, messages: Iterator[pb.PutRequest]) -> pb.ObjectInfo:
    watchdog = Watchdog(CALL_TIMEOUT_S)

    def watched() -> Iterator[pb.PutRequest]:
        for message in messages:
            watchdog.note_progress()
            yield message

    call = conn.objects.Put.future(watched())
    with watchdog.guard(call.cancel):
        try:
            stored: pb.ObjectInfo = call.result()
        except grpc.FutureCancelledError as error:
            if watchdog.fired:
                raise errors.SilenceTimeout(
                    f"{conn.endpoint}: a PUT made no progress for {CALL_TIMEOUT_S:g} s"
                ) from error
            raise conn.cancelled() from error
    return stored


def small_object(spec: PutSpec, data: bytes) -> pb.SmallObject:
    """Build one object of a group. Raises like `put_header`, and ContentMismatch for a size that was not announced."""
    _check(spec)
    if spec.size_bytes is not None and len(data) != spec.size_bytes:
        raise errors.ContentMismatch(f"{spec.name!r}: announced {spec.size_bytes:,} bytes, got {len(data):,}")
    checksum = crc32c(data) if spec.checksum is None else spec.checksum
    small = pb.SmallObject(bucket=spec.bucket, name=spec.name, checksum=checksum, data=data)
    # In place: building a message and copying it into another one costs twice as much as all of this.
    if spec.metadata:
        small.metadata.update(spec.metadata)
    set_condition(small.condition, spec)
    return small


def spec_of(small: pb.SmallObject, doubtful_since_s: float | None) -> PutSpec:
    """Rebuild the spec from which `small_object` made the message. `doubtful_since_s`: see `WriteTries`."""
    condition = small.condition
    return PutSpec(
        bucket=small.bucket,
        name=small.name,
        metadata=dict(small.metadata),
        size_bytes=len(small.data),
        checksum=small.checksum,
        if_absent=condition.if_absent,
        if_version=condition.if_version or None,
        tries=WriteTries(condition.write_id, doubtful_since_s),
    )


def _check(spec: PutSpec) -> None:
    require_bucket(spec.bucket)
    require_text(spec.name, errors.InvalidName, "object name")
    require_metadata(spec.metadata)
    checksum = spec.checksum
    if checksum is not None and not (isinstance(checksum, int) and 0 <= checksum < 1 << 32):
        raise errors.InvalidRequest(f"checksum={checksum!r}: need an integer of 32 bits")


GROUP_BYTES = 1 << 20
GROUP_OBJECTS = 256
_GROUPS_AHEAD = 4

Result: TypeAlias = ObjectInfo | errors.LoaderError
Group: TypeAlias = list[pb.SmallObject]


class PutAnswers:
    """The acknowledgements of one PutMany call."""

    def __init__(self, call: Any, translate: Callable[[Exception], errors.LoaderError]) -> None:
        self._call = call
        self._translate = translate
        self._watchdog = Watchdog(CALL_TIMEOUT_S).guard(call.cancel)
        self._watchdog.rest()

    def __next__(self) -> pb.PutManyResponse:
        self._watchdog.note_progress()
        try:
            answer: pb.PutManyResponse = next(self._call)
        except grpc.RpcError as error:
            if self._watchdog.fired:
                raise errors.SilenceTimeout(f"nothing was acknowledged for {CALL_TIMEOUT_S:g} s") from error
            raise self._translate(error) from error
        self._watchdog.rest()
        return answer

    def close(self) -> None:
        self._watchdog.stop()
        self._call.cancel()


OpenStream: TypeAlias = Callable[[Iterator[pb.PutManyRequest]], PutAnswers]


class _SentGroup:
    """A group that has been sent."""

    def __init__(self, objects: Group) -> None:
        self.objects = objects
        self.began_s: float | None = None
        """Start of its transmission on the current stream."""
        self.doubtful_since_s: float | None = None
        """Start of the first attempt that may have taken effect."""

    def request(self) -> pb.PutManyRequest:
        if self.doubtful_since_s is not None:
            repeat_ms = WriteTries(doubtful_since_s=self.doubtful_since_s).repeat_ms
            for small in self.objects:
                small.condition.repeat_ms = repeat_ms
        return pb.PutManyRequest(object=self.objects)


class PutGroupStream:
    """Sends groups, with up to _GROUPS_AHEAD of them unacknowledged."""

    def __init__(self, open_stream: OpenStream, retry_s: float) -> None:
        self.open_stream = open_stream
        self._patience = RetryBudget(retry_s)
        self._unacknowledged: deque[_SentGroup] = deque()
        self._outgoing: queue.SimpleQueue[_SentGroup | None] = queue.SimpleQueue()
        self._answers: PutAnswers | None = None
        self.doubtful_since_s: float | None = None
        """For the object whose result comes now: start of the first attempt that may have stored it, if any."""

    def send(self, group: Group) -> Iterator[Result]:
        """Send a group. Yields the results that have arrived meanwhile."""
        sent = _SentGroup(group)
        self._unacknowledged.append(sent)
        if self._answers is None:
            self._reopen()
        else:
            self._outgoing.put(sent)
        while len(self._unacknowledged) >= _GROUPS_AHEAD:
            yield from self._receive()

    def flush(self) -> Iterator[Result]:
        """Wait for all acknowledgements."""
        while self._unacknowledged:
            yield from self._receive()

    @property
    def in_doubt(self) -> bool:
        """Whether an unacknowledged object may have been stored."""
        return any(sent.doubtful_since_s is not None for sent in self._unacknowledged)

    def doubts(self) -> Iterator[float | None]:
        """Yield, for each unacknowledged object, the start of the first attempt that may have stored it, if any."""
        for sent in self._unacknowledged:
            yield from [sent.doubtful_since_s] * len(sent.objects)

    def close(self) -> None:
        """End the stream. Unacknowledged objects may have been stored."""
        self._outgoing.put(None)
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    def _reopen(self) -> None:
        outgoing = self._outgoing = queue.SimpleQueue()
        for sent in self._unacknowledged:
            outgoing.put(sent)

        def requests() -> Iterator[pb.PutManyRequest]:
            for sent in iter(outgoing.get, None):
                if self._outgoing is outgoing:
                    sent.began_s = time.monotonic()
                    yield sent.request()

        self._answers = self.open_stream(requests())

    def _receive(self) -> Iterator[Result]:
        if self._answers is None:
            self._reopen()
        assert self._answers is not None
        try:
            answer = next(self._answers)
        except (errors.LoaderError, StopIteration) as error:
            self.close()
            failure = (
                error if isinstance(error, errors.LoaderError) else errors.NodeUnavailable("the node ended the stream")
            )
            for sent in self._unacknowledged:
                if sent.began_s is not None and sent.doubtful_since_s is None and getattr(failure, "reached", True):
                    sent.doubtful_since_s = sent.began_s
                sent.began_s = None
            self._patience.pause(failure)
            return
        self._patience.progress()
        sent = self._unacknowledged.popleft()
        if len(answer.result) != len(sent.objects):
            raise errors.LoaderError(f"the node acknowledged {len(answer.result)} of {len(sent.objects)} objects")
        for result in answer.result:
            self.doubtful_since_s = sent.doubtful_since_s
            if result.WhichOneof("result") == "error":
                refusal = errors.from_node(result.error.kind, result.error.message)
                if self.doubtful_since_s is None and leaves_doubt(refusal):
                    self.doubtful_since_s = sent.began_s
                yield refusal
            else:
                yield object_info(result.info)
