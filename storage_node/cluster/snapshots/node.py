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
    """The components; run `sweep`, hand `repair.pass_` to the node's repair, and call `close` when the node stops."""

    def __init__(self, node: Node, membership: Membership, writes: WriteCoordinator, repair: Repair) -> None:
        self._channels = Channels(node.caller)
        self.convergence = Convergence(node, membership, repair.transfers, self._channels)
        self.snapshots = SnapshotCoordinator(membership, self._channels, node.store.clock)
        self.repair = RetainedRepair(node, membership, self.convergence)
        self.sweep = SnapshotSweep(node, membership, self.snapshots, self._channels)

    async def close(self) -> None:
        await self._channels.close()
