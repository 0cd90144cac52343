"""Scatter-gather of one batch on its designated target: a sender for each node asked, put in order as they come.

Every owner gets one sub-request and starts at once; none waits for another. An entry that its node does not deliver is
asked of the next node that may have it (a further copy, or the owner before the last change of the map); a node that
cannot be reached is tried again for `peer_timeout_s`, once nobody else is left. With nobody left the entry fails in its
place.

A node that is silent for much longer than is usual is not given up, but what it owes is asked of the next holder as
well, within a budget (see `ais_loader.wire.gather.hedging`).

Memory: `BatchResources.assembly` counts the bytes that have come and those that may come, which is the credit granted
to the senders. When it is spent the senders stop, but for the one whose entry is due next: it is let go frame by frame,
whatever others hold, because the stream cannot move without it. So every batch comes to its end, and the budget is
passed by no more than a frame of each sender. While the client takes nothing, nobody is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.errors import LoaderError, ObjectDeleted, StaleMap
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.frame import EntryFault, Frame
from ais_loader.wire.gather.frame_edit import without_untransformed
from ais_loader.wire.gather.reorder import Reorder, in_senders
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.gather.failures import MAY_BE_BETTER_ELSEWHERE, Failures
from storage_node.batch.gather.hedging import SenderWatch
from storage_node.batch.gather.resumed import Resumed
from storage_node.batch.gather.routing import ReplicaRouting
from storage_node.batch.gather.senders import Sender, SenderMemory, own_frames
from storage_node.batch.peer_stream import PeerAnswerWrong, PeerError, PeerRefused, PeerStream, PeerUnavailable
from storage_node.batch.resources import BatchResources
from storage_node.limits.admission import Credit
from storage_node.limits.counters import clock_s
from storage_node.limits.tasks import settled

NOBODY = -1
_RETRY_PAUSE_S = 0.1
_BACKOFF = Backoff(2 * _RETRY_PAUSE_S, 2 * _RETRY_PAUSE_S, jitter=0.5)
_NO_FAULT = EntryFault("")
Mask: TypeAlias = npt.NDArray[np.bool_]


class Gather:
    """One batch's entries on their way in. Frames that `next` returned stay counted in `memory`.

    Belongs to the node's event loop. `close` when it is no longer needed, whatever happened.
    """

    def __init__(self, resources: BatchResources, request: pb.BatchRequest, routing: ReplicaRouting) -> None:
        self._resources = resources
        self._request = request
        self._routing = routing
        self.memory = SenderMemory(resources.assembly, resources.node.config.peer_window_bytes)
        n = len(request.name)
        self.sizes: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        self._ordered = request.ordered or request.buffered
        self.reorder = Reorder(n, request.first_index, ordered=self._ordered, begun=bool(request.resume_offset))
        self._senders: dict[int, Sender] = {}
        self._resumed = Resumed(request)
        self._watch = SenderWatch(resources.hedging, self._senders, self._hedge)
        self._beaten: list[asyncio.Task[None]] = []
        self._waiting: set[int] = set()
        """Positions to be asked of the node that is next for them."""
        self._paused: dict[int, asyncio.TimerHandle] = {}
        """Nodes that failed a moment ago; nothing is asked of them before the timer has rung."""
        self._failures = Failures(resources, request, routing, self._fail)
        self._unplaced: set[int] = set()
        """Positions that wait for a newer map."""
        self._planning: asyncio.Task[None] | None = None
        self._outdated_since = 0.0
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._resources.hedging.budget.asked(len(self._request.name))
        for node, positions in self._routing.by_node(range(len(self._request.name))).items():
            self._ask(node, positions)
        self._watch.start()

    # -- the way out

    async def next(self, most_bytes: int) -> Frame:
        """The next frame in order, or any where order does not matter; waits for it. Raises LoaderError.

        Of several entries, it has `most_bytes` at most, if order matters.
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
            self._let_go()
            self._changed.clear()
            began_s = clock_s()
            await self._changed.wait()
            self._resources.peer_wait_s += clock_s() - began_s

    async def close(self) -> None:
        """End all senders and give back what is counted for them. Cancelled (the client has gone), it does so, too."""
        for timer in self._paused.values():
            timer.cancel()
        self._watch.close()
        tasks = self._beaten if self._planning is None else [*self._beaten, self._planning]
        tasks += [sender.task for sender in self._senders.values() if sender.task is not None]
        for task in tasks:
            task.cancel()
        for sender in self._senders.values():
            sender.count(self._resources.loads)
        self.memory.close()
        await settled(asyncio.gather(*tasks, return_exceptions=True))

    def _note_sizes(self, frame: Frame) -> None:
        first = self._request.first_index
        if frame.piece is None:
            self.sizes[frame.index.astype(np.int64) - first] = frame.size
        elif frame.completes_entry:
            self.sizes[int(frame.index[0]) - first] = frame.piece.entry_size

    # -- asking

    def _ask(self, node: int, positions: list[int], *, hedge: bool = False) -> None:
        """Ask one sender for these entries, or several: an entry that goes on in its middle must be its first."""
        begun = self._resumed.begun(positions[1:], self.reorder)
        left = [p for p in positions if p not in begun]
        for part in [*([p] for p in sorted(begun)), *in_senders(left, ordered=self._ordered)]:
            self._open(node, part, hedge=hedge)

    def _open(self, node: int, positions: list[int], *, hedge: bool) -> None:
        here = node == self._routing.here
        endpoint = "" if here else str(self._routing.view.nodes[node].peer_endpoint)
        sender = Sender(self.reorder.add_sender(positions, rival=hedge), node, endpoint, positions, hedge=hedge)
        if not here:
            self._resources.loads.asked(endpoint, len(positions))
        self._senders[sender.number] = sender
        self.memory.begin(sender)
        part = self._routing.part(
            positions, initial_credit_bytes=sender.credit_bytes, resume=self._resumed.of(positions[0], self.reorder)
        )
        if here:
            credit = Credit(sender.credit_bytes)
            sender.grant = credit.add
            self._run(sender, self._read_here(sender, part, credit))
            return
        # The client looks at what it gets, whoever has sent it, and then asks for what its owner has looked at.
        part.receiver_checks = self._request.receiver_checks
        try:
            peer = self._resources.peers.open(endpoint, part)
        except PeerUnavailable as error:
            asyncio.get_running_loop().call_soon(self._lose, sender, error)
            return
        sender.grant = peer.grant
        self._run(sender, self._receive(sender, peer)).add_done_callback(lambda _: peer.cancel())

    def _run(self, sender: Sender, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for frames
                self._fail(error)

        task = sender.task = asyncio.create_task(run(), name=f"sender {sender.number}")
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it began
        return task

    async def _read_here(self, sender: Sender, part: pb.BatchRequest, credit: Credit) -> None:
        async with aclosing(own_frames(self._resources, self._request.tenant, part, credit)) as frames:
            async for frame in frames:
                self._take(sender, frame)
        self._complete(sender)

    async def _receive(self, sender: Sender, peer: PeerStream) -> None:
        try:
            while (frame := await peer.next_frame()) is not None:
                self._take(sender, frame)
            self._resources.loads.said(sender.endpoint, peer.wait_us * 1e-6)
            self._complete(sender)
        except PeerError as error:
            self._lose(sender, error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._changed.set()

    # -- taking in

    def _take(self, sender: Sender, frame: Frame) -> None:
        if sender.number not in self._senders:
            return  # beaten
        came_bytes = len(frame.payload)
        self.memory.came(sender, came_bytes)
        sender.heard(frame, self._resources.hedging)
        if self._request.transform and sender.endpoint and frame.piece is None:
            frame = self._without_untransformed(sender, frame)
        frame = self._resumed.inward(frame, sender.positions[0])
        wanted = self.reorder.wanted(sender.number, frame)
        self.memory.release(came_bytes - (0 if wanted is None else len(wanted.payload)))
        if wanted is not None:
            again: Mask | None = None
            if wanted.status.any():
                wanted, again = self._judge(sender, wanted)
            expected_bytes = self.reorder.held_bytes + len(wanted.payload)
            self.reorder.push(sender.number, wanted, again)
            self.memory.release(expected_bytes - self.reorder.held_bytes)  # of an entry that begins again
            self._drop_beaten()
        self._ask_waiting()
        self._changed.set()

    def _without_untransformed(self, sender: Sender, frame: Frame) -> Frame:
        """See `ais_loader.values.requests`: here it is known who has sent them. Pieces are left to the client."""
        which = self._request.transform_index
        transformed = np.array([which[at] if which else 0 for at in sender.positions], np.bool_)
        endpoint = self._routing.view.nodes[sender.node].endpoint
        return without_untransformed(frame, transformed, lambda index: endpoint)

    def _judge(self, sender: Sender, frame: Frame) -> tuple[Frame, Mask]:
        """The frame with what is to be said of its failures, and which of them another node is asked for instead."""
        again = np.zeros(len(frame.index), bool)
        contested = self.reorder.contested(sender.number, frame)
        status, errors = frame.status.copy(), dict(frame.errors)
        for at in np.flatnonzero(status).tolist():
            index = int(frame.index[at])
            position, said = int(sender.positions[index]), int(status[at])
            fault = errors.get(index, _NO_FAULT)
            self._failures.note(position, said, fault)
            if said == pb.CORRUPT:
                # Pieces are compared before they are sent: those that have been passed on are right, and another holder
                # goes on behind them.
                self._failures.note_damage(position, (self.reorder.resume_of(position) or (0,))[0])
            if fault.kind == StaleMap.kind and not contested[at] and self._plan_again(sender, [position]):
                again[at] = True
                continue
            if said in MAY_BE_BETTER_ELSEWHERE and fault.kind != ObjectDeleted.kind:
                if contested[at]:  # it has been asked for elsewhere
                    self._failures.pass_over(position, sender.node)
                if contested[at] or self._turn_from(position, sender.node):
                    again[at] = True
                    continue
                status[at], errors[index] = self._failures.said[position]
            self._failures.count_soft_error()
        return replace(frame, status=status, errors=errors), again

    def _complete(self, sender: Sender) -> None:
        """All of a sender has come."""
        if sender.number not in self._senders:
            return
        self._end_sender(sender)
        self.reorder.close_sender(sender.number)
        self._ask_waiting()
        self._changed.set()

    def _lose(self, sender: Sender, error: PeerError) -> None:
        """Nothing more comes on a sender: ask for what is missing elsewhere, and say so of what nobody else has."""
        if sender.number not in self._senders:
            return
        self._end_sender(sender)
        owed = len(self.reorder.missing_of(sender.number))
        missing = self.reorder.close_sender(sender.number)[0].tolist()
        if isinstance(error, PeerRefused) and error.kind == StaleMap.kind and self._plan_again(sender, missing):
            return
        peers = self._resources.peers
        # Silence has used up its time already; what breaks at once may be back in a moment.
        again = isinstance(error, PeerUnavailable) and peers.failing_s(sender.endpoint) < peers.timeout_s
        lost: list[int] = []
        for position in missing:
            self._failures.note(position, pb.UNAVAILABLE, EntryFault(str(error), "node-unavailable"))
            if not self._turn_from(position, sender.node, again=again):
                lost.append(position)
        if again and sender.node not in self._paused:
            loop = asyncio.get_running_loop()
            self._paused[sender.node] = loop.call_later(_BACKOFF.pause_s(), self._resume_asking, sender.node)
        self._give_up(lost)
        if isinstance(error, PeerAnswerWrong) and not owed:
            self._fail(LoaderError(str(error)))
        self._ask_waiting()
        self._changed.set()

    def _end_sender(self, sender: Sender) -> None:
        del self._senders[sender.number]
        sender.count(self._resources.loads)
        self.memory.end(sender)

    # -- races

    def _hedge(self, sender: Sender) -> None:
        """Ask the next holders for what this sender owes, as far as the budget goes; it may still be the first."""
        if self._request.transform:  # which takes its time, and is not done twice
            return
        positions = self.reorder.hedgeable(sender.number).tolist()
        for node, wanted in self._routing.others(positions, sender.node).items():
            if granted := wanted[: self._resources.hedging.budget.take(len(wanted))]:
                self._ask(node, granted, hedge=True)

    def _drop_beaten(self) -> None:
        """Those that have lost all they owed to others need not go on."""
        for sender in list(self._senders.values()):
            if self.reorder.is_beaten(sender.number):
                if sender.task is not None:
                    self._beaten.append(sender.task)
                    sender.task.cancel()
                if sender.hedges:  # it has given no sign of life since
                    self._resources.peers.stands_still(sender.endpoint)
                self._end_sender(sender)
                self.reorder.close_sender(sender.number)

    # -- asking again

    def _turn_from(self, position: int, node: int, *, again: bool = False) -> bool:
        """Whether there is a node left for an entry that `node` did not deliver; then it waits to be asked there."""
        found = self._failures.turn_from(position, node, again=again)
        if found:
            self._waiting.add(position)
        return found

    def _give_up(self, lost: Sequence[int]) -> None:
        """These fail in their place."""
        by_reason: dict[tuple[int, EntryFault], list[int]] = {}
        for position in lost:
            self._failures.count_soft_error()
            by_reason.setdefault(self._failures.said[position], []).append(position)
        for (status, fault), positions in by_reason.items():
            self.reorder.fail(positions, status, fault)

    def _plan_again(self, sender: Sender, missing: list[int]) -> bool:
        """Place these entries by a newer map, which the refusing node has; False when we have waited for it too long.

        One that has come in part goes on all the same: its version says what it is.
        """
        now = clock_s()
        self._outdated_since = self._outdated_since or now
        if now - self._outdated_since > self._resources.node.config.peer_timeout_s:
            return False
        self._unplaced.update(missing)
        if self._planning is None:
            self._planning = asyncio.create_task(self._learn_and_place(sender.endpoint), name="plan again")
        return True

    async def _learn_and_place(self, endpoint: str) -> None:
        resources, membership = self._resources, self._resources.node.membership
        assert membership is not None  # without a map nothing is asked of others
        try:
            known = self._routing.view.version
            if (view := membership.view) is None or view.version <= known:
                newer = await resources.peers.newer_map(endpoint, known)
                if newer is not None:
                    await resources.node.learn(newer)
                else:
                    await asyncio.sleep(_RETRY_PAUSE_S)
            view = membership.view
            positions, self._unplaced = sorted(self._unplaced), set()
            if view is not None and view.version > known:
                moved = self._routing.move_to(view)
                for sender in self._senders.values():
                    sender.node = moved[sender.node]
                for timer in self._paused.values():
                    timer.cancel()
                self._paused.clear()
                self._waiting.update(positions)
                # Those that waited for a node which is gone wait for nobody now.
                lost = [at for at in self._waiting if not self._routing.left[at]]
                self._waiting.difference_update(lost)
                for position in lost:
                    self._failures.note(position, pb.UNAVAILABLE, EntryFault("its nodes left the cluster"))
                self._give_up(lost)
            else:
                self._waiting.update(positions)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for frames
            self._fail(error)
        finally:
            self._planning = None
        self._ask_waiting()
        self._changed.set()

    def _resume_asking(self, node: int) -> None:
        del self._paused[node]
        self._ask_waiting()

    def _ask_waiting(self, *, urgent: bool = False) -> None:
        """Ask for what is waiting: one sender at a time for each node, so that many small failures share one."""
        if not self._waiting or self._failure is not None:
            return
        busy = {sender.node for sender in self._senders.values()}
        for node, positions in self._routing.by_node(self._waiting).items():
            if node not in self._paused and (urgent or node not in busy):
                self._waiting.difference_update(positions)
                self._ask(node, positions)

    def _let_go(self) -> None:
        """Nothing can be passed on: see to it that what is due can come."""
        self.memory.top_up(self._senders.values(), self.reorder.held_bytes_of)
        if self._ordered:
            number = self.reorder.next_sender
            if number == NOBODY:
                self._ask_waiting(urgent=True)
                number = self.reorder.next_sender
            sender = None if number is None else self._senders.get(number)  # nobody's while it waits to be asked
            if (rival := self._senders.get(self.reorder.next_rival)) is not None:
                self.memory.let_go(rival)
            if sender is None:
                return
        else:
            number = self.reorder.streaming_sender
            sender = None if number is None else self._senders.get(number)
            sender = sender or next(iter(self._senders.values()), None)
            if sender is None or any(sender.credit_bytes > 0 for sender in self._senders.values()):
                self._ask_waiting(urgent=sender is None)
                return
        self.memory.let_go(sender)
