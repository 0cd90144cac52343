"""Substream of a batch, one node's part of it: what was asked, what has come, and whether it adds up."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ais_loader import errors
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
    """Entries on their way from node to node until somebody answers."""

    positions: Sequence[int]
    tried: frozenset[bytes] = frozenset()
    """Nodes that are not to be asked any more."""
    missing: Verdict | None = None
    """Status, and the reason for each position, from a holder that has not got them, or only damaged; others may."""
    unanswered: errors.LoaderError | None = None
    """Why a holder that was asked has not said whether it has them; None while all of them have. What others say is
    not the last word then, as long as objects move."""
    map_version: int = 0
    """Of the map by which holders were asked. What they said counts under no other."""
    failing_since_s: float | None = None
    """Monotonic time of the first failure since anything came."""
    failures: int = 0
    error: errors.LoaderError | None = None
    direct: bool = True
    """Asked of the nodes that have them; False: of one that gathers them."""
    hedge: bool = False
    """Asked of another node already, which is slow."""
    awaited: bool = False
    """A holder that was asked before will answer when it has compared its copies: nothing is final until then."""
    checked: bool = False
    """Whoever is asked compares the bytes itself: some that came without that were wrong."""

    @property
    def gone(self) -> Verdict | None:
        """What is missing, unless a broken drive is all that is wrong with it."""
        return None if self.missing is not None and self.missing[0] == pb.UNAVAILABLE else self.missing

    def told(self, status: int, faults: Mapping[int, EntryFault], *, objects_go: bool) -> Verdict:
        """What is missing, when one more holder has said so: damaged bytes are there; and a drive that cannot be read
        may have what others lack, unless these are known to have been told of all there is."""
        weights = (
            (pb.NOT_FOUND, pb.CORRUPT, pb.UNAVAILABLE) if objects_go else (pb.UNAVAILABLE, pb.NOT_FOUND, pb.CORRUPT)
        )
        if self.missing is not None and {self.missing[0], status} == {pb.CORRUPT, pb.UNAVAILABLE}:
            # Unlike "not found", damage to one copy says nothing of the others.
            return self.missing if status == pb.CORRUPT else (status, faults)
        weight: dict[int, int] = {each: at for at, each in enumerate(weights)}
        if self.missing is not None and weight.get(self.missing[0], -1) > weight.get(status, -1):
            return self.missing
        return status, faults

    def ask_anew(self, map_version: int) -> None:
        """Nobody has been asked so far, by this map."""
        self.tried, self.awaited, self.unanswered = frozenset(), False, None
        if map_version != self.map_version:
            self.missing, self.map_version = None, map_version


class _Tagged:
    """An inbox that tells its events from those of other senders."""

    __slots__ = ("_arrivals", "_sender")

    def __init__(self, sender: int, arrivals: Arrivals) -> None:
        self._sender = sender
        self._arrivals = arrivals

    def put(self, event: Event, /) -> None:
        self._arrivals.put((self._sender, event))


class Sender:
    """A part under way. `number` is its sender in the Reorder."""

    def __init__(self, number: int, node: bytes, share: Share) -> None:
        self.number = number
        self.node = node
        self.share = share
        self.waited_s = 0.0
        """How long the consumer has waited since this sender last gave a sign of life."""
        self.busy_s = 0.0
        """How long the consumer has waited for this sender altogether."""
        self.hedges = 0
        """How often others have been asked for what it owes, since then."""
        self.received_bytes = 0
        self._granted_bytes = SENDER_WINDOW_BYTES
        self._check = AnswerCheck(len(share.positions))
        self._session: Session | None = None
        self._batch_id = 0

    @property
    def received(self) -> int:
        """Entries that have come whole."""
        return self._check.received

    def heard(self) -> float:
        """A sign of life has come; returns how long it was waited for."""
        waited_s, self.waited_s, self.hedges = self.waited_s, 0.0, 0
        self.busy_s += waited_s
        return waited_s

    def begin(self, session: Session, request: pb.BatchRequest, arrivals: Arrivals) -> None:
        request.initial_credit_bytes = SENDER_WINDOW_BYTES
        self._session = session
        self._batch_id = session.begin(request, _Tagged(self.number, arrivals))

    def cancel(self) -> None:
        if self._session is not None:
            self._session.cancel(self._batch_id)

    @property
    def owes(self) -> bool:
        """Whether the node may send: a silence of others is none."""
        return self.received_bytes < self._granted_bytes

    def grant(self, held_bytes: int) -> None:
        """Let the node go on as far as the consumer has, a quarter of the window at a time."""
        more = self.received_bytes - held_bytes + SENDER_WINDOW_BYTES - self._granted_bytes
        if more >= SENDER_WINDOW_BYTES // 4 and self._session is not None:
            self._session.grant(self._batch_id, more)
            self._granted_bytes += more

    def take(self, frame: Frame) -> None:
        """Count a frame, which has been found to be due."""
        self.received_bytes += len(frame.payload)
        if not (len(frame.status) and (frame.status == pb.UNAVAILABLE).all()):  # which is no more than to hear nothing
            self.share.failing_since_s, self.share.failures, self.share.error = None, 0, None
        self._check.count(frame)

    def comparing(self, frame: Frame) -> Mask:
        """Entries that this holder, or one before, will answer for when it has compared its copies with others'."""
        found: Mask = frame.status == pb.UNAVAILABLE
        if not self.share.direct:
            return np.zeros(len(found), np.bool_)
        for at in np.flatnonzero(found).tolist():
            fault = frame.errors.get(int(frame.index[at]))
            found[at] = fault is not None and (self.share.awaited or fault.kind == errors.NodeUnavailable.kind)
        return found

    def finish(self, end: pb.End) -> None:
        """Raises LoaderError when END says something else than what came."""
        try:
            self._check.finish(end)
        except FrameError as wrong:
            raise errors.LoaderError(f"the node's answer does not add up: {wrong}") from wrong
