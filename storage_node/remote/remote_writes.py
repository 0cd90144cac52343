"""Writes of remote buckets that are written through: to the remote storage, before the copy here is changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound, OutcomeUnknown, VersionConflict
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import ETAG_VERSION, REMOTE_ETAG
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.tasks import results_of
from storage_node.remote.copies.object_metadata import STAMP_KEY, is_copy, metadata_of, remote_metadata
from storage_node.remote.fetching.loads import Loads
from storage_node.remote.inventory.inventories import is_hidden
from storage_node.remote.tier_context import TierContext

DELETIONS_AT_ONCE = 32


class RemoteWrites:
    """Belongs to one event loop."""

    def __init__(self, tier: TierContext, loads: Loads) -> None:
        self._read, self._owner, self._loads = tier.host.read, tier.owner, loads
        self._backends, self._copies, self._inventories = tier.backends, tier.copies, tier.inventories

    async def put(
        self, bucket: RemoteBucket, header: pb.PutHeader, chunks: AsyncIterator[bytes], size_bytes: int
    ) -> dict[str, str]:
        """Put an object to the remote storage; return the metadata with which the copy is to be stored. The remote
        object has met the conditions then, and they are removed from `header`: a copy is stored whatever is here.

        A write with an id stamps the object with it. If the condition does not hold, because an earlier attempt has put
        the object and its answer was lost, the stamp shows it.

        Raises Unsupported, VersionConflict, ObjectDenied, RemoteUnavailable, RemoteDenied.
        """
        bucket.require_writable()
        await self._copies.require_allowed(bucket, header, size_bytes)
        name, condition, backend = header.name, header.condition, self._backends.of(bucket)
        etag = await self._etag_of(bucket, name, condition.if_version) if condition.if_version else ""
        if condition.if_absent:
            await self._require_no_object(bucket, name)
        await self._inventories.note_changes(bucket, [name])
        stamp = {STAMP_KEY: condition.write_id.hex()} if condition.write_id else {}
        metadata = remote_metadata(header.metadata) | stamp
        try:
            stored = await backend.put(name, chunks, size_bytes, metadata, if_absent=condition.if_absent, if_etag=etag)
        except VersionConflict:
            with contextlib.suppress(ObjectNotFound):
                stored = await backend.head(name)
                if stamp and stored.metadata.items() >= stamp.items():
                    return metadata_of(stored) | dict(header.metadata)
            raise
        try:  # again: a refresh of the inventory may have listed the object before
            await self._inventories.note_changes(bucket, [name])
        except LoaderError as error:
            raise OutcomeUnknown(f"{bucket.name}/{name}: the remote storage has it, but no copy: {error}") from error
        condition.if_absent = False
        if etag:
            condition.if_version = ""
        return metadata_of(stored) | dict(header.metadata)

    async def _require_no_object(self, bucket: RemoteBucket, name: str) -> None:
        """Check that there is no object here that is no copy of a remote one. Raises VersionConflict."""
        entry = await self._copies.find(bucket, name)
        if entry is not None and not is_copy(entry.metadata):
            raise VersionConflict(f"{bucket.name}/{name}: it exists, with version {entry.version}")

    async def _etag_of(self, bucket: RemoteBucket, name: str, version: str) -> str:
        """Return the ETag of the remote object of which the copy with this version is one; "" if it is none. The
        version of a cold object is its ETag.

        Raises VersionConflict if the object here has another version, ObjectNotFound if it is cold.
        """
        if version.startswith(ETAG_VERSION):
            if version == ETAG_VERSION:
                raise InvalidRequest(f"{bucket.name}/{name}: if_version={version!r}: the ETag is missing")
            return version.removeprefix(ETAG_VERSION)
        entry = await self._read(self._copies.stored, bucket, name)
        if str(entry.version) != version:
            raise VersionConflict(f"{bucket.name}/{name}: it has version {entry.version} now; nothing was changed")
        return str(entry.metadata.get(REMOTE_ETAG, ""))

    async def delete_version(self, bucket: RemoteBucket, name: str, version: str) -> None:
        """Delete a remote object on the condition that its copy here has this version, and that it is still the one
        that was copied; without a condition for "".

        The remote storage does not delete on conditions, so the object is compared before. Raises VersionConflict,
        ObjectNotFound for a cold object, and what `delete` returns.
        """
        if is_hidden(name):
            return
        bucket.require_writable()
        etag = await self._etag_of(bucket, name, version) if version else ""
        try:
            if etag and (found := (await self._backends.of(bucket).head(name)).etag) != etag:
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
        bucket.require_writable()
        await self._inventories.note_changes(bucket, names)
        backend, turns = self._backends.of(bucket), asyncio.Semaphore(DELETIONS_AT_ONCE)

        async def delete(name: str) -> None:
            async with turns:
                await backend.delete(name)

        errors = await results_of(map(delete, names))
        gone = [name for name, error in zip(names, errors, strict=True) if error is None]
        await self._inventories.note_changes(bucket, gone)  # see `put`
        await asyncio.gather(self._loads.settle(bucket, gone), self._owner.settle(bucket, gone))
        return errors
