"""Reads of remote buckets: have objects stored before they are read, or return their bytes while they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Iterable, Sequence

from ais_loader.errors import DriveFull, LoaderError, RemoteUnavailable
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.tasks import results_of
from storage_node.remote.archives.cold_parts import ColdParts, WantedPage, replaced
from storage_node.remote.arriving.arriving_part import ArrivingPart, NotStored, begun
from storage_node.remote.drivers.driver import RemoteObject
from storage_node.remote.fetching.fetches import Fetches
from storage_node.remote.tier_context import TierContext
from storage_node.store.chunked_put import Spooled
from storage_node.store.read.object_reader import MemberPage

FULL_LOGGED_S = 600.0
"""Interval of log messages about a full drive."""
log = logging.getLogger(__name__)


class RemoteReads:
    """Belongs to one event loop."""

    def __init__(self, tier: TierContext, fetches: Fetches) -> None:
        self._fetches, self._read, self._copies, self._space = fetches, tier.host.read, tier.copies, tier.space
        self._backends, self._write_back, self._arrivals = tier.backends, tier.write_back, tier.arrivals
        self._parts = ColdParts(
            tier.host.store,
            backends=tier.backends,
            read=tier.host.read,
            fetch=fetches.fetch,
            kept=tier.space.kept,
            large_bytes=tier.settings.large_object_bytes,
        )
        self.close = self._parts.close
        self._full_logged_s = -math.inf

    async def ensure(self, bucket: RemoteBucket, name: str) -> None:
        """Have an object in the store, current by the bucket's rule, before it is read.

        Raises ObjectNotFound, RemoteUnavailable, RemoteDenied, and what storing an object raises.
        """
        await self._space.hold(bucket, name, self._fetches.timeout_s)
        await self._ensure(bucket, name)
        await self._space.hold(bucket, name)

    async def _ensure(self, bucket: RemoteBucket, name: str) -> None:
        version = await self._copies.version_to_fetch(bucket, name)
        if version is not None:
            await self._fetches.fetch(bucket, name, version)

    async def ensure_all(self, objects: Iterable[tuple[RemoteBucket | None, str]]) -> None:
        """Call `ensure` for the objects of remote buckets at the same time. Errors are left to whoever reads them."""
        wanted = [(bucket, name) for bucket, name in dict.fromkeys(objects) if bucket is not None]
        await asyncio.gather(*(self.ensure(*one) for one in wanted), return_exceptions=True)

    async def warm(self, bucket: RemoteBucket, names: Sequence[str]) -> list[LoaderError | None]:
        """Have objects in the store. Returns None or the error for each name, in order."""
        return await results_of(self._ensure(bucket, name) for name in names)

    async def stream(
        self, bucket: RemoteBucket, name: str, *, etag: str = "", start: int = 0, length: int = -1
    ) -> ArrivingPart | None:
        """Have an object stored, but return bytes of the object as soon as some have arrived, or if the drive is full.

        Returns None when the object is stored. `etag`: the version that the reader wants; "" for the current one. If
        another one arrives, it is stored. `start`, `length`: the bytes that the reader wants.

        Raises RangeError, ObjectReplaced, and what fetching and storing an object raise.
        """
        key, label = (bucket.uuid, name), f"{bucket.name}/{name}"
        topic, handed_over = self._arrivals.join(key), False
        flight: asyncio.Future[None] | None = None
        try:
            flight = self._fetches.begin(bucket, name, with_bytes=True)
            while not flight.done() and (topic.arrival is None or topic.arrival.has_ended):
                await topic.moved(flight)
            if not flight.done() and topic.arrival is not None and etag in ("", topic.arrival.info.etag):
                info, leave = topic.arrival.info, lambda: self._arrivals.leave(key)
                read_range = self._backends.of(bucket).read_range
                part = ArrivingPart(label, info, topic, flight, read_range, self._read, leave, start, length)
                handed_over = True
                return part
            try:
                await flight
            except DriveFull as full:
                if bucket.remote.is_write_back and not isinstance(full, NotStored):
                    raise  # an owner may have a newer write than the remote storage
                why = full
                info = full.info if isinstance(full, NotStored) else await self._backends.of(bucket).head(name)
            else:
                return None
        finally:
            if not handed_over:
                if flight is not None:
                    flight.cancel()
                self._arrivals.leave(key)
        if etag and etag != info.etag:
            raise replaced(bucket, name, f"the ETag {etag}")
        return self._unstored(bucket, info, start, length, why)

    def _unstored(
        self, bucket: RemoteBucket, info: RemoteObject, start: int, length: int, why: DriveFull
    ) -> ArrivingPart:
        """Return bytes that are read from the remote storage only. Raises RangeError."""
        self._note_full(why)
        read_range, label = self._backends.of(bucket).read_range, f"{bucket.name}/{info.name}"
        return ArrivingPart(label, info, None, None, read_range, self._read, lambda: None, start, length)

    def _note_full(self, full: DriveFull) -> None:
        """Log that objects are not stored, once for a while."""
        now_s = time.monotonic()
        if now_s - self._full_logged_s > FULL_LOGGED_S:
            self._full_logged_s = now_s
            log.warning("fetched objects are sent to their readers without being stored: %s", full)

    async def arriving(
        self, bucket: RemoteBucket, name: str, version: str = "", start: int = 0, length: int = -1
    ) -> ArrivingPart | None:
        """Call `ensure`, but return the bytes of an object that is being fetched. Raises what `stream` raises."""
        etag = version.removeprefix(ETAG_VERSION)
        if version and etag == version:
            await self.ensure(bucket, name)
            return None
        await self._space.hold(bucket, name, self._fetches.timeout_s)
        stale = await self._copies.version_to_fetch(bucket, name)
        part = None
        if stale:
            await self._fetches.fetch(bucket, name, stale)
        elif stale is not None:
            stream = functools.partial(self.stream, bucket, name, etag=etag, start=start, length=length)
            part = await stream()
            if part is not None:
                part = await begun(part, stream)
        await self._space.hold(bucket, name)
        return part

    async def range(
        self, bucket: RemoteBucket, name: str, start: int, length: int, etag: str = ""
    ) -> tuple[Spooled, str] | ArrivingPart | None:
        """See `ColdParts.range`. An object that is stored instead is streamed; see `stream`."""
        if await self._begin_part(bucket, name):
            return None
        whole = functools.partial(self.stream, bucket, name, etag=etag, start=start, length=length)
        return await self._parts.range(bucket, name, start, length, etag, whole=whole, unstored=self._unstored)

    async def member(
        self, bucket: RemoteBucket, name: str, member: str, start: int, length: int, etag: str = ""
    ) -> tuple[Spooled, str] | None:
        """See `ColdParts.member`."""
        if await self._begin_part(bucket, name):
            return None
        return await self._parts.member(bucket, name, member, start, length, etag)

    async def member_page(self, bucket: RemoteBucket, name: str, wanted: WantedPage) -> MemberPage | None:
        """List members of an archive that is not stored here. Returns None when it is stored by now instead.

        Raises what `ColdParts.member_page` raises.
        """
        if await self._begin_part(bucket, name):
            return None
        if not bucket.remote.is_write_back:  # otherwise the owners have been asked
            with contextlib.suppress(RemoteUnavailable):
                if await self._copies.bring(bucket, name) is not None:
                    return None
        return await self._parts.member_page(bucket, name, wanted)

    async def _begin_part(self, bucket: RemoteBucket, name: str) -> bool:
        """Begin to read a part of an object from the remote storage; return True if the object is stored by now."""
        self._write_back.require_kept(bucket, name)
        self._backends.require_budget(bucket)
        return bucket.remote.is_write_back and await self._copies.bring(bucket, name) is not None
