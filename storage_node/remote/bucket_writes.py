"""Bucket writes: puts and deletions of remote buckets' objects, for clients, promotions and jobs.

An object is put to the remote storage first, then stored here as a copy of it (write-through), unless it is written
back. Its bytes are read twice, because the copy has the remote object's ETag. A PUT is acknowledged when both have it.
If the second step fails, its outcome is unknown: the remote storage has the object, and readers find it when an older
copy is gone. Writes of one name run one after another, so that both have the same one in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from ais_loader.errors import LoaderError, ObjectNotFound, OutcomeUnknown
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.name_locks import NameLocks
from storage_node.limits.tasks import results_of
from storage_node.remote.inventory.inventories import is_hidden
from storage_node.remote.remote_writes import RemoteWrites
from storage_node.remote.tier_context import TierContext
from storage_node.store.drive.preconditions import condition_of_deletion, parse_condition

_PUTS_AT_ONCE = 16


class BucketWrites:
    """Belongs to one event loop."""

    def __init__(self, tier: TierContext, writes: RemoteWrites) -> None:
        self._host, self._buckets, self._write_back, self._writes = tier.host, tier.buckets, tier.write_back, writes
        self._writing = NameLocks()
        """Names that are written through: the remote storage and the store see their writes in the same order."""

    async def put(
        self, bucket: RemoteBucket, header: pb.PutHeader, chunks: Callable[[], AsyncGenerator[bytes, None]]
    ) -> pb.ObjectInfo:
        """Put an object, of which `header` has the size and the checksum. `chunks` returns its bytes from the first on.

        Raises VersionConflict, Unsupported, RemoteUnavailable, OutcomeUnknown, and what `chunks` and the store raise.
        """
        if bucket.remote.is_write_back:
            async with self._write_back.admitted(bucket, header.name, header.size_bytes):
                await self._write_back.mark(bucket, header)
                async with aclosing(chunks()) as content:
                    return await self._host.store_object(header, content)
        async with self._writing.hold([(bucket.uuid, header.name)]):
            # Otherwise a repeat would put the object over one that others have put since.
            if header.condition.repeat_ms and (done := await self._host.done_earlier(header)) is not None:
                return done
            async with aclosing(chunks()) as content:
                metadata = await self._writes.put(bucket, header, content, header.size_bytes)
            header.metadata.clear()
            header.metadata.update(metadata)
            async with aclosing(chunks()) as content:
                try:
                    return await self._host.store_object(header, content)
                except LoaderError as error:
                    raise _copy_failed(header, error) from error

    async def put_group(self, objects: Sequence[pb.SmallObject]) -> list[pb.ObjectInfo | LoaderError]:
        """Put small objects, of remote buckets and others. Returns one result per object, in order. Raises Overloaded.

        Sets the metadata and the conditions of `objects` to those of the copies. Who has none of remote buckets calls
        its own store.
        """
        found = ((at, self._buckets.find(small.bucket)) for at, small in enumerate(objects))
        remote = {at: bucket for at, bucket in found if bucket is not None}
        through = {at: bucket for at, bucket in remote.items() if not bucket.remote.is_write_back}
        names = [(bucket.uuid, objects[at].name) for at, bucket in through.items()]
        async with contextlib.AsyncExitStack() as held:
            if (back := next((at for at, bucket in remote.items() if bucket.remote.is_write_back), None)) is not None:
                size_bytes = sum(len(one.data) for one in objects)
                await held.enter_async_context(self._write_back.admitted(remote[back], objects[back].name, size_bytes))
            await held.enter_async_context(self._writing.hold(names))
            results = await self._begin(objects, remote)
            left = [at for at in range(len(objects)) if at not in results]
            stored = await self._host.put_group([objects[at] for at in left]) if left else []
        for at, result in zip(left, stored, strict=True):
            if isinstance(result, LoaderError) and at in through:
                result = _copy_failed(objects[at], result)
            results[at] = result
        return [results[at] for at in range(len(objects))]

    async def _begin(
        self, objects: Sequence[pb.SmallObject], remote: Mapping[int, RemoteBucket]
    ) -> dict[int, pb.ObjectInfo | LoaderError]:
        """Put the objects of remote buckets to the remote storage, or mark them as those that are to be uploaded. Sets
        the metadata of their copies; returns the errors by position."""
        turns, in_order = asyncio.Semaphore(_PUTS_AT_ONCE), NameLocks()  # of a repeated name, the last object wins

        async def begin(small: pb.SmallObject, bucket: RemoteBucket) -> None:
            if bucket.remote.is_write_back:
                await self._write_back.mark(bucket, small)
                return
            async with in_order.hold([(bucket.uuid, small.name)]), turns:
                header = pb.PutHeader(
                    bucket=small.bucket, name=small.name, metadata=small.metadata, condition=small.condition
                )
                metadata = await self._writes.put(bucket, header, _one(small.data), len(small.data))
                small.condition.CopyFrom(header.condition)
            small.metadata.clear()
            small.metadata.update(metadata)

        results = await results_of(begin(objects[at], bucket) for at, bucket in remote.items())
        return {at: error for at, error in zip(remote, results, strict=True) if error is not None}

    # -- deleting

    def hold(self, bucket: RemoteBucket, names: Sequence[str]) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context in which only the caller writes these names through."""
        return self._writing.hold((bucket.uuid, name) for name in names)

    async def delete(self, bucket: RemoteBucket, request: pb.DeleteRequest) -> None:
        """Delete an object, and the remote object that it is a copy of. Raises LoaderError."""
        if bucket.remote.is_write_back and not is_hidden(request.name):
            etag = await self._write_back.cold_etag(bucket, request.name, request.if_version)
            if etag:  # nobody may have put it here meanwhile
                condition = parse_condition(True, "", request.write_id, request.repeat_ms)
            else:
                condition = condition_of_deletion(request)
            mark = await self._write_back.deletion_mark(bucket, [request.name], condition, etag)
            with contextlib.suppress(ObjectNotFound):  # a cold object has no copy
                await self._host.delete_object(request.bucket, request.name, condition, mark)
            return
        async with self._writing.hold([(bucket.uuid, request.name)]):
            if await self._was_deleted(request):
                return
            try:
                await self._writes.delete_version(bucket, request.name, request.if_version)
            except ObjectNotFound:
                if not request.repeat_ms:  # otherwise an earlier try may have done it, which the copy's deletion tells
                    raise
            if request.if_version.startswith(ETAG_VERSION):  # only the remote object had to meet it
                request.if_version = ""
            with contextlib.suppress(ObjectNotFound):
                await self._host.delete_object(request.bucket, request.name, condition_of_deletion(request), b"")

    async def _was_deleted(self, request: pb.DeleteRequest) -> bool:
        """Return whether an earlier attempt of this deletion was done: others may have put the object since. Raises
        LoaderError, OutcomeUnknown."""
        if not request.repeat_ms:
            return False
        header = pb.PutHeader(bucket=request.bucket, name=request.name)
        header.condition.write_id, header.condition.repeat_ms = request.write_id, request.repeat_ms
        return await self._host.done_earlier(header) is not None


def _copy_failed(put: pb.PutHeader | pb.SmallObject, why: LoaderError) -> OutcomeUnknown:
    return OutcomeUnknown(f"{put.bucket}/{put.name}: the remote storage has it, but its copy was not stored: {why}")


async def _one(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
