"""Local batch: look-up, frames from this node's drives under the client's credit and the node's limits, and END."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, nullcontext
from typing import Any, Protocol, TypeVar

import numpy as np

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.wire.frame import Frame, encode_frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.coded_entries import enter_places
from storage_node.batch.readahead import BatchAhead
from storage_node.batch.resources import BatchCall, Message, look_up
from storage_node.limits.fair_scheduler import FrameSlot
from storage_node.limits.tasks import retrieve, settled
from storage_node.remote.cold_entries import ColdEntries, Part, cold_entries
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.file_frame import FileFrame
from storage_node.store.read.frame_plan import FILE_FRAME_BYTES, FrameSpan, goes_from_files

T = TypeVar("T")
ALIVE_S = 2.0
"""Interval of messages to a receiver that waits for a cold entry; peers and clients give up a node that is silent."""
_EMPTY = Frame(
    np.empty(0, np.uint32),
    np.empty(0, np.uint32),
    np.empty(0, np.uint32),
    np.empty(0, np.uint8),
    np.empty(0, np.uint8),
    memoryview(b""),
)
_FEW_BATCHES = 4
"""Up to this many batches at a time, copying mapped bytes on the event loop is faster than on a thread. If there are
more, other processors should do it."""
_FEW_FILES = 8
"""Up to this many files, opening on the event loop is faster than on a thread, if the previous frame was cached."""


class AnyRun(Protocol):
    async def run(self) -> pb.End | None: ...


class LocalBatch:
    """One batch from look-up to END."""

    def __init__(self, call: BatchCall, gathered: Callable[[BatchCall], AnyRun], *, sends_files: bool = False) -> None:
        """`gathered` returns the run to use if there are coded entries. `sends_files`: whether `send` accepts
        FileFrames."""
        self._gathered = gathered
        self._call, self._resources, self._request = call, call.resources, call.request
        self._sends_files = sends_files and call.request.receiver_checks
        self._cold: ColdEntries[asyncio.Future[Part]] | None = None
        self._cached = False
        """Whether the last frame came entirely from the page cache."""

    async def run(self) -> pb.End | None:
        """Return the END that is still to be sent; None if it was sent with the last frame.

        Raises LoaderError, Busy, Gone.
        """
        waits = self._call.waits
        with waits.waiting("drive"):
            batch = await look_up(self._resources, self._request.tenant, self._request)
        batch.waits, waits.wait_us = waits, self._resources.node.load.wait_us()
        ahead = self._resources.readahead.of(batch)
        run = self._run_buffered if self._request.buffered else self._run_streaming
        try:
            tier = self._resources.remote
            buckets = self._call.buckets
            cold = cold_entries(tier, self._request, batch, buckets) if buckets else {}
            is_elsewhere = bool(cold or batch.coded)
            if self._request.HasField("whole_up_to") and (is_elsewhere or not _is_sent(self._request, batch)):
                if is_elsewhere:  # the client looks the object up, and its reader knows which bytes to fetch
                    batch.fail(0, ObjectNotFound(f"{self._request.name[0]!r} is not stored"))
                self._call.tally.described(found=not batch.status[0])
                return batch.end(0)
            if cold:
                self._cold = ColdEntries(batch, cold, tier, asyncio.ensure_future)
            if batch.coded and self._request.coded_places:
                await self._enter_places(batch)
            elif batch.coded:
                return await self._gathered(self._call).run()
            end = await run(batch, ahead)
            self._call.tally.ended(batch, end)
            return end
        finally:
            if self._cold is not None:
                self._cold.close()
            ahead.close()
            batch.close()

    async def _spans(self, batch: StoreBatch) -> AsyncGenerator[FrameSpan, None]:
        """Iterate over the frames to read. Those of cold entries follow when their objects are stored."""
        cold, first = self._cold, 0
        while first < batch.n:
            stop = batch.n if cold is None else cold.next_cold()
            for span in batch.spans(first=first, stop=stop):
                await self._ready(span)
                yield span
                if cold is not None:
                    cold.release(span)
            if cold is not None and stop < batch.n and stop == cold.next_cold():
                await self._fetched(cold, stop)
            first = stop

    async def _ready(self, span: FrameSpan) -> None:
        """Wait for the bytes of a frame that are arriving."""
        if self._cold is not None:
            for position, part, begin, end in self._cold.missing(span):
                await self._arrived(self._cold, position, part.ready(begin, end))

    async def _fetched(self, cold: ColdEntries[asyncio.Future[Part]], position: int) -> None:
        """Wait until a cold entry can be read, or its beginning."""
        await self._wait(cold.fetch_of(position))
        if (begun := cold.begun(position)) is not None:
            await self._wait(begun)
        await self._resources.node.read(cold.take, position)

    async def _arrived(
        self, cold: ColdEntries[asyncio.Future[Part]], position: int, ready: Coroutine[Any, Any, None]
    ) -> None:
        """Wait for the next bytes of an entry that is arriving."""
        arrived = asyncio.ensure_future(ready)
        try:
            await self._wait(arrived)
        finally:
            arrived.cancel()
            arrived.add_done_callback(retrieve)
        if isinstance(error := arrived.exception(), LoaderError):
            cold.fail(position, error)
        elif error is not None:
            raise error

    async def _wait(self, fetch: asyncio.Future[T]) -> None:
        """Wait for the end of a fetch. Meanwhile, empty frames tell the receiver that this node is alive."""
        assert self._cold is not None
        with self._cold.waiting(self._call.waits):
            await self._alive(fetch)

    async def _alive(self, fetch: asyncio.Future[T]) -> None:
        with self._call.call_slot.waiting():
            while not (await asyncio.wait([fetch], timeout=ALIVE_S))[0]:
                await self._call.send(encode_frame(self._call.batch_id, _EMPTY))

    async def _enter_places(self, batch: StoreBatch) -> None:
        task = asyncio.ensure_future(enter_places(self._resources.coded, self._resources.node, self._request, batch))
        try:
            with self._call.waits.waiting("peer"):
                await self._alive(task)
        finally:
            task.cancel()
            await asyncio.wait([task])
        task.result()

    async def _run_streaming(self, batch: StoreBatch, ahead: BatchAhead) -> pb.End | None:
        resources = self._resources
        if self._sends_files:
            # The second frame is sent while the client has the first, because a frame may be sent while any credit is
            # left.
            batch.file_frame_bytes = min(FILE_FRAME_BYTES, self._request.initial_credit_bytes)
        sending: asyncio.Task[None] | None = None
        entries, ended = 0, False
        try:
            async with aclosing(self._spans(batch)) as spans:
                async for span in spans:
                    ahead.reading(span)
                    await self._call.spend_credit(span.payload_bytes)
                    slot = await self._call.turn(span.payload_bytes, span.payload_bytes)
                    message: Message = b""
                    try:
                        message, ended = await self._message(batch, span)
                        slot.writing()
                        self._call.credit.add(span.payload_bytes - batch.bytes_in(span))
                        if sending is not None:
                            await asyncio.shield(sending)
                    except BaseException:
                        if isinstance(message, FileFrame):
                            message.close()
                        slot.release()
                        resources.slots.release_memory(span.payload_bytes)
                        raise
                    sending = asyncio.create_task(self._send_and_release(message, slot, span.payload_bytes))
                    entries = span.stop
                    if self._request.fail_fast and batch.status[span.first : span.stop].any():
                        self._call.tally.stopped_at(batch.status[span.first : span.stop])
                        break
            if sending is not None:
                await asyncio.shield(sending)
        except BaseException:
            if sending is not None:
                # A write that has begun cannot be undone; its bytes are released when it ends.
                sending.add_done_callback(retrieve)
            raise
        return None if ended else batch.end(entries)

    async def _message(self, batch: StoreBatch, span: FrameSpan) -> tuple[Message, bool]:
        """Like `_read`, or from files if possible."""
        if not self._sends_files or not goes_from_files(span.stop - span.first, span.payload_bytes):
            return await self._read(batch, span)
        message: Message
        few = self._cached and span.stop - span.first <= _FEW_FILES
        if few and (opened := batch.open_message(span, self._call.batch_id)) is not None:
            message, ended = opened
        else:
            with self._call.waits.waiting("queue"):
                message, ended = await self._resources.node.read(batch.read_message, span, self._call.batch_id)
        self._cached = isinstance(message, FileFrame) and message.cached
        return message, ended

    async def _read(self, batch: StoreBatch, span: FrameSpan) -> tuple[bytes | memoryview, bool]:
        few = self._resources.batches.held + self._resources.parts.held <= _FEW_BATCHES
        if few and (copied := batch.copy_encoded(span, self._call.batch_id)) is not None:
            return copied
        with self._call.waits.waiting("queue"):
            return await self._resources.node.read(batch.read_encoded, span, self._call.batch_id)

    async def _send_and_release(self, message: Message, slot: FrameSlot, payload_bytes: int) -> None:
        from_drive = isinstance(message, FileFrame) and not message.cached
        try:
            with self._call.waits.waiting("drive") if from_drive else nullcontext():
                await self._call.send_frame(message)
        finally:
            if isinstance(message, FileFrame):
                message.close()
            slot.release()
            self._resources.slots.release_memory(payload_bytes)

    async def _run_buffered(self, batch: StoreBatch, ahead: BatchAhead) -> pb.End | None:
        budget = self._resources.buffered
        if self._cold is not None:  # how many bytes are collected is known only when all objects are stored
            while (position := self._cold.next_cold()) < batch.n:
                await self._fetched(self._cold, position)
        held_bytes = int(batch.sizes.sum())
        if held_bytes > budget.limit_bytes:
            raise InvalidRequest(
                f"{held_bytes:,} bytes, at most {budget.limit_bytes:,} are collected before sending: use streaming=True"
            )
        self._resources.collect(held_bytes, self._call.call_slot)
        try:
            messages: list[tuple[int, bytes | memoryview]] = []
            entries, ended = 0, False
            for span in batch.spans():
                await self._ready(span)
                ahead.reading(span)
                slot = await self._call.turn(span.payload_bytes)
                try:
                    message, ended = await self._read(batch, span)
                finally:
                    slot.release()
                if self._cold is not None:
                    self._cold.release(span)
                messages.append((span.payload_bytes, message))
                entries = span.stop
                if self._request.fail_fast and batch.status[span.first : span.stop].any():
                    self._call.tally.stopped_at(batch.status[span.first : span.stop])
                    break
            for payload_bytes, message in messages:
                await self._call.spend_credit(payload_bytes)
                await settled(asyncio.ensure_future(self._call.send_frame(message)))
                held_bytes -= payload_bytes
                self._resources.uncollect(payload_bytes, self._call.call_slot)
        finally:
            self._resources.uncollect(held_bytes, self._call.call_slot)
        return None if ended else batch.end(entries)


def _is_sent(request: pb.BatchRequest, batch: StoreBatch) -> bool:
    """Whether a request that describes its only entry gets its bytes as well."""
    found = batch.record(0) is not None and not batch.status[0]
    return found and 0 < batch.sizes[0] <= request.whole_up_to
