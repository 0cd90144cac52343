"""Append: an object's bytes, followed by new ones, become its next version in one step on the store.

A reader sees the old object or the new one. Each append names the version that it extends. Of several concurrent
appends one succeeds first; the others read the new version and append to that, so that nothing is lost. Each append
makes the store copy the whole object. Data too large for a request is first stored as a part, and sent only once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ais_loader import errors
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.objects.multipart import new_id, part_name, put_part, remove
from ais_loader.objects.put_spec import INLINE_BYTES, make_range, make_request, require_ordinary
from ais_loader.transport.base import Transport
from ais_loader.transport.retry import RetryBudget, WriteTries
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.source import Content, Source
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_compose_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects

_RETRY_S = 10.0
"""How long to retry while no node answers."""
_GET_TIMEOUT_S = 30.0
_BACKOFF = Backoff(0.01, 1.0)


class _Tail(NamedTuple):
    """The bytes to append."""

    part: pb.ComposePart
    size_bytes: int
    checksum: int


class BucketAppending(BucketPart):
    """Appends."""

    def append(self, name: str, data: Content, *, timeout_s: float = 60.0) -> ObjectInfo:
        """Append bytes to an object atomically. An object that does not exist is created. The metadata do not change.

        Readers see the old object or the new one. If several writers append at once, the bytes of each are there
        afterwards, in some order. The store copies the whole object each time, so combine many small appends into one.

        Args:
            timeout_s: How long to retry while others write the same object, in seconds.

        Raises VersionConflict when that time is over, and otherwise the errors of `put`. After OutcomeUnknown or
        SilenceTimeout, the bytes may have been appended, but at most once.
        """
        transport, bucket = self._transport, self.name
        require_ordinary(name)
        with _stored(transport, bucket, Source(data)) as tail:
            give_up_at = time.monotonic() + timeout_s
            overtaken = 0
            while True:
                tries = WriteTries()
                condition = objects.PutCondition(write_id=tries.write_id)
                kept: list[pb.ComposePart] = []
                kept_bytes = 0
                try:
                    info = transport.head(bucket, name)
                except errors.ObjectNotFound:
                    condition.if_absent = True
                else:
                    condition.if_version, kept_bytes = info.version, info.size_bytes
                    kept = [make_range(bucket, name, info.version, 0, kept_bytes)]
                request = make_request(bucket, name, [*kept, tail.part], metadata=None if kept else {})
                request.object.condition.CopyFrom(condition)
                unanswered: errors.LoaderError | None = None
                patience = RetryBudget(_RETRY_S)
                try:
                    with tries.raise_if_unknown():
                        while True:
                            try:
                                return transport.compose(request, retry=False, tries=tries)
                            except (errors.NodeUnavailable, errors.WriteTooLate) as error:
                                unanswered = error
                                patience.pause(error)
                except (errors.VersionConflict, errors.ObjectNotFound):
                    # Another writer was first: the bytes have not been appended, unless the lost answer was a success.
                    if unanswered is not None and _is_appended(transport, bucket, name, kept_bytes, tail):
                        unknown = f"{bucket}/{name}: it may have been appended: {unanswered}"
                        raise errors.OutcomeUnknown(unknown) from unanswered
                    if time.monotonic() > give_up_at:
                        raise
                time.sleep(_BACKOFF.pause_s(overtaken))
                overtaken += 1


def _is_appended(transport: Transport, bucket: str, name: str, at: int, tail: _Tail) -> bool:
    """Whether these bytes are at the position where they were to be appended; later appends do not move them."""
    checksum = 0
    try:
        there = Entry(bucket, name, None, at, tail.size_bytes)
        for chunk in transport.get(there, verify=True, timeout_s=_GET_TIMEOUT_S):
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
