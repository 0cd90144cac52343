"""Shared resources of a node's batches: budgets of memory, turns of tenants, read-ahead, sessions to peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from ais_loader.wire.gather.hedging import Hedging
from ais_loader.wire.gather.replica_choice import NodeLoads
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.admission import MemoryBudget
from storage_node.batch.fairness import FairSlots, Slot
from storage_node.batch.outcomes import Busy
from storage_node.batch.peers import PeerPool
from storage_node.batch.readahead import Readahead
from storage_node.metric_counters import clock_s
from storage_node.node import Node

_PARTS_PER_BATCH = 16
"""As many nodes may each send a part for every batch that this node may serve."""


class BatchResources:
    """What all batches of a node draw on. Belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        config = node.config
        self.node = node
        self.budget = MemoryBudget(config.memory_bytes)
        # Apart from the frames on their way: an answer that was collected waits for its client as long as it takes.
        self.buffered = MemoryBudget(config.max_buffered_bytes)
        self.peers = PeerPool(timeout_s=config.peer_timeout_s, idle_s=config.peer_idle_s)
        self.assembly = MemoryBudget(config.assembly_bytes)
        """What peers have sent or may send."""
        self.hedging = Hedging(config.hedge_budget)
        self.loads: NodeLoads[str] = NodeLoads()
        """Of the other nodes, by their endpoints, as far as batches that are gathered here see them."""
        self.batches_assembled = 0
        self.peer_wait_s = 0.0
        """Batches that could not go on before a peer had sent what was due."""
        self.recoveries = 0
        """Entries asked again, of another holder."""
        self.soft_errors = 0
        """Entries of assembled batches that failed in their place."""
        self.active_batches = 0
        self.active_parts = 0
        """Answers that were asked of this node's own drives alone."""
        self.slots = FairSlots(self.budget, config.tenant_weights, config.read_threads + 1)
        self.readahead = Readahead(config.readahead_bytes, config.readahead_threads)

    @property
    def reserved_bytes(self) -> int:
        return self.budget.held_bytes + self.buffered.held_bytes + self.assembly.held_bytes

    @contextlib.contextmanager
    def admit(self, request: pb.BatchRequest) -> Iterator[None]:
        """Count a batch while it is being served. Raises Busy when there are too many.

        Parts of a batch, which wait for no other node, are counted apart: nodes whose batches wait for each other's
        parts would otherwise turn them away for ever.
        """
        if self.node.pressure.memory_is_critical():
            raise Busy(f"{self.node.pressure.resident_bytes:,} bytes of memory are in use", "memory")
        limit = self.node.config.max_active_batches
        if request.local:
            if self.active_parts >= limit * _PARTS_PER_BATCH:
                raise Busy(f"{self.active_parts} parts of batches are being served", "batches")
            self.active_parts += 1
        else:
            if self.active_batches >= limit:
                raise Busy(f"{self.active_batches} batches are being served", "batches")
            self.active_batches += 1
        try:
            yield
        finally:
            if request.local:
                self.active_parts -= 1
            else:
                self.active_batches -= 1

    async def turn(self, tenant: str, size_bytes: int, memory_bytes: int = 0) -> Slot:
        """Wait for this tenant's turn to have a frame read and sent; see `FairSlots.acquire`."""
        began_s, cause = clock_s(), "memory" if self.budget.is_full(memory_bytes) else "turn"
        try:
            return await self.slots.acquire(tenant, size_bytes, memory_bytes)
        finally:
            self.node.metrics.throttle_s[cause] += clock_s() - began_s

    async def throttle(self) -> None:
        """Pause, before a batch's next frame, while the node has more to do than it can. Nothing may be held."""
        pause_s, cause = self.node.pressure.pause()
        if pause_s:
            await asyncio.sleep(pause_s)
            self.node.metrics.throttle_s[cause] += pause_s
