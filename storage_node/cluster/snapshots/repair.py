"""Repair of retained versions: each pass moves versions that snapshots see, and that were replaced, to where the map
wants them.

A pass goes through all versions that this node retains. An owner that lacks one, and sees nothing newer, is sent it.
This restores what was on a lost drive or node, and gives joining nodes what they own. A version retained by a node that
is not an owner is released once all owners, acting under the same map, see it or something newer; `map.lease` explains
why that suffices. Current versions are repaired with the objects.

Belongs to the node's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ais_loader.errors import LoaderError
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.repair.plan import State, owners_of
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.snapshots.converge import Convergence
from storage_node.cluster.snapshots.coordinator import SnapshotCoordinator
from storage_node.cluster.snapshots.plan import compare_seen, sees_as_much
from storage_node.cluster.snapshots.sweep import SnapshotSweep
from storage_node.context.channels import Channels
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.store.retained_replicas import RetainedHere, release, retained_after

PAGE_VERSIONS = 1000
log = logging.getLogger(__name__)


class RetainedRepair:
    def __init__(self, node: Node, membership: Membership, convergence: Convergence) -> None:
        self._node = node
        self._store = node.store
        self._membership = membership
        self._convergence = convergence

    async def pass_(self, view: ClusterView) -> bool:
        """Go through all retained versions; return whether everything is in its place, as far as this node knows.
        Raises LoaderError."""
        in_place = True
        for bucket in view.special:
            for drive in self._store.drives if bucket.snapshot else ():
                after = b""
                while drive is not None and self._membership.view is view:
                    held = await self._node.read(retained_after, drive, bucket.uuid, after, PAGE_VERSIONS)
                    if not held:
                        break
                    after = held[-1].key
                    in_place = await self._mend(view, bucket, held) and in_place
        return in_place and self._membership.view is view

    async def _mend(self, view: ClusterView, bucket: pb.MapBucket, held: Sequence[RetainedHere]) -> bool:
        local = view.position[self._membership.node_uuid]
        names = [one.name for one in held]
        owners = await self._node.read(owners_of, view, bucket, names)
        cuts = [[one.cut for one in bucket.snapshot if one.cut in version.seen_by] for version in held]
        # For each version, whether all owners by this map have reported that they see as much, for all cuts.
        settled = [bool(seen_by) and local not in nodes for seen_by, nodes in zip(cuts, owners, strict=True)]
        in_place = True
        for cut in sorted({cut for of_version in cuts for cut in of_version}):
            rows = [row for row, of_version in enumerate(cuts) if cut in of_version]
            states = [State(held[row].record.version, held[row].record.is_tombstone) for row in rows]
            compared, positions = [names[row] for row in rows], [owners[row] for row in rows]
            answers, by_this_map = await self._convergence.ask_owners(view, bucket, cut, compared, positions)
            unsettled = await self._node.read(compare_seen, compared, states, positions, local, answers)
            problem = await self._convergence.mend(view, bucket, cut, unsettled)
            if problem:
                log.info("what snapshots see of bucket %r is not copied for now: %s", bucket.name, problem)
            in_place = in_place and not unsettled.push and not unsettled.unknown
            for row, state, of_name in zip(rows, states, positions, strict=True):
                settled[row] = settled[row] and all(
                    node in by_this_map and sees_as_much(answers.get(node, {}), names[row], state) for node in of_name
                )
        gone = [one for one, is_settled in zip(held, settled, strict=True) if is_settled]
        return await self._release(view, gone) and in_place

    async def _release(self, view: ClusterView, gone: Sequence[RetainedHere]) -> bool:
        """Release versions; return whether there was nothing to release."""
        if not gone or not self._membership.lease.begin(view):
            return not gone
        try:
            await self._node.read(release, gone)
        except LoaderError as error:
            log.info("what other nodes retain is not let go of for now: %s", error)
        finally:
            self._membership.lease.end(view.version)
        return False


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
