"""Erasure coding of one node: the tasks that code objects and keep groups, and what other nodes ask of them.

A node without a coded bucket waits for a map that has one. Belongs to the node's event loop.
"""

from __future__ import annotations

import logging
import time

from ais_loader.errors import LoaderError, ObjectNotFound
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.coding.coded_objects import CodedObjects
from storage_node.cluster.coding.coder import Coder, CodingMetrics, CodingParts
from storage_node.cluster.coding.fragments import FragmentWriter
from storage_node.cluster.coding.keeper import Keeper
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.replica import require_bucket
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.limits.wakeup import Wakeup

_SCAN_SHARE = 20
"""A pass that looks for objects takes at most one part in so many of the time."""
_LEAST_S, _AGAIN_S = 0.5, 5.0
log = logging.getLogger(__name__)


class Coding:
    def __init__(
        self, node: Node, membership: Membership, writes: WriteCoordinator, repair: Repair, coded: CodedObjects
    ) -> None:
        self._node = node
        self._membership = membership
        self._coded = coded
        self.metrics = CodingMetrics()
        fragments = FragmentWriter(node, membership, repair.peers)
        parts = CodingParts(node, membership, writes, repair.peers, fragments, self.metrics)
        self._coder, self._keeper = Coder(parts), Keeper(parts, coded.groups)
        self._coder_due, self._keeper_due = Wakeup(), Wakeup()
        membership.on_use(self._coder_due.set)
        membership.on_use(self._keeper_due.set)

    def _view(self) -> ClusterView | None:
        """Return the map, if this node is in it and a bucket is or was coded."""
        view = self._membership.view
        concerns = view is not None and any(bucket.coded_of for bucket in view.buckets.values())
        return view if concerns and self._membership.position is not None else None

    async def code(self) -> None:
        """Code objects that have settled, until cancelled."""
        while True:
            view = self._view()
            if view is None:
                await self._coder_due.wait()
                continue
            try:
                await self._coder.pass_(view)
            except (ReplicaLost, LoaderError) as error:
                log.warning("objects are not coded for now: %s", error)
            delay_s = self._node.config.cluster.coding_delay_s
            await self._coder_due.wait(max(_LEAST_S, delay_s / 2, _SCAN_SHARE * self._coder.scan_s))

    async def keep(self) -> None:
        """Keep groups, until cancelled."""
        while True:
            view = self._view()
            clean = True
            if view is not None:
                try:
                    clean = await self._keeper.pass_(view)
                except (ReplicaLost, LoaderError) as error:
                    log.warning("groups of coded objects are not looked after for now: %s", error)
                    clean = False
            interval_s = self._node.config.cluster.repair_interval_s
            await self._keeper_due.wait(None if view is None else interval_s if clean else min(interval_s, _AGAIN_S))

    async def recall(self, request: wire.RecallRequest) -> wire.RecallResponse:
        """Have copies of objects again whose bytes are in a group. Raises LoaderError."""
        await self._node.read(require_bucket, self._node.store, request.bucket.name, request.bucket.uuid)
        entries = await self._node.read(self._node.store.replicas.newest, request.bucket.name, list(request.name))
        coded = [
            (name, entry)
            for name, entry in zip(request.name, entries, strict=True)
            if entry is not None and entry.is_coded and entry.group == request.group
        ]
        await self._coded.recall_all(request.bucket.uuid, coded)
        return wire.RecallResponse(objects=len(coded))

    async def contents(self, bucket: pb.MapBucket, group: bytes) -> tuple[set[str], int]:
        """Return the names of the objects in a group, and the number of its fragments; of one that has ended, none.
        Raises LoaderError."""
        try:
            manifest = await self._coded.groups.manifest(bucket, group)
        except ObjectNotFound:
            return set(), 0
        return {slot.name for slot in manifest.slots}, len(manifest.fragments)

    def progress(self) -> wire.CodingProgress:
        """Return what was coded, and what is kept. Thread-safe."""
        counts, look = self.metrics, self.metrics.last_look
        return wire.CodingProgress(
            groups=counts.groups,
            short_groups=counts.short_groups,
            groups_coded=counts.groups_coded,
            objects_coded=counts.objects_coded,
            bytes_coded=counts.bytes_coded,
            groups_dissolved=counts.groups_dissolved,
            fragments_rebuilt=counts.fragments_rebuilt,
            waits=counts.waits,
            denied=counts.denied,
            looked_s_ago=None if look is None else time.monotonic() - look.began_s,
            lacking=None if look is None else look.lacking,
            unsafe_groups=0 if look is None else look.unsafe_groups,
        )
