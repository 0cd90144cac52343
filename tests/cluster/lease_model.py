"""Every order in which a node asks for its lease, a writer writes without it, messages are lost, and nodes start anew.

Node 0 has an old copy; node 1 coordinates a write that it cannot tell node 0 of; the others are asked to pass it on.
Any message may come late or never, time may pass between any two steps, and one node but the reader may be started
anew. Once node 0 has been told, nothing that it reads out is old: there the search ends. What counts as a lease, and
when it is over, is decided by the product's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from storage_node.cluster.replication.read_lease import LeaseHeld, LeasesGranted, over_s

Slip: TypeAlias = Literal[
    "", "counts from the answer", "does not wait", "asks nobody", "grants all the same", "forgets whom", "forgets what"
]
SLIPS: tuple[Slip, ...] = (
    "counts from the answer",
    "does not wait",
    "asks nobody",
    "grants all the same",
    "forgets whom",
    "forgets what",
)
"""Each of which lets an old copy be read: a lease that counts from its answer; a write that is acknowledged at once, or
on the word of its coordinator alone; a lease that is renewed though the write has not been told; a node that, started
anew, does not know whom it must not grant a lease, or that it may have granted one a moment ago."""
NEVER = -100.0


class Peer(NamedTuple):
    granted_until: float = NEVER
    earlier_until: float = NEVER
    """As after a start."""
    withholds: bool = False
    request: float | None = None
    """When node 0 asked, while that is on its way here."""
    answer: float | None = None
    """When node 0 had asked for what is granted, while that is on its way there."""
    held_until: float = NEVER
    """What node 0 has been granted."""
    relay: Literal["", "sent", "answered", "heard"] = ""
    over: float = NEVER
    """What it has said, or node 1 makes of it."""


class State(NamedTuple):
    now: int
    peers: tuple[Peer, ...]
    """All but node 0; the first is the writer."""
    writing: bool = False
    done: bool = False
    started_anew: bool = False


class Model:
    def __init__(self, nodes: int, *, lease: int, until: int, slip: Slip = "") -> None:
        """`lease`, `until`: how long one is, and how far time goes, in steps."""
        self._nodes, self._lease, self._until, self._slip = nodes, lease, until, slip

    def reads_old(self) -> bool:
        """Whether node 0 can be read from, with its old copy, after the write is acknowledged."""
        start = State(0, tuple(Peer() for _ in range(self._nodes - 1)))
        seen, left = {start}, [start]
        while left:
            state = left.pop()
            if state.done and self._holds(state):
                return True
            for after in map(_without_past, self._next(state)):
                if after not in seen:
                    seen.add(after)
                    left.append(after)
        return False

    def _holds(self, state: State) -> bool:
        held = LeaseHeld()
        for at, peer in enumerate(state.peers):
            held.granted(bytes([at]), peer.held_until, 0.0)
        return state.now < held.until_s([bytes([at]) for at in range(len(state.peers))])

    def _next(self, state: State) -> Iterator[State]:
        if state.now < self._until:
            yield state._replace(now=state.now + 1)
        for at, peer in enumerate(state.peers):
            for after in self._of_peer(state, at, peer):
                yield _with(state, at, after)
            if not state.started_anew and (at or state.done):
                fresh = Peer(
                    earlier_until=NEVER if self._slip == "forgets what" else state.now + self._lease,
                    withholds=peer.withholds and self._slip != "forgets whom",
                    held_until=peer.held_until,
                    answer=peer.answer,
                    relay=peer.relay if peer.relay in ("answered", "heard") else "",
                    over=peer.over,
                )
                yield _with(state, at, fresh)._replace(started_anew=True)
        if not state.writing:
            first = state.peers[0]
            begun = first._replace(withholds=True, relay="heard", over=state.now + self._left(first, state.now))
            yield _with(state, 0, begun)._replace(writing=True)
        elif not state.done and self._may_acknowledge(state):
            yield state._replace(done=True)

    def _of_peer(self, state: State, at: int, peer: Peer) -> Iterator[Peer]:
        now = state.now
        if peer.request is None and peer.answer is None:
            yield peer._replace(request=now)
        if peer.request is not None:
            if not peer.withholds or self._slip == "grants all the same":
                granted = LeasesGranted(NEVER, 0.0)
                granted.grant(b"0", now, self._lease)
                until = max(peer.granted_until, now + granted.left_s(b"0", now))
                yield peer._replace(request=None, answer=peer.request, granted_until=until)
            yield peer._replace(request=None)
        if peer.answer is not None:
            asked = now if self._slip == "counts from the answer" else peer.answer
            yield peer._replace(answer=None, held_until=max(peer.held_until, asked + self._lease))
            yield peer._replace(answer=None)
        if state.writing and at:
            if not peer.relay:
                yield peer._replace(relay="sent")
            elif peer.relay == "sent":
                yield peer._replace(relay="answered", withholds=True, over=self._left(peer, now))
            elif peer.relay == "answered":
                yield peer._replace(relay="heard", over=now + peer.over)

    @staticmethod
    def _left(peer: Peer, now: int) -> float:
        return max(0.0, max(peer.granted_until, peer.earlier_until) - now)

    def _may_acknowledge(self, state: State) -> bool:
        said = {bytes([at]): peer.over for at, peer in enumerate(state.peers) if peer.relay == "heard"}
        if self._slip == "asks nobody":
            return said[bytes([0])] <= state.now
        over = over_s(self._nodes, said)
        return over is not None and (over <= state.now or self._slip == "does not wait")


def _with(state: State, at: int, peer: Peer) -> State:
    return state._replace(peers=(*state.peers[:at], peer, *state.peers[at + 1 :]))


def _without_past(state: State) -> State:
    """What is over is over, whenever it was."""
    now = state.now
    return state._replace(
        peers=tuple(
            peer._replace(
                granted_until=peer.granted_until if peer.granted_until > now else NEVER,
                earlier_until=peer.earlier_until if peer.earlier_until > now else NEVER,
                held_until=peer.held_until if peer.held_until > now else NEVER,
                over=peer.over if peer.relay == "answered" or peer.over > now else NEVER,
            )
            for peer in state.peers
        )
    )
