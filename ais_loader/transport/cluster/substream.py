"""Substream of a batch, one node's part of it: what was requested, what has arrived, and whether it is consistent."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ais_loader import errors
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.session.session import Event, Session
from ais_loader.wire.answer_check import AnswerCheck
from ais_loader.wire.frame import EntryFault, Frame, FrameError
from ais_loader.wire.gather.frame_edit import Mask
from ais_loader.wire.generated import ais_batch_pb2 as pb

SENDER_WINDOW_BYTES = 4 << 20
"""Payload that each node may send ahead of the consumer."""

Arrivals: TypeAlias = "queue.SimpleQueue[tuple[int, Event]]"
Verdict: TypeAlias = "tuple[int, Mapping[int, EntryFault]]"


@dataclass(slots=True)
class Share:
    """Entries that are requested from one node after another until one answers."""

    positions: Sequence[int]
    tried: frozenset[bytes] = frozenset()
    """Nodes that are not asked any more."""
    missing: Verdict | None = None
    """Status, and the reason for each position, from a holder that lacks the entries or has them damaged. Others may
    have them."""
    unanswered: errors.LoaderError | None = None
    """Why a holder that was asked has not said whether it has the entries; None if all have. As long as objects move,
    the answers of others are not final then."""
    map_version: int = 0
    """Version of the map that determined the holders. Their answers count under no other version."""
    failing_since_s: float | None = None
    """Monotonic time of the first failure since the last progress."""
    failures: int = 0
    error: errors.LoaderError | None = None
    direct: bool = True
    """True: requested from the nodes that hold them; False: from a node that gathers them."""
    hedge: bool = False
    """Also requested from another node, which is slow."""
    awaited: bool = False
    """A holder that was asked before will answer when it has compared its replicas: nothing is final until then."""
    checked: bool = False
    """The node verifies the bytes itself: unverified ones were wrong."""

    @property
    def final_missing(self) -> Verdict | None:
        """The missing verdict, unless its only cause is a broken drive."""
        return None if self.missing is not None and self.missing[0] == pb.UNAVAILABLE else self.missing

    def combined(self, status: int, faults: Mapping[int, EntryFault], *, is_moving: bool) -> Verdict:
        """Combine the verdict with that of one more holder. Damaged bytes prove that the object exists. A drive that
        cannot be read may have what others lack, unless those are known to have received every write. A holder that has
        a newer version than the requested one outranks all others: damage to the old version is no damage to the
        object."""
        if self.missing is not None and (is_replaced(self.missing[1]) or is_replaced(faults)):
            return self.missing if is_replaced(self.missing[1]) else (status, faults)
        weights = (
            (pb.NOT_FOUND, pb.CORRUPT, pb.UNAVAILABLE) if is_moving else (pb.UNAVAILABLE, pb.NOT_FOUND, pb.CORRUPT)
        )
        if self.missing is not None and {self.missing[0], status} == {pb.CORRUPT, pb.UNAVAILABLE}:
            # Unlike "not found", damage to one replica says nothing about the others.
            return self.missing if status == pb.CORRUPT else (status, faults)
        weight: dict[int, int] = {each: at for at, each in enumerate(weights)}
        if self.missing is not None and weight.get(self.missing[0], -1) > weight.get(status, -1):
            return self.missing
        return status, faults

    def reset_requests(self, map_version: int) -> None:
        """Forget the nodes asked so far, and their answers if the map has changed."""
        self.tried, self.awaited, self.unanswered = frozenset(), False, None
        if map_version != self.map_version:
            self.missing, self.map_version = None, map_version


def is_replaced(faults: Mapping[int, EntryFault]) -> bool:
    """Whether a verdict says that the entries were replaced. A verdict says so of all its entries, or of none."""
    return any(fault.kind == errors.ObjectReplaced.kind for fault in faults.values())


class _Tagged:
    """An inbox that labels its events with their sender."""

    __slots__ = ("_arrivals", "_sender")

    def __init__(self, sender: int, arrivals: Arrivals) -> None:
        self._sender = sender
        self._arrivals = arrivals

    def put(self, event: Event, /) -> None:
        self._arrivals.put((self._sender, event))


class Sender:
    """A part of a batch in progress. `number` is its sender in the Reorder."""

    def __init__(self, number: int, node: bytes, share: Share) -> None:
        self.number = number
        self.node = node
        self.share = share
        self.waited_s = 0.0
        """Time the consumer has waited since this sender's last event."""
        self.busy_s = 0.0
        """Total time the consumer has waited for this sender."""
        self.hedges = 0
        """Number of hedges of what it owes, since its last event."""
        self.received_bytes = 0
        self._granted_bytes = SENDER_WINDOW_BYTES
        self._check = AnswerCheck(len(share.positions))
        self._session: Session | None = None
        self._batch_id = 0

    @property
    def received(self) -> int:
        """Number of entries that have arrived completely."""
        return self._check.received

    def note_event(self) -> float:
        """Note an event; return how long the consumer waited for it."""
        waited_s, self.waited_s, self.hedges = self.waited_s, 0.0, 0
        self.busy_s += waited_s
        return waited_s

    def begin(self, calls: NodeCalls, request: pb.BatchRequest, arrivals: Arrivals) -> None:
        request.initial_credit_bytes = SENDER_WINDOW_BYTES
        self._calls = calls  # while this is referred to, its connection stays, also if the node leaves the cluster
        self._session = calls.session()
        self._batch_id = self._session.begin(request, _Tagged(self.number, arrivals))

    def cancel(self) -> None:
        if self._session is not None:
            self._session.cancel(self._batch_id)

    @property
    def has_credit(self) -> bool:
        """Whether the node has credit to send. Without credit, it is not to blame for a silence."""
        return self.received_bytes < self._granted_bytes

    def grant(self, held_bytes: int) -> None:
        """Grant credit for what the consumer has released, in steps of a quarter of the window."""
        more = self.received_bytes - held_bytes + SENDER_WINDOW_BYTES - self._granted_bytes
        if more >= SENDER_WINDOW_BYTES // 4 and self._session is not None:
            self._session.grant(self._batch_id, more)
            self._granted_bytes += more

    def take(self, frame: Frame) -> None:
        """Count a frame that was verified to be due."""
        self.received_bytes += len(frame.payload)
        if not (len(frame.status) and (frame.status == pb.UNAVAILABLE).all()):  # such a frame is no progress
            self.share.failing_since_s, self.share.failures, self.share.error = None, 0, None
        self._check.count(frame)

    def comparing(self, frame: Frame) -> Mask:
        """Select the entries that this holder, or an earlier one, will answer after comparing its replicas with
        others'."""
        found: Mask = frame.status == pb.UNAVAILABLE
        if not self.share.direct:
            return np.zeros(len(found), np.bool_)
        for at in np.flatnonzero(found).tolist():
            fault = frame.errors.get(int(frame.index[at]))
            found[at] = fault is not None and (self.share.awaited or fault.kind == errors.NodeUnavailable.kind)
        return found

    def finish(self, end: pb.End) -> None:
        """Check END. Raises LoaderError if it does not match what arrived."""
        try:
            self._check.finish(end)
        except FrameError as error:
            raise errors.LoaderError(f"the node's answer does not add up: {error}") from error
