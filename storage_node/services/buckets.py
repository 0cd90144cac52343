"""Buckets service. A node in a cluster acts on the cluster's buckets, another on its own."""

from __future__ import annotations

from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.map.buckets import ClusterBuckets
from storage_node.context.node import Node
from storage_node.limits.call_slots import tenant_of
from storage_node.services.errors import Context
from storage_node.services.pending_guard import PendingGuard
from storage_node.store.store_record import BucketRecord


class BucketsService:
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
            return pb.ListBucketsResponse(bucket=self._cluster.all(view))
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


def _bucket(name: str, record: BucketRecord) -> pb.Bucket:
    return pb.Bucket(
        name=name,
        uuid=record.uuid_bytes,
        copies=record.copies,
        min_copies=1,
        remote=record.remote.to_wire() if record.remote is not None else None,
        quota_bytes=record.quota_bytes,
        quota_objects=record.quota_objects,
    )
