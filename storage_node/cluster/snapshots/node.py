"""All that a node has to do with snapshots, put together."""

from __future__ import annotations

from typing import Any

from ais_loader.wire.generated import ais_snapshot_copies_pb2_grpc, ais_snapshots_pb2_grpc
from storage_node.batch.session import BatchService
from storage_node.cluster.channels import Channels
from storage_node.cluster.map.membership import Membership
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication.coordinator import Replication
from storage_node.cluster.snapshots.converge import Settling
from storage_node.cluster.snapshots.coordinator import ClusterSnapshots
from storage_node.cluster.snapshots.repair import RetainedRepair
from storage_node.cluster.snapshots.sweep import SnapshotCare
from storage_node.services.snapshot_replicas import SnapshotCopiesService
from storage_node.services.snapshots import SnapshotsService


class SnapshotsOfNode:
    """`care` is to be run; `close` when the node stops."""

    def __init__(self, service: BatchService, membership: Membership, writes: Replication, repair: Repair) -> None:
        self._service = service
        self._gate = writes.gate
        self._channels = Channels()
        self._settling = Settling(service, membership, repair.transfers, self._channels)
        self._snapshots = ClusterSnapshots(membership, self._channels)
        self._membership = membership
        service.store.is_holder = self._holds
        repair.retained_in_place = RetainedRepair(service, membership, self._settling).pass_
        self.care = SnapshotCare(service, membership, self._snapshots, self._channels)

    def _holds(self, bucket_uuid: bytes, name: str) -> bool:
        """Whether this node is, or was before the last change of the map, an owner."""
        view, position = self._membership.view, self._membership.position
        bucket = view.bucket_with_uuid(bucket_uuid) if view is not None else None
        return view is None or bucket is None or position in view.holders(bucket, [name])[0]

    def serve(self, server: Any) -> None:
        ais_snapshots_pb2_grpc.add_SnapshotsServicer_to_server(SnapshotsService(self._service, self._snapshots), server)
        copies = SnapshotCopiesService(self._service, self._gate, self._settling, self._snapshots)
        ais_snapshot_copies_pb2_grpc.add_SnapshotCopiesServicer_to_server(copies, server)

    async def close(self) -> None:
        await self._channels.close()
