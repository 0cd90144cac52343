"""Objects service: reads of objects of this node or of remote storage, their descriptions, and pages of objects and
members. `ObjectWrites` has the others of its calls."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from typing import Any

from ais_loader.errors import ObjectNotFound, RangeError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.names_block import NamesBlock
from ais_loader.wire.object_info import info_of
from storage_node.cluster.coding.coded_objects import CodedObjects
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.context.node import Node
from storage_node.limits.call_slots import tenant_of
from storage_node.remote.archives.cold_parts import WantedPage
from storage_node.remote.descriptions import described
from storage_node.remote.tier import RemoteTier
from storage_node.services.errors import Context
from storage_node.services.object_writes import ObjectWrites
from storage_node.services.put_writer import PutWriter
from storage_node.store.buckets import ObjectCoded
from storage_node.store.listing import PAGE_BYTES
from storage_node.store.read.frame_plan import check_range
from storage_node.store.read.object_reader import (
    CHUNK_BYTES,
    MemberPage,
    MemberReader,
    StoredObjectReader,
    list_members,
    open_member,
    open_object,
)

MAX_PAGE_SIZE = 10_000


class ObjectsService(ObjectWrites):
    """Belongs to the node's event loop. Reads, and builds pages, on reader threads."""

    def __init__(
        self, node: Node, writes: WriteCoordinator, put_writer: PutWriter, tier: RemoteTier, coded: CodedObjects
    ) -> None:
        super().__init__(node, writes, put_writer, tier)
        self._objects = coded

    async def Get(self, request: pb.GetRequest, context: Context) -> AsyncGenerator[pb.GetResponse, None]:
        """Yield the description of an object or member, then its bytes. Raises LoaderError."""
        read, bucket = self._node.read, self._tier.buckets.find(request.bucket)
        opened: StoredObjectReader | MemberReader | ObjectCoded
        if request.member:
            if bucket is not None:
                await self._tier.reads.ensure(bucket, request.name)
            opened = await self._node.open_archives(tenant_of(context), self._open, request)
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
            opened = await read(self._open, request)
        if isinstance(opened, ObjectCoded):
            async with aclosing(self._coded(request, opened)) as messages:
                async for message in messages:
                    yield message
            return
        with closing(opened):
            info = info_of(request.bucket, request.name, opened.record)
            yield pb.GetResponse(header=pb.GetHeader(info=info, length=opened.length))
            while data := await read(next, opened, b""):
                yield pb.GetResponse(data=data)

    async def _coded(self, request: pb.GetRequest, coded: ObjectCoded) -> AsyncGenerator[pb.GetResponse, None]:
        [entry], start = coded.entries.values(), request.start
        length = request.length if request.HasField("length") else -1
        if fault := check_range(start, length, entry.size_bytes):
            raise RangeError(f"{request.bucket}/{request.name}: {fault}")
        size_bytes = entry.size_bytes - start if length < 0 else length
        info = info_of(request.bucket, request.name, entry)
        yield pb.GetResponse(header=pb.GetHeader(info=info, length=size_bytes))
        verify = request.verify_range or size_bytes == entry.size_bytes
        async with aclosing(self._objects.chunks(coded.bucket_uuid, entry, start, size_bytes, verify=verify)) as chunks:
            async for chunk in chunks:
                for at in range(0, len(chunk), CHUNK_BYTES):
                    yield pb.GetResponse(data=bytes(chunk[at : at + CHUNK_BYTES]))

    def _open(self, request: pb.GetRequest) -> StoredObjectReader | MemberReader | ObjectCoded:
        """Open an object or a member. Returns the error for a coded object, which is not stored again to be read."""
        wanted: dict[str, Any] = {
            "start": request.start,
            "length": request.length if request.HasField("length") else None,
            "version": request.version,
            "verify": request.verify_range,
        }
        if request.member:
            return open_member(self._store, request.bucket, request.name, request.member, **wanted)
        try:
            return open_object(self._store, request.bucket, request.name, **wanted)
        except ObjectCoded as coded:
            return coded

    async def Head(self, request: pb.HeadRequest, context: Context) -> pb.ObjectInfo:
        """Describe an object. Raises LoaderError."""
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

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:
        """Return a page of a listing. Raises LoaderError."""
        replicas, oldest = self._store.replicas, self._node.membership.lease.version
        look = functools.partial(
            replicas.page,
            request.bucket,
            request.prefix,
            request.start_after,
            most=MAX_PAGE_SIZE if request.names_only else min(request.page_size or 1000, MAX_PAGE_SIZE),
            most_bytes=PAGE_BYTES,
            skip_missing=request.skip_missing_drives,
        )
        page = await self._node.read(
            functools.partial(look, names_only=request.names_only, one_level=request.one_level)
        )
        names = [*page.names, *(first.encode() for _, first in page.folders)]
        if names and not await self._node.read(self._writes.owns, request.bucket, names):
            page = await self._node.read(look)  # objects of others are looked at one by one
        shown = await self._writes.current(request.bucket, page.objects)

        def answer() -> pb.ListResponse:
            """Build the response on a thread: thousands of messages would block the event loop."""
            response = pb.ListResponse(
                more=page.next is not None,
                next=page.next or "",
                in_doubt=sorted([*page.in_doubt, *shown.in_doubt]),
                folder=[folder for folder, _ in page.folders],
                oldest_map_version=oldest,
            )
            if request.names_only:
                block = NamesBlock.of(page.names or [name.encode() for name, _ in shown.objects])
                response.names, response.name_lengths = block.names, block.lengths.astype("<u2").tobytes()
            else:
                response.object.extend(info_of(request.bucket, name, entry) for name, entry in shown.objects)
            return response

        response = await self._node.read(answer)
        if (last_removal_s := replicas.last_removal_s) is not None:
            response.let_go_ms = int((time.monotonic() - last_removal_s) * 1000)
        response.map_version = self._node.map_version
        return response

    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersResponse:
        """Return a page of an archive's members. Raises LoaderError."""
        page_size = min(request.page_size or 1000, MAX_PAGE_SIZE)
        wanted = WantedPage(request.prefix, request.first, page_size, request.version, PAGE_BYTES)

        async def stored() -> MemberPage:
            return await self._node.open_archives(
                tenant_of(context), list_members, self._store, request.bucket, request.name, *wanted
            )

        try:
            return _members_response(await stored())
        except ObjectNotFound:
            if (bucket := self._tier.buckets.find(request.bucket)) is None:
                raise
        cold = await self._tier.reads.member_page(bucket, request.name, wanted)
        return _members_response(await stored() if cold is None else cold)


def _members_response(page: MemberPage) -> pb.ListMembersResponse:
    return pb.ListMembersResponse(
        name=[member.name for member in page.members],
        size=[member.size_bytes for member in page.members],
        checksum=[member.checksum for member in page.members],
        version=page.version,
        next=page.next,
        hidden=page.hidden,
    )
