"""Write-through: an object of a remote bucket is put to the remote storage first, then stored here as a copy of it.

The received bytes are spooled to an unnamed file until all of them have arrived and match the announced size and
checksum, because the remote storage needs the size, and the copy the remote object's ETag. A PUT is acknowledged when
both have it. If the second step fails, its outcome is unknown: the remote storage has the object, and readers find it
when an older copy is gone. Writes of one name run one after another, so that both have the same one in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound, OutcomeUnknown
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.tasks import results_of
from storage_node.remote.tier import RemoteTier
from storage_node.store.spooled import Spooled, spool_for
from storage_node.store.write import check_announced, check_content

Store: TypeAlias = Callable[[AsyncIterator[pb.PutRequest]], Awaitable[pb.ObjectInfo]]
DoneEarlier: TypeAlias = Callable[[pb.PutHeader], Awaitable["pb.ObjectInfo | None"]]
_CHUNK_END = b""
_PUTS_AT_ONCE = 16


class WriteThrough:
    def __init__(self, node: Node, tier: RemoteTier) -> None:
        self._node = node
        self._tier = tier

    def is_wanted(self, bucket: str) -> bool:
        return self._tier.buckets.find(bucket) is not None

    def written_back(self, bucket: str) -> RemoteBucket | None:
        """Return the bucket if its writes are acknowledged before they are uploaded; see `WriteBack`."""
        found = self._tier.buckets.find(bucket)
        return found if found is not None and found.remote.is_write_back else None

    async def put(
        self, messages: AsyncIterator[pb.PutRequest], store: Store, done_earlier: DoneEarlier
    ) -> pb.ObjectInfo:
        """Put the object of a PUT to the remote storage, then store its copy.

        Args:
            store: Stores the object of these messages.
            done_earlier: Returns what an earlier attempt has stored.

        Raises ContentMismatch, InvalidRequest, DriveFull, DriveFailed, VersionConflict, Unsupported, RemoteUnavailable,
        OutcomeUnknown.
        """
        first = await anext(messages, None)
        bucket = self._tier.buckets.find(first.header.bucket) if first is not None else None
        if first is None or bucket is None or not first.HasField("header"):
            raise InvalidRequest("a PUT begins with its header")
        header, read = first.header, self._node.read
        spool = await read(spool_for, self._node.store, f"{header.bucket}/{header.name}")
        try:
            await self._fill(spool, header, messages)
            async with self._tier.writing.hold([(bucket.uuid, header.name)]):
                # Otherwise a repeat would put the object over one that others have put since.
                if header.condition.repeat_ms and (done := await done_earlier(header)) is not None:
                    return done
                metadata = await self._put(bucket, header, spool)
                header.metadata.clear()
                header.metadata.update(metadata)
                header.size_bytes, header.checksum = spool.size_bytes, spool.checksum
                async with aclosing(self._copy(header, spool)) as copy:
                    try:
                        return await store(copy)
                    except LoaderError as error:
                        raise _copy_failed(header.bucket, header.name, error) from error
        finally:
            await asyncio.shield(read(spool.close))

    async def _copy(self, header: pb.PutHeader, spool: Spooled) -> AsyncGenerator[pb.PutRequest, None]:
        yield pb.PutRequest(header=header)
        async with aclosing(self._chunks(spool)) as chunks:
            async for chunk in chunks:
                yield pb.PutRequest(data=chunk)
        yield pb.PutRequest(end=pb.PutEnd(size_bytes=spool.size_bytes, checksum=spool.checksum))

    async def _fill(self, spool: Spooled, header: pb.PutHeader, messages: AsyncIterator[pb.PutRequest]) -> None:
        async for message in messages:
            part = message.WhichOneof("part")
            if part == "data":
                await self._node.read(spool.write, message.data)
            elif part == "end":
                check_content(spool, message.end.size_bytes, message.end.checksum)
                check_announced(spool, header)
                return
            else:
                raise InvalidRequest(f"a message of a PUT that is neither data nor end: {part}")
        raise InvalidRequest("the PUT ended without the message that says what was sent; nothing was stored")

    async def _put(self, bucket: RemoteBucket, header: pb.PutHeader, spool: Spooled) -> dict[str, str]:
        async with aclosing(self._chunks(spool)) as chunks:
            return await self._tier.writes.put(bucket, header, chunks, spool.size_bytes)

    async def _chunks(self, spool: Spooled) -> AsyncGenerator[bytes, None]:
        chunks = spool.chunks()
        while chunk := await self._node.read(next, chunks, _CHUNK_END):
            yield chunk

    # -- many small objects

    @asynccontextmanager
    async def admitted(self, request: pb.PutManyRequest) -> AsyncIterator[None]:
        """Return a context for a group of PUTs, entered when there is room for those that are uploaded later. Raises
        Overloaded."""
        first = next((small for small in request.object if self.written_back(small.bucket) is not None), None)
        bucket = self.written_back(first.bucket) if first is not None else None
        if first is None or bucket is None:
            yield
            return
        async with self._tier.write_back.admitted(bucket, first.name, sum(len(one.data) for one in request.object)):
            yield

    async def group(self, request: pb.PutManyRequest) -> dict[int, LoaderError]:
        """Put the objects of remote buckets to the remote storage, or mark them as those that are to be uploaded. Sets
        the metadata of their copies; returns the errors by position."""
        turns = asyncio.Semaphore(_PUTS_AT_ONCE)

        async def put(small: pb.SmallObject, bucket: RemoteBucket) -> None:
            async with turns:
                header = _header_of(small)
                metadata = await self._tier.writes.put(bucket, header, _one(small.data), len(small.data))
                small.condition.CopyFrom(header.condition)
            small.metadata.clear()
            small.metadata.update(metadata)

        failed: dict[int, LoaderError] = {}
        wanted: dict[int, RemoteBucket] = {}
        for position, small in enumerate(request.object):
            bucket = self._tier.buckets.find(small.bucket)
            if bucket is not None and bucket.remote.is_write_back:
                try:
                    await self._tier.write_back.mark(bucket, small)
                except LoaderError as error:
                    failed[position] = error
            elif bucket is not None:
                wanted[position] = bucket
        results = await results_of(put(request.object[position], bucket) for position, bucket in wanted.items())
        return failed | {at: error for at, error in zip(wanted, results, strict=True) if error is not None}

    def names(self, request: pb.PutManyRequest) -> Iterator[tuple[bytes, str]]:
        """Iterate over the names of a group that are written through."""
        for small in request.object:
            bucket = self._tier.buckets.find(small.bucket)
            if bucket is not None and not bucket.remote.is_write_back:
                yield bucket.uuid, small.name

    def judge(self, request: pb.PutManyRequest, response: pb.PutManyResponse) -> None:
        """Set the errors of copies that were not stored, although the remote storage has their objects."""
        for small, result in zip(request.object, response.result, strict=True):
            if result.HasField("error") and self.is_wanted(small.bucket) and self.written_back(small.bucket) is None:
                error = _copy_failed(small.bucket, small.name, result.error.message)
                result.error.kind, result.error.message = error.kind, str(error)

    # -- deleting

    async def delete(self, bucket_name: str, names: Sequence[str]) -> list[LoaderError | None]:
        """Delete remote objects, before their copies are deleted; do nothing for a bucket that is not a remote one.

        Returns None or the error for each name, in order.
        """
        bucket = self._tier.buckets.find(bucket_name)
        return [None] * len(names) if bucket is None else await self._tier.writes.delete(bucket, names)

    async def delete_one(self, request: pb.DeleteRequest) -> None:
        """Delete the remote object of a request, before its copy is deleted. A condition that only the remote object
        has to meet is removed from the request.

        Raises VersionConflict, ObjectNotFound, Unsupported, RemoteUnavailable.
        """
        bucket = self._tier.buckets.find(request.bucket)
        if bucket is not None and request.if_version:
            try:
                await self._tier.writes.delete_version(bucket, request.name, request.if_version)
            except ObjectNotFound:
                if not request.repeat_ms:  # otherwise an earlier try may have done it, which the copy's deletion tells
                    raise
            if request.if_version.startswith(ETAG_VERSION):
                request.if_version = ""
            return
        for error in await self.delete(request.bucket, [request.name]):
            if error is not None:
                raise error


def _copy_failed(bucket: str, name: str, why: object) -> OutcomeUnknown:
    return OutcomeUnknown(f"{bucket}/{name}: the remote storage has it, but its copy was not stored: {why}")


def _header_of(small: pb.SmallObject) -> pb.PutHeader:
    return pb.PutHeader(bucket=small.bucket, name=small.name, metadata=small.metadata, condition=small.condition)


async def _one(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
