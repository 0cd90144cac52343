"""Snapshots of buckets over gRPC, of a node that has its buckets to itself.

A cluster makes none: its nodes give versions by clocks of their own, and a copy that moves to another node leaves what
it replaced behind, so that nothing here could say which versions were the bucket at one moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from protos import ais_snapshots_pb2 as pb
from protos import ais_snapshots_pb2_grpc
from storage_node.batch.session import BatchService
from storage_node.services import Context, abort
from storage_node.store.errors import StoreError, Unsupported
from storage_node.store.snapshots import Snapshot

T = TypeVar("T")


class SnapshotsService(ais_snapshots_pb2_grpc.SnapshotsServicer):
    def __init__(self, service: BatchService) -> None:
        self._service = service
        self._store = service.store

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.Snapshot:
        return _message(await self._run(context, lambda: self._store.create_snapshot(request.bucket, request.name)))

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Context) -> pb.ListSnapshotsResponse:
        found = await self._run(context, lambda: self._store.snapshots(request.bucket))
        return pb.ListSnapshotsResponse(snapshot=map(_message, found))

    async def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, context: Context) -> pb.DeleteSnapshotResponse:
        await self._run(context, lambda: self._store.delete_snapshot(request.bucket, request.name))
        return pb.DeleteSnapshotResponse()

    async def _run(self, context: Context, call: Callable[[], T]) -> T:
        try:
            membership = self._service.membership
            if membership is not None and membership.view is not None:
                raise Unsupported(
                    "a cluster keeps no snapshots; entries with a pinned version fail rather than read other bytes"
                )
            return await self._service.read(call)
        except StoreError as error:
            await abort(context, error)


def _message(snapshot: Snapshot) -> pb.Snapshot:
    return pb.Snapshot(
        name=snapshot.name, created_ns=snapshot.created_ns, objects=snapshot.objects, size_bytes=snapshot.size_bytes
    )
