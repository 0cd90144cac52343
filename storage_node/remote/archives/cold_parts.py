"""Parts of cold objects: ranges, and members of archives, that are read from the remote storage alone.

An object of which readers have asked for a large share is stored instead, and so is one that is not large. Each part is
of one version: when the object is replaced meanwhile, the part is read again from the new one, unless its reader wants
the old one.

Belongs to one event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ais_loader.errors import ArchiveUnsupported, DriveFull, MemberNotFound, ObjectReplaced, RangeError
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.single_flight import SingleFlight
from storage_node.remote.archives.cold_archives import ColdArchives, LargeObject
from storage_node.remote.archives.cold_index import ColdIndex
from storage_node.remote.archives.kept_indexes import KeptIndexes
from storage_node.remote.drivers.driver import RemoteChanged, RemoteObject
from storage_node.remote.location.backends import Backends
from storage_node.store.archives.kinds import require_archive
from storage_node.store.chunked_put import Spooled, spool_for
from storage_node.store.read.frame_plan import check_range
from storage_node.store.read.object_reader import MemberPage, page_of
from storage_node.store.store import Store

Data: TypeAlias = bytes | memoryview
T = TypeVar("T")
W = TypeVar("W")
Unstored: TypeAlias = Callable[[RemoteBucket, RemoteObject, int, int, DriveFull], W]
"""Returns a range of an object that no drive has room for."""
LARGE_KEPT = 10_000
"""Number of objects whose parts are counted."""
RESTARTS = 5
"""How often a part of an object that is being replaced is read again; then the object is stored."""


class WantedPage(NamedTuple):
    """Page of members to list; see `list_members`."""

    prefix: str
    first: int
    page_size: int
    version: str
    page_bytes: int = 1 << 20


class ColdParts:
    """
    Args:
        read: Runs a function that may wait for a drive, off the event loop.
        fetch: Has an object stored.
        kept: Indexes of cold archives.
        large_bytes: Objects of at most this size are stored at once.
    """

    def __init__(
        self,
        store: Store,
        *,
        backends: Backends,
        read: Callable[..., Awaitable[Any]],
        fetch: Callable[[RemoteBucket, str], Awaitable[None]],
        kept: KeptIndexes,
        large_bytes: int,
    ) -> None:
        self._store = store
        self._backends, self._read, self._fetch = backends, read, fetch
        self._large_bytes = large_bytes
        self._archives = ColdArchives(backends=backends, read=read, kept=kept)
        self._heads = SingleFlight(0)
        self._large: OrderedDict[tuple[bytes, str], LargeObject] = OrderedDict()
        """Cold objects of which parts are read."""

    async def range(
        self,
        bucket: RemoteBucket,
        name: str,
        start: int,
        length: int,
        etag: str,
        *,
        whole: Callable[[], Awaitable[W]],
        unstored: Unstored[W],
    ) -> tuple[Spooled, str] | W:
        """Read bytes of a large cold object without storing it. Returns them, and its version.

        Returns what `whole` returns when the object is stored instead, because it is not large, or because readers have
        asked for a large share of it; what `unstored` returns if no drive has room for the bytes.

        `length`: -1 for all bytes to the end. `etag`: the version that the reader wants; "" for the current one.

        Raises RangeError, ObjectReplaced, and what `Fetches.fetch` raises.
        """
        info: RemoteObject | None = None

        async def part(found: LargeObject) -> Data | None:
            nonlocal info
            info = found.info
            wanted = info.size_bytes - start if length < 0 else length
            if found.note(wanted):
                return None
            if fault := check_range(start, wanted, found.info.size_bytes):
                raise RangeError(f"{bucket.name}/{name}: {fault}")
            return await self._backends.of(bucket).read_range(name, start, wanted, found.info.etag)

        read: tuple[Data, str] | None = await self._part(bucket, name, etag, part)
        if read is None:
            return await self._instead(bucket, name, whole)
        data, version = read
        try:
            return await self._spooled(bucket, name, data, version)
        except DriveFull as full:
            assert info is not None
            return unstored(bucket, info, start, info.size_bytes - start if length < 0 else length, full)

    async def member(
        self, bucket: RemoteBucket, name: str, member: str, start: int, length: int, etag: str
    ) -> tuple[Spooled, str] | None:
        """Read a member of a large cold archive, or a range of it, like `range`.

        Returns None also when the members cannot be found for less than the archive costs, or look damaged.

        Raises MemberNotFound, ArchiveUnsupported, and what `range` raises.
        """

        async def part(found: LargeObject) -> Data | None:
            return await self._archives.read_member(bucket, found, member, start, length)

        read: tuple[Data, str] | None = await self._part(bucket, name, etag, part)
        if read is None:
            return await self._instead(bucket, name, lambda: self._fetch(bucket, name))
        data, version = read
        return await self._spooled(bucket, name, data, version)

    async def member_page(self, bucket: RemoteBucket, name: str, wanted: WantedPage) -> MemberPage | None:
        """List members of a cold archive. Returns None when it is stored instead.

        Raises NotAnArchive by its name, ObjectReplaced, and what `Fetches.fetch` raises.
        """
        require_archive(name)
        etag = wanted.version.removeprefix(ETAG_VERSION)
        if etag and etag == wanted.version:
            raise replaced(bucket, name, f"version {etag}")  # of a copy that has been evicted

        async def part(found: LargeObject) -> ColdIndex | None:
            return await self._archives.index(bucket, found)

        listed = await self._part(bucket, name, etag, part, described=True)
        if listed is None:
            return await self._instead(bucket, name, lambda: self._fetch(bucket, name))
        found, version = listed
        page = page_of(found.members, version, wanted.prefix, wanted.first, wanted.page_size, wanted.page_bytes)
        return page._replace(members=[one._replace(checksum=found.checksum(one)) for one in page.members])

    async def _part(
        self,
        bucket: RemoteBucket,
        name: str,
        etag: str,
        read: Callable[[LargeObject], Awaitable[T | None]],
        *,
        described: bool = False,
    ) -> tuple[T, str] | None:
        """Call `read` for one version of a cold object; return its result and the version. Return None if the object is
        to be stored instead.

        A read from the storage reports when the version has been replaced. `described`: `read` never reads from the
        storage, so the version is compared first.
        """
        key, began_s = (bucket.uuid, name), time.monotonic()
        for _ in range(RESTARTS):
            found = await self._object(bucket, name, etag, since_s=began_s if described else 0.0)
            try:
                part = await read(found)
            except (MemberNotFound, ArchiveUnsupported, RangeError):
                if (await self._object(bucket, name, etag, since_s=began_s)).info.etag == found.info.etag:
                    raise
                continue
            except RemoteChanged:
                self._large.pop(key, None)
                if etag:
                    raise replaced(bucket, name, f"the ETag {etag}") from None
                continue
            return None if part is None else (part, ETAG_VERSION + found.info.etag)
        return None

    async def _instead(self, bucket: RemoteBucket, name: str, store: Callable[[], Awaitable[W]]) -> W:
        """Have the object stored instead of reading parts of it."""
        try:
            return await store()
        finally:
            self._large.pop((bucket.uuid, name), None)  # not before: those that come meanwhile join

    async def _object(self, bucket: RemoteBucket, name: str, etag: str, *, since_s: float = 0.0) -> LargeObject:
        """Return what is known of a cold object since then. The remote storage is asked if it is nothing."""
        key = bucket.uuid, name
        found = self._large.get(key)
        for _ in range(3):  # a flight that is joined may have begun earlier
            # With an ETag, what is known may be outdated itself.
            if found is not None and found.described_s >= since_s and etag in ("", found.info.etag):
                return found
            began_s = time.monotonic()
            await self._heads.join(key, lambda: self._learn(bucket, name))
            found = self._large.get(key)
            if found is not None and found.described_s >= began_s:
                break
        found = found or await self._described(bucket, name)
        if etag and etag != found.info.etag:
            raise replaced(bucket, name, f"the ETag {etag}")
        return found

    async def _learn(self, bucket: RemoteBucket, name: str) -> None:
        found = await self._described(bucket, name)
        known = self._large.pop((bucket.uuid, name), None)
        if known is not None and known.info.etag == found.info.etag:
            known.described_s = found.described_s
            found = known
        self._large[bucket.uuid, name] = found
        while len(self._large) > LARGE_KEPT:
            self._large.popitem(last=False)

    async def _described(self, bucket: RemoteBucket, name: str) -> LargeObject:
        described_s = time.monotonic()
        return LargeObject(await self._backends.of(bucket).head(name), self._large_bytes, described_s)

    async def _spooled(self, bucket: RemoteBucket, name: str, data: Data, version: str) -> tuple[Spooled, str]:
        spooled: Spooled = await self._read(spool_for, self._store, f"{bucket.name}/{name}")
        try:
            await self._read(spooled.write, data)
        except BaseException:
            spooled.close()
            raise
        return spooled, version

    async def close(self) -> None:
        """Cancel what is in progress."""
        await self._archives.close()
        await self._heads.close()


def replaced(bucket: RemoteBucket, name: str, version: str) -> ObjectReplaced:
    """Return the error for a version that is gone from the remote storage."""
    return ObjectReplaced(f"{bucket.name}/{name}: the remote object does not have {version} any more")
