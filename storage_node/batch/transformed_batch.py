"""Transformed batch: frames of entries that pass through transforms, under the client's credit and the node's turns.

In a `LocalBatch`, all sizes are known before anything is read. Here, a frame is charged when it is complete. A tenant
is charged for the workers' time, which is accounted by the transforms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ais_loader.errors import InvalidRequest, StaleMap
from ais_loader.wire.frame import Frame, encode_frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.resources import BatchCall
from storage_node.limits.tasks import settled


class TransformedBatch:
    """One batch from look-up to END."""

    def __init__(self, call: BatchCall) -> None:
        self._call, self._resources, self._request = call, call.resources, call.request

    async def run(self) -> pb.End:
        """Return the END that is still to be sent. Raises LoaderError, Busy, Gone."""
        view = self._resources.node.membership.view
        if self._request.local and view is not None and 0 < self._request.map_version < view.version:
            raise StaleMap(f"planned with map {self._request.map_version}, this node has {view.version}")
        run = await self._resources.transformed(self._request)
        held: list[Frame] = []
        try:
            while (frame := await self._next(run.next())) is not None:
                if self._request.buffered:
                    self._collect(held, frame)
                else:
                    await self._deliver(frame)
                if self._request.fail_fast and frame.status.any():
                    self._call.tally.stopped_at(frame.status)
                    break
            while held:
                await self._deliver(held[0])
                self._resources.uncollect(len(held.pop(0).payload), self._call.call_slot)
            end = run.end()
            self._call.tally.ended(run, end)
            return end
        finally:
            self._resources.uncollect(sum(len(frame.payload) for frame in held), self._call.call_slot)
            await run.close()

    async def _next(self, waiting: Awaitable[Frame | None]) -> Frame | None:
        with self._call.call_slot.waiting():  # a transform takes time: meanwhile the slot must not count as idle
            return await waiting

    def _collect(self, held: list[Frame], frame: Frame) -> None:
        self._resources.collect(len(frame.payload), self._call.call_slot)
        held.append(frame)
        if sum(len(one.payload) for one in held) > self._resources.buffered.limit_bytes:
            raise InvalidRequest(
                f"more than {self._resources.buffered.limit_bytes:,} bytes are not collected before sending: use "
                "streaming=True"
            )

    async def _deliver(self, frame: Frame) -> None:
        size_bytes = len(frame.payload)
        await self._call.spend_credit(size_bytes)
        slot = await self._resources.turn(self._request.tenant, size_bytes, size_bytes)
        try:
            message = encode_frame(self._call.batch_id, frame)
            await settled(asyncio.ensure_future(self._call.send_frame(message)))
        finally:
            slot.release()
            self._resources.slots.release_memory(size_bytes)
