"""Direct assembly: one batch from several nodes at once, merged here, each entry from a node that has it.

The problem. The entries of a batch are spread over many nodes. The consumer gets one ordered stream of frames, with
every entry exactly once, although any node may die, hang, reject the batch or hand objects over to another node.

The invariant. At any time each entry is in exactly one of four states: received, failed, waiting in `_later`, or owed
by a sender (by two, if it is hedged). A sender is one request to one node, on the session that this process has with
it. Its entries form a `Share`, which records the nodes tried so far. `Reorder` keeps the state of each entry and merges
frames: the first sender to deliver an entry owns it, and whatever else arrives for it is dropped.

The steps:

1. `_assign` groups a share by the best holder of each entry that has not been tried, and opens a sender for
   each group. A target, a node that assembles the whole batch for its client, is a single such group.
2. `_handle` takes the next event of any sender. Frames go through the filter into the reorder buffer. An
   entry that the node does not have intact is assigned to its next holder.
3. `_next` returns the next frame and grants each sender credit for what was consumed.
4. The batch is complete when all entries have been received or have failed, and no sender is left.

What happens when a node dies halfway through its part:

- The connection breaks. The session delivers `Broken` to each of its senders, after the frames that it had
  received. `_failed` ends the sender, marks the node as suspect, and requests a newer map.
  Only entries that no sender owes any more are assigned to their next holders. A large entry resumes at the
  byte where it stopped, in the version that it began with.
- The node cannot be reached at all. `_open` puts `Broken` into the queue itself; the rest is the same.
- Only END was lost. Nothing is left to request, and the sender is simply removed.
- The node hangs, with its connection open. After an unusual silence (`_limit_s`) its entries are also
  requested from their next holders, within a budget (`ais_loader.wire.gather.hedging`). The hanging node may
  still deliver first. A sender whose entries were all delivered by others is cancelled. After `timeout_s` the
  node is given up, as if its connection had broken.
- A target dies: another node assembles the rest. A target that hangs may itself wait for one dead node, so
  its entries are requested from their holders directly.
- No holder is left. The same nodes are asked again after growing pauses, until failures have lasted for
  `retry_s` without progress; after a silence of `timeout_s` not again. Then the entries fail, in their positions,
  and the rest of the batch goes on. Only an error that no retry can help ends the whole batch.
- The node acts by a newer map, by which others have the entries (StaleMap). The map is refreshed and
  the entries are assigned by it.
- A holder has the entry damaged: see `Reorder.damaged_further`.
- This process forks: the child's streams raise Closed, and the parent's resume on new sessions.

Memory: each node may send SENDER_WINDOW_BYTES ahead of the consumer.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ais_loader import errors
from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.cluster.frame_filter import FrameFilter
from ais_loader.transport.cluster.routing import Columns, Routing
from ais_loader.transport.cluster.substream import Arrivals, Sender, Share, is_replaced
from ais_loader.transport.session.batch_stream import StreamPolicy
from ais_loader.transport.session.session import Broken, Event
from ais_loader.values.entry import Status
from ais_loader.wire.answer_check import DamagedEntry
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.frame import EntryFault, Frame, FramedStream, Response
from ais_loader.wire.gather.frame_edit import Mask, failed_as
from ais_loader.wire.gather.reorder import Reorder, in_senders
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import MergedWaits, NodeWaits

_BACKOFF = Backoff(0.05, 1.0)
_EVENTS_AT_ONCE = 16
_NOBODY = -1


class MergedStream(FramedStream):
    """A `FrameStream` over the nodes of a cluster. Belongs to one thread, except `close`.

    Args:
        targets: nodes that may assemble the whole batch, best first; if empty, this client assembles it.
    """

    def __init__(
        self, request: pb.BatchRequest, members: Members, policy: StreamPolicy, targets: Sequence[bytes] = ()
    ) -> None:
        self._members = members
        self._policy = policy
        self._columns = Columns(request)
        self._first_index = request.first_index
        self._routing = Routing(members, self._columns, targets)
        self._plain_of: dict[int, str] = {}
        """For a batch with transforms: the node that sent an entry untransformed, by the entry's index."""
        self._pid = os.getpid()
        self._reorder = Reorder(self._columns.count, request.first_index, ordered=request.ordered)
        self._filter = FrameFilter(self._reorder, self._routing, verify=policy.verify_payload)
        self._arrivals: Arrivals = queue.SimpleQueue()
        self._senders: dict[int, Sender] = {}
        self._later: list[tuple[float, Share]] = []
        self._closed = self._done = False
        self._hedging = members.hedging
        self._hedging.budget.requested(self._columns.count)
        self.hedged = 0
        """Number of entries that were requested from a second node because the first was slow."""
        self.retries = 0
        """Number of repeated requests, to the same node or to another."""
        self.paused_s = 0.0
        """Time in which no request was open."""
        self._merged_waits = MergedWaits()
        for bucket in self._columns.buckets:
            members.knows(bucket)
        self._assign(Share(range(self._columns.count), direct=not targets))

    def __next__(self) -> Frame:
        if self._pid != os.getpid():
            raise errors.Closed(
                "this batch was requested by the parent process before it forked: request a new one in this process"
            )
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

    @property
    def waits(self) -> NodeWaits:
        waits = NodeWaits()
        self._merged_waits.add_to(waits)
        return waits

    def node_of(self, index: int) -> str:
        return self._plain_of.get(index, "a node")

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid() and not self._done:
            self._cancel()
            # Another thread may be waiting.
            self._arrivals.put((_NOBODY, Broken(errors.Closed("this batch has been closed"))))

    def _cancel(self) -> None:
        for number, sender in list(self._senders.items()):
            sender.cancel()
            if self._senders.pop(number, None) is not None:
                self._count(sender)

    def _end(self, sender: Sender) -> list[int]:
        """Remove a sender. Return the positions that no sender owes now."""
        del self._senders[sender.number]
        self._count(sender)
        left, _ = self._reorder.close_sender(sender.number)
        positions: list[int] = left.tolist()
        return positions

    def _count(self, sender: Sender) -> None:
        if sender.share.direct:
            # A sender that never answered is at least as slow as the wait for it.
            answered = max(sender.received, int(sender.waited_s > 0))
            self._members.loads.over(
                sender.node, len(sender.share.positions), answered, sender.busy_s + sender.waited_s
            )

    # -- the loop

    def _next(self) -> Frame | None:
        """Return the next frame; None after any other step."""
        for _ in range(_EVENTS_AT_ONCE):
            try:
                self._handle(*self._arrivals.get_nowait())
            except queue.Empty:
                break
        frame = self._reorder.pop()
        for (
            sender
        ) in self._senders.values():  # without a frame, too: what a sender sent of entries it lost is passed over
            sender.grant(self._reorder.held_bytes_of(sender.number))
        if frame is not None:
            return frame
        if self._reorder.complete and not self._senders:
            self._done = True
            return None
        self._wait()
        return None

    def _wait(self) -> None:
        """Wait for the next event. A sender that is silent for too long has failed."""
        now = time.monotonic()
        due = [share for at, share in self._later if at <= now]
        if due:
            self._later = [(at, share) for at, share in self._later if at > now]
            self._members.refresh()
            for share in due:
                self._assign(share)
            return
        with_credit = [sender for sender in self._senders.values() if sender.has_credit]
        limits_s = {sender.number: min(self._policy.timeout_s, self._limit_s(sender)) for sender in with_credit}
        wait_s = min(
            [limits_s[sender.number] - sender.waited_s for sender in with_credit] + [at - now for at, _ in self._later],
            default=self._policy.timeout_s,
        )
        arrived: tuple[int, Event] | None = None
        try:
            arrived = self._arrivals.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            if not with_credit and not self._later:
                raise errors.LoaderError("a batch waits, and nobody owes it anything") from None
        waited_s = time.monotonic() - now
        if not self._senders:
            self.paused_s += waited_s
        elif (number := self._reorder.next_sender) is not None and number in self._senders:
            self._merged_waits.waited(self._routing.name(self._senders[number].node), waited_s)
        for sender in with_credit:
            sender.waited_s += waited_s
        if arrived is not None:
            self._handle(*arrived)
        for sender in with_credit:
            if sender.waited_s >= self._policy.timeout_s and sender.number in self._senders:
                sender.cancel()
                self._failed(sender, self._silence(sender))
            elif sender.waited_s >= limits_s[sender.number] and sender.number in self._senders:
                self._hedge(sender)

    def _limit_s(self, sender: Sender) -> float:
        """Silence of this sender after which its entries are also requested from other nodes."""
        if not self._hedging.budget.share or self._columns.transformed:  # transforms are slow, and do not run twice
            return self._policy.timeout_s
        silences = self._hedging.parts if sender.share.direct else self._hedging.gathered
        last = all(other is sender or other.share.hedge for other in self._senders.values())
        return silences.limit_s(last=last) * float(1 << sender.hedges)

    def _hedge(self, sender: Sender) -> None:
        """Request what this sender owes from the next holders too, within the budget. The sender may still be first."""
        sender.hedges += 1
        share, positions = sender.share, self._reorder.hedgeable(sender.number).tolist()
        avoid = share.tried | {sender.node}
        for node, wanted in self._routing.hedges(share, positions, avoid).items():
            if granted := wanted[: self._hedging.budget.take(len(wanted))]:
                self.hedged += len(granted)
                slow = errors.NodeUnavailable(f"{self._routing.name(sender.node)} is slow to answer")
                part = Share(granted, avoid, None, slow, share.map_version, direct=share.direct, hedge=True)
                self._begin(node, part)

    def _drop_beaten(self) -> None:
        """Cancel senders whose entries have all been delivered by others."""
        for sender in list(self._senders.values()) if self.hedged else ():
            if self._reorder.is_beaten(sender.number):
                sender.cancel()
                if sender.hedges:  # it has been silent since
                    self._members.suspect(sender.node)
                self._end(sender)

    def _silence(self, sender: Sender) -> errors.SilenceTimeout:
        received = int(np.count_nonzero(self._reorder.received))
        return errors.SilenceTimeout(
            f"{self._routing.name(sender.node)}: nothing arrived for {self._policy.timeout_s:g} s, after "
            f"{received:,} of {self._columns.count:,} entries; is the node alive? Retry, or raise timeout_s"
        )

    def _handle(self, number: int, event: Event) -> None:
        sender = self._senders.get(number)
        if sender is None:
            return  # given up in the meantime
        waited_s = sender.note_event()
        if isinstance(event, Broken):
            self._failed(sender, event.error)
            return
        self._members.note_answered(sender.node)
        if event.reject is not None:
            self._members.loads.rejected(sender.node, event.reject.retry_after_ms / 1000)
            self._members.loads.report_wait(sender.node, event.reject.wait_us * 1e-6)
            busy = errors.Overloaded(f"{self._routing.name(sender.node)} is too busy: {event.reject.reason}")
            self._failed(sender, busy, event.reject.retry_after_ms / 1000)
        else:
            if waited_s:
                (self._hedging.parts if sender.share.direct else self._hedging.gathered).note(waited_s)
            self._answered(sender, event)

    def _answered(self, sender: Sender, response: Response) -> None:
        if response.frame is not None:
            self._take_frame(sender, response.frame)
            self._drop_beaten()
            if sender.number not in self._senders:
                return  # other senders have delivered the rest
        end = response.end
        if end is None:
            return
        if end.outcome == pb.End.REFUSED:
            self._failed(sender, errors.from_node(end.error_kind, end.message))
            return
        sender.finish(end)
        self._members.loads.report_wait(sender.node, end.wait_us * 1e-6)
        self._merged_waits.ended(self._routing.name(sender.node), end)
        self._end(sender)

    def _take_frame(self, sender: Sender, received: Frame) -> None:
        if (
            self._columns.transformed
            and (plain := (received.status == pb.OK) & (received.checksum_kind != pb.TRANSFORMED)).any()
        ):
            name = self._routing.name(sender.node)
            if not sender.share.direct:
                name = f"a node that {name} asked, or it itself,"
            for at in received.index[plain].tolist():
                self._plain_of[self._first_index + sender.share.positions[at]] = name
        try:
            filtered = self._filter.filter(sender, received)
        except DamagedEntry:
            self._request_checked(sender)
            return
        if filtered is None:
            sender.take(received)
            return
        before = replace(sender.share)  # a failure is no progress for the entries that failed
        sender.take(received)
        frame, again = filtered
        if (elsewhere := again & failed_as(frame, errors.StaleMap.kind)).any():
            self._place_anew(sender, before, frame, elsewhere)
            again = again & ~elsewhere
        if (waiting := again & sender.comparing(frame)).any():
            self._wait_for(before, sender.node, frame, waiting)
            again = again & ~waiting
        replaced = failed_as(frame, errors.ObjectReplaced.kind)
        for status, newer in sorted(set(zip(frame.status[again].tolist(), replaced[again].tolist(), strict=True))):
            indexes = frame.index[again & (frame.status == status) & (replaced == newer)]
            positions = np.array(sender.share.positions)[indexes].tolist()
            found = (frame.errors.get(at, EntryFault("")) for at in indexes.tolist())
            faults = dict(zip(positions, found, strict=True))
            if sender.share.direct:
                verdict = before.combined(status, faults, is_moving=self._routing.is_moving)
                further = [at for at in positions if status == pb.CORRUPT and self._reorder.damaged_further(at)]
                for group, tried in ((further, frozenset[bytes]()), (positions, before.tried)):
                    if left := [at for at in group if group is further or at not in further]:
                        now_tried = tried | {sender.node}
                        self._assign(replace(before, positions=left, tried=now_tried, missing=verdict, hedge=False))
            else:
                self._assign(Share(positions, error=errors.NodeUnavailable(faults[positions[0]].message)))

    def _request_checked(self, sender: Sender) -> None:
        """Request the rest with verification by the node: bytes that the node had not verified were wrong."""
        sender.cancel()
        if left := self._end(sender):
            self.retries += 1
            self._begin(sender.node, replace(sender.share, positions=left, hedge=False, checked=True))

    def _wait_for(self, share: Share, node: bytes, frame: Frame, which: Mask) -> None:
        """Request these entries from their next holders, and from this one again if necessary."""
        self._members.loads.suspect(node)
        fault = frame.errors[int(frame.index[int(which.argmax())])]
        unanswered = errors.NodeUnavailable(fault.message)
        self._assign(
            replace(
                share,
                positions=np.array(share.positions)[frame.index[which]].tolist(),
                tried=share.tried | {node},
                failing_since_s=share.failing_since_s or time.monotonic(),
                error=unanswered,
                unanswered=unanswered,
                hedge=False,
                awaited=True,
                missing=share.final_missing,
            )
        )

    def _place_anew(self, sender: Sender, share: Share, frame: Frame, which: Mask) -> None:
        """Reassign entries of a node that acts by a newer map, by which others have them."""
        positions = np.array(share.positions)[frame.index[which]].tolist()
        fault = frame.errors[int(frame.index[int(which.argmax())])]
        stale = errors.StaleMap(fault.message)
        share = replace(share, positions=positions, missing=None, error=stale, hedge=False, direct=True)
        if self._members.view.version == share.map_version:
            self._members.refresh(first=sender.node, force=True)
        if self._members.view.version == share.map_version:
            share.unanswered = share.error
            self._try_later(share)
        else:
            self._assign(share)

    # -- assignment

    def _assign(self, share: Share) -> None:
        """Request a share from the best untried holders. Entries without one are retried later, or fail."""
        if share.map_version != self._members.view.version:
            share.reset_requests(self._members.view.version)
        groups, nobody = self._routing.groups(share)
        for node, positions in groups.items():
            self._begin(node, replace(share, positions=positions))
        if nobody:
            share.positions = nobody
            self._try_later(share)

    def _begin(self, node: bytes, share: Share) -> None:
        for positions in in_senders(list(share.positions), ordered=self._reorder.ordered):
            self._open(node, replace(share, positions=positions))

    def _open(self, node: bytes, share: Share) -> None:
        request = self._columns.select(share.positions)
        request.map_version = share.map_version
        # The consumer stops when a failed entry is the next one. A node would stop at an entry that another node may
        # have, or behind entries that others have yet to deliver, and save less than one window.
        request.fail_fast = False
        request.local = share.direct
        request.receiver_checks = not share.checked
        request.verify_ranges |= share.checked  # the wrong bytes may belong to a range
        if (resume := self._reorder.resume_of(share.positions[0])) is not None:
            request.resume_offset, request.resume_checksum, request.resume_version = resume
        self.retries += share.error is not None
        sender = Sender(self._reorder.add_sender(share.positions, rival=share.hedge), node, share)
        self._senders[sender.number] = sender
        if share.direct:
            self._members.loads.requested(node, len(share.positions))
        try:
            sender.begin(self._members.calls(node), request, self._arrivals)
        except errors.NodeUnavailable as error:
            self._arrivals.put((sender.number, Broken(error)))

    def _failed(self, sender: Sender, error: errors.LoaderError, at_least_s: float = 0.0) -> None:
        """End a sender: its entries go to the next holder, or wait."""
        if not error.retryable:
            raise error
        left = self._end(sender)
        if isinstance(error, errors.NodeUnavailable | errors.SilenceTimeout):
            self._members.suspect(sender.node)
        if not left:
            return  # only its END was lost, or another node has all of it
        share = sender.share
        share.positions, share.error, share.hedge = left, error, False
        if share.failing_since_s is None:
            share.failing_since_s = time.monotonic()
        if isinstance(error, errors.StaleMap):
            share.tried, share.missing = frozenset(), None
            if not self._members.refresh(first=sender.node, force=True) and share.failures:
                share.unanswered = error
                self._try_later(share)
                return
            share.failures += 1
        else:
            if isinstance(error, errors.NodeUnavailable | errors.SilenceTimeout):
                self._members.refresh()
            share.tried, share.unanswered = share.tried | {sender.node}, error
            if isinstance(error, errors.SilenceTimeout) and not share.direct:
                share.direct, share.tried = True, frozenset()  # it may have waited for one node
        if at_least_s and not self._routing.has_others(share):
            self._try_later(share, at_least_s)
            return
        self._assign(share)

    def _try_later(self, share: Share, at_least_s: float = 0.0) -> None:
        """Handle entries whose holders have all been tried: start over after a pause, or let the entries fail."""
        if share.unanswered is None and self._routing.once_more(share):
            return self._assign(share)
        begun = self._reorder.resume_of(share.positions[0]) is not None
        if begun and len(share.positions) > 1:
            self._try_later(replace(share, positions=share.positions[1:]), at_least_s)
            share.positions = share.positions[:1]
        now, settled, missing = time.monotonic(), not self._routing.is_moving, share.missing
        # A holder that has not answered may have an intact copy, or the rest of a version that others do not have yet.
        is_open = missing is not None and (missing[0] == pb.CORRUPT or (begun and not is_replaced(missing[1])))
        if missing is not None and (share.unanswered is None or (settled and not is_open)):
            self._reorder.fail_each(share.positions, *missing)
            return
        error = share.unanswered or share.error or errors.NodeUnavailable("the map has no node for it")
        since = share.failing_since_s or now
        if isinstance(error, errors.SilenceTimeout) or now - since > self._policy.retry_s:
            status = Status.TIMEOUT if isinstance(error, errors.SilenceTimeout) else Status.UNAVAILABLE
            message = f"{error}; gave up after {share.failures + 1} tries in {now - since:.1f} s"
            self._reorder.fail(share.positions, status, EntryFault(message, error.kind))
            return
        pause_s = at_least_s + _BACKOFF.pause_s(share.failures)
        share.reset_requests(share.map_version)
        share.failures, share.failing_since_s = share.failures + 1, since
        self._later.append((now + pause_s, share))
