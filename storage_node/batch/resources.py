"""Shared resources of a node's batches (admission, tenants' turns, read-ahead, sessions to peers), and the call of one
batch that uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ais_loader.wire.gather.hedging import Hedging
from ais_loader.wire.gather.replica_choice import NodeLoads
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits
from storage_node.batch.admission import Admission
from storage_node.batch.fast_path import MAX_BYTES_TOGETHER
from storage_node.batch.peers import PeerPool
from storage_node.batch.readahead import Readahead
from storage_node.cluster.coding.coded_objects import CodedObjects
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.etl.local_etl import LocalEtl
from storage_node.etl.run.transformed_run import TransformedRun
from storage_node.limits.call_slots import CallSlot
from storage_node.limits.counters import BatchTally, clock_s
from storage_node.limits.fair_scheduler import FrameSlot, FrameSlots
from storage_node.limits.memory_budget import Credit, MemoryBudget
from storage_node.remote.tier import RemoteTier
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.file_frame import FileFrame
from storage_node.store.read.frame_plan import check_columns

_FEW_NAMES = 512
Message: TypeAlias = bytes | memoryview | FileFrame | list[bytes | memoryview]
"""A serialized SessionResponse: complete, with its payload still in files, or in parts."""


class Gone(Exception):
    """The client cannot be written to any more."""


class BatchResources(Admission):
    """Resources that all batches of a node share. Belongs to the node's event loop."""

    def __init__(self, node: Node, etl: LocalEtl, remote: RemoteTier) -> None:
        super().__init__(node)
        reads = node.config.reads
        self.budget = MemoryBudget(reads.memory_bytes)
        self.peers = PeerPool(
            timeout_s=reads.peer_timeout_s,
            idle_s=reads.peer_idle_s,
            caller=node.caller,
            transform_timeout_s=node.config.etl.timeout_s,
        )
        self.assembly = MemoryBudget(reads.assembly_bytes)
        """Budget for bytes that peers have sent or may send."""
        self.hedging = Hedging(reads.hedge_budget)
        self.loads: NodeLoads[str] = NodeLoads()
        """Loads of the other nodes, by endpoint, as observed by batches that are gathered here."""
        self.batches_assembled = 0
        self.peer_wait_s = 0.0
        """Total time that batches waited for a peer to send the entry that was due."""
        self.recoveries = 0
        """Number of entries that were requested again from another holder."""
        self.soft_errors = 0
        """Number of entries of gathered batches that failed without ending the batch."""
        self.coded: CodedObjects
        """Set with the sessions, which gather fragments from other nodes."""
        self.etl = etl
        self.remote = remote
        self.slots = FrameSlots(self.budget, node.config.limits.tenant_weights, reads.read_threads + 1)
        self.readahead = Readahead(reads.readahead_bytes, reads.readahead_threads)

    @property
    def reserved_bytes(self) -> int:
        return self.budget.held_bytes + self.buffered.held_bytes + self.assembly.held_bytes

    def may_answer(self, tenant: str, entries: int) -> bool:
        """Return whether a request may take the fast path: not while other tenants are due first or memory is critical,
        nor with several entries while tenants share the node or its memory is full."""
        if not self.slots.may_pass(tenant) or self.node.load.memory_is_critical():
            return False
        return entries <= 1 or not (self.slots.crowded or self.budget.is_full(MAX_BYTES_TOGETHER))

    async def turn(self, tenant: str, size_bytes: int, memory_bytes: int = 0) -> FrameSlot:
        """Wait for this tenant's turn to have a frame read and sent; see `FrameSlots.acquire`."""
        if self.node.rates is not None:
            self.node.rates.spend(tenant, size_bytes)
        began_s, cause = clock_s(), "memory" if self.budget.is_full(memory_bytes) else "turn"
        try:
            return await self.slots.acquire(tenant, size_bytes, memory_bytes)
        finally:
            self.node.metrics.throttle_s[cause] += clock_s() - began_s

    async def transformed(self, request: pb.BatchRequest) -> TransformedRun:
        """Return the entries of a request with transforms. The caller closes it. Raises InvalidRequest, Unsupported."""
        check_columns(request, len(request.name))
        if buckets := self.remote.buckets.of(request.bucket):
            at = request.bucket_index or [0] * len(request.name)
            await self.remote.reads.ensure_all((buckets[of], name) for of, name in zip(at, request.name, strict=False))
        return await self.etl.run(request)

    async def throttle(self) -> None:
        """Pause before a batch's next frame while the node is overloaded. The caller must hold nothing meanwhile."""
        pause_s, cause = self.node.load.pause()
        if pause_s:
            await asyncio.sleep(pause_s)
            self.node.metrics.throttle_s[cause] += pause_s


@dataclass(frozen=True, slots=True)
class BatchCall:
    """One accepted batch. `send` sends a message to its client, and raises Gone if that is impossible."""

    resources: BatchResources
    batch_id: int
    request: pb.BatchRequest
    credit: Credit
    send: Callable[[Message], Awaitable[None]]
    tally: BatchTally
    call_slot: CallSlot
    buckets: Sequence[RemoteBucket | None]
    """The remote ones among the buckets of the request, at its positions; empty if none is."""
    waits: NodeWaits

    async def turn(self, size_bytes: int, memory_bytes: int = 0) -> FrameSlot:
        """Wait until the node has time for a frame, and it is the tenant's turn. The caller must hold nothing
        meanwhile."""
        with self.waits.waiting("queue"):
            await self.resources.throttle()
            return await self.resources.turn(self.request.tenant, size_bytes, memory_bytes)

    async def spend_credit(self, size_bytes: int) -> None:
        """Wait for the client's credit. The slot does not count as idle meanwhile."""
        began_s = clock_s()
        with self.call_slot.waiting():
            await self.credit.spend(size_bytes)
        self.resources.node.metrics.client_wait_s += clock_s() - began_s

    async def send_frame(self, message: Message) -> None:
        """Send a frame, and count it."""
        with self.call_slot.waiting():
            await self.send(message)
        self.call_slot.moved()
        self.tally.frame_sent()


async def look_up(resources: BatchResources, tenant: str, request: pb.BatchRequest) -> StoreBatch:
    """Look up the entries of a request. Raises InvalidRequest if its columns are inconsistent."""
    node = resources.node
    if request.member:
        return await node.open_archives(tenant, StoreBatch, node.store, request)
    # Finding known locations waits for nothing, and costs less than a switch to a thread and back.
    if len(request.name) <= _FEW_NAMES and (batch := StoreBatch.of_known(node.store, request)) is not None:
        return batch
    return await node.read(StoreBatch, node.store, request)
