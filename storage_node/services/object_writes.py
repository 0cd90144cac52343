"""Object writes: puts and deletions of objects, by clients. See `BucketWrites` for those of remote buckets.

The received bytes of an object that is written through are spooled to an unnamed file until all of them have arrived
and match the announced size and checksum, because the remote storage needs the size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import require_unreserved
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.write_plan import Result
from storage_node.context.errors import of_one_of_many
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.counters import count
from storage_node.remote.bucket_writes import condition_of_deletion
from storage_node.remote.tier import RemoteTier
from storage_node.security.rights.batches import refused_objects
from storage_node.security.rights.granted import GRANTED
from storage_node.services.put_writer import PutWriter
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

    async def put(
        self, requests: AsyncIterator[pb.PutRequest], take_from_socket: Callable[[], None] | None
    ) -> pb.ObjectInfo:
        """Store the object of one PUT of a client. Raises LoaderError.

        `take_from_socket`: See `PutWriter.store`.
        """
        messages_of_client = aiter(requests)
        first = await anext(messages_of_client, None)
        bucket = ""
        if first is not None and first.WhichOneof("part") == "header":
            bucket = first.header.bucket
            require_unreserved(first.header.metadata)
        async with aclosing(_all(first, messages_of_client)) as messages:
            return await self.store(bucket, messages, take_from_socket)

    async def store(
        self,
        bucket: str,
        messages: AsyncIterator[pb.PutRequest],
        take_from_socket: Callable[[], None] | None = None,
    ) -> pb.ObjectInfo:
        """Store the object of one PUT; that of a remote bucket in the remote storage first, unless it is written back.
        Raises LoaderError."""
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

        Raises ContentMismatch, InvalidRequest, DriveFull, DriveFailed, and what `BucketWrites.put` raises.
        """
        read = self._node.read
        spool = await read(spool_for, self._node.store, f"{header.bucket}/{header.name}")
        try:
            await self._fill(spool, header, messages)
            header.size_bytes, header.checksum = spool.size_bytes, spool.checksum
            return await self._tier.bucket_writes.put(bucket, header, lambda: self._chunks(spool))
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

    async def _chunks(self, spool: Spooled) -> AsyncGenerator[bytes, None]:
        chunks = spool.chunks()
        while chunk := await self._node.read(next, chunks, _CHUNK_END):
            yield chunk

    # -- many small objects

    async def put_many(self, request: pb.PutManyRequest) -> pb.PutManyResponse:
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
        return _response(await self._tier.bucket_writes.put_group(request.object))

    # -- deleting

    async def delete(self, request: pb.DeleteRequest) -> None:
        """Delete an object, and the remote object that it is a copy of. Raises LoaderError."""
        if (bucket := self._tier.buckets.find(request.bucket)) is not None:
            await self._tier.bucket_writes.delete(bucket, request)
        else:
            condition = condition_of_deletion(request)
            await self._tier.host.delete_object(request.bucket, request.name, condition, b"")

    async def delete_remote(self, bucket_name: str, names: Sequence[str]) -> list[LoaderError | None]:
        """Delete remote objects, before their copies are deleted; do nothing for a bucket that is not a remote one.

        Returns None or the error for each name, in order.
        """
        bucket = self._tier.buckets.find(bucket_name)
        return [None] * len(names) if bucket is None else await self._tier.writes.delete(bucket, names)


async def _all(
    first: pb.PutRequest | None, messages: AsyncIterator[pb.PutRequest]
) -> AsyncGenerator[pb.PutRequest, None]:
    if first is not None:
        yield first
    async for message in messages:
        yield message


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
