"""Messages of a PUT: an object's description and its bytes, or the error that a store would return."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ais_loader import errors
from ais_loader.transport.base import PutSpec
from ais_loader.transport.session.call_lane import PUT, CallLane
from ais_loader.transport.validation import require_bucket, require_metadata, require_text
from ais_loader.transport.write_tries import WriteTries
from ais_loader.values.content import Source
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import DATA, LAST


def put_header(spec: PutSpec) -> pb.PutHeader:
    """Build the header. Raises BucketNotFound, InvalidName, InvalidRequest for values that no message can carry."""
    _check(spec)
    header = pb.PutHeader(
        bucket=spec.bucket,
        name=spec.name,
        metadata=spec.metadata,
        size_bytes=spec.size_bytes,
        checksum=spec.checksum,
    )
    set_condition(header.condition, spec)
    return header


def set_condition(condition: pb.PutCondition, spec: PutSpec) -> None:
    tries = spec.tries
    condition.write_id = tries.write_id
    if spec.if_absent:
        condition.if_absent = True
    if spec.if_version:
        condition.if_version = spec.if_version
    if tries.in_doubt:
        condition.repeat_ms = tries.repeat_ms


def put_messages(spec: PutSpec, source: Source, failure: list[Exception]) -> Iterator[pb.PutRequest]:
    """Yield the messages of one attempt of a PUT, from its header to its end.

    An exception of the caller's own file is appended to `failure`. The stream then ends early, and nothing is stored.
    """
    yield pb.PutRequest(header=put_header(spec))
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


def put_by_lane(
    lane: CallLane, spec: PutSpec, source: Source, failed: Callable[[Exception], errors.LoaderError]
) -> pb.ObjectInfo:
    """Make one attempt of a PUT through a lane. Raises LoaderError (`failed` translates a broken connection), and what
    the caller's own file raises."""
    with lane.call(PUT, failed) as call:
        call.send(pb.PutRequest(header=put_header(spec)).SerializeToString(), more=True)
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
