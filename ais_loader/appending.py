"""Appending: the object's bytes as they are, and some more, become its next version in one step on the store.

A reader sees the old object or the new one. Whoever appends names the version that it appends to: of several at once
one is first, and the others look again and append to what that has made, so that nothing is lost. Each time the store
copies the whole object. Bytes that are too many for a request are stored as a part first, and are sent once.
"""

from __future__ import annotations

import os
import random
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ais_loader import errors, parts
from ais_loader.composing import INLINE_BYTES, make_range, make_request
from ais_loader.content import Content, Source
from ais_loader.entry import ObjectInfo
from ais_loader.transport.base import Transport
from ais_loader.urls import ARCHIVE_EXTENSIONS
from protos import ais_compose_pb2 as pb

TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
_BLOCK = 512


def append(transport: Transport, bucket: str, name: str, data: Content, timeout_s: float) -> ObjectInfo:
    """See Bucket.append."""
    parts.require_ordinary(name)

    def look() -> tuple[ObjectInfo, int]:
        there = transport.head(bucket, name)
        return there, there.size_bytes

    with _stored(transport, bucket, Source(data)) as tail:
        return _append(transport, bucket, name, look, lambda _: tail, timeout_s)


def append_members(
    transport: Transport, bucket: str, shard: str, members: Sequence[tuple[str, Content]], timeout_s: float
) -> ObjectInfo:
    """See Bucket.append_members."""
    parts.require_ordinary(shard)
    if not shard.lower().endswith(".tar"):  # the store looks at what is there, but it may not be there
        kind = errors.ArchiveUnsupported if shard.lower().endswith(ARCHIVE_EXTENSIONS) else errors.NotAnArchive
        raise kind(f"{bucket}/{shard}: members can be added to plain tars, named *.tar, alone")
    names = [name for name, _ in members]
    _check_members(names)

    def look() -> tuple[ObjectInfo, int]:
        end = transport.tar_end(pb.TarEndRequest(bucket=bucket, name=shard, member=names))
        if end.member:
            raise errors.MemberExists(f"{bucket}/{shard} has a member {end.member[0]!r} already; nothing was changed")
        return ObjectInfo(bucket, shard, end.size_bytes, end.version, 0, 0), end.end_bytes

    def trailer(begin: int) -> list[pb.ComposePart]:
        zeros = 2 * _BLOCK
        zeros += -(begin + tail_bytes + zeros) % tarfile.RECORDSIZE
        return [*tail, pb.ComposePart(data=bytes(zeros))]

    packed = b"".join(_packed(members))
    tail_bytes = len(packed)
    with _stored(transport, bucket, Source(packed)) as tail:
        return _append(transport, bucket, shard, look, trailer, timeout_s)


def _append(
    transport: Transport, bucket: str, name: str, look: Callable[[], tuple[ObjectInfo, int]],
    tail: Callable[[int], list[pb.ComposePart]], timeout_s: float,
) -> ObjectInfo:  # fmt: skip
    """`look` says what is there, and how many bytes of it are kept; `tail` what comes after so many."""
    give_up_at = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            there, kept_bytes = look()
        except errors.ObjectNotFound:
            request = make_request(bucket, name, tail(0), metadata={})
            request.object.condition.if_absent = True
        else:
            kept = make_range(bucket, name, there.version, 0, kept_bytes)
            request = make_request(bucket, name, [kept, *tail(kept_bytes)])
            request.object.condition.if_version = there.version
        request.object.condition.write_id = os.urandom(16)
        try:
            return transport.compose(request)
        except (errors.VersionConflict, errors.ObjectNotFound):
            if time.monotonic() > give_up_at:
                raise
        time.sleep(random.uniform(0, pause_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@contextmanager
def _stored(transport: Transport, bucket: str, source: Source) -> Iterator[list[pb.ComposePart]]:
    """Bytes as parts of a request; those that are too many for it lie in the store meanwhile."""
    if source.size_bytes is not None and source.size_bytes <= INLINE_BYTES:
        yield [pb.ComposePart(data=b"".join(source.chunks()))]
        return
    name = parts.part_name(parts.new_id(), 1)
    info = parts.put_part(transport, bucket, name, source, {})
    try:
        yield [make_range(bucket, name, info.version, 0, info.size_bytes)]
    finally:
        parts.remove(transport, bucket, name)


def _check_members(names: Sequence[str]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a member's name is a str, got {type(name).__name__}")
        if not name or "\0" in name or name.endswith("/"):
            raise errors.InvalidName(f"member {name!r}: need a name, without NUL and a slash at its end")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise errors.InvalidName(f"member {name!r}: a lone surrogate has no UTF-8 form") from None
    if len(set(names)) != len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise errors.MemberExists(f"member {twice!r} is given twice")


def _packed(members: Sequence[tuple[str, Content]]) -> Iterator[bytes]:
    """Headers, which are ustar wherever that will do and PAX otherwise, contents, padding."""
    for name, data in members:
        content = b"".join(Source(data).chunks())
        header = tarfile.TarInfo(name)
        header.size = len(content)
        header.mode = 0o644
        yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        yield content
        yield bytes(-len(content) % _BLOCK)
