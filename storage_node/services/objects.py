"""Objects service: takes each message apart, and calls the reads or writes of objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.limits.call_slots import tenant_of
from storage_node.services.errors import Context
from storage_node.services.object_reads import ObjectReads
from storage_node.services.object_writes import ObjectWrites


class ObjectsService:
    def __init__(self, reads: ObjectReads, writes: ObjectWrites) -> None:
        self._reads, self._writes = reads, writes

    async def Put(self, requests: AsyncIterator[pb.PutRequest], context: Context) -> pb.ObjectInfo:
        return await self._writes.store(aiter(requests), getattr(context, "take_from_socket", None), of_client=True)

    async def PutMany(
        self, requests: AsyncIterator[pb.PutManyRequest], context: Context
    ) -> AsyncIterator[pb.PutManyResponse]:
        async for request in requests:
            yield await self._writes.put_many(request)

    async def Get(self, request: pb.GetRequest, context: Context) -> AsyncIterator[pb.GetResponse]:
        async with aclosing(self._reads.get(request, tenant_of(context))) as responses:
            async for response in responses:
                yield response

    async def Head(self, request: pb.HeadRequest, context: Context) -> pb.ObjectInfo:
        return await self._reads.head(request)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        await self._writes.delete(request)
        return pb.DeleteResponse()

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:
        return await self._reads.page(request)

    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersResponse:
        return await self._reads.members(request, tenant_of(context))
