"""Cold archives: finds members of archives that are not stored, and reads them by range.

The index of an archive is learned once for each version, however many readers wait: from the drive, or else by walking
the archive. Members that are wanted at nearly the same time, and lie near each other, are read with one request. All
requests are for one version. Whatever is doubtful, such as a damaged header, is left to the stored archive: the caller
has the archive stored, and reads it as usual.

Belongs to one event loop. A node walks for itself, not for its cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ais_loader.errors import ArchiveError, ArchiveUnsupported, LoaderError, MemberNotFound, RangeError
from ais_loader.wire.cold_reads import WHOLE_SHARE, Together, is_whole, near_ranges
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.single_flight import SingleFlight
from storage_node.remote.archives.cold_index import KINDS, ColdIndex, IndexSource
from storage_node.remote.archives.kept_indexes import KeptIndexes
from storage_node.remote.archives.sparse_source import MissingBytes, SparseSource
from storage_node.remote.archives.tar_walk import TAIL_BYTES, TarWalk, index_directory
from storage_node.remote.drivers.driver import RemoteObject
from storage_node.remote.location.backend import Backend
from storage_node.remote.location.backends import Backends
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.kinds import ArchiveKind, kind_of_name
from storage_node.store.archives.tar_header import BLOCK_BYTES
from storage_node.store.read.frame_plan import check_range

Key: TypeAlias = "tuple[bytes, str, str]"
"""UUID of the bucket, name and ETag."""
OPEN_INDEXES = 128
REFUSED_ARCHIVES = 1024
FOLDERS_KEPT = 10_000
TOGETHER_S = 0.005
"""How long a wanted member waits for others of its batch."""
_HINTS_SUFFIX = ".idx"
log = logging.getLogger(__name__)


class _Want(NamedTuple):
    start: int
    stop: int
    data: asyncio.Future[memoryview | None]


class ColdArchives:
    """
    Args:
        read: Runs a function that may take long, off the event loop.
        kept: Indexes on the drives.
    """

    def __init__(self, *, backends: Backends, read: Callable[..., Awaitable[Any]], kept: KeptIndexes) -> None:
        self._backends, self._read, self.kept = backends, read, kept
        self._flights = SingleFlight(0)
        self._indexes: OrderedDict[Key, ColdIndex] = OrderedDict()
        self._refused: OrderedDict[Key, None] = OrderedDict()
        """Archives that are better fetched as a whole."""
        self._without_hints: OrderedDict[tuple[bytes, str], None] = OrderedDict()
        """Folders in which an archive has no index beside it."""
        self._wants: dict[Key, list[_Want]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def read_member(
        self, bucket: RemoteBucket, archive: LargeObject, member: str, start: int, length: int
    ) -> bytes | memoryview | None:
        """Read a member, or a range of it, of this version of a cold archive; `length` -1: to its end. Returns None if
        the archive is to be stored instead.

        Raises MemberNotFound, ArchiveUnsupported, RangeError, RemoteChanged, RemoteUnavailable, RemoteDenied,
        ObjectNotFound.
        """
        info = archive.info
        found = await self.index(bucket, archive)
        if found is None:
            return None
        try:
            one = found.members.find(member)
        except (MemberNotFound, ArchiveUnsupported) as error:
            raise type(error)(f"{info.name!r} {error}") from None
        if fault := check_range(start, length, one.size_bytes):
            raise RangeError(f"{info.name!r}, member {member!r}: {fault}")
        length = one.size_bytes - start if length < 0 else length
        first, stop = found.range_of(one, start, length)
        if archive.note(stop - first) or length > archive.large_bytes:
            return None
        data = await self._wanted(bucket, archive, first, stop)
        if data is None:
            return None
        try:
            return await self._read(found.taken, one, start, length, data)  # type: ignore[no-any-return]
        except LoaderError as error:
            log.warning("%s/%s is fetched as a whole: %s", bucket.name, info.name, error)
            self._refuse(_key(bucket, info))
            return None

    async def index(self, bucket: RemoteBucket, archive: LargeObject) -> ColdIndex | None:
        """Return the index of an archive; None if the archive is to be stored instead. Raises what `read_member`
        raises."""
        info, key = archive.info, _key(bucket, archive.info)
        if archive.is_due or not info.etag or key in self._refused or kind_of_name(info.name) not in KINDS:
            return None
        found = self._indexes.get(key)
        if found is None or not found.members.is_whole:
            await self._flights.join(key, lambda: self._learn(bucket, info))
            found = self._indexes.get(key)
        if found is not None:
            self._indexes.move_to_end(key)
        return found

    async def _learn(self, bucket: RemoteBucket, info: RemoteObject) -> None:
        key, of = _key(bucket, info), (bucket.uuid, info.name, info.etag, info.size_bytes)
        found: ColdIndex | None = await self._read(self.kept.load, *of)
        if found is None:
            try:
                found = await self._walked(self._backends.of(bucket), bucket, info)
            except (ArchiveError, RangeError) as error:
                log.info("%s/%s is fetched as a whole: %s", bucket.name, info.name, error)
            if found is None:
                self._refuse(key)
                return
            await self._read(self.kept.keep, *of, found)
        self._indexes[key] = found
        while len(self._indexes) > OPEN_INDEXES:
            self._indexes.popitem(last=False)

    def _refuse(self, key: Key) -> None:
        self._indexes.pop(key, None)
        self._refused[key] = None
        while len(self._refused) > REFUSED_ARCHIVES:
            self._refused.popitem(last=False)

    # -- walking

    async def _walked(self, backend: Backend, bucket: RemoteBucket, info: RemoteObject) -> ColdIndex | None:
        """Learn an index from the remote storage; None if that costs more than the archive. Raises ArchiveError."""
        if kind_of_name(info.name) is ArchiveKind.ZIP:
            index = await self._walked_zip(backend, info)
            return None if index is None else ColdIndex(index, IndexSource.DIRECTORY)
        walk = TarWalk(info.name, info.size_bytes, share=WHOLE_SHARE, hints=await self._hints(backend, bucket, info))
        while ranges := walk.wanted():
            parts = await asyncio.gather(
                *(backend.read_range(info.name, start, stop - start, info.etag) for start, stop in ranges)
            )
            for (start, _), data in zip(ranges, parts, strict=True):
                walk.add(start, data)
            await self._read(walk.advance)
        return ColdIndex(await self._read(walk.finish), IndexSource.HEADERS) if walk.is_complete else None

    async def _walked_zip(self, backend: Backend, info: RemoteObject) -> MemberIndex | None:
        source, read_bytes = SparseSource(info.size_bytes), 0
        start, stop = max(0, info.size_bytes - TAIL_BYTES), info.size_bytes
        while True:
            read_bytes += stop - start
            if read_bytes > WHOLE_SHARE * info.size_bytes:
                return None
            source.add(start, await backend.read_range(info.name, start, stop - start, info.etag))
            try:
                return await self._read(index_directory, source)  # type: ignore[no-any-return]
            except MissingBytes as missing:
                start, stop = missing.start, min(missing.start + missing.length, source.next_known(missing.start))

    async def _hints(self, backend: Backend, bucket: RemoteBucket, info: RemoteObject) -> Sequence[int]:
        """Return the offsets of headers that an index of Lhotse beside the archive has; none if there is none."""
        folder = bucket.uuid, info.name.rpartition("/")[0]
        if folder in self._without_hints:
            return ()
        try:
            answer = await backend.get(info.name + _HINTS_SUFFIX)
            assert answer is not None
            async with answer:
                if answer.info.size_bytes <= 8 + info.size_bytes // BLOCK_BYTES * 8:
                    return hints_in(await answer.read(), info.size_bytes)
        except LoaderError:  # most often it does not exist
            self._without_hints[folder] = None
            while len(self._without_hints) > FOLDERS_KEPT:
                self._without_hints.popitem(last=False)
        return ()

    # -- reading

    async def _wanted(self, bucket: RemoteBucket, archive: LargeObject, start: int, stop: int) -> memoryview | None:
        """Read bytes of an archive, together with others that are wanted now; None if it is to be stored by then."""
        key, loop = _key(bucket, archive.info), asyncio.get_running_loop()
        wants = self._wants.get(key)
        if wants is None:
            wants = self._wants[key] = []
            loop.call_later(TOGETHER_S, self._send, bucket, archive)
        want = _Want(start, stop, loop.create_future())
        wants.append(want)
        return await want.data

    def _send(self, bucket: RemoteBucket, archive: LargeObject) -> None:
        wants = [want for want in self._wants.pop(_key(bucket, archive.info)) if not want.data.done()]
        if archive.is_due:
            for want in wants:
                want.data.set_result(None)
            return
        backend = self._backends.of(bucket)
        ranges = [(want.start, want.stop) for want in wants]
        for together in near_ranges(ranges, most_bytes=backend.settings.range_bytes):
            task = asyncio.create_task(self._read_together(backend, archive.info, together, wants))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _read_together(
        self, backend: Backend, info: RemoteObject, together: Together, wants: Sequence[_Want]
    ) -> None:
        mine = [wants[at] for at in together.of]
        try:
            data = await backend.read_range(info.name, together.start, together.stop - together.start, info.etag)
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            for want in mine:
                if not want.data.done():
                    want.data.set_exception(error)
            return
        except asyncio.CancelledError:
            for want in mine:
                want.data.cancel()
            raise
        for want in mine:
            if not want.data.done():
                want.data.set_result(data[want.start - together.start : want.stop - together.start])

    async def close(self) -> None:
        """Cancel what is in progress."""
        await self._flights.close()
        sending = list(self._sending)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


def hints_in(data: bytes, size_bytes: int) -> Sequence[int]:
    """Return the offsets of an index as Lhotse writes it beside a tar of this size: 64-bit numbers, the first header of
    each sample, and the size. None if it is not of this tar.

    Source: Lhotse 2.0.0a3, lhotse/indexing.py.
    """
    if len(data) % 8 or not data:
        return ()
    offsets = np.frombuffer(data, "<u8")
    if int(offsets[-1]) != size_bytes or (offsets[1:] <= offsets[:-1]).any() or (offsets[:-1] % BLOCK_BYTES).any():
        return ()
    found: list[int] = offsets[:-1].tolist()
    return found


def _key(bucket: RemoteBucket, info: RemoteObject) -> Key:
    return bucket.uuid, info.name, info.etag


@dataclass(slots=True)
class LargeObject:
    info: RemoteObject
    large_bytes: int
    """Objects of at most this size are stored at once. So is one of which a longer part is wanted."""
    described_s: float = 0.0
    """When the storage was asked for `info`, on the monotonic clock."""
    requested_bytes: int = 0
    """Bytes that readers have asked for, repeatedly or not."""

    @property
    def is_due(self) -> bool:
        """Whether the object is to be stored."""
        return is_whole(self.info.size_bytes, self.large_bytes, self.requested_bytes)

    def note(self, length: int) -> bool:
        """Count a part that a reader asks for. Returns whether the object is to be stored."""
        self.requested_bytes += max(0, length)
        return self.is_due or length > self.large_bytes
