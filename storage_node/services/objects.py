"""Buckets and Objects services: each call is a thin layer over the store.

Calls that may wait for a drive run on the reader threads. A PUT into a bucket that requests re-framing is replaced,
message by message, as if the client had sent the re-framed archive. Therefore a standalone node and a coordinator of
replicas behave alike, and all replicas receive the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.names_block import NamesBlock
from ais_loader.wire.object_info import info_of
from ais_loader.wire.reserved import require_unreserved
from storage_node.cluster.map.buckets import ClusterBuckets
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.listing_filter import Filtered
from storage_node.cluster.replication.write_plan import Result
from storage_node.context.errors import of_one_of_many
from storage_node.context.node import Node
from storage_node.limits.call_slots import tenant_of
from storage_node.limits.counters import count
from storage_node.remote.archives.cold_parts import WantedPage
from storage_node.remote.arriving.arriving_part import ArrivingPart
from storage_node.remote.remote_buckets import RemoteBucket
from storage_node.remote.tier import RemoteTier, described
from storage_node.rights.batches import refused_objects
from storage_node.rights.granted import GRANTED
from storage_node.services.errors import Context
from storage_node.services.pending_guard import PendingGuard
from storage_node.services.put_writer import PutWriter
from storage_node.services.write_through import WriteThrough
from storage_node.store.archives.kinds import can_reframe
from storage_node.store.checksum import crc32c
from storage_node.store.drive.preconditions import Condition, parse_condition
from storage_node.store.listing import PAGE_BYTES, LevelPage, NamesPage
from storage_node.store.read.object_reader import (
    MemberPage,
    MemberReader,
    StoredObjectReader,
    list_members,
    open_member,
    open_object,
)
from storage_node.store.reframe_on_put import Spooled, reframed_bytes, replacement, spool_for
from storage_node.store.replica_state import CatalogPage
from storage_node.store.store_record import BucketRecord
from storage_node.store.write import check_announced, check_content

MAX_PAGE_SIZE = 10_000


class BucketsService:
    """Bucket operations. A node in a cluster acts on the cluster's buckets, another on its own."""

    def __init__(self, node: Node, guard: PendingGuard) -> None:
        self._node = node
        self._store = node.store
        self._guard = guard
        self._cluster = ClusterBuckets(node.membership, node.caller)

    async def CreateBucket(self, request: pb.CreateBucketRequest, context: Context) -> pb.Bucket:
        def create() -> BucketRecord:
            settings = BucketSettings.from_wire(request)
            return self._store.create_bucket(request.name, settings, exist_ok=request.exist_ok)

        if (view := self._cluster.view) is not None:
            return await self._cluster.create(view, request)
        return _bucket(request.name, await self._node.read(create))

    async def GetBucket(self, request: pb.GetBucketRequest, context: Context) -> pb.Bucket:
        if (view := self._cluster.view) is not None:
            return self._cluster.get(view, request.name)
        return _bucket(request.name, self._store.bucket(request.name))

    async def ListBuckets(self, request: pb.ListBucketsRequest, context: Context) -> pb.ListBucketsResponse:
        if (view := self._cluster.view) is not None:
            return pb.ListBucketsResponse(bucket=[self._cluster.get(view, name) for name in sorted(view.buckets)])
        found = sorted(self._store.buckets().items())
        return pb.ListBucketsResponse(bucket=[_bucket(name, bucket) for name, bucket in found])

    async def SetBucket(self, request: pb.SetBucketRequest, context: Context) -> pb.Bucket:
        settings = BucketSettings.from_wire(request)
        await self._guard.require_settable(request.name, settings.remote)
        if (view := self._cluster.view) is not None:
            return await self._cluster.set(view, request.name, settings)
        return _bucket(request.name, await self._node.read(self._store.set_bucket, request.name, settings))

    async def DeleteBucket(self, request: pb.DeleteBucketRequest, context: Context) -> pb.DeleteBucketResponse:
        def delete() -> int:
            return self._store.delete_bucket(request.name, force=request.force)

        await self._guard.require_deletable(request.name)
        if (view := self._cluster.view) is not None:
            deleted = await self._cluster.delete(view, request.name, force=request.force)
            return pb.DeleteBucketResponse(deleted_objects=deleted)
        deleted = await self._node.open_archives(tenant_of(context), delete)
        return pb.DeleteBucketResponse(deleted_objects=deleted)


class ObjectsService:
    def __init__(self, node: Node, writes: WriteCoordinator, put_writer: PutWriter, tier: RemoteTier) -> None:
        self._node = node
        self._store = node.store
        self._writes = writes
        self._put_writer = put_writer
        self._tier = tier
        self._write_through = WriteThrough(node, tier)
        self._reframing = Reframing(node)

    async def Put(self, requests: AsyncIterator[pb.PutRequest], context: Context) -> pb.ObjectInfo:
        messages_of_client = aiter(requests)
        first = await anext(messages_of_client, None)
        bucket = ""
        if first is not None and first.WhichOneof("part") == "header":
            bucket = first.header.bucket
            require_unreserved(first.header.metadata)
        async with aclosing(self._reframing.messages(first, messages_of_client)) as messages:
            return await self.store_messages(bucket, messages, getattr(context, "take_from_socket", None))

    async def done_earlier(self, header: pb.PutHeader) -> pb.ObjectInfo | None:
        """See `PutWriter.done_earlier`."""
        return await self._put_writer.done_earlier(header)

    async def store_messages(
        self,
        bucket: str,
        messages: AsyncIterator[pb.PutRequest],
        take_from_socket: Callable[[], None] | None = None,
    ) -> pb.ObjectInfo:
        """Store the object of one PUT; that of a remote bucket in the remote storage first, unless it is written back.
        Raises LoaderError."""
        if (back := self._write_through.written_back(bucket)) is not None:
            return await self._store_pending(back, messages, take_from_socket)
        if not self._write_through.is_wanted(bucket):
            return await self._put_writer.store(messages, take_from_socket)
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
        group = await self._reframing.group(request)
        names = self._write_through.names(group)
        async with self._write_through.admitted(group), self._tier.writing.hold(names):
            failed = await self._write_through.group(group)
            stored = group if not failed else _without(group, failed)
            response = _response(await self._put_writer.store_group(stored.object))
            self._write_through.judge(stored, response)
        return response if not failed else _with_failures(response, failed, len(group.object))

    async def Get(self, request: pb.GetRequest, context: Context) -> AsyncIterator[pb.GetResponse]:
        read = self._node.read
        reader: StoredObjectReader | MemberReader | None = None
        part: ArrivingPart | None = None
        try:
            if request.member:
                await self._tier.ensure(request.bucket, request.name)
            else:
                length = request.length if request.HasField("length") else -1
                part = await self._tier.arriving(request.bucket, request.name, request.version, request.start, length)
                if part is not None:
                    info = described(request.bucket, part.info)
                    yield pb.GetResponse(header=pb.GetHeader(info=info, length=part.size_bytes))
                    async with aclosing(part.chunks()) as chunks:
                        async for chunk in chunks:
                            yield pb.GetResponse(data=chunk)
                    return
            if request.member:
                reader = await self._node.open_archives(tenant_of(context), self._open, request)
            else:
                reader = await read(self._open, request)
            info = info_of(request.bucket, request.name, reader.record)
            yield pb.GetResponse(header=pb.GetHeader(info=info, length=reader.length))
            while chunk := await read(next, reader, b""):
                yield pb.GetResponse(data=chunk)
        finally:
            if reader is not None:
                reader.close()
            if part is not None:
                part.close()

    def _open(self, request: pb.GetRequest) -> StoredObjectReader | MemberReader:
        length = request.length if request.HasField("length") else None
        if request.member:
            return open_member(
                self._store,
                request.bucket,
                request.name,
                request.member,
                start=request.start,
                length=length,
                version=request.version,
                verify=request.verify_range,
            )
        return open_object(
            self._store,
            request.bucket,
            request.name,
            start=request.start,
            length=length,
            version=request.version,
            verify=request.verify_range,
        )

    async def Head(self, request: pb.HeadRequest, context: Context) -> pb.ObjectInfo:
        bucket = self._tier.remote_bucket(request.bucket)
        try:
            if bucket is None:
                entry = await self._node.read(self._store.head, request.bucket, request.name)
            else:
                entry = await self._node.read(self._tier.stored, bucket, request.name)
        except ObjectNotFound:
            if bucket is None:
                raise
            return await self._tier.head(bucket, request.name)
        if bucket is not None and not self._tier.is_current(bucket, request.name, entry):
            await self._tier.fetch(bucket, request.name, str(entry.version))
            entry = await self._node.read(self._store.head, request.bucket, request.name)
        return info_of(request.bucket, request.name, entry)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        bucket, write_back = self._tier.remote_bucket(request.bucket), self._tier.write_back
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
        if request.names_only and (names := await self._names(request)) is not None:
            return names
        if request.one_level and (level := await self._level(request)) is not None:
            return level
        most = MAX_PAGE_SIZE if request.names_only else min(request.page_size or 1000, MAX_PAGE_SIZE)

        def look() -> CatalogPage:
            return self._store.replicas.page(
                request.bucket,
                request.prefix,
                request.start_after,
                most=most,
                most_bytes=PAGE_BYTES,
                skip_missing=request.skip_missing_drives,
            )

        def answer(page: CatalogPage, shown: Filtered) -> pb.ListResponse:
            """Build the response on a thread: thousands of messages would block the event loop."""
            response = (
                _names_response([name.encode() for name, _ in shown.objects])
                if request.names_only
                else pb.ListResponse(object=[info_of(request.bucket, name, entry) for name, entry in shown.objects])
            )
            response.more, response.next = page.next is not None, page.next or ""
            response.in_doubt.extend(sorted([*page.in_doubt, *shown.in_doubt]))
            return response

        oldest = self._node.membership.lease.version
        page = await self._node.read(look)
        shown = await self._writes.current(request.bucket, page.objects)
        return self._dated(await self._node.read(answer, page, shown), oldest)

    async def _names(self, request: pb.ListRequest) -> pb.ListResponse | None:
        """Return a page of names, or None if some are in doubt, or not this node's own: they are looked at one by
        one."""

        def look() -> NamesPage | None:
            if self._store.replicas.stale.any:
                return None
            return self._store.replicas.names(
                request.bucket,
                request.prefix,
                request.start_after,
                most_bytes=PAGE_BYTES,
                skip_missing=request.skip_missing_drives,
            )

        def answer(page: NamesPage) -> pb.ListResponse:
            response = _names_response(page.names)
            response.more, response.next = page.next is not None, page.next or ""
            return response

        oldest = self._node.membership.lease.version
        page = await self._node.read(look)
        if page is None or not await self._node.read(self._writes.owns, request.bucket, page.names):
            return None
        return self._dated(await self._node.read(answer, page), oldest)

    async def _level(self, request: pb.ListRequest) -> pb.ListResponse | None:
        """Return a page of one level; None as in `_names`. A folder is known by its first name alone."""

        def look() -> LevelPage | None:
            if self._store.replicas.stale.any:
                return None
            return self._store.replicas.level(
                request.bucket,
                request.prefix,
                request.start_after,
                most=min(request.page_size or 1000, MAX_PAGE_SIZE),
                most_bytes=PAGE_BYTES,
                skip_missing=request.skip_missing_drives,
            )

        def answer(page: LevelPage) -> pb.ListResponse:
            return pb.ListResponse(
                object=[info_of(request.bucket, name, entry) for name, entry in page.objects],
                folder=[folder for folder, _ in page.folders],
                more=page.next is not None,
                next=page.next or "",
            )

        oldest = self._node.membership.lease.version
        page = await self._node.read(look)
        if page is None:
            return None
        names = [name.encode() for name, _ in page.objects] + [first.encode() for _, first in page.folders]
        if not await self._node.read(self._writes.owns, request.bucket, names):
            return None
        return self._dated(await self._node.read(answer, page), oldest)

    def _dated(self, response: pb.ListResponse, oldest: int) -> pb.ListResponse:
        """Add what tells whether the listings of several nodes belong together."""
        response.oldest_map_version = oldest
        if (last_removal_s := self._store.replicas.last_removal_s) is not None:
            response.let_go_ms = int((time.monotonic() - last_removal_s) * 1000)
        response.map_version = self._node.map_version
        return response

    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersResponse:
        page_size = min(request.page_size or 1000, MAX_PAGE_SIZE)
        wanted = WantedPage(request.prefix, request.first, page_size, request.version, PAGE_BYTES)

        async def stored() -> MemberPage:
            return await self._node.open_archives(
                tenant_of(context), list_members, self._store, request.bucket, request.name, *wanted
            )

        try:
            return _members_response(await stored())
        except ObjectNotFound:
            if (bucket := self._tier.remote_bucket(request.bucket)) is None:
                raise
        cold = await self._tier.member_page(bucket, request.name, wanted)
        return _members_response(await stored() if cold is None else cold)


async def _all(first: pb.PutRequest, messages: AsyncIterator[pb.PutRequest]) -> AsyncGenerator[pb.PutRequest, None]:
    yield first
    async for message in messages:
        yield message


def _names_response(names: Sequence[bytes]) -> pb.ListResponse:
    block = NamesBlock.of(names)
    return pb.ListResponse(names=block.names, name_lengths=block.lengths.astype("<u2").tobytes(), has_names=True)


def _members_response(page: MemberPage) -> pb.ListMembersResponse:
    return pb.ListMembersResponse(
        name=[member.name for member in page.members],
        size=[member.size_bytes for member in page.members],
        checksum=[member.checksum for member in page.members],
        version=page.version,
        next=page.next,
        hidden=page.hidden,
    )


def _condition_of(request: pb.DeleteRequest) -> Condition | None:
    return parse_condition(False, request.if_version, request.write_id, request.repeat_ms)


def _bucket(name: str, record: BucketRecord) -> pb.Bucket:
    return pb.Bucket(
        name=name,
        uuid=record.uuid_bytes,
        copies=record.copies,
        min_copies=1,
        reframe=record.reframe,
        remote=record.remote.to_wire() if record.remote is not None else None,
        quota_bytes=record.quota_bytes,
        quota_objects=record.quota_objects,
    )


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


_CHUNK_END = b""


class Reframing:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._store = node.store

    def _wanted(self, bucket: str, name: str) -> bool:
        if not can_reframe(name):
            return False
        view = self._node.membership.view
        if view is not None and bucket in view.buckets:
            return view.buckets[bucket].reframe
        found = self._store.find_bucket(bucket)
        return found is not None and found.reframe

    async def messages(
        self, first: pb.PutRequest | None, messages: AsyncIterator[pb.PutRequest]
    ) -> AsyncGenerator[pb.PutRequest, None]:
        """Yield the messages of one PUT, given the first one, if any, and the others.

        Raises ContentMismatch, InvalidRequest, DriveFull, DriveFailed.
        """
        if first is None:
            return
        if not first.HasField("header") or not self._wanted(first.header.bucket, first.header.name):
            yield first
            async for message in messages:
                yield message
            return
        header, read = first.header, self._node.read
        spool = stored = await read(spool_for, self._store, f"{header.bucket}/{header.name}")
        try:
            async for message in messages:
                part = message.WhichOneof("part")
                if part == "data":
                    await read(spool.write, message.data)
                elif part == "end":
                    check_content(spool, message.end.size_bytes, message.end.checksum)
                    check_announced(spool, header)
                    break
                else:
                    raise InvalidRequest(f"a message of a PUT that is neither data nor end: {part}")
            else:
                yield first
                return  # the consumer of these messages notices that the end is missing
            stored, metadata = await self._replacement(header, spool)
            header.size_bytes, header.checksum = stored.size_bytes, stored.checksum
            header.metadata.clear()
            header.metadata.update(metadata)
            yield pb.PutRequest(header=header)
            chunks = stored.chunks()
            while chunk := await read(next, chunks, _CHUNK_END):
                yield pb.PutRequest(data=chunk)
            yield pb.PutRequest(end=pb.PutEnd(size_bytes=stored.size_bytes, checksum=stored.checksum))
        finally:
            spool.close()
            stored.close()

    async def _replacement(self, header: pb.PutHeader, spool: Spooled) -> tuple[Spooled, dict[str, str]]:
        work = asyncio.ensure_future(
            asyncio.to_thread(replacement, self._store, header.name, dict(header.metadata), spool)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # its files must not be closed while it runs
            if work.exception() is None:
                work.result()[0].close()
            raise

    async def group(self, request: pb.PutManyRequest) -> pb.PutManyRequest:
        """Re-frame small objects. Raises DriveFull, DriveFailed."""
        for small in request.object:
            if self._wanted(small.bucket, small.name):
                await asyncio.to_thread(self._reframe, small)
        return request

    def _reframe(self, small: pb.SmallObject) -> None:
        if small.HasField("checksum") and small.checksum != crc32c(small.data):
            return  # the store will refuse it
        label = f"{small.bucket}/{small.name}"
        try:
            found = reframed_bytes(self._store, label, small.name, [small.data], dict(small.metadata))
        except LoaderError:
            return  # in any case, the original can be stored
        if found is not None:
            small.data, metadata = found
            small.checksum = crc32c(small.data)
            small.metadata.clear()
            small.metadata.update(metadata)
