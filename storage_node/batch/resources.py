"""Shared resources of a node's batches (memory budgets, tenants' turns, read-ahead, sessions to peers), and the call of
one batch that uses them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ais_loader.wire.gather.hedging import Hedging
from ais_loader.wire.gather.replica_choice import NodeLoads
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits
from storage_node.batch.peers import PeerPool
from storage_node.batch.readahead import Readahead
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.etl.local_etl import LocalEtl
from storage_node.etl.run.transformed_run import TransformedRun
from storage_node.limits.call_slots import CallSlot, CallSlots
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

_PARTS_PER_BATCH = 16
"""Number of nodes that may each request a part for every batch that this node may serve."""


class Gone(Exception):
    """The client cannot be written to any more."""


class Busy(Exception):
    """The client must request the batch again later. `reason` is the label under which the node counts it."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class BatchResources:
    """Resources that all batches of a node share. Belongs to the node's event loop."""

    def __init__(self, node: Node, etl: LocalEtl, remote: RemoteTier) -> None:
        limits, reads = node.config.limits, node.config.reads
        self.node = node
        self.budget = MemoryBudget(reads.memory_bytes)
        # Separate from frames being sent, because a collected response stays in memory as long as its client takes.
        self.buffered = MemoryBudget(limits.max_buffered_bytes, limits.tenant_share)
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
        self.batches = CallSlots(
            limits.max_active_batches, limits.still_s, limits.tenant_weights, tenant_share=limits.tenant_share
        )
        self.parts = CallSlots(
            limits.max_active_batches * _PARTS_PER_BATCH,
            limits.still_s,
            limits.tenant_weights,
            tenant_share=limits.tenant_share,
        )
        """Slots of requests for entries on this node's own drives only."""
        self.requests = MemoryBudget(limits.max_request_bytes, limits.tenant_share)
        self._request_bytes: dict[CallSlot, int] = {}
        self._answer_bytes: dict[CallSlot, int] = {}
        """Sizes of responses that are collected before they are sent."""
        self.etl = etl
        self.remote = remote
        self.slots = FrameSlots(self.budget, limits.tenant_weights, reads.read_threads + 1)
        self.readahead = Readahead(reads.readahead_bytes, reads.readahead_threads)

    @property
    def reserved_bytes(self) -> int:
        return self.budget.held_bytes + self.buffered.held_bytes + self.assembly.held_bytes

    @contextlib.contextmanager
    def admit(self, request: pb.BatchRequest, evict: Callable[[], None]) -> Iterator[CallSlot]:
        """Count a batch while it is being served. Raises Busy if there are too many.

        Parts of a batch, which wait for no other node, are counted separately. Otherwise nodes whose batches wait for
        each other's parts would reject these forever. `evict`: see `CallSlot`.
        """
        if self.node.load.memory_is_critical():
            raise Busy(f"{self.node.load.resident_bytes:,} bytes of memory are in use", "memory")
        if not request.local and (why := self.node.rates.take(request.tenant)) is not None:
            raise Busy(why, "rate")
        call_slots, what = (self.parts, "parts of batches") if request.local else (self.batches, "batches")
        size_bytes = request.ByteSize()
        if not self.requests.acquire_now(size_bytes, tenant=request.tenant):
            over = self.requests.is_over(request.tenant, size_bytes)
            _make_room(call_slots, self._request_bytes, size_bytes, request.tenant if over else None)
            if over:
                raise Busy(_over(request.tenant, "requests", "max_request_bytes", self.requests), "memory")
            raise Busy(f"requests of {self.requests.held_bytes:,} bytes are being served", "memory")
        try:
            call_slot = call_slots.take(request.tenant, evict)
            if call_slot is None:
                raise Busy(call_slots.why(request.tenant, f"{what} are being served", "max_active_batches"), "batches")
            self._request_bytes[call_slot] = size_bytes
            try:
                yield call_slot
            finally:
                self._request_bytes.pop(call_slot, None)
                call_slot.give_back()
        finally:
            self.requests.release(size_bytes, request.tenant)

    def collect(self, size_bytes: int, call_slot: CallSlot) -> None:
        """Account for more bytes of a response that is collected before it is sent. Raises Busy.

        If there is no room, responses that clients have not read for too long are evicted, so that a retry succeeds.
        """
        if not self.buffered.acquire_now(size_bytes, tenant=call_slot.tenant):
            over = self.buffered.is_over(call_slot.tenant, size_bytes)
            for call_slots in (self.batches, self.parts):
                _make_room(call_slots, self._answer_bytes, size_bytes, call_slot.tenant if over else None)
            if over:
                raise Busy(_over(call_slot.tenant, "answers", "max_buffered_bytes", self.buffered), "answers")
            raise Busy(f"{self.buffered.held_bytes:,} bytes of answers are waiting for their clients", "answers")
        self._answer_bytes[call_slot] = self._answer_bytes.get(call_slot, 0) + size_bytes

    def uncollect(self, size_bytes: int, call_slot: CallSlot) -> None:
        """Release bytes that have been sent or will not be sent."""
        self.buffered.release(size_bytes, call_slot.tenant)
        left_bytes = self._answer_bytes.pop(call_slot, 0) - size_bytes
        if left_bytes > 0:
            self._answer_bytes[call_slot] = left_bytes

    async def turn(self, tenant: str, size_bytes: int, memory_bytes: int = 0) -> FrameSlot:
        """Wait for this tenant's turn to have a frame read and sent; see `FrameSlots.acquire`."""
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


def _make_room(
    call_slots: CallSlots, held_bytes: dict[CallSlot, int], size_bytes: int, tenant: str | None = None
) -> None:
    """Evict slots until `size_bytes` will be free, once their batches have ended; of this tenant, if one is given."""

    def wanted(slot: CallSlot) -> bool:
        return slot in held_bytes and tenant in (None, slot.tenant)

    freed_bytes = 0
    while freed_bytes < size_bytes and (call_slot := call_slots.reclaim(wanted)) is not None:
        freed_bytes += held_bytes.pop(call_slot)


def _over(tenant: str, what: str, setting: str, budget: MemoryBudget) -> str:
    return (
        f"the {what} of tenant {tenant!r} hold as many bytes as one tenant's may (tenant_share of {setting}="
        f"{budget.limit_bytes:,})"
    )
