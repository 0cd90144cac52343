"""GetBatch session: many batches on one stream, each with its own credit, cancellation and end.

A small request is answered at once, on the node's event loop (`_answer_small`). Any other batch is a task there. Its
reads run on the reader threads, or on other nodes if it is gathered, and while one frame is being sent, the next is
being read. Frames of one batch are sent in request order, or as they come if the client asks for that; batches
interleave. An idle session costs no thread.

A session is over in one of these ways. It keeps its slot until nothing of it is left.

- The client requests nothing more: all its batches are finished first.
- The client sends an invalid message: the batches are cancelled, and the client is told after the message that is being
  sent.
- The client vanishes: a lane raises EOFError, gRPC cancels the handler. The batches are cancelled, and the message that
  is being sent is broken off.
- The session is stalled: the client reads nothing, and others need its memory or its slot. It is broken off like that
  of a client that vanished, and the client is told to come back.
- The node stops: new batches are rejected. Running ones finish within the grace period, or are cancelled without END.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Protocol, TypeVar

from ais_loader.errors import InvalidRequest, LoaderError, Overloaded, StaleMap
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated.ais_cluster_pb2 import ClusterMap
from ais_loader.wire.node_waits import NodeWaits
from storage_node.batch.admission import Busy
from storage_node.batch.fast_path import answer_from_file, answer_inline, answer_kept
from storage_node.batch.gather.assembled_batch import AssembledBatch
from storage_node.batch.gather.fragments import GatheredFragments
from storage_node.batch.gather.routing import routing_of
from storage_node.batch.local_batch import LocalBatch
from storage_node.batch.resources import BatchCall, BatchResources, Gone, Message
from storage_node.cluster.coding.coded_objects import CodedObjects
from storage_node.cluster.coding.group_reader import GroupReader
from storage_node.context.node import Node
from storage_node.etl.local_etl import LocalEtl
from storage_node.limits.call_slots import MAX_TENANT, CallSlot, CallSlots, current_tenant
from storage_node.limits.counters import BatchTally, clock_s, count
from storage_node.limits.memory_budget import Credit
from storage_node.limits.tasks import retrieve, settled
from storage_node.limits.wakeup import tick
from storage_node.remote.tier import RemoteTier
from storage_node.security.audit.reads import BatchReads
from storage_node.security.rights.batches import restrict
from storage_node.security.rights.granted import GRANTED
from storage_node.store.read.file_frame import FileFrame

log = logging.getLogger(__name__)
T = TypeVar("T")


_LOOK_S = 0.5
"""Interval at which stalled sessions are ended while others wait for memory."""


class Outgoing(Protocol):
    """Sending half of a gRPC stream."""

    async def write(self, message: bytes) -> None: ...


class OutgoingLane(Outgoing, Protocol):
    """Sending half of a lane, which accepts payloads in parts and from files."""

    async def write(self, message: bytes | memoryview) -> None: ...

    async def write_parts(self, parts: Sequence[bytes | memoryview]) -> None: ...

    async def write_file(self, frame: FileFrame) -> None: ...


class BatchService:
    """Sessions of a node and their shared resources. Belongs to the node's event loop."""

    def __init__(self, node: Node, etl: LocalEtl, remote: RemoteTier) -> None:
        self.node = node
        self.resources = BatchResources(node, etl, remote)
        self.resources.coded = CodedObjects(node, GroupReader(GatheredFragments(self.resources)))
        node.recall = self.resources.coded.recall_all
        self.stopping = False
        self._sessions: set[_Session] = set()
        limits = node.config.limits
        self.session_slots = CallSlots(
            limits.max_sessions, limits.still_s, limits.tenant_weights, tenant_share=limits.tenant_share
        )
        """Slots of sessions. For its slot, a session is stalled while its client requests nothing."""

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    def stop(self) -> None:
        """Accept no further batch. Each session ends with its last running batch, an idle one at once."""
        self.stopping = True
        self.resources.readahead.close()
        for session in self._sessions:
            session.stop_if_idle()

    async def watch(self) -> None:
        """End stalled sessions and calls while others need their memory. Runs until cancelled.

        Sessions hold the memory of frames that their clients do not read. While the process is short of memory, every
        stalled call is evicted: gRPC may hold a large part of its next message, which cannot be measured here.
        """
        node, resources, still_s = self.node, self.resources, self.node.config.limits.still_s
        held = (node.unread, node.streams.slots, self.session_slots, resources.batches, resources.parts)
        while True:
            await tick(_LOOK_S)
            if any(call_slots.held for call_slots in held) and node.load.memory_is_critical():
                for call_slots in held:
                    call_slots.reclaim_stalled()
            if resources.slots.waits_for_memory:
                for session in [one for one in self._sessions if one.stalled_s() >= still_s]:
                    session.end_stalled(still_s)

    async def serve(
        self,
        requests: AsyncIterator[pb.SessionRequest],
        stream: Outgoing,
        tenant: str,
        lane: OutgoingLane | None = None,
        *,
        sends_files: bool = False,
    ) -> None:
        """Serve one session until the client ends it or its connection breaks. Nothing of it remains afterwards.

        `tenant`: tenant of the client; its batches may name others. `lane`: the stream, if it is a lane. `sends_files`:
        whether the lane sends from files.
        """
        session = _Session(self, stream, lane, sends_files=sends_files)
        call_slot = self.session_slots.take(tenant, session.evict)
        if call_slot is None:
            raise Overloaded(self.session_slots.why(tenant, "sessions are open", "max_sessions"))
        session.call_slot = call_slot
        self._sessions.add(session)
        try:
            with call_slot.waiting():
                await session.run(requests)
        finally:
            try:
                await session.cancel_all()
            finally:
                call_slot.give_back()
                self._sessions.discard(session)


class _Session:
    call_slot: CallSlot

    def __init__(
        self, service: BatchService, stream: Outgoing, lane: OutgoingLane | None, *, sends_files: bool
    ) -> None:
        self._service = service
        self._sends_files = sends_files
        self._granted = GRANTED.get()
        self._lines = _lines_of(service.node)
        self._stream = stream
        self._lane = lane
        self._write_lock = asyncio.Lock()
        self._batches: dict[int, tuple[asyncio.Task[None], Credit]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._answering = False
        self._writer: asyncio.Task[object] | None = None
        self._writing_since_s = 0.0
        self._ended: Exception | None = None
        """Why nothing more is sent."""

    def stalled_s(self) -> float:
        """Return how long the client has not read the message that is being sent; 0 if none is."""
        return time.monotonic() - self._writing_since_s if self._writer is not None else 0.0

    def end_stalled(self, still_s: float) -> None:
        """End the session of a client that reads nothing, because its memory is needed. The client may reconnect at
        once."""
        self._end(
            Overloaded(f"nothing was read from this session for {still_s:g} s (still_s) while others waited for memory")
        )

    def _end(self, why: Overloaded) -> None:
        log.warning("a session was ended: %s", why)
        self._send_no_more(why)
        if self._writer is not None:
            self._writer.cancel()

    def _send_no_more(self, why: Exception) -> None:
        """Cancel everything but the message that is being sent."""
        self._ended = why
        for task in (self._reading, *(task for task, _ in self._batches.values())):
            if task is not None:
                task.cancel()

    async def run(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        """Serve until the client has ended the session and has all responses. Raises InvalidRequest for invalid
        messages."""
        self._reading = asyncio.create_task(self._take_all(requests), name="session")
        if self._service.stopping:
            self.stop_if_idle()
        await asyncio.wait([self._reading])
        if not self._reading.cancelled():
            try:
                self._reading.result()
            except LoaderError as error:  # told to the client after the message that is being sent
                self._send_no_more(error)
        while self._batches:
            await asyncio.wait([task for task, _ in self._batches.values()])
        async with self._write_lock:  # a cancelled batch may still be writing its last message
            pass
        if self._ended is not None:
            raise self._ended

    def evict(self) -> None:
        """End this session, the one stalled for the longest, because another one needs its slot."""
        if self._batches or self._writer is not None:
            self._end(Overloaded("no place among the sessions of this node (max_sessions): open another one"))
        elif self._reading is not None:
            self._reading.cancel()

    def stop_if_idle(self) -> None:
        """End the session when the node stops. One with batches continues to read, because they need their credit."""
        if self._reading is not None and not self._batches and not self._answering:
            self._reading.cancel()

    async def _take_all(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        async for request in requests:
            await self.take(request)
            if self._service.stopping and not self._batches:
                return

    async def take(self, request: pb.SessionRequest) -> None:
        batch_id, event = request.batch_id, request.WhichOneof("event")
        if event == "request":
            self.call_slot.moved()
            buckets = tuple(request.request.bucket) if self._lines is not None else ()
            if self._granted is not None and (refused := restrict(self._granted, request.request)):
                count(self._service.node.metrics.refusals, "entries", refused)
            began_s = clock_s()
            answer = self._answer_small(batch_id, request.request)
            if answer is not None:
                # Waits while the client does not read; such a client will not request more either.
                self._answering = True
                if self._lines is not None:
                    self._lines.small(request.request, buckets, *answer[1:])
                try:
                    await self._send(answer[0])
                finally:
                    if isinstance(answer[0], FileFrame):
                        answer[0].close()
                self._service.node.metrics.small(request.request, answer[1], clock_s() - began_s)
                self._answering = False
                return
            if batch_id in self._batches:
                raise InvalidRequest(f"batch {batch_id} of this session has not ended: its id cannot be used again yet")
            credit = Credit(request.request.initial_credit_bytes)
            task = asyncio.create_task(
                self._serve(batch_id, request.request, credit, buckets), name=f"batch {batch_id}"
            )
            self._batches[batch_id] = (task, credit)
            task.add_done_callback(retrieve)
            task.add_done_callback(lambda _: self._forget(batch_id))
        elif (batch := self._batches.get(batch_id)) is not None:  # else this message crossed its END
            if event == "credit":
                self.call_slot.moved(request.credit.payload_bytes)
                batch[1].add(request.credit.payload_bytes)
            elif event == "cancel":
                batch[0].cancel()

    def _answer_small(self, batch_id: int, request: pb.BatchRequest) -> tuple[Message, int, int] | None:
        """Answer a request on the fast path; None if it must take the ordinary path."""
        service, tenant = self._service, request.tenant
        rates = service.node.rates
        refused = rates is not None and rates.refusal(tenant) is not None
        if refused or not service.resources.may_answer(tenant, len(request.name)):
            return None
        node, etl = service.node, service.resources.etl
        answer: tuple[Message, int, int] | None
        remote = service.resources.remote
        buckets = remote.buckets.of(request.bucket)
        if any(bucket is not None and bucket.validates for bucket in buckets):
            return None
        if not request.transform:
            answer = answer_inline(node.store, request, batch_id, node.membership)
            if answer is None and self._sends_files and not node.load.pause()[0]:
                answer = answer_from_file(node.store, request, batch_id, node.membership)
        else:
            answer = answer_kept(node.store, etl, request, batch_id, node.membership)
        if answer is not None:
            service.resources.slots.charge(tenant, answer[1])
            if rates is not None:
                rates.take(tenant)
                rates.spend(tenant, answer[1])
            if buckets and buckets[0] is not None:
                remote.space.note_reads(buckets[0], request)
        return answer

    def _forget(self, batch_id: int) -> None:
        self._batches.pop(batch_id, None)
        self.call_slot.moved()
        if self._service.stopping:
            self.stop_if_idle()

    async def cancel_all(self) -> None:
        """End what is left when the client has gone: the message that is being sent cannot reach it."""
        self._send_no_more(Gone())
        tasks = [self._reading, self._writer, *(task for task, _ in self._batches.values())]
        if self._writer is not None:
            self._writer.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        async with self._write_lock:  # every message that waited to be sent has been dropped
            pass

    async def _send(self, message: Message) -> None:
        """Send a message. Must not be cancelled while the session lives: gRPC would still be writing when the next
        write begins."""
        async with self._write_lock:
            if self._ended is not None:
                raise Gone
            size_bytes = sum(map(len, message)) if isinstance(message, list) else len(message)
            self._service.node.metrics.sent_bytes += size_bytes
            self._writer, self._writing_since_s = asyncio.current_task(), time.monotonic()
            try:
                if isinstance(message, bytes):
                    await self._stream.write(message)
                elif isinstance(message, memoryview):
                    if self._lane is None:
                        await self._stream.write(bytes(message))
                    else:
                        await self._lane.write(message)
                elif isinstance(message, list):
                    if self._lane is None:
                        await self._stream.write(b"".join(message))
                    else:
                        await self._lane.write_parts(message)
                else:
                    assert self._lane is not None
                    await self._lane.write_file(message)
            except Exception as error:  # any error that gRPC raises after the end of a call; nothing more can be sent
                raise Gone from error
            finally:
                self._writer = None

    async def _serve(self, batch_id: int, request: pb.BatchRequest, credit: Credit, buckets: Sequence[str]) -> None:
        tally = BatchTally(self._service.node.metrics, request)
        waits, began_s = NodeWaits(), clock_s()
        try:
            with tally:
                await self._run(batch_id, request, credit, tally, waits)
        finally:
            if sum(waits.spent_s.values()) >= (self._service.node.config.reads.slow_batch_s or math.inf):
                log.warning("%s", _slow(request, tally, waits, clock_s() - began_s))
            if self._lines is not None:
                self._lines.ended(request, buckets, tally)

    async def _run(
        self, batch_id: int, request: pb.BatchRequest, credit: Credit, tally: BatchTally, waits: NodeWaits
    ) -> None:
        service = self._service
        current_tenant.set(request.tenant)
        response = pb.SessionResponse(batch_id=batch_id)
        evicted = False

        def evict() -> None:
            nonlocal evicted
            evicted = True
            if self.stalled_s() >= service.node.config.limits.still_s:
                self.end_stalled(service.node.config.limits.still_s)
            else:
                self._batches[batch_id][0].cancel()

        try:
            if service.stopping:
                raise Busy("the node is stopping", "stopping")
            if len(request.tenant) > MAX_TENANT:
                raise InvalidRequest(f"tenant: {len(request.tenant)} characters, at most {MAX_TENANT}")
            with service.resources.admit(request, evict) as call_slot:
                async with asyncio.timeout(request.deadline_ms / 1000 if request.deadline_ms else None):
                    remote = service.resources.remote
                    buckets = remote.buckets.of(request.bucket)
                    call = BatchCall(
                        service.resources, batch_id, request, credit, self._send, tally, call_slot, buckets, waits
                    )
                    run = await self._run_for(call)
                    async with remote.space.reading(request, buckets) if buckets else nullcontext():
                        end = await run.run()
            if end is None:
                return
            response.end.CopyFrom(end)
        except Gone:
            return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not evicted or self._ended is not None or task is None or task.uncancel():
                raise
            still_s = service.node.config.limits.still_s
            self._reject(response, f"nothing was taken for {still_s:g} s (still_s) while others waited for a place")
            tally.rejected("still")
        except Busy as busy:
            self._reject(response, str(busy))
            tally.rejected(busy.reason)
        except LoaderError as error:
            response.end.CopyFrom(_refused(error.kind, self._told(str(error))))
        except TimeoutError:
            response.end.CopyFrom(_refused("timeout", f"not done in {request.deadline_ms} ms"))
        except Exception:  # boundary of a task: a bug in one batch must not end the others
            log.exception("batch %d failed", batch_id)
            response.end.CopyFrom(_refused("internal", "internal error, see the node's log"))
        if response.end.outcome == pb.End.REFUSED:
            tally.failed(response.end.error_kind)
        await settled(asyncio.ensure_future(self._send(response.SerializeToString())))

    def _reject(self, response: pb.SessionResponse, reason: str) -> None:
        response.reject.reason = self._told(reason)
        response.reject.retry_after_ms = self._service.node.load.retry_after_ms()
        response.reject.wait_us = self._service.node.load.wait_us()

    def _told(self, text: str) -> str:
        return text if self._granted is None else self._granted.told(text)

    async def _run_for(self, call: BatchCall) -> LocalBatch | AssembledBatch:
        """Return the run of a batch: from this node's own drives, or gathered if other nodes may have some of its
        entries."""
        service, request = self._service, call.request
        if request.first_index + len(request.name) > 1 << 32:
            raise InvalidRequest(f"first_index={request.first_index}: indexes have 32 bits")
        membership = service.node.membership
        view = membership.view if not request.local else None
        if (now := membership.view) is not None and request.local and 0 < request.map_version < now.version:
            raise StaleMap(f"planned with map {request.map_version}, this node has {now.version}")
        if view is not None:
            routing = await service.node.read(routing_of, service.resources, view, request)
            request.map_version = view.version
            if routing.elsewhere:
                if request.HasField("whole_up_to"):
                    raise InvalidRequest("whole_up_to: this node does not own the object")
                return AssembledBatch(call, routing, in_parts=self._lane is not None)
        if request.transform:
            return self._gathered(call)
        return LocalBatch(call, self._gathered, sends_files=self._sends_files)

    def _gathered(self, call: BatchCall) -> AssembledBatch:
        """Return the run of a batch that asks no other node for entries, but for the fragments of coded ones."""
        view = call.resources.node.membership.view or ClusterView(ClusterMap())
        routing = routing_of(call.resources, view, call.request, only_local=True)
        return AssembledBatch(call, routing, in_parts=self._lane is not None)


def _lines_of(node: Node) -> BatchReads | None:
    """Return the lines of a session's batches in the audit log; None if they are not logged."""
    if node.audit is None or not node.config.audit.logs_reads:
        return None
    lines = BatchReads(node.audit, names=node.config.audit.names)
    return lines if lines.are_written else None


def _slow(request: pb.BatchRequest, tally: BatchTally, waits: NodeWaits, took_s: float) -> str:
    """Return the line of the log for a slow batch: which one, and where its time went."""
    spent = ", ".join(f"{what} {spent_s:.2f} s" for what, spent_s in waits.spent_s.items() if spent_s >= 0.01)
    return (
        f"slow batch {request.request_id!r} of bucket {request.bucket[0]!r}: {len(request.name):,} entries took "
        f"{took_s:.2f} s ({tally.outcome}); it waited for {spent}{f', longest for {waits.node}' if waits.node else ''}"
    )


def _refused(kind: str, message: str) -> pb.End:
    return pb.End(outcome=pb.End.REFUSED, error_kind=kind, message=message)
