"""Object writes: puts and deletions of objects. An object of a remote bucket is put to the remote storage first, then
stored here as a copy of it (write-through), unless it is written back.

The received bytes are spooled to an unnamed file until all of them have arrived and match the announced size and
checksum, because the remote storage needs the size, and the copy the remote object's ETag. A PUT is acknowledged when
both have it. If the second step fails, its outcome is unknown: the remote storage has the object, and readers find it
when an older copy is gone. Writes of one name run one after another, so that both have the same one in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound, OutcomeUnknown
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import ETAG_VERSION, require_unreserved
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.write_plan import Result
from storage_node.context.errors import of_one_of_many
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.counters import count
from storage_node.limits.tasks import results_of
from storage_node.remote.tier import RemoteTier
from storage_node.security.rights.batches import refused_objects
from storage_node.security.rights.granted import GRANTED
from storage_node.services.errors import Context
from storage_node.services.put_writer import PutWriter
from storage_node.store.drive.preconditions import Condition, parse_condition
from storage_node.store.spooled import Spooled, spool_for
from storage_node.store.write import check_announced, check_content

_CHUNK_END = b""
_PUTS_AT_ONCE = 16


class ObjectWrites:
    """Belongs to the node's event loop."""

    def __init__(self, node: Node, writes: WriteCoordinator, put_writer: PutWriter, tier: RemoteTier) -> None:
        self._node = node
        self._store = node.store
        self._writes = writes
        self._put_writer = put_writer
        self.done_earlier = put_writer.done_earlier
        self._tier = tier

    def is_remote(self, bucket: str) -> bool:
        return self._tier.buckets.find(bucket) is not None

    def written_back(self, bucket: str) -> RemoteBucket | None:
        """Return the bucket if its writes are acknowledged before they are uploaded; see `WriteBack`."""
        found = self._tier.buckets.find(bucket)
        return found if found is not None and found.remote.is_write_back else None

    # -- one object

    async def Put(self, requests: AsyncIterator[pb.PutRequest], context: Context) -> pb.ObjectInfo:
        """Store the object of one PUT of a client. Raises LoaderError."""
        messages_of_client = aiter(requests)
        first = await anext(messages_of_client, None)
        bucket = ""
        if first is not None and first.WhichOneof("part") == "header":
            bucket = first.header.bucket
            require_unreserved(first.header.metadata)
        async with aclosing(_all(first, messages_of_client)) as messages:
            return await self.store(bucket, messages, getattr(context, "take_from_socket", None))

    async def store(
        self,
        bucket: str,
        messages: AsyncIterator[pb.PutRequest],
        take_from_socket: Callable[[], None] | None = None,
    ) -> pb.ObjectInfo:
        """Store the object of one PUT; that of a remote bucket in the remote storage first, unless it is written back.
        Raises LoaderError.

        `take_from_socket`: See `PutWriter.store`.
        """
        if (remote := self._tier.buckets.find(bucket)) is None:
            return await self._put_writer.store(messages, take_from_socket)
        first = await anext(messages, None)
        if first is None or not first.HasField("header"):
            raise InvalidRequest("a PUT begins with its header")
        header, write_back = first.header, self._tier.write_back
        if not remote.remote.is_write_back:
            return await self._store_through(remote, header, messages)
        async with write_back.admitted(remote, header.name, header.size_bytes):
            await write_back.mark(remote, header)
            async with aclosing(_all(first, messages)) as marked:
                return await self._put_writer.store(marked, take_from_socket)

    async def _store_through(
        self, bucket: RemoteBucket, header: pb.PutHeader, messages: AsyncIterator[pb.PutRequest]
    ) -> pb.ObjectInfo:
        """Put the object of a PUT to the remote storage, then store its copy.

        Raises ContentMismatch, InvalidRequest, DriveFull, DriveFailed, VersionConflict, Unsupported, RemoteUnavailable,
        OutcomeUnknown.
        """
        read = self._node.read
        spool = await read(spool_for, self._node.store, f"{header.bucket}/{header.name}")
        try:
            await self._fill(spool, header, messages)
            async with self._tier.writing.hold([(bucket.uuid, header.name)]):
                # Otherwise a repeat would put the object over one that others have put since.
                if header.condition.repeat_ms and (done := await self.done_earlier(header)) is not None:
                    return done
                metadata = await self._put(bucket, header, spool)
                header.metadata.clear()
                header.metadata.update(metadata)
                header.size_bytes, header.checksum = spool.size_bytes, spool.checksum
                async with aclosing(self._chunks(spool)) as chunks:
                    try:
                        return await self._put_writer.store_chunks(header, chunks)
                    except LoaderError as error:
                        raise _copy_failed(header.bucket, header.name, error) from error
        finally:
            await asyncio.shield(read(spool.close))

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

    async def PutMany(
        self, requests: AsyncIterator[pb.PutManyRequest], context: Context
    ) -> AsyncIterator[pb.PutManyResponse]:
        async for request in requests:
            yield await self._put_many(request)

    async def _put_many(self, request: pb.PutManyRequest) -> pb.PutManyResponse:
        """Put the objects of one message that its client may put. Raises LoaderError."""
        granted = GRANTED.get()
        refused = refused_objects(granted, request) if granted is not None else None
        if not refused:
            return await self._put_group(request)
        count(self._node.metrics.refusals, "entries", len(refused))
        left = _without(request, refused)
        response = await self._put_group(left) if left.object else pb.PutManyResponse()
        return _with_failures(response, refused, len(request.object))

    async def _put_group(self, request: pb.PutManyRequest) -> pb.PutManyResponse:
        """Put the objects of one message. Raises LoaderError."""
        for small in request.object:
            require_unreserved(small.metadata)
        if not any(map(self._tier.buckets.find, {small.bucket for small in request.object})):
            return _response(await self._put_writer.store_group(request.object))
        names = self._names(request)
        async with self._admitted(request), self._tier.writing.hold(names):
            failed = await self._group(request)
            stored = request if not failed else _without(request, failed)
            response = _response(await self._put_writer.store_group(stored.object))
            self._judge(stored, response)
        return response if not failed else _with_failures(response, failed, len(request.object))

    @asynccontextmanager
    async def _admitted(self, request: pb.PutManyRequest) -> AsyncIterator[None]:
        """Return a context for a group of PUTs, entered when there is room for those that are uploaded later. Raises
        Overloaded."""
        for small in request.object:
            if (bucket := self.written_back(small.bucket)) is not None:
                size_bytes = sum(len(one.data) for one in request.object)
                async with self._tier.write_back.admitted(bucket, small.name, size_bytes):
                    yield
                return
        yield

    async def _group(self, request: pb.PutManyRequest) -> dict[int, LoaderError]:
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

    def _names(self, request: pb.PutManyRequest) -> Iterator[tuple[bytes, str]]:
        """Iterate over the names of a group that are written through."""
        for small in request.object:
            bucket = self._tier.buckets.find(small.bucket)
            if bucket is not None and not bucket.remote.is_write_back:
                yield bucket.uuid, small.name

    def _judge(self, request: pb.PutManyRequest, response: pb.PutManyResponse) -> None:
        """Set the errors of copies that were not stored, although the remote storage has their objects."""
        for small, result in zip(request.object, response.result, strict=True):
            if result.HasField("error") and self.is_remote(small.bucket) and self.written_back(small.bucket) is None:
                error = _copy_failed(small.bucket, small.name, result.error.message)
                result.error.kind, result.error.message = error.kind, str(error)

    # -- deleting

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        """Delete an object, and the remote object that it is a copy of. Raises LoaderError."""
        bucket, write_back = self._tier.buckets.find(request.bucket), self._tier.write_back
        if bucket is None:
            await self._delete(request, _condition_of(request))
        elif bucket.remote.is_write_back:
            etag = await write_back.cold_etag(bucket, request.name, request.if_version)
            if etag:  # nobody may have put it here meanwhile
                condition = parse_condition(True, "", request.write_id, request.repeat_ms)
            else:
                condition = _condition_of(request)
            mark = await write_back.deletion_mark(bucket, [request.name], condition, etag)
            with contextlib.suppress(ObjectNotFound):  # a cold object has no copy
                await self._delete(request, condition, mark)
        else:
            async with self._tier.writing.hold([(bucket.uuid, request.name)]):
                if not await self._was_deleted(request):
                    await self._delete_remote_object(bucket, request)
                    with contextlib.suppress(ObjectNotFound):
                        await self._delete(request, _condition_of(request))
        return pb.DeleteResponse()

    async def _delete(self, request: pb.DeleteRequest, condition: Condition | None, mark: bytes = b"") -> None:
        """Delete an object of the store. `mark`: metadata of a tombstone that is to be uploaded. Raises LoaderError."""
        if (replica_set := self._writes.replica_set(request.bucket)) is not None:
            await self._writes.delete(replica_set, request.name, condition, mark)
            return
        delete = functools.partial(
            self._store.delete, condition=condition, keep_tombstone=bool(mark), raw_metadata=mark
        )
        await self._node.read(delete, request.bucket, request.name)

    async def _was_deleted(self, request: pb.DeleteRequest) -> bool:
        """Return whether an earlier attempt of this deletion was done: others may have put the object since. Raises
        LoaderError, OutcomeUnknown."""
        if not request.repeat_ms:
            return False
        header = pb.PutHeader(bucket=request.bucket, name=request.name)
        header.condition.write_id, header.condition.repeat_ms = request.write_id, request.repeat_ms
        return await self.done_earlier(header) is not None

    async def delete_remote(self, bucket_name: str, names: Sequence[str]) -> list[LoaderError | None]:
        """Delete remote objects, before their copies are deleted; do nothing for a bucket that is not a remote one.

        Returns None or the error for each name, in order.
        """
        bucket = self._tier.buckets.find(bucket_name)
        return [None] * len(names) if bucket is None else await self._tier.writes.delete(bucket, names)

    async def _delete_remote_object(self, bucket: RemoteBucket, request: pb.DeleteRequest) -> None:
        """Delete the remote object of a request, before its copy is deleted. A condition that only the remote object
        has to meet is removed from the request.

        Raises VersionConflict, ObjectNotFound, Unsupported, RemoteUnavailable.
        """
        if request.if_version:
            try:
                await self._tier.writes.delete_version(bucket, request.name, request.if_version)
            except ObjectNotFound:
                if not request.repeat_ms:  # otherwise an earlier try may have done it, which the copy's deletion tells
                    raise
            if request.if_version.startswith(ETAG_VERSION):
                request.if_version = ""
            return
        for error in await self._tier.writes.delete(bucket, [request.name]):
            if error is not None:
                raise error


async def _all(
    first: pb.PutRequest | None, messages: AsyncIterator[pb.PutRequest]
) -> AsyncGenerator[pb.PutRequest, None]:
    if first is not None:
        yield first
    async for message in messages:
        yield message


def _condition_of(request: pb.DeleteRequest) -> Condition | None:
    return parse_condition(False, request.if_version, request.write_id, request.repeat_ms)


def _without(request: pb.PutManyRequest, failed: Mapping[int, LoaderError]) -> pb.PutManyRequest:
    return pb.PutManyRequest(object=[small for at, small in enumerate(request.object) if at not in failed])


def _response(results: Sequence[Result]) -> pb.PutManyResponse:
    response = pb.PutManyResponse()
    for result in results:
        if isinstance(result, LoaderError):
            error = of_one_of_many(result)
            response.result.add(error=pb.Error(kind=error.kind, message=str(error)))
        else:
            response.result.add(info=result)
    return response


def _with_failures(response: pb.PutManyResponse, failed: Mapping[int, LoaderError], count: int) -> pb.PutManyResponse:
    stored = iter(response.result)
    errors_of = {at: pb.PutResult(error=pb.Error(kind=one.kind, message=str(one))) for at, one in failed.items()}
    return pb.PutManyResponse(result=[errors_of.get(at) or next(stored) for at in range(count)])


def _copy_failed(bucket: str, name: str, why: object) -> OutcomeUnknown:
    return OutcomeUnknown(f"{bucket}/{name}: the remote storage has it, but its copy was not stored: {why}")


def _header_of(small: pb.SmallObject) -> pb.PutHeader:
    return pb.PutHeader(bucket=small.bucket, name=small.name, metadata=small.metadata, condition=small.condition)


async def _one(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
