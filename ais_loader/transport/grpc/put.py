"""One attempt of a PUT, through a lane or over gRPC: an object's description and its bytes, in messages."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from ais_loader import errors
from ais_loader.transport.base import PutSpec
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.watchdog import CALL_TIMEOUT_S, Watchdog
from ais_loader.transport.session.call_lane import PUT, CallLane
from ais_loader.transport.validation import require_bucket, require_metadata, require_text
from ais_loader.transport.write_tries import WriteTries
from ais_loader.values.source import Source
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import DATA, LAST, MAX_PUT_MESSAGE_BYTES

LARGE_BYTES = 4 << 20
"""Objects of at least this size are PUTs of their own, which may continue as long as their bytes move."""


def put_object(here: Connection, header: pb.PutHeader, spec: PutSpec, source: Source) -> pb.ObjectInfo:
    """Make one attempt. Raises LoaderError, gRPC's errors, and what the caller's own file raises."""
    spec.tries.begin(all_sent=False)
    set_condition(header.condition, spec)
    # A node rejects a header that is too large with a gRPC error.
    by_lane = header.ByteSize() <= MAX_PUT_MESSAGE_BYTES // 2
    if by_lane and (lane := here.put_lanes.take(PUT)) is not None:
        return _put_by_lane(here, lane, header, spec, source)
    failure: list[Exception] = []
    messages = put_messages(header, spec, source, failure)
    try:
        if source.size_bytes is not None and source.size_bytes < LARGE_BYTES:
            stored: pb.ObjectInfo = here.objects.Put(messages, timeout=CALL_TIMEOUT_S)
            return stored
        return _put_large(here, messages)
    except grpc.RpcError:
        if failure:
            raise failure[0] from None
        raise


def put_header(spec: PutSpec) -> pb.PutHeader:
    """Build the header, without its condition. Raises BucketNotFound, InvalidName, InvalidRequest for values that no
    message can carry."""
    _check(spec)
    return pb.PutHeader(
        bucket=spec.bucket,
        name=spec.name,
        metadata=spec.metadata,
        size_bytes=spec.size_bytes,
        checksum=spec.checksum,
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
    here: Connection, lane: CallLane, header: pb.PutHeader, spec: PutSpec, source: Source
) -> pb.ObjectInfo:
    with lane.call(PUT, here.lane_broke) as call:
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


def _put_large(here: Connection, messages: Iterator[pb.PutRequest]) -> pb.ObjectInfo:
    watchdog = Watchdog(CALL_TIMEOUT_S)

    def watched() -> Iterator[pb.PutRequest]:
        for message in messages:
            watchdog.seen()
            yield message

    call = here.objects.Put.future(watched())
    with watchdog.guard(call.cancel):
        try:
            stored: pb.ObjectInfo = call.result()
        except grpc.FutureCancelledError as error:
            if watchdog.fired:
                raise errors.SilenceTimeout(
                    f"{here.endpoint}: a PUT made no progress for {CALL_TIMEOUT_S:g} s"
                ) from error
            raise here.cancelled() from error
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
