"""Cache space: the bytes that copies of remote objects may take on one node, and their eviction beyond that.

A bucket with a budget (`Remote.cache_bytes`) has an eviction order in memory, which is rebuilt after a start by a scan
of the bucket. If a drive has less free space than `remote_min_free_bytes`, copies of all remote buckets on it are
evicted as well, and buckets without a budget are followed from then on. Otherwise nothing is kept in memory.

A copy stays while a batch that names it runs, because a slow reader may come to it long after it was looked up, and for
`HELD_S` after another read has begun. The file of an evicted copy stays for readers that have found it, like that of a
replaced object (see `storage_node.store.drive.ended_versions`); snapshots keep the versions that they see.

A fetch waits for room. If all copies have to stay, it goes on above the budget: what running batches read is never
evicted to stay within it. A fetch ahead of its reader evicts nothing that a plan needs, and takes at most one part in
`AHEAD_SHARE` of a budget that is full: each copy that goes for it would have been read, too. It waits until loaders
have passed others, or until its reader has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_loader.errors import DriveFull, LoaderError, NotFound, VersionConflict
from ais_loader.wire.cold_reads import AHEAD_SHARE
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.limits.single_flight import current_urgency
from storage_node.limits.tasks import keep_going
from storage_node.limits.wakeup import Wakeup
from storage_node.remote.archives.kept_indexes import KeptIndexes
from storage_node.remote.copies.eviction_order import EvictionOrder, NeededAt
from storage_node.remote.copies.object_metadata import is_copy
from storage_node.store.drive.ended_versions import GRACE_S
from storage_node.store.drive.preconditions import Condition
from storage_node.store.format import CatalogEntry
from storage_node.store.store import Store

if TYPE_CHECKING:
    from storage_node.context.remote_buckets import RemoteBucket, RemoteBuckets

HELD_S = 5.0
"""Time for which a copy stays after a read has begun that is not a batch."""
FOLLOW_S = 1.0
"""Interval between checks of budgets and of the drives' free space. Each fetch checks them, too."""
SLACK = 64
"""Eviction continues until one part in this many of the budget is free, so that it is done for many objects at once."""
LARGE_BYTES = 1 << 30
"""Objects above this size are refused before the fetch if they are larger than their drive."""
RELIEF_BYTES = 64 << 20
"""Least number of bytes that are evicted when a fetch has found its drive full."""
_REMOVED_S = 10.0
"""Longest wait of a reader for a removal."""
_TOGETHER_S = 0.05
"""Changes within this time are handled together."""
_SCANNED_AT_ONCE = 1000
_FREED_AFTER_S = GRACE_S + 3.0
"""Time until the space of evicted copies is free, at most."""
log = logging.getLogger(__name__)


class _Readers:
    """Names of one bucket that are being read, or removed. Guarded by the lock of its CacheSpace."""

    def __init__(self) -> None:
        self.reading: Counter[str] = Counter()
        """Names in running batches."""
        self.held: dict[str, float] = {}
        """Names that other readers have asked for, with the time until which they stay."""
        self.going: set[str] = set()
        """Names that are being removed."""

    def may_go(self, name: str) -> bool:
        return name not in self.reading and self.held.get(name, 0.0) < time.monotonic()


class _FollowedBucket:
    """A bucket whose copies are known. Guarded by the lock of its CacheSpace."""

    def __init__(self, bucket: RemoteBucket, readers: _Readers, needed_at: NeededAt | None) -> None:
        self.bucket = bucket
        self.readers = readers
        self.order = EvictionOrder(bucket.uuid, needed_at)
        self.arriving: dict[str, int] = {}
        """Bytes of objects whose fetches have begun to store, until they are among the copies."""
        self.arriving_bytes = 0
        self.ahead: dict[str, int] = {}
        """Bytes of objects that were fetched ahead, and that no loader has read yet."""
        self.ahead_bytes = 0
        self.scanned = False
        self.evictions = 0

    @property
    def limit_bytes(self) -> int:
        """0 for no limit."""
        return self.bucket.remote.cache_bytes

    def note_ahead(self, name: str, size_bytes: int = 0) -> None:
        """Note that an object is being fetched ahead; with 0, that it no longer counts as such."""
        self.ahead_bytes += size_bytes - self.ahead.pop(name, 0)
        if size_bytes:
            self.ahead[name] = size_bytes

    def note_arriving(self, name: str, size_bytes: int = 0) -> None:
        """Note that an object is being stored; with 0, that it is among the copies, or will not be."""
        self.arriving_bytes += size_bytes - self.arriving.pop(name, 0)
        if size_bytes:
            self.arriving[name] = size_bytes

    def over_bytes(self, arriving_bytes: int = 0) -> int:
        """Return the bytes to evict; 0 within the budget."""
        total_bytes = self.order.size_bytes + arriving_bytes
        if not self.limit_bytes or total_bytes <= self.limit_bytes:
            return 0
        return total_bytes - self.limit_bytes + self.limit_bytes // SLACK


class CacheSpace:
    """Notes and readers come from any thread; everything else belongs to one event loop.

    Args:
        buckets: The remote buckets.
        read: Runs a function that may wait for a drive, off the event loop.
        min_free_bytes: Free space of each drive below which copies on it are evicted.
        needed_at: See `EvictionOrder`.
    """

    def __init__(
        self,
        store: Store,
        *,
        buckets: RemoteBuckets,
        read: Callable[..., Awaitable[Any]],
        min_free_bytes: int,
        needed_at: NeededAt | None = None,
    ) -> None:
        self._store = store
        self._buckets = buckets
        self._read = read
        self._min_free_bytes = min_free_bytes
        self.kept = KeptIndexes(store)
        """Member indexes of archives that are cold."""
        self.loading: Container[tuple[bytes, str]] = ()
        """Objects that are being fetched, by bucket uuid and name. Their copies stay: a fetch that a put has overtaken
        would store what was there before, if it found nothing."""
        self._needed_at = needed_at
        self._lock = threading.Lock()
        self._gone = threading.Condition(self._lock)
        self._readers: dict[bytes, _Readers] = {}
        """Readers of remote buckets, by uuid, since they were first read."""
        self._followed: dict[bytes, _FollowedBucket] = {}
        self._evicting = asyncio.Lock()
        self._wake = Wakeup()
        self._drive_was_full = False
        """Whether a drive has been short of space since the start: all remote buckets are followed then."""
        self._pending: deque[tuple[float, os.PathLike[str], int]] = deque()
        """Evicted copies whose space is not free yet: when, the drive, bytes."""
        self._task = asyncio.create_task(keep_going("keeping copies of remote objects within their budgets", self._run))
        store.watch_changes(self._changed, self._followed)

    async def close(self) -> None:
        self._store.unwatch_changes(self._changed)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # -- notes, from any thread

    def _changed(self, bucket_uuid: bytes, name: str, entry: CatalogEntry | None) -> None:
        """Follow a change of the store: the current entry of a name, None for an object that is gone."""
        followed = self._followed.get(bucket_uuid)
        if followed is None:
            return
        with self._lock:
            if entry is None or entry.is_tombstone or not is_copy(entry.metadata):
                followed.order.remove(name)
                followed.note_ahead(name)
                return
            followed.order.add(name, entry.size_bytes)
            followed.note_arriving(name)
            is_over = followed.over_bytes() > 0
        if is_over:
            self._wake.set()

    def note_read(self, bucket_uuid: bytes, name: str) -> None:
        """Note that a stored copy is being read."""
        followed = self._followed.get(bucket_uuid)
        if followed is not None:
            with self._lock:
                followed.order.note_read(name)

    def begin_pass(self, bucket: RemoteBucket) -> int:
        """Note that a loader begins an epoch; return the number of its pass over the bucket."""
        followed = self._follow_if_due(bucket)
        if followed is None:
            return 0
        with self._lock:
            return followed.order.begin_pass()

    def end_pass(self, bucket_uuid: bytes, number: int) -> None:
        """Note that the loader has ended its epoch."""
        if (followed := self._followed.get(bucket_uuid)) is not None:
            with self._lock:
                followed.order.end_pass(number)

    def note_passed(self, bucket_uuid: bytes, name: str) -> None:
        """Note that a loader has read an object."""
        if (followed := self._followed.get(bucket_uuid)) is not None:
            with self._lock:
                followed.order.note_passed(name)
                followed.note_ahead(name)

    def note_reads(self, bucket: RemoteBucket, request: pb.BatchRequest) -> None:
        """Note the reads of a batch from one bucket."""
        if (followed := self._follow_if_due(bucket)) is not None:
            with self._lock:
                for name in request.name:
                    followed.order.note_read(name)

    def _readers_of(self, bucket: RemoteBucket) -> _Readers:
        """Return the readers of a bucket, and follow it if it has a budget."""
        self._follow_if_due(bucket)
        with self._lock:
            return self._readers.setdefault(bucket.uuid, _Readers())

    def _follow_if_due(self, bucket: RemoteBucket) -> _FollowedBucket | None:
        # Before the first fetch: otherwise a fetched object could be evicted before its reader comes.
        return self._follow(bucket) if bucket.remote.cache_bytes else self._followed.get(bucket.uuid)

    @contextlib.asynccontextmanager
    async def reading(self, request: pb.BatchRequest, buckets: Sequence[RemoteBucket | None]) -> AsyncIterator[None]:
        """Keep the copies that a batch names until it has ended. `buckets`: those of the request."""
        pins = self._pin(request, buckets)
        try:
            if any(name in readers.going for readers, name in pins):
                await self._read(self._wait_for_going, pins)
            yield
        finally:
            self._unpin(pins)

    @contextlib.contextmanager
    def reading_here(self, request: pb.BatchRequest, buckets: Sequence[RemoteBucket | None]) -> Iterator[None]:
        """Like `reading`, in another thread than that of the event loop."""
        pins = self._pin(request, buckets)
        try:
            self._wait_for_going(pins)
            yield
        finally:
            self._unpin(pins)

    def _pin(self, request: pb.BatchRequest, buckets: Sequence[RemoteBucket | None]) -> Sequence[tuple[_Readers, str]]:
        of_index = {at: self._readers_of(bucket) for at, bucket in enumerate(buckets) if bucket is not None}
        at = request.bucket_index or itertools.repeat(0)
        named = [(of_index.get(of), name) for of, name in zip(at, request.name, strict=False)]
        pins = [(readers, name) for readers, name in named if readers is not None]
        with self._lock:
            for readers, name in pins:
                readers.reading[name] += 1
        return pins

    def _unpin(self, pins: Sequence[tuple[_Readers, str]]) -> None:
        if not pins:
            return
        with self._lock:
            for readers, name in pins:
                readers.reading[name] -= 1
                if not readers.reading[name]:
                    del readers.reading[name]
            is_over = any(followed.over_bytes() for followed in self._followed.values())
        if is_over:
            self._wake.set()

    def _wait_for_going(self, pins: Sequence[tuple[_Readers, str]]) -> None:
        """Wait until those that are being removed are gone: a reader that finds one of them may come too late for its
        file."""
        with self._lock:
            self._gone.wait_for(lambda: not any(name in readers.going for readers, name in pins), _REMOVED_S)

    async def hold(self, bucket: RemoteBucket, name: str, fetch_s: float = 0.0) -> None:
        """Keep a copy for `HELD_S`, for a read outside of a batch. `fetch_s`: time until the copy is there."""
        readers = self._readers_of(bucket)
        self.note_read(bucket.uuid, name)
        now_s = time.monotonic()
        with self._lock:
            readers.held.pop(name, None)
            readers.held[name] = now_s + fetch_s + HELD_S
            while readers.held[first := next(iter(readers.held))] < now_s:
                del readers.held[first]
            is_going = name in readers.going
        if is_going:
            await self._read(self._wait_for_going, [(readers, name)])

    # -- room for fetches

    @contextlib.asynccontextmanager
    async def room(self, bucket: RemoteBucket, name: str, size_bytes: int) -> AsyncIterator[None]:
        """Reserve room for a fetched object while it is stored. Raises DriveFull if it is larger than its drive."""
        if size_bytes > LARGE_BYTES:
            drive = self._drive_of(bucket, name)
            total_bytes = (await self._read(shutil.disk_usage, drive)).total
            if size_bytes > total_bytes:
                raise DriveFull(
                    f"{bucket.name}/{name}: {size_bytes:,} bytes cannot be stored on {drive}, which has "
                    f"{total_bytes:,}; read ranges of the object"
                )
        followed = self._follow_if_due(bucket)
        if followed is None:
            yield
            return
        urgency = current_urgency.get()
        while not urgency.is_urgent and not await self._has_room_ahead(followed, name, size_bytes):
            await asyncio.sleep(_TOGETHER_S)
        with self._lock:
            followed.note_arriving(name, size_bytes)
        try:
            await self._evict_beyond(followed, arriving=True)
            yield
        finally:
            with self._lock:
                if name in followed.arriving:  # it was not stored
                    followed.note_ahead(name)
                followed.note_arriving(name)

    async def _has_room_ahead(self, followed: _FollowedBucket, name: str, size_bytes: int) -> bool:
        """Evict copies that no plan needs, for an object that no reader waits for. Returns whether there is room."""

        def over_bytes() -> int:
            return followed.order.size_bytes + followed.arriving_bytes + size_bytes - followed.limit_bytes

        if followed.limit_bytes and over_bytes() > 0:
            if followed.ahead and (followed.ahead_bytes + size_bytes) * AHEAD_SHARE > followed.limit_bytes:
                return False
            async with self._evicting:
                while (more_bytes := over_bytes()) > 0:
                    if not await self._evict(followed, more_bytes, followed.readers.may_go, spare_needed=True):
                        return False
        with self._lock:
            followed.note_ahead(name, size_bytes)
        return True

    async def relieve(self, bucket: RemoteBucket, name: str, size_bytes: int) -> bool:
        """Evict copies from the drive of an object that has found it full. Returns whether another try makes sense."""
        self._drive_was_full = True
        self._follow_all()
        await self._scan_all()
        drive = self._drive_of(bucket, name)
        freed_bytes = await self._evict_from(drive, max(2 * size_bytes, RELIEF_BYTES))
        log.info("%s is full: %d bytes of copies of remote objects were evicted", drive, freed_bytes)
        return freed_bytes > 0 or self._pending_bytes(drive) > 0  # evicted for another fetch

    def _drive_of(self, bucket: RemoteBucket, name: str) -> Path:
        drives = self._store.drive_set
        return drives.at(drives.placement.owner(bucket.uuid, name)).root

    # -- following

    def _follow(self, bucket: RemoteBucket) -> _FollowedBucket:
        followed = self._followed.get(bucket.uuid)
        if followed is None:
            with self._lock:
                readers = self._readers.setdefault(bucket.uuid, _Readers())
                followed = self._followed.get(bucket.uuid) or _FollowedBucket(bucket, readers, self._needed_at)
                self._set_followed({**self._followed, bucket.uuid: followed})
            self._wake.set()
        followed.bucket = bucket
        return followed

    def _set_followed(self, followed: dict[bytes, _FollowedBucket]) -> None:
        """Replace all at once: other threads may be iterating."""
        self._followed = followed
        self._store.watch_changes(self._changed, followed)

    def _follow_all(self) -> None:
        """Follow the buckets that need it, and forget the others."""
        buckets = self._buckets.all()
        wanted = [bucket for bucket in buckets if bucket.remote.cache_bytes or self._drive_was_full]
        for bucket in wanted:
            self._follow(bucket)
        uuids = {bucket.uuid for bucket in wanted}
        if not uuids.issuperset(self._followed):
            with self._lock:
                self._set_followed({uuid: one for uuid, one in self._followed.items() if uuid in uuids})
        with self._lock:
            for uuid in self._readers.keys() - {bucket.uuid for bucket in buckets}:
                if not self._readers[uuid].reading:
                    del self._readers[uuid]

    async def _scan_all(self) -> None:
        """Scan the buckets that have not been scanned for copies."""
        for followed in [one for one in self._followed.values() if not one.scanned]:
            objects = self._store.objects(followed.bucket.name, skip_missing=True)
            try:
                while page := await self._read(_next_of, objects):
                    with self._lock:
                        for name, entry in page:
                            if name not in followed.order and is_copy(entry.metadata):
                                followed.order.add(name, entry.size_bytes)
                followed.scanned = True
            except NotFound:
                continue
            except LoaderError as error:
                log.info("copies of %s are not all known yet: %s", followed.bucket.name, error)

    async def _run(self) -> None:
        """Run until cancelled."""
        while True:
            self._follow_all()
            await self._scan_all()
            for followed in list(self._followed.values()):
                await self._evict_beyond(followed)
            if self._min_free_bytes and self._buckets.all():
                await self._keep_drives_free()
            await asyncio.sleep(_TOGETHER_S)
            await self._wake.wait_for_tick(FOLLOW_S)

    # -- evicting

    async def _evict_beyond(self, followed: _FollowedBucket, *, arriving: bool = False) -> None:
        """Evict until the budget is kept, as far as copies may go. `arriving`: with the fetches that are being
        stored."""

        def over_bytes() -> int:
            return followed.over_bytes(followed.arriving_bytes if arriving else 0)

        if over_bytes():
            async with self._evicting:
                while size_bytes := over_bytes():
                    if not await self._evict(followed, size_bytes, followed.readers.may_go):
                        return

    async def _keep_drives_free(self) -> None:
        """Evict copies from drives that are short of space."""
        for root, free_bytes in await self._read(self._free_bytes):
            short_bytes = self._min_free_bytes - free_bytes - self._pending_bytes(root)
            if short_bytes <= 0:
                continue
            if not self._drive_was_full:
                self._drive_was_full = True
                log.warning("%s has %d bytes free: copies of remote objects are evicted", root, free_bytes)
                self._follow_all()
                await self._scan_all()
            await self._evict_from(root, short_bytes)

    def _free_bytes(self) -> list[tuple[os.PathLike[str], int]]:
        found: list[tuple[os.PathLike[str], int]] = []
        for drive in self._store.drives:
            if drive is not None:
                with contextlib.suppress(OSError):  # a drive that fails is found and told by others
                    space = os.statvfs(drive.root)
                    found.append((drive.root, space.f_bavail * space.f_frsize))
        return found

    def _pending_bytes(self, root: os.PathLike[str]) -> int:
        while self._pending and self._pending[0][0] < time.monotonic() - _FREED_AFTER_S:
            self._pending.popleft()
        return sum(size_bytes for _, drive, size_bytes in self._pending if drive == root)

    async def _evict_from(self, root: os.PathLike[str], size_bytes: int) -> int:
        """Evict copies on this drive, of the buckets with the most bytes first. Returns the number of bytes."""
        freed_bytes = 0
        async with self._evicting:
            for followed in sorted(self._followed.values(), key=lambda one: -one.order.size_bytes):

                def may_go(name: str, followed: _FollowedBucket = followed) -> bool:
                    return followed.readers.may_go(name) and self._root_of(followed.bucket.uuid, name) == root

                while freed_bytes < size_bytes:
                    more_bytes = await self._evict(followed, size_bytes - freed_bytes, may_go)
                    if not more_bytes:
                        break
                    freed_bytes += more_bytes
        return freed_bytes

    def _root_of(self, bucket_uuid: bytes, name: str) -> os.PathLike[str] | None:
        drives = self._store.drive_set
        drive = drives.slots[drives.placement.owner(bucket_uuid, name)].drive
        return None if drive is None else drive.root

    async def _evict(
        self, followed: _FollowedBucket, size_bytes: int, may_go: Callable[[str], bool], *, spare_needed: bool = False
    ) -> int:
        """Evict some copies; return their bytes, 0 if none may go. See `EvictionOrder.take`."""
        with self._lock:
            uuid, loading = followed.bucket.uuid, self.loading
            victims = followed.order.take(
                size_bytes, lambda name: may_go(name) and (uuid, name) not in loading, spare_needed=spare_needed
            )
        kept: list[tuple[str, int]] = await self._read(self._remove, followed, victims) if victims else []
        with self._lock:
            for name, victim_bytes in kept:
                if name not in followed.order:  # it has been replaced meanwhile
                    followed.order.add(name, victim_bytes)
        freed_bytes = sum(size for _, size in victims) - sum(size for _, size in kept)
        followed.evictions += len(victims) - len(kept)
        return freed_bytes

    def _remove(self, followed: _FollowedBucket, victims: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Remove these copies from the store, without tombstones. Returns those that could not be removed."""
        kept: list[tuple[str, int]] = []
        bucket = followed.bucket
        for name, size_bytes in victims:
            with self._lock:
                if not followed.readers.may_go(name) or (bucket.uuid, name) in self.loading:  # a reader has come
                    kept.append((name, size_bytes))
                    continue
                followed.readers.going.add(name)
            try:
                drive, entry = self._store.locate(bucket.name, name)
                if self._store.bucket(bucket.name).uuid_bytes != bucket.uuid or not is_copy(entry.metadata):
                    continue
                self.kept.keep_stored(bucket.uuid, name, entry)
                # By its version: an object that replaces the copy meanwhile need not be a copy.
                condition = Condition(if_version=entry.version)
                [error] = self._store.delete_many(bucket.name, [name], condition, copies_only=True)
                if error is not None:
                    raise error
            except (NotFound, VersionConflict):
                continue
            except LoaderError as error:
                log.info("%s/%s is not evicted for now: %s", bucket.name, name, error)
                kept.append((name, size_bytes))
            else:
                self._pending.append((time.monotonic(), drive.root, entry.size_bytes))
            finally:
                with self._lock:
                    followed.readers.going.discard(name)
                    self._gone.notify_all()
        return kept

    # -- what is measured

    def cached_bytes(self) -> Mapping[str, int]:
        """Return the bytes of copies of each followed bucket, by its name. Thread-safe."""
        return {one.bucket.name: one.order.size_bytes for one in self._followed.values()}

    def evictions(self) -> Mapping[str, int]:
        """Return the number of copies evicted since the bucket was followed, by its name. Thread-safe."""
        return {one.bucket.name: one.evictions for one in self._followed.values()}


def _next_of(objects: Iterator[tuple[str, CatalogEntry]]) -> list[tuple[str, CatalogEntry]]:
    return list(itertools.islice(objects, _SCANNED_AT_ONCE))
