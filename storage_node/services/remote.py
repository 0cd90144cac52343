"""Remote services: what clients ask of remote storage, and fetches for other nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from ais_loader.errors import InvalidRequest, LoaderError, StaleMap
from ais_loader.wire.generated import ais_objects_pb2 as objects
from ais_loader.wire.generated import ais_remote_pb2 as pb
from storage_node.context.node import Node
from storage_node.limits.call_slots import current_tenant
from storage_node.remote.ahead.prefetcher import Prefetcher
from storage_node.remote.copies.stored_copies import evict
from storage_node.remote.tier import RemoteTier
from storage_node.services.errors import Context

MAX_WAIT_S = 10.0
"""Longest wait for uploads with one request."""
MAX_NAMES = 10_000
"""Maximum number of names in one message."""


class RemoteBucketsService:
    def __init__(self, node: Node, tier: RemoteTier, prefetcher: Prefetcher) -> None:
        self._node = node
        self._tier = tier
        self._prefetcher = prefetcher

    async def ListRemote(self, request: pb.ListRemoteRequest, context: Context) -> pb.ListRemoteResponse:
        bucket = self._tier.buckets.require(request.bucket)
        return await self._tier.descriptions.page(bucket, request.prefix, request.start_after)

    async def Warm(self, requests: AsyncIterator[pb.WarmRequest], context: Context) -> AsyncIterator[pb.WarmResponse]:
        async for request in requests:
            if len(request.name) > MAX_NAMES:
                raise InvalidRequest(f"{len(request.name):,} names in one message: at most {MAX_NAMES:,}")
            errors_ = await self._tier.reads.warm(self._tier.buckets.require(request.bucket), request.name)
            yield pb.WarmResponse(result=map(_result, errors_))

    async def Evict(self, request: pb.EvictRequest, context: Context) -> pb.EvictResponse:
        bucket = self._tier.buckets.require(request.bucket)
        if len(request.name) > MAX_NAMES:
            raise InvalidRequest(f"{len(request.name):,} names in one message: at most {MAX_NAMES:,}")
        names = list(request.name) or None
        copies, freed_bytes = await self._node.open_archives(
            current_tenant.get(),
            evict,
            self._node.store,
            bucket.name,
            names,
            request.prefix,
            list(request.pattern),
            self._tier.space,
        )
        return pb.EvictResponse(objects=copies, bytes=freed_bytes)

    async def RefreshInventory(
        self, request: pb.RefreshInventoryRequest, context: Context
    ) -> AsyncIterator[pb.RefreshInventoryResponse]:
        bucket = self._tier.buckets.require(request.bucket)
        async with aclosing(self._tier.inventories.refresh(bucket, request)) as progress:
            async for response in progress:
                yield response

    async def Expect(self, request: pb.ExpectRequest, context: Context) -> pb.ExpectResponse:
        return self._prefetcher.expect(request)

    async def RemoteUsage(self, request: pb.RemoteUsageRequest, context: Context) -> pb.RemoteUsageResponse:
        usage = self._tier.backends.usage({bucket.uuid: name for name, bucket in self._node.store.buckets().items()})
        usage.expected_keys = len(self._prefetcher.plans)
        return usage

    async def PendingUploads(self, request: pb.PendingUploadsRequest, context: Context) -> pb.PendingUploadsResponse:
        write_back = self._tier.write_back
        uuid = None
        if request.bucket:
            uuid = self._tier.buckets.require(request.bucket).uuid
        elif request.wait_ms:
            raise InvalidRequest("a wait for pending uploads needs the bucket whose uploads it hurries")
        if request.wait_ms:
            await write_back.flush(uuid, request.prefix, min(MAX_WAIT_S, request.wait_ms / 1000))
        return pb.PendingUploadsResponse(bucket=write_back.rows(uuid, request.prefix))


class RemotePeerService:
    def __init__(self, tier: RemoteTier) -> None:
        self._tier = tier

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> AsyncIterator[pb.FetchResponse]:
        bucket = self._tier.buckets.find(request.bucket)
        if bucket is None or bucket.uuid != request.bucket_uuid:
            raise StaleMap(f"bucket {request.bucket!r} is not known here as a remote bucket with that uuid")
        current_tenant.set(request.tenant)
        responses = self._tier.fetches.for_node(bucket, request.name, request.version, with_bytes=request.with_bytes)
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def SettleFetches(self, request: pb.SettleFetchesRequest, context: Context) -> pb.SettleFetchesResponse:
        bucket = self._tier.buckets.find(request.bucket)
        if bucket is not None and bucket.uuid == request.bucket_uuid:
            await self._tier.loads.settle(bucket, request.name)
        return pb.SettleFetchesResponse()

    async def UploadStates(self, request: pb.UploadStatesRequest, context: Context) -> pb.UploadStatesResponse:
        bucket = self._tier.buckets.find(request.bucket)
        if bucket is None or bucket.uuid != request.bucket_uuid:
            raise StaleMap(f"bucket {request.bucket!r} is not known here as a remote bucket with that uuid")
        return await self._tier.write_back.states(bucket, request)

    async def PendingDeletions(
        self, request: pb.PendingDeletionsRequest, context: Context
    ) -> pb.PendingDeletionsResponse:
        names = self._tier.write_back.deletions(request.bucket_uuid, request.prefix, request.start_after, request.until)
        return pb.PendingDeletionsResponse(name=names)


def _result(error: LoaderError | None) -> objects.PutResult:
    if error is None:
        return objects.PutResult(info=objects.ObjectInfo())
    return objects.PutResult(error=objects.Error(kind=error.kind, message=str(error)))
