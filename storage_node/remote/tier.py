"""Remote tier of one node: fetches cold objects into the store, validates copies, and writes through.

A *cold* object is fetched once, however many readers wait: requests for the same object join one flight. In a cluster
the flight belongs to the object's first owner, which other nodes ask (`forward`). The object becomes visible when it is
complete and verified, with a condition: a fetch never replaces what a client has put meanwhile.

A copy older than the bucket's rule allows is *validated* first: one conditional GET, which fetches the new object if
there is one. An object that is gone from the remote storage is removed here.

Belongs to one event loop. The module is long because all reads and writes of remote buckets share the flights, the
validations and the order of writes that one object of this class has.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

from ais_loader.errors import (
    DriveFull,
    InvalidRequest,
    LoaderError,
    ObjectNotFound,
    RemoteUnavailable,
    Unsupported,
    VersionConflict,
)
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.object_info import info_of
from ais_loader.wire.reserved import ETAG_VERSION, REMOTE_ETAG
from storage_node.context.remote_buckets import RemoteBucket, RemoteBuckets
from storage_node.limits.name_locks import NameLocks
from storage_node.limits.single_flight import SingleFlight
from storage_node.limits.tasks import retrieve
from storage_node.remote.archives.cold_parts import ColdParts, WantedPage
from storage_node.remote.arriving.arrival import Arrival
from storage_node.remote.arriving.arrivals import Arrivals
from storage_node.remote.arriving.arriving_part import ArrivingPart, begun
from storage_node.remote.arriving.cold_reader import ColdReader
from storage_node.remote.arriving.object_intake import ObjectIntake, StoreObject
from storage_node.remote.arriving.relay import Relay, TakeResponse, relayed
from storage_node.remote.copies.cache_space import CacheSpace
from storage_node.remote.copies.object_metadata import STAMP_KEY, is_copy, metadata_of
from storage_node.remote.drivers.remote_changed import RemoteChanged
from storage_node.remote.drivers.remote_object import RemoteObject
from storage_node.remote.inventory.inventories import Inventories, is_hidden
from storage_node.remote.location.backends import Backends
from storage_node.remote.location.skipped_names import SkippedNames
from storage_node.remote.plans import Plans
from storage_node.remote.write_back.upload_owners import AloneOwner
from storage_node.remote.write_back.write_back import WriteBack
from storage_node.settings.declarations import RemoteSettings
from storage_node.store.buckets import ReplicaStale
from storage_node.store.format import CatalogEntry
from storage_node.store.read.object_reader import MemberPage
from storage_node.store.replica_state import not_found_message
from storage_node.store.spooled import Spooled
from storage_node.store.store import Store

R = TypeVar("R")
FAILURE_KEPT_S = 1.0
"""A failed fetch answers for this long: the other holders of the object are asked as well."""
PAGE_OBJECTS = 5000
"""Number of objects after which a page of a remote listing ends."""
DELETIONS_AT_ONCE = 32
VALIDATIONS_KEPT = 200_000
"""Number of copies whose last validation is remembered; further ones are validated again."""


class FetchAlone:
    """A store without a cluster fetches every object itself."""

    async def forward(
        self, bucket: RemoteBucket, name: str, version: str, take: TakeResponse, *, with_bytes: bool
    ) -> bool:
        """Ask the node that is responsible for an object to fetch it. Return True once it has; False if this node is.

        `take`: called with each message of that node. `with_bytes`: whether it sends the bytes as they arrive. Raises
        that node's error.
        """
        return False

    async def settle(self, bucket: RemoteBucket, names: Sequence[str]) -> None:
        """Wait for the fetches of these objects on other nodes."""

    async def copy_here(self, bucket: RemoteBucket, name: str) -> bool:
        """Have another owner of the object send its copy to this node. Returns whether one has."""
        return False


class RemoteTier:
    """
    Args:
        read: Runs a function that may wait for a drive, off the event loop.
        store_object: Stores a fetched object.
        delete_object: Deletes an object that is gone from the remote storage, if it still has this version.
        file_roots: See `Backend`.
        owner: The node that fetches an object.
        upload_owners: The node that uploads an object.
        plans: What loaders have announced.
    """

    def __init__(
        self,
        store: Store,
        settings: RemoteSettings,
        *,
        buckets: RemoteBuckets,
        read: Callable[..., Awaitable[Any]],
        store_object: StoreObject,
        delete_object: Callable[[RemoteBucket, str, str], Awaitable[None]],
        file_roots: tuple[Path, ...] | None,
        owner: FetchAlone,
        upload_owners: AloneOwner,
        plans: Plans,
    ) -> None:
        self._store = store
        self.buckets = buckets
        self._read = read
        self._delete_object = delete_object
        self.backends = Backends(settings, file_roots=file_roots)
        self._owner = owner
        self._fetch_timeout_s = settings.fetch_timeout_s
        self.space = CacheSpace(
            store, buckets=buckets, read=read, min_free_bytes=settings.min_free_bytes, needed_at=plans.needed_at
        )
        self.writing = NameLocks()
        """Names that are written through: the remote storage and the store see their writes in the same order."""
        self.arrivals = Arrivals(store, read)
        self._reader = ColdReader(self.arrivals, self.backends, self.fetch, read)
        self._intake = ObjectIntake(self.arrivals, store_object, self.space, read)
        self.inventories = Inventories(store, read=read, store_object=store_object, backends=self.backends)
        self.write_back = WriteBack(
            store,
            buckets=buckets,
            backends=self.backends,
            read=read,
            settings=settings,
            owners=upload_owners,
            note_changes=self.inventories.note_changes,
        )
        self._fetches = SingleFlight(FAILURE_KEPT_S)
        """Fetches that readers of this node wait for, wherever they run."""
        self._loads = SingleFlight(0)
        """Fetches by this node, for all nodes."""
        self._validated: OrderedDict[tuple[bytes, str], tuple[str, float]] = OrderedDict()
        """Version of a copy, and when it was last found to be current."""
        self._parts = ColdParts(
            store,
            backends=self.backends,
            read=read,
            fetch=self.fetch,
            kept=self.space.kept,
            large_bytes=settings.large_object_bytes,
        )

    # -- reading

    def is_current(self, bucket: RemoteBucket, name: str, entry: CatalogEntry) -> bool:
        """Return whether a stored object may be read without being validated. An object that was put before the bucket
        was a remote one is no copy, and never validated."""
        if not bucket.validates or not is_copy(entry.metadata):
            return True
        after_s = bucket.remote.validate_after_s
        version, at_s = self._validated.get((bucket.uuid, name), ("", -math.inf))
        if version == str(entry.version):
            return time.monotonic() - at_s <= after_s
        return after_s > 0 and 0 <= time.time_ns() - entry.modified_ns <= after_s * 1e9

    def stored(self, bucket: RemoteBucket, name: str) -> CatalogEntry:
        """Return the catalog entry of a stored object. Waits for a drive. Raises what `Store.head` raises.

        If another node had a newer copy, this one may be outdated. Other copies are then compared and brought here; but
        the newer one may have been evicted, so that none ever comes. The outdated copy is removed instead, without a
        tombstone, and the object is cold. In a bucket that is written back, the name stays in doubt until other owners
        have been asked (`_bring`): the remote storage may not have the newer one yet.
        """
        try:
            return self._store.head(bucket.name, name)
        except ReplicaStale:
            stale = self._store.replicas.stale
            wanted = stale.wanted(bucket.uuid, name)
            if wanted is None or stale.whole(bucket.uuid):
                raise
            entry = self._store.replicas.newest_entry(bucket.uuid, name)
            if entry is not None and not entry.is_tombstone and entry.version < wanted:
                if not is_copy(entry.metadata):
                    raise
                self._store.delete(bucket.name, name, version=entry.version)
            if bucket.remote.is_write_back and (entry is None or entry.version < wanted):
                raise ObjectNotFound(not_found_message(bucket.name, name)) from None
            stale.trust_name(bucket.uuid, name, wanted)
        return self._store.head(bucket.name, name)

    def _version_to_fetch(self, bucket: RemoteBucket, name: str) -> str | None:
        """Return the version of a copy that has to be validated before it is read; "" if there is no copy, None if it
        may be read. Waits for a drive. Raises what `Store.head` raises, but ObjectNotFound."""
        try:
            entry = self.stored(bucket, name)
        except ObjectNotFound:
            return ""
        return None if self.is_current(bucket, name, entry) else str(entry.version)

    async def ensure(self, bucket: RemoteBucket, name: str) -> None:
        """Have an object in the store, current by the bucket's rule, before it is read.

        Raises ObjectNotFound, RemoteUnavailable, RemoteDenied, and what storing an object raises.
        """
        await self.space.hold(bucket, name, self._fetch_timeout_s)
        await self._ensure(bucket, name)
        await self.space.hold(bucket, name)

    async def _ensure(self, bucket: RemoteBucket, name: str) -> None:
        version = await self._read(self._version_to_fetch, bucket, name)
        if version is not None:
            await self.fetch(bucket, name, version)

    async def ensure_all(self, objects: Iterable[tuple[RemoteBucket | None, str]]) -> None:
        """Call `ensure` for the objects of remote buckets at the same time. Errors are left to whoever reads them."""
        wanted = [(bucket, name) for bucket, name in dict.fromkeys(objects) if bucket is not None]
        await asyncio.gather(*(self.ensure(*one) for one in wanted), return_exceptions=True)

    async def warm(self, bucket: RemoteBucket, names: Sequence[str]) -> list[LoaderError | None]:
        """Have objects in the store. Returns None or the error for each name, in order."""
        return _results(await asyncio.gather(*(self._ensure(bucket, name) for name in names), return_exceptions=True))

    async def fetch(self, bucket: RemoteBucket, name: str, version: str = "", *, with_bytes: bool = False) -> None:
        """Have a cold object stored, or the copy of this version validated, by the node that fetches it.

        `with_bytes`: a reader of this node has joined the arrival, so another node that fetches is to send the bytes.

        Raises ObjectNotFound, RemoteUnavailable, RemoteDenied, and what storing an object raises.
        """
        self._require_kept(bucket, name)
        flight = asyncio.ensure_future(self._join(bucket, name, version, with_bytes=with_bytes))
        try:
            with self.backends.waiting(bucket):
                await self.arrivals.within((bucket.uuid, name), flight, self._fetch_timeout_s)
        except TimeoutError:
            raise RemoteUnavailable(
                f"{bucket.name}/{name}: nothing came from {bucket.remote.url} for {self._fetch_timeout_s:g} s"
            ) from None
        finally:
            flight.add_done_callback(retrieve)
            flight.cancel()

    async def _join(self, bucket: RemoteBucket, name: str, version: str, *, with_bytes: bool = False) -> None:
        # Only the flight of another node is one without the bytes.
        key = bucket.uuid, name, version, with_bytes
        await self._fetches.join(key, lambda: self._fetch(bucket, name, version, with_bytes=with_bytes))

    async def stream(
        self, bucket: RemoteBucket, name: str, *, etag: str = "", start: int = 0, length: int = -1
    ) -> ArrivingPart | None:
        """See `ColdReader.stream`."""
        return await self._reader.stream(bucket, name, etag=etag, start=start, length=length)

    async def arriving(
        self, bucket: RemoteBucket, name: str, version: str = "", start: int = 0, length: int = -1
    ) -> ArrivingPart | None:
        """Call `ensure`, but return the bytes of an object that is being fetched. Raises what `stream` raises."""
        etag = version.removeprefix(ETAG_VERSION)
        if version and etag == version:
            await self.ensure(bucket, name)
            return None
        await self.space.hold(bucket, name, self._fetch_timeout_s)
        stale = await self._read(self._version_to_fetch, bucket, name)
        part = None
        if stale:
            await self.fetch(bucket, name, stale)
        elif stale is not None:
            stream = functools.partial(self.stream, bucket, name, etag=etag, start=start, length=length)
            part = await stream()
            if part is not None:
                part = await begun(part, stream)
        await self.space.hold(bucket, name)
        return part

    async def fetch_range(
        self, bucket: RemoteBucket, name: str, start: int, length: int, etag: str = ""
    ) -> tuple[Spooled, str] | ArrivingPart | None:
        """See `ColdParts.range`. An object that is stored instead is streamed; see `stream`."""
        if await self._begin_part(bucket, name):
            return None
        return await self._parts.range(
            bucket,
            name,
            start,
            length,
            etag,
            whole=lambda: self.stream(bucket, name, etag=etag, start=start, length=length),
            unstored=self._unstored,
        )

    def _unstored(
        self, bucket: RemoteBucket, info: RemoteObject, start: int, length: int, why: DriveFull
    ) -> ArrivingPart:
        self._reader.note_full(why)
        return self._reader.unstored(bucket, info, start, length)

    async def fetch_member(
        self, bucket: RemoteBucket, name: str, member: str, start: int, length: int, etag: str = ""
    ) -> tuple[Spooled, str] | None:
        """See `ColdParts.member`."""
        if await self._begin_part(bucket, name):
            return None
        return await self._parts.member(bucket, name, member, start, length, etag)

    async def _begin_part(self, bucket: RemoteBucket, name: str) -> bool:
        """Begin to read a part of an object from the remote storage; return True if the object is stored by now."""
        self._require_kept(bucket, name)
        self.backends.require_budget(bucket)
        return bucket.remote.is_write_back and await self._bring(bucket, name)

    async def member_page(self, bucket: RemoteBucket, name: str, wanted: WantedPage) -> MemberPage | None:
        """List members of an archive that is not stored here. Returns None when it is stored by now instead.

        Raises what `ColdParts.member_page` raises.
        """
        if await self._begin_part(bucket, name):
            return None
        if not bucket.remote.is_write_back:  # otherwise the owners have been asked
            with contextlib.suppress(RemoteUnavailable):
                if await self._bring(bucket, name):
                    return None
        return await self._parts.member_page(bucket, name, wanted)

    async def to_fetch(self, objects: Sequence[tuple[RemoteBucket, str]]) -> list[str | None]:
        """Return, for each object, the version with which to call `fetch_ahead`; None for an object that is not to be
        fetched ahead. Those that every read validates are not."""

        def look() -> list[str | None]:
            found: list[str | None] = []
            for bucket, name in objects:
                try:
                    version = self._version_to_fetch(bucket, name)
                except LoaderError:
                    version = None  # reported to the reader
                found.append(None if version and not bucket.remote.validate_after_s else version)
            return found

        return await self._read(look)  # type: ignore[no-any-return]

    async def fetch_ahead(self, bucket: RemoteBucket, name: str, version: str) -> None:
        """Call `fetch` for a reader that comes later, who is not counted as waiting. Raises what `fetch` raises."""
        await self._join(bucket, name, version)

    async def _fetch(self, bucket: RemoteBucket, name: str, version: str, *, with_bytes: bool) -> None:
        with Relay(self.arrivals, (bucket.uuid, name), name) as relay:
            is_fetched = await self._owner.forward(bucket, name, version, relay.take, with_bytes=with_bytes)
        if not is_fetched:
            await self.fetch_here(bucket, name)
        elif not version:
            await self._bring(bucket, name)
        else:
            with contextlib.suppress(LoaderError):
                entry = await self._read(self.stored, bucket, name)
                if relay.version not in ("", str(entry.version)) and is_copy(entry.metadata):
                    # This copy missed a change of the remote object that the node that fetches has seen.
                    await self._read(self._store.delete, bucket.name, name, entry.version)
                    await self._bring(bucket, name)
                    entry = await self._read(self.stored, bucket, name)
                self._note(bucket, name, str(entry.version))

    async def _bring(self, bucket: RemoteBucket, name: str) -> bool:
        """Have an object here, if this node is an owner that lacks what another owner has. Returns whether it is here.

        Afterwards, the name is in doubt no longer: the version that this node was told of has been evicted, or was not
        committed, if the other owners do not send it. Raises RemoteUnavailable if one that may have it does not answer.
        """
        if await self._is_stored(bucket, name):
            return True
        stale = self._store.replicas.stale
        wanted = stale.wanted(bucket.uuid, name)
        is_sent = await self._owner.copy_here(bucket, name)
        if wanted is not None:
            stale.trust_name(bucket.uuid, name, wanted)
        return is_sent and await self._is_stored(bucket, name)

    async def _is_stored(self, bucket: RemoteBucket, name: str) -> bool:
        try:
            await self._read(self.stored, bucket, name)
        except ObjectNotFound:
            return False
        return True

    async def fetch_here(self, bucket: RemoteBucket, name: str) -> None:
        """Fetch on this node, which is the one that fetches the object for the cluster. Raises what `fetch` raises."""
        await self._loads.join((bucket.uuid, name), lambda: self._look_and_load(bucket, name))

    async def fetch_for_node(
        self, bucket: RemoteBucket, name: str, version: str, *, with_bytes: bool
    ) -> AsyncGenerator[remote_pb.FetchResponse, None]:
        """Call `fetch_here` for another node of the cluster. Yields what it is told meanwhile; see `relayed`."""
        fetch = self.fetch_here(bucket, name)
        responses = relayed(self.arrivals, (bucket.uuid, name), fetch, self._read, with_bytes=with_bytes)
        async with aclosing(responses):
            async for response in responses:
                yield response
        if version:
            with contextlib.suppress(LoaderError):
                entry = await self._read(self.stored, bucket, name)
                yield remote_pb.FetchResponse(version=str(entry.version))

    async def _look_and_load(self, bucket: RemoteBucket, name: str) -> None:
        """Fetch, unless the object is stored here, or on another owner, and is current."""
        try:
            entry = await self._read(self.stored, bucket, name)
        except ObjectNotFound:
            brought = False
            try:
                brought = await self._bring(bucket, name)
            except RemoteUnavailable:
                if bucket.remote.is_write_back:
                    raise  # the remote storage may not have it yet
            try:
                entry = await self._read(self.stored, bucket, name) if brought else None
            except ObjectNotFound:
                entry = None
        if entry is None:
            await self._load(bucket, name, "", "")
        elif not self.is_current(bucket, name, entry):
            await self._load(bucket, name, str(entry.version), entry.metadata.get(REMOTE_ETAG, ""))

    async def _load(
        self, bucket: RemoteBucket, name: str, version: str, etag: str, *, make_room: bool = True, tries: int = 3
    ) -> None:
        """Fetch and store an object, unless the copy with this version and etag is current. With `make_room`, a full
        drive has copies evicted, and the object is fetched once more. So is one that is replaced meanwhile."""
        key = bucket.uuid, name
        self._require_kept(bucket, name)
        self.backends.require_budget(bucket)
        try:
            answer = await self.backends.of(bucket).get(name, unless_etag=etag)
        except ObjectNotFound:
            if version:
                await self._delete_object(bucket, name, version)
            raise
        if answer is None:
            self._note(bucket, name, version)
            return
        arrival: Arrival | None = None
        try:
            async with answer as arriving, self.space.room(bucket, name, arriving.info.size_bytes):
                arrival = await self.arrivals.begin(key, arriving.info)
                info = await self._intake.store(bucket, arriving, arrival, version, make_room=make_room)
        except RemoteChanged:
            if not tries:
                raise
            again = {"make_room": make_room, "tries": tries - 1}
        except VersionConflict:
            # Somebody else has stored or deleted the object; the reader looks again.
            if not version:
                await self._bring(bucket, name)
            return
        else:
            if info is not None:
                self._note(bucket, name, info.version)
                return
            again = {"make_room": False}
        finally:
            self.arrivals.end(key, arrival)
        await self._load(bucket, name, version, etag, **again)  # type: ignore[arg-type]

    def _require_kept(self, bucket: RemoteBucket, name: str) -> None:
        """Raise ObjectNotFound for an object that was deleted here, and whose remote object is still to be deleted, and
        for what the store keeps under hidden names."""
        if is_hidden(name):
            raise ObjectNotFound(not_found_message(bucket.name, name))
        if self.write_back.is_deleted(bucket, name):
            raise ObjectNotFound(not_found_message(bucket.name, name))

    def _note(self, bucket: RemoteBucket, name: str, version: str) -> None:
        key = bucket.uuid, name
        self._validated[key] = version, time.monotonic()
        self._validated.move_to_end(key)
        while len(self._validated) > VALIDATIONS_KEPT:
            self._validated.popitem(last=False)

    async def head(self, bucket: RemoteBucket, name: str) -> pb.ObjectInfo:
        """Describe a remote object that is not stored. Raises ObjectNotFound, RemoteUnavailable, RemoteDenied."""
        self._require_kept(bucket, name)
        if bucket.remote.is_write_back and await self._bring(bucket, name):
            return info_of(bucket.name, name, await self._read(self.stored, bucket, name))
        return described(bucket.name, await self.backends.of(bucket).head(name))

    async def heads(self, bucket: RemoteBucket, names: Sequence[str]) -> list[pb.ObjectInfo | LoaderError]:
        """Call `head` for several names at the same time."""
        return _results(await asyncio.gather(*(self.head(bucket, name) for name in names), return_exceptions=True))

    async def page(self, bucket: RemoteBucket, prefix: str, start_after: str) -> remote_pb.ListRemoteResponse:
        """List remote objects, stored here or not: one page in the order of their names' bytes.

        Raises RemoteUnavailable, RemoteDenied, Unsupported.
        """
        response = remote_pb.ListRemoteResponse()
        skipped = SkippedNames()
        async with aclosing(self.backends.of(bucket).list(prefix, start_after, skipped=skipped)) as pages:
            async for page in pages:
                if len(response.object) >= PAGE_OBJECTS:  # the last page is known only when the next one is not there
                    response.more, response.next = True, response.object[-1].name
                    break
                response.object.extend(described(bucket.name, found) for found in page)
        if bucket.remote.is_write_back:
            hidden = await self.write_back.hidden(bucket, prefix, start_after, response.next)
            if hidden:
                kept = [found for found in response.object if found.name not in hidden]
                del response.object[:]
                response.object.extend(kept)
        response.skipped = skipped.count
        response.skipped_name.extend(skipped.names)
        return response

    # -- writing

    async def _etag_of(self, bucket: RemoteBucket, name: str, version: str) -> str:
        """Return the ETag of the remote object of which the copy with this version is one; "" if it is none. The
        version of a cold object is its ETag.

        Raises VersionConflict if the object here has another version, ObjectNotFound if it is cold.
        """
        if version.startswith(ETAG_VERSION):
            if version == ETAG_VERSION:
                raise InvalidRequest(f"{bucket.name}/{name}: if_version={version!r}: the ETag is missing")
            return version.removeprefix(ETAG_VERSION)
        entry = await self._read(self.stored, bucket, name)
        if str(entry.version) != version:
            raise VersionConflict(f"{bucket.name}/{name}: it has version {entry.version} now; nothing was changed")
        etag: str = entry.metadata.get(REMOTE_ETAG, "")
        return etag

    async def delete_version(self, bucket: RemoteBucket, name: str, version: str) -> None:
        """Delete a remote object on the condition that its copy here has this version, and that it is still the one
        that was copied.

        The remote storage does not delete on conditions, so the object is compared before. Raises VersionConflict,
        ObjectNotFound for a cold object, and what `delete` returns.
        """
        if is_hidden(name):
            return
        self._require_writable(bucket)
        etag = await self._etag_of(bucket, name, version)
        try:
            if etag and (found := (await self.backends.of(bucket).head(name)).etag) != etag:
                raise VersionConflict(f"{bucket.name}/{name}: the remote ETag is {found} now; nothing was deleted")
        except ObjectNotFound:
            if version.startswith(ETAG_VERSION):
                raise
            # Only the copy is left to be deleted.
        for error in await self.delete(bucket, [name]):
            if error is not None:
                raise error

    async def delete(self, bucket: RemoteBucket, names: Sequence[str]) -> list[LoaderError | None]:
        """Delete remote objects; one that does not exist is no error. Afterwards, no fetch is in progress that could
        store what was deleted. Returns None or the error for each name, in order.

        Raises Unsupported.
        """
        if names and all(map(is_hidden, names)):
            return [None] * len(names)
        self._require_writable(bucket)
        await self.inventories.note_changes(bucket, names)
        backend, turns = self.backends.of(bucket), asyncio.Semaphore(DELETIONS_AT_ONCE)

        async def delete(name: str) -> None:
            async with turns:
                await backend.delete(name)

        errors = _results(await asyncio.gather(*map(delete, names), return_exceptions=True))
        gone = [name for name, error in zip(names, errors, strict=True) if error is None]
        await asyncio.gather(self.settle(bucket, gone), self._owner.settle(bucket, gone))
        return errors

    async def settle(self, bucket: RemoteBucket, names: Iterable[str]) -> None:
        """Wait for the fetches of these objects on this node that are in progress."""
        await self._loads.settle((bucket.uuid, name) for name in names)

    async def put(
        self, bucket: RemoteBucket, header: pb.PutHeader, chunks: AsyncIterator[bytes], size_bytes: int
    ) -> dict[str, str]:
        """Put an object to the remote storage; return the metadata with which the copy is to be stored. The remote
        object has met the conditions then, and they are removed from `header`: a copy is stored whatever is here.

        A write with an id stamps the object with it. If the condition does not hold, because an earlier attempt has put
        the object and its answer was lost, the stamp shows it.

        Raises Unsupported, VersionConflict, RemoteUnavailable, RemoteDenied.
        """
        self._require_writable(bucket)
        name, condition, backend = header.name, header.condition, self.backends.of(bucket)
        etag = await self._etag_of(bucket, name, condition.if_version) if condition.if_version else ""
        if condition.if_absent:
            await self._require_no_object(bucket, name)
        await self.inventories.note_changes(bucket, [name])
        stamp = {STAMP_KEY: condition.write_id.hex()} if condition.write_id else {}
        try:
            stored = await backend.put(
                name,
                chunks,
                size_bytes,
                dict(header.metadata) | stamp,
                if_absent=condition.if_absent,
                if_etag=etag,
            )
        except VersionConflict:
            with contextlib.suppress(ObjectNotFound):
                stored = await backend.head(name)
                if stamp and stored.metadata.items() >= stamp.items():
                    return metadata_of(stored) | dict(header.metadata)
            raise
        condition.if_absent = False
        if etag:
            condition.if_version = ""
        return metadata_of(stored) | dict(header.metadata)

    async def _require_no_object(self, bucket: RemoteBucket, name: str) -> None:
        """Check that there is no object here that is no copy of a remote one. Raises VersionConflict."""
        with contextlib.suppress(ObjectNotFound):
            entry = await self._read(self.stored, bucket, name)
            if not is_copy(entry.metadata):
                raise VersionConflict(f"{bucket.name}/{name}: it exists, with version {entry.version}")

    def _require_writable(self, bucket: RemoteBucket) -> None:
        if not bucket.remote.is_writable:
            raise Unsupported(f"bucket {bucket.name!r} is read-only: nothing can be written to {bucket.remote.url}")

    async def close(self) -> None:
        """Cancel what is in progress, and close the remote locations."""
        await self.write_back.close()
        await self.space.close()
        await self._parts.close()
        await self._fetches.close()
        await self._loads.close()
        await self.backends.close()


def _results(results: Iterable[R | BaseException]) -> list[R | LoaderError]:
    """Return results and errors; raise an exception that is no LoaderError."""
    found: list[R | LoaderError] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, LoaderError):
            raise result
        found.append(result)
    return found


def described(bucket: str, found: RemoteObject) -> pb.ObjectInfo:
    """Return the properties of an object that is not stored: its ETag is its version, and it has no checksum."""
    info = pb.ObjectInfo(
        bucket=bucket,
        name=found.name,
        size_bytes=found.size_bytes,
        version=ETAG_VERSION + found.etag,
        modified_ns=max(0, found.modified_ns),
    )
    info.metadata.update(metadata_of(found))
    return info
