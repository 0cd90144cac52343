"""Scatter-gather of one batch on its designated target: merges the frames of its peers within bounded memory.

The problem: the entries of a batch are spread over many nodes, and the client wants one stream in request order. All
peers should send at the same time, but their frames arrive in any order. A peer that runs ahead must not fill the
memory of this node. A peer that fails or stalls must not stop the stream.

Three invariants:

- Every entry comes out once, complete or failed, with the bytes of one version; only a transformed entry may begin
  again. At any time it is assigned to one sender, to two that race for it, or to none while it waits to be requested
  (`Reorder`).
- The bytes of this batch are accounted in `BatchResources.assembly`, a budget for all gathered batches of the node. It
  counts bytes that have arrived as well as credit that was granted and may still arrive. The budget is exceeded by one
  frame of each sender at most: a sender may overdraw its credit by one frame, and what it is granted beyond the budget
  comes out at once.
- An entry is due if it must come out next. In request order, it is the first that has not arrived. In any order, it is
  the large entry of which pieces have come out, if there is one. The senders of the entry that is due can always send
  one more frame; if none is due, one of all senders can. So every batch ends, even if the budget is exhausted by
  others.

The steps:

1. Route: `ReplicaRouting` lists the nodes that may have each entry, the best one first.
2. Ask: every node gets one sub-request for all its entries (a `PartSender`), all at once; none waits for another.
   Entries on this node itself are read from its drives by a sender of the same kind. The initial credit of a sender is
   its window (`peer_window_bytes`), or nothing if the budget is exhausted. (A new batch is rejected as busy while the
   budget is exceeded.)
3. Receive: `_take` adds each frame to the reorder buffer. Entries that another sender has already delivered are
   dropped. Failed entries are judged: some are final, some are requested from another holder.
   An owner answers a coded entry with its place. When no owner is waited for, or a moment after the first place came,
   one more sender reads all entries with known places here, from the holders of their fragments (`_read_coded`).
4. Deliver: `next` returns the run of entries at the front of the buffer, and refills the senders' credit by what was
   taken out. Its caller (`assemble`) sends the frame under the client's credit. The bytes stay accounted until the
   write has ended.
5. Unblock: when nothing can be delivered, `_grant_one_frame` requests the entry that is due, if it waits for that, and
   grants its sender and the rival credit for one frame, whatever the budget says. If no entry is due, it grants one
   sender a frame, but only if none has credit, except for slow ones. While the client reads nothing, `next` is not
   called, so no sender is unblocked.

A slow peer: if it is silent much longer than usual although it has credit, `HedgeWatch` calls `_hedge`. Its missing
entries are then also requested from their next holders, within a budget (see `ais_loader.wire.gather.hedging`). The
slow peer is not given up. The first to deliver any part of an entry keeps it; a sender that has lost all its entries is
cancelled. A cancelled sender that sent nothing since it was hedged marks its peer as failing, until the peer sends
anything. Transformed entries are not hedged.

A peer that dies: its stream ends with a PeerError, at once if the connection breaks, otherwise after `peer_timeout_s`
of silence. `_lose` takes back its missing entries, and each is requested from its next holder: a further replica, or
the owner before the last change of the map. A large entry continues after the pieces that have arrived. It begins again
from byte 0 if the next holder has a newer version and none was requested, or makes other bytes of a transformed entry.
It fails as unavailable if the holders have older versions only (`torn`). A node whose connection broke is tried again,
after all other holders, until it has been failing for `peer_timeout_s`. When no holder is left, the entry fails in its
position as unavailable, and the batch goes on. A busy peer is retried for `peer_timeout_s`. After that its entries go
to their next holders.

A stale peer: there are two cases. A peer that has a newer map refuses entries that were placed by an older one.
`_learn_and_place` then fetches the newer map and places all entries again. Until it has one, entries are requested
again for at most `peer_timeout_s`. A peer whose replica may be outdated, because it has just returned or missed an
invalidation, reports the entry as unavailable, and the next holder is asked.

A damaged replica: its holder reports the entry as corrupt, and the next holder is asked. Pieces of a large entry are
verified before they are sent, so what has been passed on is valid, and another holder continues after it. If several
holders have damage in different places, all are asked again as long as the entry progresses. If the client verifies
checksums itself (`receiver_checks`), holders send entries without verification. A client that finds a mismatch requests
the rest of the batch again without that option, so that the holders verify it.

An entry for which all holders failed reports the most severe of their errors. If more than `max_recoveries` entries had
to be requested again, or more than `max_soft_errors` failed, the whole batch fails.

A coded entry that cannot be read at its place is requested from its owners once more, because it may be elsewhere by
now, or have a file again. If it cannot be read then either, it fails as unavailable.

A peer whose END does not match its frames is treated like one that has died. If all of its entries have been accepted
already, they cannot be corrected, and the whole batch fails.

The client goes away: its session cancels the batch's task, and `close` cancels all senders. A remote peer receives a
cancellation, so that it stops reading; all accounted memory is released, except for a frame whose write has begun,
which is released when the write ends. `close` completes even if it is cancelled itself.

If this node dies, nothing of the batch is left: all state is in memory. The client requests what it has not received
from another node, and resumes a large entry at the byte where it stopped (`Resumed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.errors import LoaderError, ObjectDeleted, StaleMap, StoreFormatError
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.frame import EntryFault, Frame
from ais_loader.wire.gather.frame_edit import failing, without_untransformed
from ais_loader.wire.gather.reorder import Reorder, in_senders
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import MergedWaits, NodeWaits
from storage_node.batch.coded_entries import coded_frames
from storage_node.batch.gather.failures import MAY_BE_BETTER_ELSEWHERE, Failures, Resumed
from storage_node.batch.gather.hedging import HedgeWatch
from storage_node.batch.gather.routing import ReplicaRouting
from storage_node.batch.gather.senders import PartSender, SenderMemory, own_frames
from storage_node.batch.peer_stream import PeerAnswerWrong, PeerError, PeerRefused, PeerStream, PeerUnavailable
from storage_node.batch.resources import BatchResources
from storage_node.limits.counters import clock_s
from storage_node.limits.memory_budget import Credit
from storage_node.limits.tasks import settled
from storage_node.store.format import CatalogEntry, decode_entry

NOBODY = -1
_RETRY_PAUSE_S = 0.1
_PLACES_TOGETHER_S = 0.01
"""Places of coded entries that arrive within this time are read together."""
_BACKOFF = Backoff(2 * _RETRY_PAUSE_S, 2 * _RETRY_PAUSE_S, jitter=0.5)
_NO_FAULT = EntryFault("")
Mask: TypeAlias = npt.NDArray[np.bool_]


class Gather:
    """Gathers one batch's entries. Frames returned by `next` stay accounted in `memory`.

    Belongs to the node's event loop. Call `close` at the end in any case.
    """

    def __init__(
        self, resources: BatchResources, request: pb.BatchRequest, routing: ReplicaRouting, waits: NodeWaits
    ) -> None:
        self._resources = resources
        self._waits, self._merged_waits = waits, MergedWaits()
        self._request = request
        self._routing = routing
        self.memory = SenderMemory(resources.assembly, resources.node.config.reads.peer_window_bytes)
        n = len(request.name)
        self.sizes: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        self._ordered = request.ordered or request.buffered
        self.reorder = Reorder(n, request.first_index, ordered=self._ordered, begun=bool(request.resume_offset))
        self._senders: dict[int, PartSender] = {}
        self._resumed = Resumed(request)
        self._watch = HedgeWatch(resources.hedging, self._senders, self._hedge)
        self._beaten: list[asyncio.Task[None]] = []
        self._waiting: set[int] = set()
        """Positions of entries to request from their next nodes."""
        self._paused: dict[int, asyncio.TimerHandle] = {}
        """Nodes that failed a moment ago; nothing is requested from them before the timer fires."""
        self._failures = Failures(resources, request, routing, self._fail)
        self._may_be_coded = not request.transform and routing.view.has_coded(request.bucket)
        self._coded: dict[int, CatalogEntry] = {}
        """Coded entries by position that are read here, or will be."""
        self._unread: set[int] = set()
        """Positions of those among them that no sender reads yet."""
        self._unreadable: set[int] = set()
        """Positions of coded entries that could not be read at the place that was known."""
        self._reading_due: asyncio.TimerHandle | None = None
        self._unplaced: set[int] = set()
        """Positions that wait for a newer map."""
        self._planning: asyncio.Task[None] | None = None
        self._outdated_since = 0.0
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._resources.hedging.budget.requested(len(self._request.name))
        for node, positions in self._routing.by_node(range(len(self._request.name))).items():
            self._ask(node, positions)
        self._watch.start()

    # -- delivery

    async def next(self, most_bytes: int) -> Frame:
        """Wait for the next frame and return it: in order, or any frame if order does not matter. Raises LoaderError.

        If order matters, a frame of several entries has at most `most_bytes`.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            frame = self.reorder.pop(most_bytes)
            if frame is not None:
                frame = self._resumed.outward(frame)
                self._note_sizes(frame)
                self.memory.top_up(self._senders.values(), self.reorder.held_bytes_of)
                return frame
            self._read_coded()
            self._grant_one_frame()
            self._changed.clear()
            due = self._due_sender()
            began_s = clock_s()
            await self._changed.wait()
            waited_s = clock_s() - began_s
            self._resources.peer_wait_s += waited_s
            if due is not None and due.endpoint:
                self._merged_waits.waited(due.endpoint, waited_s)
            elif due is not None:
                self._waits.spent_s["peer" if due.reads_coded else "drive"] += waited_s

    def tell_waits(self) -> None:
        """Add the waits for other nodes to those of the batch."""
        self._merged_waits.add_to(self._waits)

    async def close(self) -> None:
        """End all senders and release their memory. Completes even if it is cancelled, because the client has
        disconnected."""
        for timer in self._paused.values():
            timer.cancel()
        if self._reading_due is not None:
            self._reading_due.cancel()
        self._watch.close()
        tasks = self._beaten if self._planning is None else [*self._beaten, self._planning]
        tasks += [sender.task for sender in self._senders.values() if sender.task is not None]
        for task in tasks:
            task.cancel()
        for sender in self._senders.values():
            sender.count(self._resources.loads)
        self._senders.clear()  # so that an error that is noted later has no effect
        self.memory.close()
        await settled(asyncio.gather(*tasks, return_exceptions=True))

    def _note_sizes(self, frame: Frame) -> None:
        first = self._request.first_index
        if frame.piece is None:
            self.sizes[frame.index.astype(np.int64) - first] = frame.size
        elif frame.completes_entry:
            self.sizes[int(frame.index[0]) - first] = frame.piece.entry_size

    # -- requests

    def _ask(self, node: int, positions: list[int], *, hedge: bool = False, reads_coded: bool = False) -> None:
        """Request entries from a node, with one sender or several: an entry that continues in its middle must be its
        sender's first."""
        partial = self._resumed.partly_received(positions[1:], self.reorder)
        left = [p for p in positions if p not in partial]
        for part in [*([p] for p in sorted(partial)), *in_senders(left, ordered=self._ordered)]:
            self._open(node, part, hedge=hedge, reads_coded=reads_coded)

    def _open(self, node: int, positions: list[int], *, hedge: bool, reads_coded: bool) -> None:
        is_local = node == self._routing.local
        endpoint = "" if is_local else str(self._routing.view.nodes[node].peer_endpoint)
        number = self.reorder.add_sender(positions, rival=hedge)
        sender = PartSender(number, node, self._routing.view.version, endpoint, positions, hedge=hedge)
        if not is_local:
            self._resources.loads.requested(endpoint, len(positions))
        sender.reads_coded = reads_coded
        self._senders[sender.number] = sender
        self.memory.begin(sender)
        resume = self._resumed.of(positions[0], self.reorder)
        part = self._routing.part(positions, initial_credit_bytes=sender.credit_bytes, resume=resume)
        part.coded_places = self._may_be_coded and not reads_coded and (resume is None or is_local)
        if is_local:
            credit = Credit(sender.credit_bytes)
            sender.grant = credit.add
            entries = [self._coded[position] for position in positions] if reads_coded else None
            self._run(sender, self._read_here(sender, part, credit, entries))
            return
        # Entries may then be sent unverified. The client verifies them, and requests a damaged one again with
        # verification by its owner.
        part.receiver_checks = self._request.receiver_checks
        try:
            peer = self._resources.peers.open(endpoint, part)
        except PeerUnavailable as error:
            asyncio.get_running_loop().call_soon(self._lose, sender, error)
            return
        sender.grant = peer.grant
        self._run(sender, self._receive(sender, peer)).add_done_callback(lambda _: peer.cancel())

    def _run(self, sender: PartSender, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - raised by `next`
                self._fail(error)

        task = sender.task = asyncio.create_task(run(), name=f"sender {sender.number}")
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it started
        return task

    async def _read_here(
        self, sender: PartSender, part: pb.BatchRequest, credit: Credit, coded: Sequence[CatalogEntry] | None
    ) -> None:
        if coded is None:
            frames = own_frames(self._resources, self._request.tenant, part, credit)
        else:
            frames = coded_frames(self._resources.coded, self._routing.view, part, coded)
        async with aclosing(frames):
            async for frame in frames:
                if sender.reads_coded:
                    await credit.spend(frame.payload_bytes)
                self._take(sender, frame)
        self._complete(sender)

    async def _receive(self, sender: PartSender, peer: PeerStream) -> None:
        try:
            while (frame := await peer.next_frame()) is not None:
                self._take(sender, frame)
            assert peer.end is not None
            self._resources.loads.report_wait(sender.endpoint, peer.end.wait_us * 1e-6)
            self._merged_waits.ended(sender.endpoint, peer.end)
            self._complete(sender)
        except PeerError as error:
            self._lose(sender, error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._changed.set()

    # -- frames

    def _take(self, sender: PartSender, frame: Frame) -> None:
        if sender.number not in self._senders:
            return  # it has lost all its entries to others
        came_bytes = frame.payload_bytes
        self.memory.came(sender, came_bytes)
        sender.note_frame(frame, self._resources.hedging)
        if self._request.transform and sender.endpoint and frame.piece is None:
            frame = self._without_untransformed(sender, frame)
        wanted = self.reorder.wanted(sender.number, self._resumed.inward(frame, sender.positions[0]))
        if wanted is not None and (coded := wanted.checksum_kind == pb.CODED).any():
            wanted = self._without_coded(sender, wanted, coded)
        self.memory.release(came_bytes - (0 if wanted is None else wanted.payload_bytes))
        if wanted is not None:
            again: Mask | None = None
            if wanted.status.any():
                wanted, again = self._judge(sender, wanted)
            if self._coded and not sender.reads_coded:  # another owner has a file
                for at in wanted.index[wanted.status == pb.OK].tolist():
                    self._coded.pop(sender.positions[at], None)
                    self._unread.discard(sender.positions[at])
            expected_bytes = self.reorder.held_bytes + wanted.payload_bytes
            self.reorder.push(sender.number, wanted, again)
            self._resumed.accepted(frame, sender.positions[0])
            self.memory.release(expected_bytes - self.reorder.held_bytes)  # pieces of an entry that begins again
            self._drop_beaten()
        self._ask_waiting()
        self._read_coded()
        self._changed.set()

    def _without_untransformed(self, sender: PartSender, frame: Frame) -> Frame:
        """Reject untransformed entries (`ais_loader.values.requests`) of a node. Pieces are left to the client."""
        which = self._request.transform_index
        transformed = np.array([which[at] if which else 0 for at in sender.positions], np.bool_)
        endpoint = self._routing.view.nodes[sender.node].endpoint
        return without_untransformed(frame, transformed, lambda index: endpoint)

    def _judge(self, sender: PartSender, frame: Frame) -> tuple[Frame, Mask]:
        """Return the frame with the errors to report, and a mask of the failures for which another node is asked
        instead."""
        again = np.zeros(len(frame.index), bool)
        contested = self.reorder.contested(sender.number, frame)
        status, errors = frame.status.copy(), dict(frame.errors)
        for at in np.flatnonzero(status).tolist():
            index = int(frame.index[at])
            position, code = int(sender.positions[index]), int(status[at])
            fault = errors.get(index, _NO_FAULT)
            if position in self._coded and not sender.reads_coded:  # it is read here, whatever a second owner reports
                again[at] = True
                continue
            self._failures.note(position, code, fault)
            if self._coded.pop(position, None) is not None and position not in self._unreadable:
                self._unreadable.add(position)
                self._routing.restore(position)
                if not contested[at]:
                    self._waiting.add(position)
                again[at] = True
                continue
            if code == pb.CORRUPT and self.reorder.damaged_further(position):
                self._routing.restore(position)
            if fault.kind == StaleMap.kind and not contested[at] and self._plan_again(sender, [position]):
                again[at] = True
                continue
            if code in MAY_BE_BETTER_ELSEWHERE and not sender.reads_coded and fault.kind != ObjectDeleted.kind:
                if contested[at]:  # it has been requested elsewhere already
                    self._failures.pass_over(position, sender.node)
                if contested[at] or self._try_next_holder(position, sender.node):
                    again[at] = True
                    continue
                status[at], errors[index] = self._failures.worst[position]
            self._failures.count_soft_error()
        return replace(frame, status=status, errors=errors), again

    def _without_coded(self, sender: PartSender, frame: Frame, coded: Mask) -> Frame:
        """Take the places of coded entries out of a frame. They fail in it, for the time being."""
        for at, data in zip(frame.index[coded].tolist(), compress(frame.entries(), coded), strict=True):
            if (position := sender.positions[at]) not in self._coded:
                try:
                    self._coded[position] = decode_entry(bytes(data))
                    self._unread.add(position)
                except StoreFormatError:
                    continue  # a node of another version
        left = failing(frame, coded, {})
        left.status[coded] = pb.UNAVAILABLE
        return left

    def _read_coded(self) -> None:
        """Read coded entries here, together with those of which the places are still to come, or after a moment."""
        if not self._unread:
            return
        loop, timer = asyncio.get_running_loop(), self._reading_due
        if not all(sender.reads_coded for sender in self._senders.values()):
            if timer is None:
                self._reading_due = loop.call_later(_PLACES_TOGETHER_S, self._changed.set)
            if timer is None or loop.time() < timer.when():
                return
        if timer is not None:
            timer.cancel()
            self._reading_due = None
        positions, self._unread = sorted(self._unread), set()
        owed = [self.reorder.is_owed(position) for position in positions]  # by an owner that is slow
        for hedge in {*owed}:
            mine = [position for position, is_owed in zip(positions, owed, strict=True) if is_owed == hedge]
            self._ask(self._routing.local, mine, hedge=hedge, reads_coded=True)

    def _complete(self, sender: PartSender) -> None:
        """End a sender whose entries have all arrived."""
        if sender.number not in self._senders:
            return
        self._end_sender(sender)
        self.reorder.close_sender(sender.number)
        self._ask_waiting()
        self._read_coded()
        self._changed.set()

    def _lose(self, sender: PartSender, error: PeerError) -> None:
        """End a sender that failed. Request its missing entries elsewhere; fail those that no other node may have."""
        if sender.number not in self._senders:
            return
        self._end_sender(sender)
        owed = len(self.reorder.missing_of(sender.number))
        missing = [at for at in self.reorder.close_sender(sender.number)[0].tolist() if at not in self._coded]
        if isinstance(error, PeerRefused) and error.kind == StaleMap.kind and self._plan_again(sender, missing):
            missing = []
        peers = self._resources.peers
        # Silence has used up its time already; a connection that broke at once may be back soon.
        again = isinstance(error, PeerUnavailable) and peers.failing_s(sender.endpoint) < peers.timeout_s
        lost: list[int] = []
        for position in missing:
            self._failures.note(position, pb.UNAVAILABLE, EntryFault(str(error), "node-unavailable"))
            if not self._try_next_holder(position, sender.node, again=again):
                lost.append(position)
        if again and sender.node not in self._paused:
            loop = asyncio.get_running_loop()
            self._paused[sender.node] = loop.call_later(_BACKOFF.pause_s(), self._resume_asking, sender.node)
        self._give_up(lost)
        if isinstance(error, PeerAnswerWrong) and not owed:
            self._fail(LoaderError(str(error)))
        self._ask_waiting()
        self._read_coded()
        self._changed.set()

    def _end_sender(self, sender: PartSender) -> None:
        del self._senders[sender.number]
        sender.count(self._resources.loads)
        self.memory.end(sender)

    # -- races

    def _hedge(self, sender: PartSender) -> None:
        """Request what this sender owes from the next holders too, as far as the budget permits. It may still deliver
        first."""
        if self._request.transform:  # transforms take time, and are not run twice
            return
        positions = [at for at in self.reorder.hedgeable(sender.number).tolist() if at not in self._coded]
        for node, wanted in self._routing.others(positions, sender.node).items():
            if granted := wanted[: self._resources.hedging.budget.take(len(wanted))]:
                self._ask(node, granted, hedge=True)
        self._changed.set()  # `next` grants the rival credit if the budget is exhausted

    def _drop_beaten(self) -> None:
        """Cancel the senders that have lost all their missing entries to others."""
        for sender in list(self._senders.values()):
            if self.reorder.is_beaten(sender.number):
                if sender.task is not None:
                    self._beaten.append(sender.task)
                    sender.task.cancel()
                if sender.hedges:  # it has sent nothing since it was hedged
                    self._resources.peers.stands_still(sender.endpoint)
                self._end_sender(sender)
                self.reorder.close_sender(sender.number)

    # -- repeated requests

    def _try_next_holder(self, position: int, node: int, *, again: bool = False) -> bool:
        """Return whether a node is left for an entry that `node` did not deliver; if so, queue the entry for it."""
        found = self._failures.try_next_holder(position, node, again=again)
        if found:
            self._waiting.add(position)
        return found

    def _give_up(self, lost: Sequence[int]) -> None:
        """Fail these entries in their positions."""
        by_reason: dict[tuple[int, EntryFault], list[int]] = {}
        for position in lost:
            self._failures.count_soft_error()
            by_reason.setdefault(self._failures.worst[position], []).append(position)
        for (status, fault), positions in by_reason.items():
            self.reorder.fail(positions, status, fault)

    def _plan_again(self, sender: PartSender, missing: list[int]) -> bool:
        """Place these entries by the newer map that the refusing node has. Returns False if that has taken too long
        already.

        An entry that has partly arrived continues all the same: its version identifies it.
        """
        if sender.map_version < self._routing.view.version:  # its entries have been placed again already
            self._waiting.update(missing)
            return True
        now = clock_s()
        self._outdated_since = self._outdated_since or now
        if now - self._outdated_since > self._resources.node.config.reads.peer_timeout_s:
            return False
        self._unplaced.update(missing)
        if self._planning is None:
            self._planning = asyncio.create_task(self._learn_and_place(sender.endpoint), name="plan again")
        return True

    async def _learn_and_place(self, endpoint: str) -> None:
        resources, membership = self._resources, self._resources.node.membership
        try:
            known = self._routing.view.version
            if (view := membership.view) is None or view.version <= known:
                newer = await resources.peers.newer_map(endpoint, self._routing.view.map)
                if newer is not None:
                    await resources.node.learn(newer)
                else:
                    await asyncio.sleep(_RETRY_PAUSE_S)
            view = membership.view
            positions, self._unplaced = sorted(self._unplaced), set()
            if view is not None and view.version > known:
                moved = self._routing.move_to(view)
                self._outdated_since = 0.0
                for sender in self._senders.values():
                    sender.node = moved[sender.node]
                for timer in self._paused.values():
                    timer.cancel()
                self._paused.clear()
                self._waiting.update(positions)
                # The nodes that these entries waited for have left, and no other node has them.
                lost = [at for at in self._waiting if not self._routing.left[at]]
                self._waiting.difference_update(lost)
                for position in lost:
                    self._failures.note(position, pb.UNAVAILABLE, EntryFault("its nodes left the cluster"))
                self._give_up(lost)
            else:
                self._waiting.update(positions)
        except Exception as error:  # noqa: BLE001 - raised by `next`
            self._fail(error)
        finally:
            self._planning = None
        self._ask_waiting()
        self._changed.set()

    def _resume_asking(self, node: int) -> None:
        del self._paused[node]
        self._ask_waiting()
        self._changed.set()  # `next` asks a node that is busy, too, if the entry is due

    def _ask_waiting(self, *, urgent: bool = False) -> None:
        """Request the queued entries. Each node has one sender at a time, so that many small failures share one
        request."""
        if not self._waiting or self._failure is not None:
            return
        busy = {sender.node for sender in self._senders.values() if not sender.reads_coded}
        for node, positions in self._routing.by_node(self._waiting).items():
            if node not in self._paused and (urgent or node not in busy):
                self._waiting.difference_update(positions)
                self._ask(node, positions)

    def _grant_one_frame(self) -> None:
        """Ensure that the entry that is due can arrive, because nothing can be delivered."""
        self.memory.top_up(self._senders.values(), self.reorder.held_bytes_of)
        number, rival = self._due_senders()
        if number == NOBODY:
            self._ask_waiting(urgent=True)
            number, rival = self._due_senders()
        if number is not None:
            for at in (number, rival):
                if (sender := self._senders.get(at)) is not None:  # none while the entry waits to be requested
                    self.memory.grant_one_frame(sender)
        elif not any(sender.credit_bytes > 0 and not sender.hedges for sender in self._senders.values()):
            for sender in [sender for sender in self._senders.values() if sender.credit_bytes <= 0][:1]:
                self.memory.grant_one_frame(sender)

    def _due_sender(self) -> PartSender | None:
        """Return the sender that the batch waits for; None if it waits for several, or for none."""
        number, senders = self._due_senders()[0], self._senders
        if number is None:
            return next(iter(senders.values())) if len(senders) == 1 else None
        return senders.get(number)

    def _due_senders(self) -> tuple[int | None, int]:
        """Return the sender and the rival of the entry that must come out next; None for the sender if any entry may
        come out."""
        reorder = self.reorder
        if self._ordered:
            return reorder.next_sender, reorder.next_rival
        return reorder.streaming_sender, reorder.streaming_rival
