"""Objects service: each call is a thin layer over the store. What may wait for a drive runs on the reader threads."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import info_of
from ais_loader.wire.reserved import require_unreserved
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.write_plan import Result
from storage_node.context.errors import of_one_of_many
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.call_slots import tenant_of
from storage_node.limits.counters import count
from storage_node.remote.descriptions import described
from storage_node.remote.tier import RemoteTier
from storage_node.rights.batches import refused_objects
from storage_node.rights.granted import GRANTED
from storage_node.services.errors import Context
from storage_node.services.listings import Listings
from storage_node.services.put_writer import PutWriter
from storage_node.services.write_through import WriteThrough
from storage_node.store.drive.preconditions import Condition, parse_condition
from storage_node.store.read.object_reader import MemberReader, StoredObjectReader, open_member, open_object


class ObjectsService:
    def __init__(self, node: Node, writes: WriteCoordinator, put_writer: PutWriter, tier: RemoteTier) -> None:
        self._node = node
        self._store = node.store
        self._writes = writes
        self._put_writer = put_writer
        self.done_earlier = put_writer.done_earlier
        self._tier = tier
        self._write_through = WriteThrough(node, tier)
        self._listings = Listings(node, writes, tier)

    async def Put(self, requests: AsyncIterator[pb.PutRequest], context: Context) -> pb.ObjectInfo:
        messages_of_client = aiter(requests)
        first = await anext(messages_of_client, None)
        bucket = ""
        if first is not None and first.WhichOneof("part") == "header":
            bucket = first.header.bucket
            require_unreserved(first.header.metadata)
        async with aclosing(_all(first, messages_of_client)) as messages:
            return await self.store_messages(bucket, messages, getattr(context, "take_from_socket", None))

    async def store_messages(
        self,
        bucket: str,
        messages: AsyncIterator[pb.PutRequest],
        take_from_socket: Callable[[], None] | None = None,
    ) -> pb.ObjectInfo:
        """Store the object of one PUT; that of a remote bucket in the remote storage first, unless it is written back.
        Raises LoaderError."""
        if (remote := self._tier.buckets.find(bucket)) is None:
            return await self._put_writer.store(messages, take_from_socket)
        if remote.remote.is_write_back:
            return await self._store_pending(remote, messages, take_from_socket)
        return await self._write_through.put(messages, self._put_writer.store, self.done_earlier)

    async def _store_pending(
        self,
        bucket: RemoteBucket,
        messages: AsyncIterator[pb.PutRequest],
        take_from_socket: Callable[[], None] | None,
    ) -> pb.ObjectInfo:
        """Store the object of one PUT, which is uploaded later."""
        write_back = self._tier.write_back
        first = await anext(messages, None)
        if first is None or not first.HasField("header"):
            raise InvalidRequest("a PUT begins with its header")
        header = first.header
        async with write_back.admitted(bucket, header.name, header.size_bytes):
            await write_back.mark(bucket, header)
            async with aclosing(_all(first, messages)) as marked:
                return await self._put_writer.store(marked, take_from_socket)

    async def PutMany(
        self, requests: AsyncIterator[pb.PutManyRequest], context: Context
    ) -> AsyncIterator[pb.PutManyResponse]:
        granted = GRANTED.get()
        async for request in requests:
            refused = refused_objects(granted, request) if granted is not None else None
            if not refused:
                yield await self._put_group(request)
                continue
            count(self._node.metrics.refusals, "entries", len(refused))
            left = _without(request, refused)
            response = await self._put_group(left) if left.object else pb.PutManyResponse()
            yield _with_failures(response, refused, len(request.object))

    async def _put_group(self, request: pb.PutManyRequest) -> pb.PutManyResponse:
        """Put the objects of one message. Raises LoaderError."""
        for small in request.object:
            require_unreserved(small.metadata)
        if not any(map(self._tier.buckets.find, {small.bucket for small in request.object})):
            return _response(await self._put_writer.store_group(request.object))
        names = self._write_through.names(request)
        async with self._write_through.admitted(request), self._tier.writing.hold(names):
            failed = await self._write_through.group(request)
            stored = request if not failed else _without(request, failed)
            response = _response(await self._put_writer.store_group(stored.object))
            self._write_through.judge(stored, response)
        return response if not failed else _with_failures(response, failed, len(request.object))

    async def Get(self, request: pb.GetRequest, context: Context) -> AsyncIterator[pb.GetResponse]:
        read, bucket = self._node.read, self._tier.buckets.find(request.bucket)
        reader: StoredObjectReader | MemberReader
        if request.member:
            if bucket is not None:
                await self._tier.reads.ensure(bucket, request.name)
            reader = await self._node.open_archives(tenant_of(context), self._open, request)
        else:
            part = None
            if bucket is not None:
                length = request.length if request.HasField("length") else -1
                part = await self._tier.reads.arriving(bucket, request.name, request.version, request.start, length)
            if part is not None:
                with closing(part):
                    info = described(request.bucket, part.info)
                    yield pb.GetResponse(header=pb.GetHeader(info=info, length=part.size_bytes))
                    async with aclosing(part.chunks()) as chunks:
                        async for chunk in chunks:
                            yield pb.GetResponse(data=chunk)
                return
            reader = await read(self._open, request)
        with closing(reader):
            info = info_of(request.bucket, request.name, reader.record)
            yield pb.GetResponse(header=pb.GetHeader(info=info, length=reader.length))
            while data := await read(next, reader, b""):
                yield pb.GetResponse(data=data)

    def _open(self, request: pb.GetRequest) -> StoredObjectReader | MemberReader:
        wanted: dict[str, Any] = {
            "start": request.start,
            "length": request.length if request.HasField("length") else None,
            "version": request.version,
            "verify": request.verify_range,
        }
        if request.member:
            return open_member(self._store, request.bucket, request.name, request.member, **wanted)
        return open_object(self._store, request.bucket, request.name, **wanted)

    async def Head(self, request: pb.HeadRequest, context: Context) -> pb.ObjectInfo:
        bucket = self._tier.buckets.find(request.bucket)
        try:
            if bucket is None:
                entry = await self._node.read(self._store.head, request.bucket, request.name)
            else:
                entry = await self._node.read(self._tier.copies.stored, bucket, request.name)
        except ObjectNotFound:
            if bucket is None:
                raise
            return await self._tier.descriptions.head(bucket, request.name)
        if bucket is not None and not self._tier.copies.is_current(bucket, request.name, entry):
            await self._tier.fetches.fetch(bucket, request.name, str(entry.version))
            entry = await self._node.read(self._store.head, request.bucket, request.name)
        return info_of(request.bucket, request.name, entry)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
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
                    await self._write_through.delete_one(request)
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

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:
        return await self._listings.page(request)

    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersResponse:
        return await self._listings.members(request, tenant_of(context))


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
