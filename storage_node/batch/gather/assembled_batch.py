"""Assembly of a batch on its designated target: entries gathered from their owners, sent as one stream.

`gather` receives the entries; this module sends them. They are sent in request order, starting before the last entry
has arrived, under the client's credit. Alternatively, they are collected first, or sent in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.wire.answer_check import digest
from ais_loader.wire.frame import MAX_PAYLOAD_BYTES, TARGET_PAYLOAD_BYTES, U8, U32, Frame, encode_frame, encode_parts
from ais_loader.wire.gather.frame_edit import without
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.admission import Busy
from storage_node.batch.gather.gather import Gather
from storage_node.batch.gather.routing import ReplicaRouting
from storage_node.batch.resources import BatchCall, Message
from storage_node.limits.fair_scheduler import FrameSlot
from storage_node.limits.tasks import retrieve, settled


class AssembledBatch:
    """One batch from its sub-requests to END."""

    def __init__(self, call: BatchCall, routing: ReplicaRouting, *, in_parts: bool = False) -> None:
        """`in_parts`: whether `send` accepts messages in parts without copying them."""
        self._frame_bytes = MAX_PAYLOAD_BYTES if in_parts else TARGET_PAYLOAD_BYTES
        self._call, self._resources, self._request = call, call.resources, call.request
        self._n, self._is_elsewhere = len(call.request.name), routing.elsewhere
        self._gather = Gather(call.resources, call.request, routing, call.waits)
        self._passed: npt.NDArray[np.bool_] = np.zeros(self._n, bool)
        """Entries that have been sent or are being sent to the client."""
        self._entries = 0

    @property
    def status(self) -> U8:
        return self._gather.reorder.status

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return self._gather.sizes

    @property
    def checksum(self) -> U32:
        return self._gather.reorder.checksum

    async def run(self) -> pb.End | None:
        """Return the END that is still to be sent; None if it was sent with the last frame.

        Raises LoaderError, Busy, Gone.
        """
        resources = self._resources
        if resources.assembly.held_bytes > resources.assembly.limit_bytes:
            raise Busy(f"{resources.assembly.held_bytes:,} bytes are on their way from other nodes", "memory")
        resources.batches_assembled += self._is_elsewhere
        try:
            self._gather.start()
            end = await (self._run_buffered() if self._request.buffered else self._run_streaming())
        finally:
            await self._gather.close()
        self._call.tally.ended(self, end)
        return end

    async def _run_streaming(self) -> pb.End | None:
        sending: asyncio.Task[None] | None = None
        end: pb.End | None = None
        try:
            while self._entries < self._n and end is None:
                with self._call.waits.waiting("queue"):
                    await self._resources.throttle()
                frame, held_bytes, end = await self._take()
                await self._call.spend_credit(frame.payload_bytes)
                slot = await self._turn(frame.payload_bytes)
                try:
                    if sending is not None:
                        await asyncio.shield(sending)
                    message = encode_parts(self._call.batch_id, frame, end)
                except BaseException:
                    slot.release()
                    raise
                release = self._gather.memory.keep(held_bytes)
                sending = asyncio.create_task(self._send_and_release(message, slot, release))
            if sending is not None:
                await asyncio.shield(sending)
        except BaseException:
            if sending is not None:
                # A write that has begun cannot be undone; its bytes are released when it ends.
                sending.add_done_callback(retrieve)
            raise
        return None if end is not None else self._end()

    async def _run_buffered(self) -> pb.End | None:
        budget = self._resources.buffered
        messages: list[tuple[int, bytes]] = []
        end: pb.End | None = None
        collected_bytes = 0
        try:
            while self._entries < self._n and end is None:
                frame, held_bytes, end = await self._take()
                size = frame.payload_bytes
                if collected_bytes + size > budget.limit_bytes:
                    raise InvalidRequest(
                        f"more than {budget.limit_bytes:,} bytes, the most that is collected before sending: use "
                        "streaming=True"
                    )
                self._resources.collect(size, self._call.call_slot)
                collected_bytes += size
                messages.append((size, encode_frame(self._call.batch_id, frame, end)))
                self._gather.memory.release(held_bytes)
            for size, message in messages:
                await self._call.spend_credit(size)
                slot = await self._turn(size)
                try:
                    await settled(asyncio.ensure_future(self._call.send_frame(message)))
                finally:
                    slot.release()
                collected_bytes -= size
                self._resources.uncollect(size, self._call.call_slot)
        finally:
            self._resources.uncollect(collected_bytes, self._call.call_slot)
        return None if end is not None else self._end()

    async def _take(self) -> tuple[Frame, int, pb.End | None]:
        """Return the next frame, the bytes accounted for it, and END if it is the last frame."""
        with self._call.call_slot.waiting():  # for others, not for the client
            frame = await self._gather.next(self._frame_bytes)
        held_bytes = frame.payload_bytes
        stopped = False
        if self._request.fail_fast and frame.status.any():
            frame, stopped = _until_failure(frame), True
        if frame.completes_entry:
            self._passed[frame.index.astype(np.int64) - self._request.first_index] = True
            self._entries += len(frame.index)
        return frame, held_bytes, self._end() if stopped or self._entries == self._n else None

    def _end(self) -> pb.End:
        self._gather.tell_waits()
        status, checksum = self.status, self._gather.reorder.checksum
        sizes = self.sizes
        if self._entries < self._n:
            status, checksum, sizes = status[self._passed], checksum[self._passed], sizes[self._passed]
        return pb.End(
            outcome=pb.End.COMPLETE if self._entries == self._n else pb.End.STOPPED,
            first_index=self._request.first_index,
            entries=self._entries,
            failed_entries=int(np.count_nonzero(status)),
            payload_bytes=int(sizes.sum()),
            digest=digest(status, checksum),
            waits=self._call.waits.message(),
        )

    async def _turn(self, payload_bytes: int) -> FrameSlot:
        """Wait for the turn to send a received frame. Its slot is not held for long."""
        with self._call.waits.waiting("queue"):
            slot = await self._resources.turn(self._request.tenant, payload_bytes)
        slot.writing()
        return slot

    async def _send_and_release(self, message: Message, slot: FrameSlot, release: Callable[[], None]) -> None:
        try:
            await self._call.send_frame(message)
        finally:
            slot.release()
            release()


def _until_failure(frame: Frame) -> Frame:
    """Return the frame up to and including its first failed entry."""
    kept = without(frame, np.arange(len(frame.index)) > int(np.flatnonzero(frame.status)[0]))
    assert kept is not None
    return kept
