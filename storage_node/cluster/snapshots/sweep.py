"""Snapshot garbage collection: removes abandoned snapshots from the map, and releases what deleted ones have retained.

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time

from ais_loader.errors import LoaderError
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2 as pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2_grpc as rpc
from storage_node.cluster.consensus.change import change_map_async
from storage_node.cluster.consensus.errors import ChangeFailed
from storage_node.cluster.map.snapshot_mutations import abandon_snapshot
from storage_node.cluster.snapshots.coordinator import CHANGE_TIMEOUT_S, SnapshotCoordinator
from storage_node.context.channels import REACH_TIMEOUT_S, Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.limits.wakeup import Wakeup

INTERVAL_S = 1.0
SILENT_S = 20.0
"""A node that is creating a snapshot and cannot be reached for this long is assumed dead."""
log = logging.getLogger(__name__)


class SnapshotSweep:
    def __init__(self, node: Node, membership: Membership, snapshots: SnapshotCoordinator, channels: Channels) -> None:
        self._node = node
        self._membership = membership
        self._snapshots = snapshots
        self._channels = channels
        self._silent_since_s: dict[tuple[bytes, str, int], float] = {}
        self._changed = Wakeup()
        node.on_change(self._changed.set)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if self._node.store.record.current.trimming:
                try:
                    await self._node.read(self._node.store.snapshots.finish_trimming)
                except LoaderError as error:
                    log.info("what deleted snapshots have kept stays for now: %s", error)
            view = self._membership.view
            buckets = view.special if view is not None else ()
            made = [(bucket, one) for bucket in buckets for one in bucket.snapshot if one.maker]
            for bucket, one in made:
                if view is not None and await self._is_abandoned(view, bucket.uuid, one):
                    await self._take_out(view, bucket, one)
            if made or self._node.store.record.current.trimming:
                await asyncio.sleep(INTERVAL_S)
            else:
                await self._changed.wait()

    async def _is_abandoned(self, view: ClusterView, bucket_uuid: bytes, one: cluster_pb.MapSnapshot) -> bool:
        key = bucket_uuid, one.name, one.created_ns
        if one.maker == self._membership.node_uuid:
            return key not in self._snapshots.making
        at = view.position.get(one.maker)
        if at is None:
            return True
        endpoint = view.nodes[at].peer_endpoint
        request = pb.MakingRequest(bucket_uuid=bucket_uuid, name=one.name, created_ns=one.created_ns)
        answer: pb.MakingResponse
        try:
            answer = await self._channels.ask(endpoint, rpc.SnapshotCopiesStub, "Making", request, REACH_TIMEOUT_S)
        except ReplicaLost:
            since_s = self._silent_since_s.setdefault(key, time.monotonic())
            return time.monotonic() - since_s > SILENT_S
        self._silent_since_s.pop(key, None)
        return not answer.making

    async def _take_out(self, view: ClusterView, bucket: cluster_pb.MapBucket, one: cluster_pb.MapSnapshot) -> None:
        log.warning("snapshot %r of bucket %r was not finished by the node that made it", one.name, bucket.name)
        try:
            change = abandon_snapshot(bucket.uuid, one)
            await change_map_async(view, change, timeout_s=CHANGE_TIMEOUT_S, caller=self._channels.caller)
        except (ChangeFailed, ValueError) as error:
            log.info("it cannot be taken out of the map for now: %s", error)
        self._silent_since_s.pop((bucket.uuid, one.name, one.created_ns), None)
