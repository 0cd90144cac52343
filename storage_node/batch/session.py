"""The GetBatch session: many batches on one stream, each with its own credit, cancellation and end.

A batch is a task on the node's event loop; its reads run on the reader threads, and while one frame is on its way to
the network the next is being read. Frames of one batch leave in request order; batches interleave. An idle session
costs no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

from protos import ais_batch_pb2 as pb
from storage_node.batch.admission import Credit, MemoryBudget
from storage_node.batch.small import answer_small
from storage_node.config import ServerConfig
from storage_node.store.batch import StoreBatch
from storage_node.store.batch_plan import FrameSpan
from storage_node.store.errors import StoreError
from storage_node.store.store import Store

log = logging.getLogger(__name__)
T = TypeVar("T")


class Outgoing(Protocol):
    """The half of a gRPC stream that a session writes to."""

    async def write(self, message: bytes) -> None: ...


class BatchService:
    """What all sessions of a node share. Belongs to the node's event loop."""

    def __init__(self, store: Store, config: ServerConfig, readers: Executor) -> None:
        self.store = store
        self.config = config
        self.budget = MemoryBudget(config.memory_bytes)
        self.open_sessions = 0
        self.active_batches = 0
        self._readers = readers

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function that may wait for a drive, off the event loop.

        Cancelled, it still returns only when the function has, or never will be run: what it works on may be closed.
        """
        work = self._readers.submit(function, *arguments)
        done = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            work.cancel()
            while not done.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([done])
            _retrieve(done)
            raise

    async def serve(self, requests: AsyncIterator[pb.SessionRequest], stream: Outgoing) -> None:
        """One session, until the client ends it or its connection breaks; nothing of it is left afterwards."""
        self.open_sessions += 1
        session = _Session(self, stream)
        try:
            async for request in requests:
                await session.take(request)
            await session.drain()
        finally:
            self.open_sessions -= 1
            await session.cancel_all()


class _Session:
    def __init__(self, service: BatchService, stream: Outgoing) -> None:
        self._service = service
        self._stream = stream
        self._write_lock = asyncio.Lock()
        self._batches: dict[int, tuple[asyncio.Task[None], Credit]] = {}

    async def take(self, request: pb.SessionRequest) -> None:
        batch_id, event = request.batch_id, request.WhichOneof("event")
        if event == "request":
            if (answer := answer_small(self._service.store, request.request, batch_id)) is not None:
                # Waits while the client does not read: it will not be asking for more then, either.
                await self._send(answer)
                return
            credit = Credit(request.request.initial_credit_bytes)
            task = asyncio.create_task(self._run(batch_id, request.request, credit), name=f"batch {batch_id}")
            self._batches[batch_id] = (task, credit)
            task.add_done_callback(lambda _: self._batches.pop(batch_id, None))
        elif (batch := self._batches.get(batch_id)) is not None:  # else it has ended, and this crossed its END
            if event == "credit":
                batch[1].add(request.credit.payload_bytes)
            elif event == "cancel":
                batch[0].cancel()

    async def drain(self) -> None:
        while self._batches:
            await asyncio.wait([task for task, _ in self._batches.values()])

    async def cancel_all(self) -> None:
        tasks = [task for task, _ in self._batches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, message: bytes) -> None:
        async with self._write_lock:
            await self._stream.write(message)

    async def _send_event(self, response: pb.SessionResponse) -> None:
        await self._send(response.SerializeToString())

    async def _run(self, batch_id: int, request: pb.BatchRequest, credit: Credit) -> None:
        service = self._service
        if service.active_batches >= service.config.max_active_batches:
            reject = pb.Reject(
                retry_after_ms=service.config.reject_retry_after_ms,
                reason=f"{service.active_batches} batches are being served",
            )
            await self._send_event(pb.SessionResponse(batch_id=batch_id, reject=reject))
            return
        service.active_batches += 1
        end: pb.End | None
        try:
            async with asyncio.timeout(request.deadline_ms / 1000 if request.deadline_ms else None):
                end = await _BatchRun(service, batch_id, request, credit, self._send).run()
        except TimeoutError:
            end = pb.End(outcome=pb.End.REFUSED, error_kind="timeout", message=f"not done in {request.deadline_ms} ms")
        except StoreError as error:
            end = pb.End(outcome=pb.End.REFUSED, error_kind=error.kind, message=str(error))
        except Exception:  # the boundary of a task: one batch's defect must not end its neighbours
            log.exception("batch %d failed", batch_id)
            end = pb.End(outcome=pb.End.REFUSED, error_kind="internal", message="internal error, see the node's log")
        finally:
            service.active_batches -= 1
        if end is not None:
            await self._send_event(pb.SessionResponse(batch_id=batch_id, end=end))


class _BatchRun:
    """One batch from look-up to END."""

    def __init__(
        self, service: BatchService, batch_id: int, request: pb.BatchRequest, credit: Credit,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._service = service
        self._batch_id = batch_id
        self._request = request
        self._credit = credit
        self._send = send

    async def run(self) -> pb.End | None:
        """Returns the END that is still to be sent; None when it went with the last frame."""
        batch = await self._service.read(StoreBatch, self._service.store, self._request)
        try:
            if self._request.buffered:
                return await self._run_buffered(batch)
            return await self._run_streaming(batch)
        finally:
            batch.close()

    async def _run_streaming(self, batch: StoreBatch) -> pb.End | None:
        budget = self._service.budget
        sending: asyncio.Task[None] | None = None
        entries, ended = 0, False
        try:
            for span in batch.spans():
                await self._credit.spend(span.payload_bytes)
                await budget.acquire(span.payload_bytes)
                try:
                    message, ended = await self._read(batch, span)
                    if sending is not None:
                        await sending
                except BaseException:
                    budget.release(span.payload_bytes)
                    raise
                sending = asyncio.create_task(self._send_and_release(message, span.payload_bytes))
                entries = span.stop
                if self._request.fail_fast and batch.status[span.first : span.stop].any():
                    break
            if sending is not None:
                await sending
        except BaseException:
            if sending is not None:
                # A write that has begun cannot be taken back; its bytes are released when it ends.
                sending.add_done_callback(_retrieve)
            raise
        return None if ended else batch.end(entries)

    async def _read(self, batch: StoreBatch, span: FrameSpan) -> tuple[bytes, bool]:
        reading = asyncio.ensure_future(self._service.read(batch.read_encoded, span, self._batch_id))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            # The thread goes on whatever we do; the batch may only be closed after it.
            await asyncio.wait([reading])
            raise

    async def _send_and_release(self, message: bytes, payload_bytes: int) -> None:
        try:
            await self._send(message)
        finally:
            self._service.budget.release(payload_bytes)

    async def _run_buffered(self, batch: StoreBatch) -> pb.End | None:
        limit_bytes = self._service.config.max_buffered_bytes
        total_bytes = int(batch.sizes.sum())
        if total_bytes > limit_bytes:
            refusal = f"{total_bytes:,} bytes, at most {limit_bytes:,} are collected before sending: use streaming=True"
            return pb.End(outcome=pb.End.REFUSED, error_kind="invalid-request", message=refusal)
        await self._service.budget.acquire(total_bytes)
        try:
            messages: list[tuple[FrameSpan, bytes]] = []
            entries, ended = 0, False
            for span in batch.spans():
                message, ended = await self._read(batch, span)
                messages.append((span, message))
                entries = span.stop
                if self._request.fail_fast and batch.status[span.first : span.stop].any():
                    break
            for span, message in messages:
                await self._credit.spend(span.payload_bytes)
                await self._send(message)
        finally:
            self._service.budget.release(total_bytes)
        return None if ended else batch.end(entries)


def _retrieve(finished: asyncio.Future[Any]) -> None:
    """Take note of an outcome that nobody waits for any more."""
    if finished.done() and not finished.cancelled():
        finished.exception()
