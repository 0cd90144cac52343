"""Reshard: packs the objects of one bucket into tar shards of another one, in the order of their names.

The objects of a shard arrive side by side, and those of the next one meanwhile. A shard is visible when it is complete.
Its metadata have a digest of what it was made of, so a second run makes only what is not there yet, and equal objects
make equal shards, byte for byte. Copies of remote objects that were stored for it are removed afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ais_loader import errors
from ais_loader.name_matching import Patterns, matcher, pattern_list
from ais_loader.objects.opened_batch import opened_archive
from ais_loader.objects.put_spec import put_spec
from ais_loader.objects.remote.warm import evict, warm
from ais_loader.transport.base import PAGE_SIZE, Transport, member_name_fault, require_text
from ais_loader.values.changes import OnProgress, ReshardSummary, Tally
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.requests import BatchOptions
from ais_loader.values.source import Source
from ais_loader.wire.reserved import ETAG_VERSION, REMOTE_ETAG

DIGEST = "reshard-digest"
"""Key of a shard's metadata: a digest of the names, sizes and versions of its objects, in order."""


def reshard(
    transport: Transport,
    source: str,
    to: Transport,
    target: str,
    *,
    prefix: str,
    pattern: Patterns | None,
    shard_bytes: int,
    shard_name: str,
    progress: OnProgress | None,
) -> ReshardSummary:
    """See `Bucket.reshard`."""
    require_text(prefix, errors.InvalidRequest, "prefix")
    patterns = pattern_list("pattern", pattern)
    if isinstance(shard_bytes, bool) or not isinstance(shard_bytes, int) or shard_bytes < 1:
        raise errors.InvalidRequest(f"shard_bytes={shard_bytes!r}: need a number of bytes, at least 1")
    _name_of(shard_name, 0)
    if source == target:
        raise errors.InvalidRequest("reshard: the shards would be among the objects: choose another bucket")
    to.bucket(target)
    is_remote = transport.bucket(source).remote is not None
    made = kept = 0
    with Tally(progress) as tally, contextlib.closing(_Ahead(transport, source, is_remote=is_remote)) as ahead:
        groups = _groups(transport, source, prefix, patterns, shard_bytes)
        shards = _named(groups, to, target, shard_name)
        following = next(shards, None)
        while following is not None:
            name, infos, is_made = following
            fetching = ahead.begin([] if is_made else infos)
            following = next(shards, None)
            if is_made:
                kept += 1
                for _ in infos:
                    tally.add_skipped()
                continue
            if following is not None and not following[2]:
                ahead.begin(following[1])
            fetching.result()
            _put(transport, infos, to, target, name)
            made += 1
            ahead.forget(infos)
            for info in infos:
                tally.add_done(info.size_bytes)
    return ReshardSummary(made=made, kept=kept, objects=tally.done, size_bytes=tally.size_bytes)


def _named(
    groups: Iterable[list[ObjectInfo]], to: Transport, target: str, shard_name: str
) -> Iterator[tuple[str, list[ObjectInfo], bool]]:
    """Yield the name of each shard, its objects, and whether it is there. Raises InvalidRequest if another one is."""
    for number, infos in enumerate(groups):
        name = _name_of(shard_name, number)
        try:
            digest = to.head(target, name).metadata.get(DIGEST)
        except errors.ObjectNotFound:
            yield name, infos, False
            continue
        if digest != _digest(infos):
            raise errors.InvalidRequest(
                f"{target}/{name} exists, and was not made of these {len(infos):,} objects: delete it, or choose "
                "another name for the shards"
            )
        yield name, infos, True


def _groups(
    transport: Transport, source: str, prefix: str, patterns: Sequence[str], shard_bytes: int
) -> Iterator[list[ObjectInfo]]:
    """Yield the objects of each shard. Those of one sample, whose names are equal up to the first dot after the last
    slash, are not divided."""
    fits = matcher(patterns)
    group: list[ObjectInfo] = []
    sample: list[ObjectInfo] = []
    group_bytes = sample_bytes = 0
    for info in transport.objects(source, prefix=prefix, page_size=PAGE_SIZE):
        if patterns and not fits(info.name):
            continue
        if fault := member_name_fault(info.name):
            raise errors.InvalidName(f"{source}/{info.name} cannot be a member of a tar: {fault}")
        if sample and _sample_of(info.name) != _sample_of(sample[0].name):
            if group and group_bytes + sample_bytes > shard_bytes:
                yield group
                group, group_bytes = [], 0
            group += sample
            group_bytes += sample_bytes
            sample, sample_bytes = [], 0
        sample.append(info)
        sample_bytes += tarfile.BLOCKSIZE + info.size_bytes + -info.size_bytes % tarfile.BLOCKSIZE
    if group and group_bytes + sample_bytes > shard_bytes:
        yield group
        group = []
    if group or sample:
        yield group + sample


def _sample_of(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _name_of(shard_name: str, number: int) -> str:
    try:
        name = shard_name.format(number)
        is_numbered = shard_name.format(1) != shard_name.format(2)
    except (ValueError, LookupError, AttributeError, TypeError):
        name, is_numbered = "", False
    if not is_numbered or not name.endswith(".tar"):
        raise errors.InvalidRequest(
            f"shard_name={shard_name!r}: need a name with a place for the number that ends in .tar, such as "
            "'shard-{:06d}.tar'"
        )
    return name


def _digest(infos: Sequence[ObjectInfo]) -> str:
    digest = hashlib.sha256()
    for info in infos:
        # A copy has the remote object's ETag in its metadata; any other object is known by its checksum.
        known = info.metadata.get(REMOTE_ETAG, f"{info.checksum:08x}") if info.is_stored else info.version
        etag = known.removeprefix(ETAG_VERSION)
        digest.update(f"{len(info.name.encode())} {info.name} {info.size_bytes} {etag}\n".encode())
    return digest.hexdigest()


def _put(transport: Transport, infos: Sequence[ObjectInfo], to: Transport, target: str, name: str) -> None:
    entries = [Entry(info.bucket, info.name) for info in infos]
    options = BatchOptions()
    with opened_archive(transport, entries, archive="tar", archive_names="object", options=options) as archive:
        source = Source(io.BufferedReader(_Reader(iter(archive))))
        # Another run may have made it meanwhile: equal objects make equal shards.
        with contextlib.suppress(errors.VersionConflict):
            to.put(put_spec(target, name, source, metadata={DIGEST: _digest(infos)}, if_absent=True), source)


class _Reader(io.RawIOBase):
    """File of chunks of bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._left:
            self._left = memoryview(next(self._chunks, b""))
        size_bytes = min(len(buffer), len(self._left))
        buffer[:size_bytes] = self._left[:size_bytes]
        self._left = self._left[size_bytes:]
        return size_bytes


class _Ahead:
    """Fetches the cold objects of the next shard while one is written, and removes their copies afterwards."""

    def __init__(self, transport: Transport, bucket: str, *, is_remote: bool) -> None:
        self._transport, self._bucket = transport, bucket
        self._is_remote = is_remote
        self._pool = ThreadPoolExecutor(1, "ais-loader reshard")
        self._fetches: dict[str, Future[object]] = {}

    def begin(self, infos: Sequence[ObjectInfo]) -> Future[object]:
        """Begin to fetch what is cold, unless that has begun."""
        cold = [info.name for info in infos if not info.is_stored]
        if not self._is_remote or not cold:
            done: Future[object] = Future()
            done.set_result(None)
            return done
        if cold[0] not in self._fetches:
            self._fetches[cold[0]] = self._pool.submit(self._warm, cold)
        return self._fetches[cold[0]]

    def _warm(self, cold: Sequence[str]) -> None:
        warm(self._transport, self._bucket, cold, "", None, on_error="raise", progress=None)

    def forget(self, infos: Sequence[ObjectInfo]) -> None:
        """Remove the copies of what was cold."""
        cold = [info.name for info in infos if not info.is_stored]
        if self._is_remote and cold:
            del self._fetches[cold[0]]
            evict(self._transport, self._bucket, cold, "", None)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
