"""One batch from several nodes at once, merged here: each entry from a node that has it, all in one stream.

The entries are split over their first holders, one part for each node, on the session that this process has with it.
What a node cannot give, because it is down, silent, too busy or has not got it, is asked of the next holder at once;
where there is none, of the same nodes again, with growing pauses, for `retry_s`. Only what has not arrived is asked for
again, and a large entry goes on from its last byte, in the version it began with. Entries that nobody can give come as
failed, in their place. A node that assembles the batch for its client ("target") is a single part, with the other nodes
to fall back on.

Memory: each node may send LANE_WINDOW_BYTES ahead of the consumer.
"""

from __future__ import annotations

import os
import queue
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np

from ais_loader import errors
from ais_loader.entry import Status
from ais_loader.transport.lane import Arrivals, Lane, Share
from ais_loader.transport.members import Members
from ais_loader.transport.parts import Columns, grouped
from ais_loader.transport.session import Broken, Event
from ais_loader.transport.stream import StreamPolicy, damaged_entry
from protos import ais_batch_pb2 as pb
from protos.frame import EntryFault, Frame, FrameError, Response
from protos.frame_edit import Mask
from protos.reorder import Reorder

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_EVENTS_AT_ONCE = 16
_NOBODY = -1
_ASK_ANOTHER = (pb.NOT_FOUND, pb.CORRUPT)
"""What one copy has not, another may have."""
_ASK_HOLDERS = (pb.UNAVAILABLE, pb.TIMEOUT)
"""What the gathering node could not reach, this process may; and it has a longer patience."""


class MergedStream:
    """A `FrameStream` over the nodes of a cluster. Belongs to one thread, but for `close`.

    Args:
        targets: nodes that assemble the whole batch, best first; empty: it is assembled here.
    """

    def __init__(
        self, request: pb.BatchRequest, members: Members, policy: StreamPolicy, targets: Sequence[bytes] = ()
    ) -> None:
        self._members = members
        self._policy = policy
        self._columns = Columns(request)
        self._targets = targets
        self._pid = os.getpid()
        self._reorder = Reorder(self._columns.count, request.first_index, ordered=request.ordered)
        self._arrivals: Arrivals = queue.SimpleQueue()
        self._lanes: dict[int, Lane] = {}
        self._later: list[tuple[float, Share]] = []
        self._closed = self._done = False
        self.retries = 0
        """Parts that were asked for again, of the same node or of another."""
        self.paused_s = 0.0
        """Time in which nobody was asked."""
        for bucket in self._columns.buckets:
            members.knows(bucket)
        self._assign(Share(range(self._columns.count), direct=not targets))

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        if self._pid != os.getpid():
            raise errors.Closed("this batch was begun before a fork, in the parent: begin a new one here")
        try:
            while not self._done:
                if self._closed:
                    raise errors.Closed("this batch has been closed")
                if (frame := self._next()) is not None:
                    return frame
        except errors.LoaderError:
            self._done = True
            self._cancel()
            raise
        raise StopIteration

    def read_all(self) -> list[bytes] | None:
        return None  # what crosses a network comes in frames

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid() and not self._done:
            self._cancel()
            # Another thread may be waiting.
            self._arrivals.put((_NOBODY, Broken(errors.Closed("this batch has been closed"))))

    def _cancel(self) -> None:
        for lane in list(self._lanes.values()):
            lane.cancel()

    # -- the loop

    def _next(self) -> Frame | None:
        """The next frame; None after some other step towards it."""
        for _ in range(_EVENTS_AT_ONCE):
            try:
                self._handle(*self._arrivals.get_nowait())
            except queue.Empty:
                break
        if (frame := self._reorder.pop()) is not None:
            for lane in self._lanes.values():
                lane.grant(self._reorder.held_bytes_of(lane.number))
            return frame
        if self._reorder.complete and not self._lanes:
            self._done = True
            return None
        self._wait()
        return None

    def _wait(self) -> None:
        """For the next event; who keeps silent for too long has failed."""
        now = time.monotonic()
        due = [share for at, share in self._later if at <= now]
        if due:
            self._later = [(at, share) for at, share in self._later if at > now]
            self._members.refresh()
            for share in due:
                self._assign(share)
            return
        owing = [lane for lane in self._lanes.values() if lane.owes]
        wait_s = min(
            [self._policy.timeout_s - lane.waited_s for lane in owing] + [at - now for at, _ in self._later],
            default=self._policy.timeout_s,
        )
        arrived: tuple[int, Event] | None = None
        try:
            arrived = self._arrivals.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            if not owing and not self._later:
                raise errors.LoaderError("a batch waits, and nobody owes it anything") from None
        waited_s = time.monotonic() - now
        if not self._lanes:
            self.paused_s += waited_s
        for lane in owing:
            lane.waited_s += waited_s
        if arrived is not None:
            self._handle(*arrived)
        for lane in owing:
            if lane.waited_s >= self._policy.timeout_s and lane.number in self._lanes:
                lane.cancel()
                self._failed(lane, self._silence(lane))

    def _silence(self, lane: Lane) -> errors.SilenceTimeout:
        received = int(np.count_nonzero(self._reorder.received))
        return errors.SilenceTimeout(
            f"{self._name(lane.node)}: nothing arrived for {self._policy.timeout_s:g} s, after {received:,} of "
            f"{self._columns.count:,} entries; is the node alive? Retry, or raise timeout_s"
        )

    def _name(self, node: bytes) -> str:
        view = self._members.view
        at = view.position.get(node)
        return node.hex() if at is None else view.nodes[at].endpoint

    def _handle(self, number: int, event: Event) -> None:
        lane = self._lanes.get(number)
        if lane is None:
            return  # given up meanwhile
        lane.waited_s = 0.0
        if isinstance(event, Broken):
            self._failed(lane, event.error)
        elif event.reject is not None:
            busy = errors.Overloaded(f"{self._name(lane.node)} is too busy: {event.reject.reason}")
            self._failed(lane, busy, event.reject.retry_after_ms / 1000)
        else:
            self._answered(lane, event)

    def _answered(self, lane: Lane, response: Response) -> None:
        if response.frame is not None:
            self._take(lane, response.frame)
        end = response.end
        if end is None:
            return
        if end.outcome == pb.End.REFUSED:
            self._failed(lane, errors.from_kind(end.error_kind, end.message))
            return
        lane.finish(end)
        del self._lanes[lane.number]
        self._reorder.close_lane(lane.number)

    def _take(self, lane: Lane, frame: Frame) -> None:
        try:
            if self._policy.verify_payload:
                self._verify(lane, frame)
            again = self._ask_elsewhere(lane, frame)
            self._reorder.push(lane.number, frame, again)
        except FrameError as wrong:
            self._wrong(lane, wrong)
        lane.take(frame)
        if (waiting := again & self._not_yet(lane, frame)).any():
            self._wait_for(lane.share, lane.node, frame, waiting)
            again = again & ~waiting
        for status in sorted(set(frame.status[again].tolist())):
            which = again & (frame.status == status)
            fault = frame.errors.get(int(frame.index[int(which.argmax())]), EntryFault(""))
            positions = np.array(lane.share.positions)[frame.index[which]].tolist()
            if lane.share.direct:
                self._assign(Share(positions, lane.share.tried | {lane.node}, (status, fault)))
            else:
                self._assign(Share(positions, error=errors.NodeUnavailable(fault.message)))

    def _not_yet(self, lane: Lane, frame: Frame) -> Mask:
        """Entries that this holder will answer for when it has compared its copies with those of others."""
        found: Mask = frame.status == pb.UNAVAILABLE
        if not lane.share.direct:
            return np.zeros(len(found), np.bool_)
        for at in np.flatnonzero(found).tolist():
            fault = frame.errors.get(int(frame.index[at]))
            found[at] = fault is not None and fault.kind == errors.NodeUnavailable.kind
        return found

    def _wait_for(self, share: Share, node: bytes, frame: Frame, which: Mask) -> None:
        """Ask the next holders of these entries, and this one again if need be."""
        fault = frame.errors[int(frame.index[int(which.argmax())])]
        since_s = time.monotonic() if share.failing_since_s is None else share.failing_since_s
        self._assign(replace(
            share, positions=np.array(share.positions)[frame.index[which]].tolist(), tried=share.tried | {node},
            failing_since_s=since_s, error=errors.NodeUnavailable(fault.message),
        ))  # fmt: skip

    def _wrong(self, lane: Lane, error: FrameError) -> NoReturn:
        raise errors.LoaderError(f"{self._name(lane.node)}: the node's answer does not add up: {error}") from error

    def _verify(self, lane: Lane, frame: Frame) -> None:
        seed = 0
        if frame.piece is not None and len(frame.index) and frame.index[0] < len(lane.share.positions):
            resume = self._reorder.resume_of(lane.share.positions[int(frame.index[0])])
            seed = resume[1] if resume is not None else 0
        if (index := damaged_entry(frame, seed)) is not None:
            raise FrameError(f"entry {lane.share.positions[index]} was damaged on its way")

    def _ask_elsewhere(self, lane: Lane, frame: Frame) -> Mask:
        """Entries that this node has not got whole, and another one may have."""
        one, other = _ASK_ANOTHER if lane.share.direct else _ASK_HOLDERS
        again: Mask = (frame.status == one) | (frame.status == other)
        if not lane.share.direct:
            return again
        again = again | (frame.status == pb.UNAVAILABLE)
        if not again.any():
            return again
        where = np.flatnonzero(again)
        if int(frame.index[where].max()) >= len(lane.share.positions):
            raise FrameError(f"entry {int(frame.index.max())} of {len(lane.share.positions)}")
        positions = [lane.share.positions[at] for at in frame.index[where].tolist()]
        tried = lane.share.tried | {lane.node}
        _, nobody = grouped(positions, self._candidates(positions, direct=True), tried)
        if nobody:
            again = again.copy()
            hopeless = set(nobody)
            again[where[[at in hopeless for at in positions]]] = False
            again |= self._not_yet(lane, frame)
        return again

    # -- who is asked

    def _candidates(self, positions: Sequence[int], *, direct: bool) -> list[list[bytes]]:
        members = self._members
        if not direct:
            left = [node for node in self._targets if node in members.view.position] or members.anybody()
            return [members.by_trust(left)] * len(positions)
        found = self._columns.holders(positions, members.holders)
        return found if all(len(nodes) == 1 for nodes in found) else [members.by_trust(nodes) for nodes in found]

    def _assign(self, share: Share) -> None:
        """Ask the best holders that have not been tried; what has none waits, or fails."""
        candidates = self._candidates(share.positions, direct=share.direct)
        groups, nobody = grouped(share.positions, candidates, share.tried)
        for node, positions in groups.items():
            self._begin(node, replace(share, positions=positions))
        if nobody:
            share.positions = nobody
            self._try_later(share)

    def _begin(self, node: bytes, share: Share) -> None:
        request = self._columns.select(share.positions)
        request.map_version = self._members.view.version
        # Another node may have what this one has not: whether to stop is decided by who takes the entries.
        request.fail_fast = False
        request.local = share.direct
        if (resume := self._reorder.resume_of(share.positions[0])) is not None:
            request.resume_offset, request.resume_checksum, request.resume_version = resume
        self.retries += share.error is not None
        lane = Lane(self._reorder.add_lane(share.positions), node, share)
        self._lanes[lane.number] = lane
        try:
            lane.begin(self._members.transport(node).session(), request, self._arrivals)
        except errors.NodeUnavailable as error:
            self._arrivals.put((lane.number, Broken(error)))

    def _failed(self, lane: Lane, error: errors.LoaderError, at_least_s: float = 0.0) -> None:
        """The lane is over: its entries go to the next holder, or wait."""
        if not error.retryable:
            raise error
        del self._lanes[lane.number]
        left, _ = self._reorder.close_lane(lane.number)
        if not len(left):
            return  # only its END was lost
        share = lane.share
        share.positions, share.error = left.tolist(), error
        if share.failing_since_s is None:
            share.failing_since_s = time.monotonic()
        if isinstance(error, errors.StaleMap):
            share.tried = frozenset()
            if not self._members.refresh(first=lane.node, force=True) and share.failures:
                self._try_later(share)
                return
            share.failures += 1
        else:
            if isinstance(error, errors.NodeUnavailable | errors.SilenceTimeout):
                self._members.suspect(lane.node)
                self._members.refresh()
            share.tried = share.tried | {lane.node}
        if at_least_s and not self._others(share):
            self._try_later(share, at_least_s)
            return
        self._assign(share)

    def _others(self, share: Share) -> bool:
        candidates = self._candidates(share.positions, direct=share.direct)
        return bool(grouped(share.positions, candidates, share.tried)[0])

    def _try_later(self, share: Share, at_least_s: float = 0.0) -> None:
        """Everybody who may have these entries has been asked: begin again after a pause, or let them fail."""
        now, error = time.monotonic(), share.error
        if share.missing is not None and (error is None or self._members.view.former is None):
            self._reorder.fail(share.positions, *share.missing)
            return
        if error is None:
            error = errors.NodeUnavailable("the cluster's map has no node for it")
        since = now if share.failing_since_s is None else share.failing_since_s
        if isinstance(error, errors.SilenceTimeout) or now - since > self._policy.retry_s:
            status = Status.TIMEOUT if isinstance(error, errors.SilenceTimeout) else Status.UNAVAILABLE
            message = f"{error}; gave up after {share.failures + 1} tries in {now - since:.1f} s"
            self._reorder.fail(share.positions, status, EntryFault(message, error.kind))
            return
        # Full jitter: the workers of a job, which failed together, must not come back together.
        pause_s = at_least_s + random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**share.failures))
        share.tried, share.failures, share.failing_since_s = frozenset(), share.failures + 1, since
        self._later.append((now + pause_s, share))
