"""Stored copies of the objects of remote buckets: whether one is here, whether it is current, and its eviction.

A copy older than the bucket's rule allows is *validated* before it is read: see `Loads`. Belongs to one event loop;
what waits for a drive says so, and runs elsewhere.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from ais_loader.errors import LoaderError, ObjectDeleted, ObjectDenied, ObjectNotFound
from ais_loader.name_matching import matcher
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as pb_objects
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.groups import Groups
from storage_node.limits.tasks import results_of
from storage_node.remote.copies.cache_space import CacheSpace
from storage_node.remote.copies.object_metadata import is_copy
from storage_node.store.buckets import ReplicaStale
from storage_node.store.format import CatalogEntry
from storage_node.store.read.batch_lookup import BatchLookup
from storage_node.store.replica_state import not_found_message
from storage_node.store.store import Store

FIND_S = 0.01
"""Longest wait for a look-up of other names. A drive may stand still."""
VALIDATIONS_KEPT = 200_000
"""Number of copies whose last validation is remembered; further ones are validated again."""


class StoredCopies:
    """
    Args:
        read: Runs a function that may wait for a drive, off the event loop.
        copy_here: See `FetchOwner`.
    """

    def __init__(
        self,
        store: Store,
        read: Callable[..., Awaitable[Any]],
        copy_here: Callable[[RemoteBucket, str], Awaitable[bool]],
    ) -> None:
        self._store, self._read, self._copy_here = store, read, copy_here
        self._finds: Groups[tuple[RemoteBucket, str], CatalogEntry | None] = Groups(
            lambda objects: read(self._find_all, objects), 0.0, groups=1, stall_s=FIND_S
        )
        self._validated: OrderedDict[tuple[bytes, str], tuple[str, float]] = OrderedDict()
        """Version of a copy, and when it was last found to be current."""

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

    def note_current(self, bucket: RemoteBucket, name: str, version: str) -> None:
        """Note that the copy with this version is current now."""
        key = bucket.uuid, name
        self._validated[key] = version, time.monotonic()
        self._validated.move_to_end(key)
        while len(self._validated) > VALIDATIONS_KEPT:
            self._validated.popitem(last=False)

    def stored(self, bucket: RemoteBucket, name: str) -> CatalogEntry:
        """Return the catalog entry of a stored object. Waits for a drive. Raises what `Store.head` raises.

        If another node had a newer copy, this one may be outdated. Other copies are then compared and brought here; but
        the newer one may have been evicted, so that none ever comes. The outdated copy is removed instead, without a
        tombstone, and the object is cold. In a bucket that is written back, the name stays in doubt until other owners
        have been asked (`bring`): the remote storage may not have the newer one yet.
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

    async def version_to_fetch(self, bucket: RemoteBucket, name: str) -> str | None:
        """Return the version of a copy that has to be validated before it is read; "" if there is no copy, None if it
        may be read. Raises what `Store.head` raises, but ObjectNotFound."""
        entry = await self.find(bucket, name)
        if entry is None:
            return ""
        return None if self.is_current(bucket, name, entry) else str(entry.version)

    async def versions_to_fetch(self, objects: Sequence[tuple[RemoteBucket, str]]) -> list[str | None]:
        """Return, for each object, the version with which to call `Fetches.ahead`; None for an object that is not to be
        fetched ahead. Those that every read validates are not."""

        versions = await results_of(self.version_to_fetch(*one) for one in objects)
        # An error is reported to the reader.
        return [
            None if isinstance(version, LoaderError) or (version and not bucket.remote.validate_after_s) else version
            for (bucket, _), version in zip(objects, versions, strict=True)
        ]

    async def find(self, bucket: RemoteBucket, name: str) -> CatalogEntry | None:
        """Call `stored`, but return None if there is no copy. Names of the same moment are looked up together."""
        return await self._finds.put((bucket, name))

    def _find_all(self, objects: Sequence[tuple[RemoteBucket, str]]) -> list[CatalogEntry | LoaderError | None]:
        buckets = list(dict.fromkeys(bucket.name for bucket, _ in objects))
        at = [buckets.index(bucket.name) for bucket, _ in objects]
        names = [name for _, name in objects]
        lookup = BatchLookup(self._store, pb.BatchRequest(bucket=buckets, bucket_index=at, name=names))
        lookup.run()
        found: list[CatalogEntry | LoaderError | None] = [*lookup.table.records]
        for position, fault in lookup.table.faults.items():
            if found[position] is None and fault.kind not in ("", ObjectDeleted.kind):
                try:
                    found[position] = self.stored(*objects[position])
                except ObjectNotFound:
                    pass
                except LoaderError as error:
                    found[position] = error
        return found

    async def require_allowed(self, bucket: RemoteBucket, header: pb_objects.PutHeader, size_bytes: int) -> None:
        """Raise ObjectDenied for an object that may not be put: nothing of it is to reach the remote storage."""
        checksum = header.checksum if header.HasField("checksum") else -1
        if (refused := self._store.denied.content_error(bucket.uuid, header.name, checksum, size_bytes)) is not None:
            raise refused
        try:
            await self.find(bucket, header.name)
        except ObjectDenied:
            raise
        except LoaderError:
            pass  # the put meets the same drive

    async def bring(self, bucket: RemoteBucket, name: str) -> CatalogEntry | None:
        """Have an object here, if this node is an owner that lacks what another owner has. Returns its entry, or None.

        Afterwards, the name is in doubt no longer: the version that this node was told of has been evicted, or was not
        committed, if the other owners do not send it. Raises RemoteUnavailable if one that may have it does not answer.
        """
        if (entry := await self.find(bucket, name)) is not None:
            return entry
        stale = self._store.replicas.stale
        wanted = stale.wanted(bucket.uuid, name)
        is_sent = await self._copy_here(bucket, name)
        if wanted is not None:
            stale.trust_name(bucket.uuid, name, wanted)
        return await self.find(bucket, name) if is_sent else None

    async def remove(self, bucket: RemoteBucket, name: str, entry: CatalogEntry) -> None:
        """Remove a copy, without a tombstone. Raises what `Store.delete` raises."""
        await self._read(self._store.delete, bucket.name, name, entry.version)


_TOGETHER = 1000


def evict(
    store: Store, bucket: str, names: Sequence[str] | None, prefix: str, patterns: Sequence[str], space: CacheSpace
) -> tuple[int, int]:
    """Remove the copies of these names; if `names` is None, of all names with this prefix that match one of the shell
    patterns, if there are any. The indexes of archives are kept.

    Objects that are no copies, because they were put before the bucket was a remote one, stay, and those that are being
    fetched (see `CacheSpace.loading`). Returns the number of
    copies removed, and of their bytes. Waits for drives. Raises BucketNotFound, StoreReadOnly, DriveFailed.
    """
    bucket_uuid = store.bucket(bucket).uuid_bytes
    left: Iterable[str] = names if names is not None else (name for name, _ in store.objects(bucket, prefix))
    if patterns and names is None:
        left = filter(matcher(patterns), left)
    left, copies, freed_bytes = iter(left), 0, 0
    while group := list(itertools.islice(left, _TOGETHER)):
        sizes: dict[str, int] = {}
        for name in group:
            try:
                entry = store.head(bucket, name)
            except LoaderError:
                continue  # cold already, or unreadable
            if is_copy(entry.metadata) and (bucket_uuid, name) not in space.loading:
                sizes[name] = entry.size_bytes
                space.kept.keep_stored(bucket_uuid, name, entry)
        for size_bytes, error in zip(
            sizes.values(), store.delete_many(bucket, list(sizes), copies_only=True), strict=True
        ):
            if error is None:
                copies += 1
                freed_bytes += size_bytes
    return copies, freed_bytes
