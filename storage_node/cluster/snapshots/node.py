"""Snapshot components of one node, assembled."""

from __future__ import annotations

from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.snapshots.converge import Convergence
from storage_node.cluster.snapshots.coordinator import SnapshotCoordinator
from storage_node.cluster.snapshots.repair import RetainedRepair
from storage_node.cluster.snapshots.sweep import SnapshotSweep
from storage_node.context.channels import Channels
from storage_node.context.membership import Membership
from storage_node.context.node import Node


class NodeSnapshots:
    """The components; run `sweep`, and call `close` when the node stops."""

    def __init__(self, node: Node, membership: Membership, writes: WriteCoordinator, repair: Repair) -> None:
        self._channels = Channels(node.caller)
        self.convergence = Convergence(node, membership, repair.transfers, self._channels)
        self.snapshots = SnapshotCoordinator(membership, self._channels, node.store.clock)
        self._membership = membership
        node.store.replicas.is_holder = self._holds
        repair.retained_in_place = RetainedRepair(node, membership, self.convergence).pass_
        self.sweep = SnapshotSweep(node, membership, self.snapshots, self._channels)

    def _holds(self, bucket_uuid: bytes, name: str) -> bool:
        """Return whether this node is an owner, or was one before the last change of the map."""
        view, position = self._membership.view, self._membership.position
        bucket = view.bucket_with_uuid(bucket_uuid) if view is not None else None
        return view is None or bucket is None or position in view.holders(bucket, [name])[0]

    async def close(self) -> None:
        await self._channels.close()
