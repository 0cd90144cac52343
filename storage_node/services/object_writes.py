"""Object writes: puts and deletions of objects, by clients. See `BucketWrites` for those of remote buckets.

The received bytes of an object that is written through are spooled to an unnamed file until all of them have arrived
and match the announced size and checksum, because the remote storage needs the size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import require_unreserved
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.counters import count
from storage_node.remote.tier import RemoteTier
from storage_node.security.rights.batches import refused_objects
from storage_node.security.rights.granted import GRANTED
from storage_node.services.errors import Context
from storage_node.services.put_writer import PutWriter
from storage_node.store.chunked_put import Spooled, spool_for
from storage_node.store.drive.preconditions import condition_of_deletion
from storage_node.store.write import check_announced, check_content

_CHUNK_END = b""


class ObjectWrites:
    """Belongs to the node's event loop."""

    def __init__(self, node: Node, writes: WriteCoordinator, put_writer: PutWriter, tier: RemoteTier) -> None:
        self._node = node
        self._store = node.store
        self._writes = writes
        self._put_writer = put_writer
        self.done_earlier = put_writer.done_earlier
        self._tier = tier

    # -- one object

    async def Put(self, requests: AsyncIterator[pb.PutRequest], context: Context) -> pb.ObjectInfo:
        """Store the object of one PUT of a client. Raises LoaderError."""
        return await self.store(aiter(requests), getattr(context, "take_from_socket", None), of_client=True)

    async def store(
        self,
        messages: AsyncIterator[pb.PutRequest],
        take_from_socket: Callable[[], None] | None = None,
        *,
        of_client: bool = False,
    ) -> pb.ObjectInfo:
        """Store the object of one PUT; that of a remote bucket in the remote storage first, unless it is written back.
        Raises LoaderError.

        `take_from_socket`: See `PutWriter.store`. `of_client`: check that the metadata have no keys of the store.
        """
        first = await anext(messages, None)
        header = first.header if first is not None and first.HasField("header") else pb.PutHeader()
        if of_client:
            require_unreserved(header.metadata)
        remote, write_back = self._tier.buckets.find(header.bucket), self._tier.write_back
        if remote is not None and not remote.remote.is_write_back:
            return await self._store_through(remote, header, messages)
        async with aclosing(_all(first, messages)) as all_messages:
            if remote is None:
                return await self._put_writer.store(all_messages, take_from_socket)
            async with write_back.admitted(remote, header.name, header.size_bytes):
                await write_back.mark(remote, header)
                return await self._put_writer.store(all_messages, take_from_socket)

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

    async def PutMany(
        self, requests: AsyncIterator[pb.PutManyRequest], context: Context
    ) -> AsyncIterator[pb.PutManyResponse]:
        async for request in requests:
            yield await self._put_many(request)

    async def _put_many(self, request: pb.PutManyRequest) -> pb.PutManyResponse:
        """Put the objects of one message that its client may put. Raises LoaderError."""
        granted = GRANTED.get()
        refused = refused_objects(granted, request) if granted is not None else {}
        if refused:
            count(self._node.metrics.refusals, "entries", len(refused))
        left = [small for at, small in enumerate(request.object) if at not in refused]
        for small in left:
            require_unreserved(small.metadata)
        is_remote = bool(self._tier.buckets.of({small.bucket for small in left}))
        put_group = self._tier.bucket_writes.put_group if is_remote else self._put_writer.store_group
        stored = iter(await put_group(left) if left else ())
        response = pb.PutManyResponse()
        for at in range(len(request.object)):
            result = refused.get(at) or next(stored)
            if isinstance(result, LoaderError):
                response.result.add(error=pb.Error(kind=result.kind, message=str(result)))
            else:
                response.result.add(info=result)
        return response

    # -- deleting

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        """Delete an object, and the remote object that it is a copy of. Raises LoaderError."""
        if (bucket := self._tier.buckets.find(request.bucket)) is not None:
            await self._tier.bucket_writes.delete(bucket, request)
        else:
            await self._put_writer.delete(request.bucket, request.name, condition_of_deletion(request))
        return pb.DeleteResponse()


async def _all(
    first: pb.PutRequest | None, messages: AsyncIterator[pb.PutRequest]
) -> AsyncGenerator[pb.PutRequest, None]:
    if first is not None:
        yield first
    async for message in messages:
        yield message
