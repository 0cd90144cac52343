"""Parts of a running node from which its metrics are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from ais_loader.errors import LoaderError
from ais_loader.wire.block_device import DeviceCounts
from ais_loader.wire.generated import ais_cluster_pb2
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.batch.resources import BatchResources
from storage_node.batch.session import BatchService
from storage_node.cluster.coding.coder import CodingMetrics
from storage_node.cluster.drives.manager import DriveManager
from storage_node.cluster.repair.repair import Repair
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.etl.run.result_cache import ResultCache
from storage_node.etl.worker.stage_context import StageCounts
from storage_node.limits.call_slots import CallSlots
from storage_node.limits.counters import NodeCounters
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.promote.job import PromoteMetrics
from storage_node.remote.location.usage import UsageCounts
from storage_node.services.lane.listener import LaneListener
from storage_node.store.pool.membership import DriveState

T = TypeVar("T")
MAX_REMOTE_BUCKETS = 256
OTHERS = "(other)"
"""Label of the remote buckets beyond MAX_REMOTE_BUCKETS, by the time of their first request; no bucket's name."""


@dataclass
class RunningNode:
    """Read from other threads than the node's own. A scrape reads a copy, which keeps what is expensive to read."""

    batches: BatchService
    membership: Membership
    repair: Repair
    coding: CodingMetrics
    drives: DriveManager
    promote: PromoteMetrics
    lanes: Mapping[str, LaneListener]
    """The node's listeners, by the kind of their clients."""

    @property
    def node(self) -> Node:
        return self.batches.node

    @property
    def counts(self) -> NodeCounters:
        return self.node.metrics

    @property
    def resources(self) -> BatchResources:
        return self.batches.resources

    @cached_property
    def scrub(self) -> wire.ScrubProgress:
        return self.repair.damage.progress()

    @cached_property
    def memory(self) -> dict[str, MemoryBudget | ResultCache]:
        resources, node = self.resources, self.node
        budgets: dict[str, MemoryBudget | ResultCache] = {
            "frames": resources.budget,
            "answers": resources.buffered,
            "assembly": resources.assembly,
            "requests": resources.requests,
            "messages": node.streams.messages,
            "replicas": node.replica_streams.messages,
        }
        etl = resources.etl
        return budgets if etl is None else {**budgets, "transforms": etl.memory, "results": etl.cache}

    @property
    def slots(self) -> dict[str, CallSlots]:
        """CallSlots by the kind of calls that hold them."""
        return {
            "batches": self.resources.batches,
            "parts": self.resources.parts,
            "streams": self.node.streams.slots,
            "sessions": self.batches.session_slots,
            "requests": self.node.unread,
            "replicas": self.node.replica_streams.slots,
        }

    @cached_property
    def _drive_states(self) -> list[DriveState]:
        try:
            return self.node.store.pool.states()
        except LoaderError:  # closed meanwhile: the node is stopping
            return []

    def each_drive(self, read: Callable[[DriveState], T]) -> dict[tuple[str, str], T]:
        """Read a value of each drive, by the drive's uuid and path."""
        return {(drive.uuid, drive.path): read(drive) for drive in self._drive_states}

    def each_readable_drive(self, read: Callable[[DriveState], T]) -> dict[tuple[str, str], T]:
        """Read a value of each drive whose file system responds."""
        return {(drive.uuid, drive.path): read(drive) for drive in self._drive_states if drive.size_bytes}

    def each_device(self, read: Callable[[DeviceCounts], float]) -> dict[tuple[str, str], float]:
        """Read a value of the block device of each drive that has one."""
        return {(drive.uuid, drive.path): read(drive.device) for drive in self._drive_states if drive.device}

    def each_transform(self, read: Callable[[StageCounts], T]) -> dict[str, T]:
        """Read a counter of each transform, by its name."""
        etl = self.resources.etl
        return {} if etl is None else {name: read(counts) for name, counts in etl.transforms.all_counts().items()}

    @cached_property
    def _remote_usage(self) -> dict[str, UsageCounts]:
        """Requests to remote storage by the name of the bucket."""
        names = {bucket.uuid: name for name, bucket in self.node.store.buckets().items()}
        found: dict[str, UsageCounts] = {}
        for at, (uuid, counts) in enumerate(self.resources.remote.backends.usage_by_bucket().items()):
            if uuid in names:
                found.setdefault(names[uuid] if at < MAX_REMOTE_BUCKETS else OTHERS, UsageCounts()).add(counts)
        return found

    def each_remote(self, read: Callable[[UsageCounts], T]) -> dict[str, T]:
        """Read a counter of each remote bucket to which requests were sent, by its name."""
        return {name: read(counts) for name, counts in self._remote_usage.items()}

    def map_states(self) -> dict[str, int]:
        view = self.membership.view
        states: list[int] = [node.state for node in view.nodes] if view is not None else []
        return {name.lower(): states.count(state) for name, state in ais_cluster_pb2.MapNode.State.items()}
