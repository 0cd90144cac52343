"""Append: an object's bytes, followed by new ones, become its next version in one step on the store.

A reader sees the old object or the new one. Each append names the version that it extends. Of several concurrent
appends one succeeds first; the others read the new version and append to that, so that nothing is lost. Each append
makes the store copy the whole object. Data too large for a request is first stored as a part, and sent only once.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ais_loader import errors
from ais_loader.objects.compose_request import INLINE_BYTES, make_range, make_request
from ais_loader.objects.multipart import new_id, part_name, put_part, remove
from ais_loader.objects.put_spec import require_ordinary
from ais_loader.transport.base import Transport, member_name_fault
from ais_loader.transport.retry import RetryBudget, WriteTries
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.source import Content, Source
from ais_loader.values.urls import ARCHIVE_EXTENSIONS
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_compose_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects

_RETRY_S = 10.0
"""How long to retry while no node answers."""
_GET_TIMEOUT_S = 30.0
_BACKOFF = Backoff(0.01, 1.0)
_BLOCK = 512


class _Tail(NamedTuple):
    """The bytes to append."""

    part: pb.ComposePart
    size_bytes: int
    checksum: int


def append(transport: Transport, bucket: str, name: str, data: Content, timeout_s: float) -> ObjectInfo:
    """See Bucket.append."""
    require_ordinary(name)

    def read_end() -> tuple[str, int]:
        info = transport.head(bucket, name)
        return info.version, info.size_bytes

    with _stored(transport, bucket, Source(data)) as tail:
        return _append(transport, bucket, name, read_end, tail, lambda size_bytes: 0, timeout_s)


def append_members(
    transport: Transport, bucket: str, shard: str, members: Sequence[tuple[str, Content]], timeout_s: float
) -> ObjectInfo:
    """See Bucket.append_members."""
    require_ordinary(shard)
    if not shard.lower().endswith(".tar"):  # the store looks at what is there, but it may not be there
        kind = errors.ArchiveUnsupported if shard.lower().endswith(ARCHIVE_EXTENSIONS) else errors.NotAnArchive
        raise kind(f"{bucket}/{shard}: members can be added only to plain tars, whose names end in .tar")
    names = [name for name, _ in members]
    _check_members(names)

    def read_end() -> tuple[str, int]:
        end = transport.tar_end(pb.TarEndRequest(bucket=bucket, name=shard, member=names))
        if end.member:
            raise errors.MemberExists(f"{bucket}/{shard} has a member {end.member[0]!r} already; nothing was changed")
        return end.version, end.end_bytes

    def end_of_archive(size_bytes: int) -> int:
        zeros = 2 * _BLOCK
        return zeros + -(size_bytes + zeros) % tarfile.RECORDSIZE

    with _stored(transport, bucket, Source(b"".join(_packed(members)))) as tail:
        return _append(transport, bucket, shard, read_end, tail, end_of_archive, timeout_s)


def _append(
    transport: Transport,
    bucket: str,
    name: str,
    read_end: Callable[[], tuple[str, int]],
    tail: _Tail,
    zeros: Callable[[int], int],
    timeout_s: float,
) -> ObjectInfo:
    """Args:

    look: returns the current version, and the number of its bytes to keep.
    zeros: returns the number of zero bytes that follow a given number of bytes.
    """
    give_up_at = time.monotonic() + timeout_s
    overtaken = 0
    while True:
        tries = WriteTries()
        condition = objects.PutCondition(write_id=tries.write_id)
        kept: list[pb.ComposePart] = []
        kept_bytes = 0
        try:
            condition.if_version, kept_bytes = read_end()
        except errors.ObjectNotFound:
            condition.if_absent = True
        else:
            kept = [make_range(bucket, name, condition.if_version, 0, kept_bytes)]
        end = pb.ComposePart(data=bytes(zeros(kept_bytes + tail.size_bytes)))
        request = make_request(bucket, name, [*kept, tail.part, end], metadata=None if kept else {})
        request.object.condition.CopyFrom(condition)
        unanswered: errors.NodeUnavailable | None = None
        patience = RetryBudget(_RETRY_S)
        try:
            with tries.raise_if_unknown():
                while True:
                    try:
                        return transport.compose(request, retry=False, tries=tries)
                    except errors.NodeUnavailable as error:
                        unanswered = error
                        patience.pause(error)
        except (errors.VersionConflict, errors.ObjectNotFound):
            # Another writer was first, so the bytes have not been appended, unless the lost answer was a success.
            if unanswered is not None and _is_appended(transport, bucket, name, kept_bytes, tail):
                raise errors.OutcomeUnknown(f"{bucket}/{name}: it may have been appended: {unanswered}") from unanswered
            if time.monotonic() > give_up_at:
                raise
        time.sleep(_BACKOFF.pause_s(overtaken))
        overtaken += 1


def _is_appended(transport: Transport, bucket: str, name: str, at: int, tail: _Tail) -> bool:
    """Whether these bytes are at the position where they were to be appended; later appends do not move them."""
    checksum = 0
    try:
        for chunk in transport.get(
            bucket, name, start=at, length=tail.size_bytes, member=None, verify=True, timeout_s=_GET_TIMEOUT_S
        ):
            checksum = crc32c(bytes(chunk), checksum)
    except (errors.ObjectNotFound, errors.RangeError):
        return False
    return checksum == tail.checksum


@contextmanager
def _stored(transport: Transport, bucket: str, source: Source) -> Iterator[_Tail]:
    """Provide the bytes as a part of a request. If they are too large for it, they are stored meanwhile."""
    if source.size_bytes is not None and source.size_bytes <= INLINE_BYTES:
        data = source.read()
        yield _Tail(pb.ComposePart(data=data), len(data), crc32c(data))
        return
    name = part_name(new_id(), 1)
    info = put_part(transport, bucket, name, source, {})
    try:
        yield _Tail(make_range(bucket, name, info.version, 0, info.size_bytes), info.size_bytes, info.checksum)
    finally:
        with suppress(errors.LoaderError):  # what cannot be removed now is swept with old uploads
            remove(transport, bucket, name)


def _check_members(names: Sequence[str]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a member's name is a str, got {type(name).__name__}")
        if not name or "\0" in name or name.endswith("/"):
            raise errors.InvalidName(f"member {name!r}: need a name without a NUL character or a slash at its end")
        if fault := member_name_fault(name):
            raise errors.InvalidName(f"member {name!r}: {fault}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise errors.InvalidName(f"member {name!r}: a lone surrogate has no UTF-8 form") from None
    if len(set(names)) != len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise errors.MemberExists(f"member {twice!r} is given twice")


def _packed(members: Sequence[tuple[str, Content]]) -> Iterator[bytes]:
    """Yield headers (ustar where possible, PAX otherwise), contents and padding."""
    for name, data in members:
        content = Source(data).read()
        header = tarfile.TarInfo(name)
        header.size = len(content)
        header.mode = 0o644
        yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        yield content
        yield bytes(-len(content) % _BLOCK)
