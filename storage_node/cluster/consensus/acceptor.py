"""Paxos acceptor for the map: what a node has promised and accepted, and what it may answer. Pure functions.

Version n + 1 of the map is decided by the nodes of version n, as one Paxos instance (Lamport, "Paxos Made Simple",
2001). The proposer applies the compare-and-set of CASPaxos (Rystsov, 2018). One promise covers all versions. A node
votes for version n + 1 only if it knows that n is committed, so that whoever hears of an undecided map can fetch the
one before it. A node that belongs to no cluster yet may accept any map.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.map_delta import carried
from storage_node.cluster.consensus.map_bounds import MAX_FIRST_VERSION, MapRefused, require_ballot, require_map

__all__ = ["AcceptorState", "BallotOrder", "MapRefused", "accept", "ballot_order", "learn", "merged", "prepare"]

BallotOrder: TypeAlias = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class AcceptorState:
    """The durable state. Messages in it are never modified."""

    promise: pb.Ballot | None = None
    """No proposal with a lower ballot is accepted any more."""
    accepted: pb.ClusterMap | None = None
    """Newer than `committed`, and undecided as far as this node knows."""
    committed: pb.ClusterMap | None = None

    @property
    def newest(self) -> pb.ClusterMap | None:
        return self.accepted or self.committed


def ballot_order(ballot: pb.Ballot | None) -> BallotOrder:
    return (ballot.number, ballot.proposer) if ballot is not None else (0, b"")


def prepare(state: AcceptorState, request: pb.PrepareRequest) -> tuple[AcceptorState, pb.PrepareResponse]:
    """Answer a prepare request. Raises MapRefused."""
    _require_cluster(state.committed, request.cluster_uuid)
    if state.committed is None and request.cluster_uuid:
        _require_cluster(state.accepted, request.cluster_uuid)
    require_ballot(state.promise, request.ballot)
    promised = ballot_order(request.ballot) >= ballot_order(state.promise)
    if promised:
        state = replace(state, promise=request.ballot)
    newest = state.newest if state.newest is not None and state.newest.version > request.known_version else None
    return state, pb.PrepareResponse(promised=promised, promise=state.promise, accepted=newest)


def accept(state: AcceptorState, request: pb.AcceptRequest) -> tuple[AcceptorState, pb.AcceptResponse]:
    """Answer an accept request. Raises MapRefused."""
    map_ = carried(request, state.committed)
    if map_ is None:  # it knows a newer map than the one that was changed
        return state, pb.AcceptResponse(promise=state.promise)
    _require_cluster(state.committed, map_.cluster_uuid)
    if state.accepted is not None and not map_.version == state.accepted.version == 1:
        # If two clusters are being created, the one with the higher ballot wins.
        _require_cluster(state.accepted, map_.cluster_uuid)
    require_map(map_, state.committed)
    if state.committed is None and map_.version > MAX_FIRST_VERSION:
        raise MapRefused(f"a first map of version {map_.version:,}, at most {MAX_FIRST_VERSION:,}")
    require_ballot(state.promise, map_.ballot)
    accepted = ballot_order(map_.ballot) >= ballot_order(state.promise) and _is_next(state, map_)
    if accepted:
        state = replace(state, promise=map_.ballot, accepted=map_)
    return state, pb.AcceptResponse(accepted=accepted, promise=state.promise)


def learn(state: AcceptorState, map_: pb.ClusterMap) -> AcceptorState:
    """Record a committed map; one that is older than the known map changes nothing. Raises MapRefused."""
    _require_cluster(state.committed, map_.cluster_uuid)
    if state.committed is not None and map_.version <= state.committed.version:
        return state
    accepted = state.accepted
    if accepted is not None and (accepted.version <= map_.version or accepted.cluster_uuid != map_.cluster_uuid):
        accepted = None
    promise = max(state.promise, map_.ballot, key=ballot_order) if state.promise is not None else map_.ballot
    return AcceptorState(promise, accepted, map_)


def merged(states: list[AcceptorState]) -> AcceptorState:
    """Merge the states found on a node's drives: the node is bound to the highest of each part."""
    promises = [state.promise for state in states if state.promise is not None]
    committed = [state.committed for state in states if state.committed is not None]
    newest = max(committed, key=lambda map_: map_.version, default=None)
    known_version = newest.version if newest is not None else 0
    accepted = [
        state.accepted for state in states if state.accepted is not None and state.accepted.version > known_version
    ]
    return AcceptorState(
        max(promises, key=ballot_order, default=None),
        max(accepted, key=lambda map_: (map_.version, ballot_order(map_.ballot)), default=None),
        newest,
    )


def _is_next(state: AcceptorState, map_: pb.ClusterMap) -> bool:
    if state.accepted is not None and map_.version < state.accepted.version:
        return False
    return state.committed is None or map_.version == state.committed.version + 1


def _require_cluster(known: pb.ClusterMap | None, cluster_uuid: bytes) -> None:
    if known is not None and known.cluster_uuid != cluster_uuid:
        raise MapRefused(f"this node belongs to cluster {known.cluster_uuid.hex()}")
