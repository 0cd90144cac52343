"""What a designated target takes in: one lane for each node that is asked, put in order as they come.

Every owner gets one sub-request and starts at once; none waits for another. An entry that its node does not deliver is
asked of the next node that may have it (a further copy, or the owner before the last change of the map); a node that
cannot be reached is tried again for `peer_timeout_s`, once nobody else is left. With nobody left the entry fails in its
place.

Memory: `BatchService.assembly` counts the bytes that have come and those that may come, which is the credit granted to
the senders. When it is spent the senders stop, but for the one whose entry is due next: it is let go frame by frame,
whatever others hold, because the stream cannot move without it. So every batch comes to its end, and the budget is
passed by no more than a frame of each sender. While the client takes nothing, nobody is let go.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from protos import ais_batch_pb2 as pb
from protos.frame import TARGET_PAYLOAD_BYTES, EntryFault, Frame
from protos.reorder import Reorder
from storage_node.batch.admission import Credit
from storage_node.batch.counts import clock_s
from storage_node.batch.places import Places, Resume
from storage_node.cluster.peers import PeerAnswerWrong, PeerError, PeerLane, PeerUnavailable
from storage_node.store.batch import StoreBatch
from storage_node.store.errors import StoreError

if TYPE_CHECKING:
    from storage_node.batch.session import BatchService

_MAY_BE_BETTER_ELSEWHERE = (pb.NOT_FOUND, pb.CORRUPT, pb.TIMEOUT, pb.UNAVAILABLE)
"""Statuses that ask for another holder; of several answers the one that stands last here is told."""
_WEIGHT: dict[int, int] = {status: weight for weight, status in enumerate(_MAY_BE_BETTER_ELSEWHERE)}
NOBODY = -1
_LET_GO_BYTES = 64 << 10
"""Credit for one frame: the last one that it pays for may be larger."""
_RETRY_PAUSE_S = 0.1
_NO_FAULT = EntryFault("")
Mask: TypeAlias = npt.NDArray[np.bool_]
_NAMES_IN_MESSAGE = 5


class TooManyFailures(StoreError):
    """More went wrong than the node's configuration lets one batch put up with."""

    kind = "entry-failed"


class _Lane:
    """One node's part of the batch, or what of it was asked again."""

    __slots__ = ("begun", "credit_bytes", "grant", "node", "number", "positions", "task")

    def __init__(self, number: int, node: int, positions: list[int]) -> None:
        self.number = number
        self.node = node
        self.positions = positions
        self.credit_bytes = 0
        """What the node may still send; below 0 when its last frame was larger than what was left."""
        self.grant: Callable[[int], None] = lambda size_bytes: None
        self.begun: Frame | None = None
        """The last piece of the entry that has come in part."""
        self.task: asyncio.Task[None] | None = None


class Gather:
    """One batch's entries on their way in. Frames that `next` returned stay counted until `release`.

    Belongs to the node's event loop. `close` when it is no longer needed, whatever happened.
    """

    def __init__(self, service: BatchService, request: pb.BatchRequest, places: Places) -> None:
        self._service = service
        self._request = request
        self._places = places
        self._budget = service.assembly
        self._window = service.config.peer_window_bytes
        n = len(request.name)
        self.sizes: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        self._ordered = request.ordered or request.buffered
        self.reorder = Reorder(n, request.first_index, ordered=self._ordered)
        self._lanes: dict[int, _Lane] = {}
        self._resume: dict[int, Resume] = {}
        self._skipped_bytes = 0
        """What the client has of entry 0: for the reorder buffer, which knows nothing of it, that entry begins here."""
        if request.resume_offset and n:
            self._skipped_bytes = request.resume_offset
            self._resume[0] = Resume(request.resume_offset, request.resume_checksum, request.resume_version)
        self._reserved_bytes = 0
        self._waiting: set[int] = set()
        """Positions to be asked of the node that is next for them."""
        self._paused: dict[int, asyncio.TimerHandle] = {}
        """Nodes that failed a moment ago; nothing is asked of them before the timer has rung."""
        self._said: dict[int, tuple[int, EntryFault]] = {}
        """The worst that was said of a position so far."""
        self._recoveries = self._soft_errors = 0
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        for node, positions in self._places.by_node(range(len(self._request.name))).items():
            self._ask(node, positions)

    # -- the way out

    async def next(self) -> Frame:
        """The next frame in order, or any where order does not matter; waits for it. Raises StoreError."""
        while True:
            if self._failure is not None:
                raise self._failure
            frame = self.reorder.pop(TARGET_PAYLOAD_BYTES)
            if frame is not None:
                if self._skipped_bytes and frame.piece is not None and frame.index[0] == self._request.first_index:
                    frame = _moved(frame, self._skipped_bytes)
                self._note_sizes(frame)
                self._top_up()
                return frame
            self._let_go()
            self._changed.clear()
            began_s = clock_s()
            await self._changed.wait()
            self._service.peer_wait_s += clock_s() - began_s

    def release(self, size_bytes: int) -> None:
        """Bytes of a frame that has been passed on."""
        self._reserved_bytes -= size_bytes
        self._budget.release(size_bytes)

    def keep(self, size_bytes: int) -> Callable[[], None]:
        """Take a frame's bytes out of what `close` releases; the caller does it, by calling what is returned."""
        self._reserved_bytes -= size_bytes
        return lambda: self._budget.release(size_bytes)

    async def close(self) -> None:
        """End all lanes and give back what is counted for them."""
        for timer in self._paused.values():
            timer.cancel()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.release(self._reserved_bytes)

    def _note_sizes(self, frame: Frame) -> None:
        first = self._request.first_index
        if frame.piece is None:
            self.sizes[frame.index.astype(np.int64) - first] = frame.size
        elif frame.completes_entry:
            self.sizes[int(frame.index[0]) - first] = frame.piece.entry_size

    # -- asking

    def _ask(self, node: int, positions: list[int]) -> None:
        """Open a lane for these entries, or several: an entry that goes on in its middle must be its lane's first."""
        for position in positions[1:] if positions[0] in self._resume else positions:
            if position in self._resume:
                self._open(node, [position])
        rest = [p for p in positions if p == positions[0] or p not in self._resume]
        self._open(node, rest)

    def _open(self, node: int, positions: list[int]) -> None:
        lane = _Lane(self.reorder.add_lane(positions), node, positions)
        self._lanes[lane.number] = lane
        if self._budget.acquire_now(self._window):
            self._reserved_bytes += self._window
            lane.credit_bytes = self._window
        part = self._places.part(
            positions, initial_credit_bytes=lane.credit_bytes, resume=self._resume.get(positions[0])
        )
        if node == self._places.here:
            credit = Credit(lane.credit_bytes)
            lane.grant = credit.add
            self._run(lane, self._read_here(lane, part, credit))
            return
        try:
            peer = self._service.peers.open(self._endpoint(node), part)
        except PeerUnavailable as error:
            asyncio.get_running_loop().call_soon(self._lose, lane, error)
            return
        lane.grant = peer.grant
        self._run(lane, self._receive(lane, peer))

    def _endpoint(self, node: int) -> str:
        return str(self._places.view.nodes[node].endpoint)

    def _run(self, lane: _Lane, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for frames
                self._fail(error)

        lane.task = asyncio.create_task(run(), name=f"lane {lane.number}")

    async def _read_here(self, lane: _Lane, part: pb.BatchRequest, credit: Credit) -> None:
        read = self._service.read
        batch = await read(StoreBatch, self._service.store, part)
        try:
            for span in batch.spans():
                await credit.spend(span.payload_bytes)
                self._take(lane, await read(batch.read, span))
        finally:
            batch.close()
        self._complete(lane)

    async def _receive(self, lane: _Lane, peer: PeerLane) -> None:
        try:
            while (frame := await peer.next_frame()) is not None:
                self._take(lane, frame)
            self._complete(lane)
        except PeerError as error:
            self._lose(lane, error)
        finally:
            peer.cancel()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._changed.set()

    # -- taking in

    def _take(self, lane: _Lane, frame: Frame) -> None:
        size = len(frame.payload)
        covered = max(0, min(size, lane.credit_bytes))
        lane.credit_bytes -= size
        self._budget.acquire_anyway(size - covered)
        self._reserved_bytes += size - covered
        if lane.positions[0] == 0 and self._skipped_bytes and frame.piece is not None and not frame.index[0]:
            frame = _moved(frame, -self._skipped_bytes)
        again: Mask | None = None
        if frame.status.any():
            frame, again = self._judge(lane, frame)
            if lane.begun is not None and again[0]:
                self._resume[int(lane.positions[frame.index[0]])] = self._after(lane, lane.begun)
        self.reorder.push(lane.number, frame, again)
        lane.begun = None if frame.completes_entry else frame
        self._ask_waiting()
        self._changed.set()

    def _after(self, lane: _Lane, begun: Frame) -> Resume:
        """Where the entry of which `begun` is the last piece goes on."""
        assert begun.piece is not None
        position = int(lane.positions[begun.index[0]])
        offset = begun.piece.offset + len(begun.payload) + (0 if position else self._skipped_bytes)
        return Resume(offset, int(begun.checksum[0]), begun.piece.version)

    def _judge(self, lane: _Lane, frame: Frame) -> tuple[Frame, Mask]:
        """The frame with what is to be said of its failures, and which of them another node is asked for instead."""
        again = np.zeros(len(frame.index), bool)
        status, errors = frame.status.copy(), dict(frame.errors)
        for at in np.flatnonzero(status).tolist():
            index = int(frame.index[at])
            position, said = int(lane.positions[index]), int(status[at])
            self._note(position, said, errors.get(index, _NO_FAULT))
            # Bytes that have been passed on must not turn out to be wrong at another node, too.
            if said in _MAY_BE_BETTER_ELSEWHERE and (lane.begun is None or said != pb.CORRUPT):
                if self._turn_from(position, lane.node):
                    again[at] = True
                    continue
                status[at], errors[index] = self._said[position]
            self._count_soft_error(position)
        return replace(frame, status=status, errors=errors), again

    def _complete(self, lane: _Lane) -> None:
        """All of a lane has come."""
        self._end_lane(lane)
        self.reorder.close_lane(lane.number)
        self._ask_waiting()
        self._changed.set()

    def _lose(self, lane: _Lane, error: PeerError) -> None:
        """Nothing more comes on a lane: ask for what is missing elsewhere, and say so of what nobody else has."""
        self._end_lane(lane)
        missing = self.reorder.close_lane(lane.number)[0].tolist()
        if lane.begun is not None:
            self._resume[missing[0]] = self._after(lane, lane.begun)
        peers, endpoint = self._service.peers, self._endpoint(lane.node)
        # Silence has used up its time already; what breaks at once may be back in a moment.
        again = isinstance(error, PeerUnavailable) and peers.failing_s(endpoint) < peers.timeout_s
        lost: list[int] = []
        for position in missing:
            self._note(position, pb.UNAVAILABLE, EntryFault(str(error), "node-unavailable"))
            if not self._turn_from(position, lane.node, again=again):
                lost.append(position)
        if again and lane.node not in self._paused:
            pause_s = random.uniform(_RETRY_PAUSE_S, 2 * _RETRY_PAUSE_S)
            loop = asyncio.get_running_loop()
            self._paused[lane.node] = loop.call_later(pause_s, self._resume_asking, lane.node)
        self._give_up(lost)
        if isinstance(error, PeerAnswerWrong) and not missing:
            self._fail(StoreError(str(error)))
        self._ask_waiting()
        self._changed.set()

    def _end_lane(self, lane: _Lane) -> None:
        del self._lanes[lane.number]
        self.release(max(0, lane.credit_bytes))
        lane.credit_bytes = 0

    # -- asking again

    def _note(self, position: int, status: int, fault: EntryFault) -> None:
        before = self._said.get(position)
        if before is None or _WEIGHT.get(status, 9) > _WEIGHT.get(before[0], 9):
            self._said[position] = status, fault

    def _turn_from(self, position: int, node: int, *, again: bool = False) -> bool:
        """Whether there is a node left for an entry that `node` did not deliver; then it waits to be asked there."""
        left = self._places.left[position]
        left.remove(node)
        if again:
            left.append(node)
        if not left:
            return False
        self._waiting.add(position)
        if left[0] != node:
            self._recoveries += 1
            self._service.recoveries += 1
            if self._recoveries > self._service.config.max_recoveries:
                self._fail(self._too_many("had to be asked of another node", "max_recoveries"))
        return True

    def _count_soft_error(self, position: int) -> None:
        self._soft_errors += 1
        self._service.soft_errors += 1
        if self._soft_errors > self._service.config.max_soft_errors:
            self._fail(self._too_many("failed", "max_soft_errors"))

    def _too_many(self, what: str, setting: str) -> TooManyFailures:
        worst = [
            f"{self._request.name[position]!r} ({fault.message or pb.Status.Name(status)})"
            for position, (status, fault) in list(self._said.items())[:_NAMES_IN_MESSAGE]
        ]
        limit = getattr(self._service.config, setting)
        return TooManyFailures(f"more than {limit:,} entries ({setting}) {what}, among them {', '.join(worst)}")

    def _give_up(self, lost: Sequence[int]) -> None:
        """These fail in their place."""
        for position in lost:
            self._count_soft_error(position)
        by_reason: dict[tuple[int, EntryFault], list[int]] = {}
        for position in lost:
            by_reason.setdefault(self._said[position], []).append(position)
        for (status, fault), positions in by_reason.items():
            self.reorder.fail(positions, status, fault)

    def _resume_asking(self, node: int) -> None:
        del self._paused[node]
        self._ask_waiting()

    def _ask_waiting(self, *, urgent: bool = False) -> None:
        """Ask for what is waiting: one lane at a time for each node, so that many small failures share one."""
        if not self._waiting or self._failure is not None:
            return
        busy = {lane.node for lane in self._lanes.values()}
        for node, positions in self._places.by_node(self._waiting).items():
            if node not in self._paused and (urgent or node not in busy):
                self._waiting.difference_update(positions)
                self._ask(node, positions)

    # -- memory

    def _top_up(self) -> None:
        """Let every node send ahead again as far as its window and the budget allow."""
        for lane in self._lanes.values():
            room = self._window - lane.credit_bytes - self.reorder.held_bytes_of(lane.number)
            if room >= self._window // 4:
                more = lane.credit_bytes + room
                needed = max(0, more) - max(0, lane.credit_bytes)
                if needed and self._budget.acquire_now(needed):
                    self._grant(lane, room, needed)

    def _grant(self, lane: _Lane, size_bytes: int, reserved_bytes: int) -> None:
        self._reserved_bytes += reserved_bytes
        lane.credit_bytes += size_bytes
        lane.grant(size_bytes)

    def _let_go(self) -> None:
        """Nothing can be passed on: see to it that what is due can come."""
        self._top_up()
        if self._ordered:
            number = self.reorder.next_lane
            if number == NOBODY:
                self._ask_waiting(urgent=True)
                number = self.reorder.next_lane
            lane = None if number is None else self._lanes.get(number)  # nobody's while it waits to be asked
            if lane is None:
                return
        else:
            lane = next((lane for lane in self._lanes.values()), None)
            if lane is None or any(lane.credit_bytes > 0 for lane in self._lanes.values()):
                self._ask_waiting(urgent=lane is None)
                return
        if lane.credit_bytes <= 0:
            self._budget.acquire_anyway(_LET_GO_BYTES)
            self._grant(lane, _LET_GO_BYTES - lane.credit_bytes, _LET_GO_BYTES)


def _moved(frame: Frame, by_bytes: int) -> Frame:
    """A piece as if its entry began elsewhere."""
    assert frame.piece is not None
    piece = replace(frame.piece, offset=frame.piece.offset + by_bytes, entry_size=frame.piece.entry_size + by_bytes)
    return replace(frame, piece=piece)
