"""Descriptions of remote objects that are not stored: their properties, and listings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from ais_loader.errors import LoaderError, ObjectNotFound
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.object_info import Stored, info_of, stored_of
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.tasks import results_of
from storage_node.remote.copies.object_metadata import metadata_of
from storage_node.remote.drivers.driver import RemoteObject
from storage_node.remote.location.skipped_names import SkippedNames
from storage_node.remote.tier_context import TierContext

PAGE_OBJECTS = 5000
"""Number of objects after which a page of a remote listing ends."""


class Descriptions:
    """Belongs to one event loop."""

    def __init__(self, tier: TierContext) -> None:
        self._backends, self._copies, self._write_back = tier.backends, tier.copies, tier.write_back

    async def head(self, bucket: RemoteBucket, name: str) -> pb.ObjectInfo:
        """Describe a remote object that is not stored. Raises ObjectNotFound, RemoteUnavailable, RemoteDenied."""
        self._write_back.require_kept(bucket, name)
        if bucket.remote.is_write_back and (entry := await self._copies.bring(bucket, name)) is not None:
            return info_of(bucket.name, name, entry)
        return described(bucket.name, await self._backends.of(bucket).head(name))

    async def with_cold(
        self, bucket: RemoteBucket, names: Sequence[str], stored: Sequence[Stored | LoaderError]
    ) -> list[Stored | LoaderError]:
        """Return what is known of these objects: what is stored, else the remote object or the error of its look-up."""
        cold = [at for at, one in enumerate(stored) if isinstance(one, ObjectNotFound)]
        found = dict(zip(cold, await results_of(self.head(bucket, names[at]) for at in cold), strict=True))
        infos = (found.get(at, one) for at, one in enumerate(stored))
        return [one if isinstance(one, LoaderError) else stored_of(one) for one in infos]

    async def page(self, bucket: RemoteBucket, prefix: str, start_after: str) -> remote_pb.ListRemoteResponse:
        """List remote objects, stored here or not: one page in the order of their names' bytes.

        Raises RemoteUnavailable, RemoteDenied, Unsupported.
        """
        response = remote_pb.ListRemoteResponse()
        skipped = SkippedNames()
        async with aclosing(self._backends.of(bucket).list(prefix, start_after, skipped=skipped)) as pages:
            async for page in pages:
                if len(response.object) >= PAGE_OBJECTS:  # the last page is known only when the next one is not there
                    response.more, response.next = True, response.object[-1].name
                    break
                response.object.extend(described(bucket.name, found) for found in page)
        if bucket.remote.is_write_back:
            hidden = await self._write_back.hidden(bucket, prefix, start_after, response.next)
            if hidden:
                kept = [found for found in response.object if found.name not in hidden]
                del response.object[:]
                response.object.extend(kept)
        response.skipped = skipped.count
        response.skipped_name.extend(skipped.names)
        return response


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
