"""Snapshots service: snapshots of buckets, of a standalone node or of a cluster, at any of its nodes."""

from __future__ import annotations

from typing import TypeVar

from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_snapshots_pb2 as pb
from ais_loader.wire.generated import ais_snapshots_pb2_grpc
from storage_node.cluster.snapshots.coordinator import SnapshotCoordinator
from storage_node.context.node import Node
from storage_node.services.errors import Context
from storage_node.store.snapshots import Snapshot

T = TypeVar("T")


class SnapshotsService(ais_snapshots_pb2_grpc.SnapshotsServicer):
    def __init__(self, node: Node, cluster: SnapshotCoordinator) -> None:
        self._node = node
        self._store = node.store
        self._cluster = cluster

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.Snapshot:
        if self._cluster.view is not None:
            return _message(await self._cluster.create(request.bucket, request.name))
        return _message(await self._node.read(self._store.snapshots.create, request.bucket, request.name))

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Context) -> pb.ListSnapshotsResponse:
        if self._cluster.view is not None:
            return pb.ListSnapshotsResponse(snapshot=map(_message, await self._cluster.listed(request.bucket)))
        found = await self._node.read(self._store.snapshots.of, request.bucket)
        return pb.ListSnapshotsResponse(snapshot=map(_message, found))

    async def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, context: Context) -> pb.DeleteSnapshotResponse:
        if self._cluster.view is not None:
            await self._cluster.delete(request.bucket, request.name)
        else:
            await self._node.read(self._store.snapshots.delete, request.bucket, request.name)
        return pb.DeleteSnapshotResponse()


def _message(snapshot: Snapshot | cluster_pb.MapSnapshot) -> pb.Snapshot:
    return pb.Snapshot(
        name=snapshot.name, created_ns=snapshot.created_ns, objects=snapshot.objects, size_bytes=snapshot.size_bytes
    )
