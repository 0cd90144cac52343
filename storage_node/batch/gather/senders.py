"""Senders of a gathered batch (one node's part each), and the accounting of their memory.

`BatchResources.assembly` counts received bytes and granted credit. Bytes beyond the credit are counted when they
arrive: a sender may overdraw its credit by one frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import closing
from functools import partial

from ais_loader.errors import LoaderError
from ais_loader.wire.frame import MAX_PAYLOAD_BYTES, Frame, decode_response
from ais_loader.wire.gather.hedging import Hedging
from ais_loader.wire.gather.replica_choice import NodeLoads
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.coded_entries import enter_places
from storage_node.batch.fast_path import answer_inline
from storage_node.batch.resources import BatchResources, look_up
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.counters import clock_s
from storage_node.limits.memory_budget import Credit, MemoryBudget
from storage_node.limits.tasks import results_of
from storage_node.remote.cold_entries import cold_entries
from storage_node.store.read.batch import StoreBatch

_ONE_FRAME_BYTES = 64 << 10
"""Credit for one frame, which may be larger."""


class PartSender:
    """One node's part of the batch, or a repeated or hedged request for some of it."""

    __slots__ = (
        "active_s",
        "busy_s",
        "credit_bytes",
        "endpoint",
        "grant",
        "hedge",
        "hedges",
        "map_version",
        "node",
        "number",
        "positions",
        "reads_coded",
        "received",
        "task",
    )

    def __init__(
        self, number: int, node: int, map_version: int, endpoint: str, positions: list[int], *, hedge: bool
    ) -> None:
        self.number = number
        self.node = node
        self.map_version = map_version
        """Version of the map by which the entries are requested from the node."""
        self.endpoint = endpoint
        self.positions = positions
        self.credit_bytes = 0
        """Bytes that the node may still send; negative if its last frame was larger than the credit."""
        self.grant: Callable[[int], None] = lambda size_bytes: None
        self.hedge = hedge
        """Whether the entries were first requested from another node, which is slow."""
        self.hedges = 0
        """How often its missing entries have been requested from others since it last sent anything."""
        self.active_s = clock_s()
        """When it last sent anything, or was first allowed to."""
        self.busy_s = 0.0
        """Total time that it was silent although it could have sent."""
        self.received = 0
        self.reads_coded = False
        """Whether this node reads coded entries from the holders of their fragments."""
        self.task: asyncio.Task[None] | None = None

    def note_frame(self, frame: Frame, hedging: Hedging) -> None:
        """Record a received frame and its waiting time."""
        now = clock_s()
        if self.endpoint:
            hedging.parts.note(now - self.active_s)
        self.busy_s += now - self.active_s
        self.active_s, self.hedges = now, 0
        self.received += len(frame.index)

    def count(self, loads: NodeLoads[str]) -> None:
        """Record the sender's load at its end. One that was hedged counts as at least as slow as its silence."""
        if self.endpoint:
            in_vain_s = clock_s() - self.active_s if self.hedges else 0.0
            answered = max(self.received, int(self.hedges > 0))
            loads.over(self.endpoint, len(self.positions), answered, self.busy_s + in_vain_s)


class SenderMemory:
    """Memory of one batch within the node's budget."""

    def __init__(self, budget: MemoryBudget, window_bytes: int) -> None:
        self._budget = budget
        self._window_bytes = window_bytes
        self._held_bytes = 0

    def begin(self, sender: PartSender) -> None:
        """Grant the initial credit; none if the budget is exhausted."""
        if self._budget.acquire_now(self._window_bytes):
            self._held_bytes += self._window_bytes
            sender.credit_bytes = self._window_bytes

    def came(self, sender: PartSender, size_bytes: int) -> None:
        beyond_credit = size_bytes - max(0, min(size_bytes, sender.credit_bytes))
        sender.credit_bytes -= size_bytes
        self._budget.acquire_anyway(beyond_credit)
        self._held_bytes += beyond_credit

    def end(self, sender: PartSender) -> None:
        """Release the credit of a sender that sends nothing more."""
        self.release(max(0, sender.credit_bytes))
        sender.credit_bytes = 0

    def release(self, size_bytes: int) -> None:
        """Release received bytes that have been passed on."""
        self._held_bytes -= size_bytes
        self._budget.release(size_bytes)

    def keep(self, size_bytes: int) -> Callable[[], None]:
        """Keep received bytes accounted while they are being sent, until the returned function is called."""
        self._held_bytes -= size_bytes
        return partial(self._budget.release, size_bytes)

    def close(self) -> None:
        """Release everything. Later calls have no effect."""
        self.release(self._held_bytes)
        self._budget = MemoryBudget(0)

    def top_up(self, senders: Iterable[PartSender], held_bytes_of: Callable[[int], int]) -> None:
        """Refill the credit of every sender, as far as its window and the budget permit."""
        for sender in senders:
            room = self._window_bytes - sender.credit_bytes - held_bytes_of(sender.number)
            if room >= self._window_bytes // 4 and sender.credit_bytes + room > 0:
                needed = sender.credit_bytes + room - max(0, sender.credit_bytes)
                if needed and self._budget.acquire_now(needed):
                    self._grant(sender, room, needed)

    def grant_one_frame(self, sender: PartSender) -> None:
        """Grant a sender without credit enough for one frame, regardless of the budget."""
        if sender.credit_bytes <= 0:
            self._budget.acquire_anyway(_ONE_FRAME_BYTES)
            self._grant(sender, _ONE_FRAME_BYTES - sender.credit_bytes, _ONE_FRAME_BYTES)

    def _grant(self, sender: PartSender, size_bytes: int, counted_bytes: int) -> None:
        self._held_bytes += counted_bytes
        if sender.credit_bytes <= 0:
            sender.active_s = clock_s()
        sender.credit_bytes += size_bytes
        sender.grant(size_bytes)


async def own_frames(
    resources: BatchResources, tenant: str, part: pb.BatchRequest, credit: Credit
) -> AsyncGenerator[Frame, None]:
    """Yield the frames of a part of this node, each when there is credit for it and it is the tenant's turn. Must be
    closed."""
    if part.transform:
        run = await resources.transformed(part)
        try:
            while (frame := await run.next()) is not None:
                await credit.spend(len(frame.payload))
                yield frame
        finally:
            await run.close()
        return
    buckets = resources.remote.buckets.of(part.bucket)
    if not buckets and resources.may_answer(tenant, len(part.name)):
        answer = answer_inline(resources.node.store, part, 0, resources.node.membership)
        if answer is not None and (frame := decode_response(answer[0]).frame) is not None:
            await credit.spend(answer[1])
            yield frame
            return
    with closing(await look_up(resources, tenant, part)) as batch:
        if buckets:
            await _store_cold(resources, part, batch, buckets)
        if batch.coded:
            await enter_places(resources.coded, resources.node, part, batch)
        for span in batch.spans(MAX_PAYLOAD_BYTES):
            await credit.spend(span.payload_bytes)
            slot = await resources.turn(tenant, 0)  # charged when it is sent
            try:
                frame = await resources.node.read(batch.read, span)
            finally:
                slot.release()
            credit.add(span.payload_bytes - len(frame.payload))
            yield frame


async def _store_cold(
    resources: BatchResources, part: pb.BatchRequest, batch: StoreBatch, buckets: Sequence[RemoteBucket | None]
) -> None:
    """Store entries of remote buckets that this node does not have, or fail them."""
    if cold := cold_entries(resources.remote, part, batch, buckets):
        stored = await results_of(resources.remote.reads.ensure(one.bucket, one.name) for one in cold.values())
        await resources.node.open_archives(part.tenant, batch.look_up_again, list(cold))
        for position, problem in zip(cold, stored, strict=True):
            if isinstance(problem, LoaderError) and batch.status[position]:
                batch.fail(position, problem)
