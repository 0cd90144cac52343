"""Admission of batches: counts them and the bytes of their requests and of responses that are collected, and refuses
what is too much."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.redundancy import is_companion
from storage_node.context.node import Node
from storage_node.limits.call_slots import CallSlot, CallSlots
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.store.names import CODED_PREFIX

_PARTS_PER_BATCH = 16
"""Number of nodes that may each request a part for every batch that this node may serve."""


class Busy(Exception):
    """The client must request the batch again later. `reason` is the label under which the node counts it."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Admission:
    """Belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        limits = node.config.limits
        self.node = node
        # Separate from frames being sent, because a collected response stays in memory as long as its client takes.
        self.buffered = MemoryBudget(limits.max_buffered_bytes, limits.tenant_share)
        self.batches = CallSlots(
            limits.max_active_batches, limits.still_s, limits.tenant_weights, tenant_share=limits.tenant_share
        )
        self.parts = CallSlots(
            limits.max_active_batches * _PARTS_PER_BATCH,
            limits.still_s,
            limits.tenant_weights,
            tenant_share=limits.tenant_share,
        )
        """Slots of requests for entries of this node. Those of coded objects wait for fragments on others."""
        self.fragments = CallSlots(limits.max_active_batches * _PARTS_PER_BATCH, limits.still_s)
        """Slots of requests for fragments and manifests, which wait for no other node."""
        self.requests = MemoryBudget(limits.max_request_bytes, limits.tenant_share)
        self._request_bytes: dict[CallSlot, int] = {}
        self._answer_bytes: dict[CallSlot, int] = {}
        """Sizes of responses that are collected before they are sent."""

    @contextlib.contextmanager
    def admit(self, request: pb.BatchRequest, evict: Callable[[], None]) -> Iterator[CallSlot]:
        """Count a batch while it is being served. Raises Busy if there are too many.

        Parts of a batch, which wait for fragments at most, and fragments, which wait for no other node, are counted
        separately. Otherwise nodes whose batches wait for each other's parts would reject these forever. `evict`: see
        `CallSlot`.
        """
        if self.node.load.memory_is_critical():
            raise Busy(f"{self.node.load.resident_bytes:,} bytes of memory are in use", "memory")
        rates = self.node.rates
        if not request.local and rates is not None and (why := rates.take(request.tenant)) is not None:
            raise Busy(why, "rate")
        call_slots, what = (self.parts, "parts of batches") if request.local else (self.batches, "batches")
        if request.local and len(request.bucket) == 1 and is_of_groups(request.bucket[0], request.name[:1]):
            call_slots, what = self.fragments, "fragments"
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
            for call_slots in (self.batches, self.parts, self.fragments):
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


def is_of_groups(bucket: str, names: Sequence[str]) -> bool:
    """Whether these are fragments of coded objects, or manifests of their groups."""
    return is_companion(bucket) or any(name.startswith(CODED_PREFIX) for name in names)


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
