"""Paxos proposer: a change of the map is a compare-and-set over a majority of the nodes.

No I/O: `Proposer.run` is a generator that yields requests (`Ask`) and pauses (`Pause`), and receives the answers. The
same code runs on threads, on an event loop, and in a simulated network. One attempt:

    survey     GetMap from the given endpoints and those of the newest map found, the base. Nodes report where they
               listen for peers; all later requests go there. Nodes that lag are sent the base.
    prepare    a fresh ballot, promised by a majority of the base's nodes. If one of them has accepted a next
               version, that version may be committed: it is proposed again unmodified, and the attempt restarts.
    edit       the caller's function makes the next version from the base.
    accept     by a majority of the base's nodes and a majority of the new map's: committed. If votes of added nodes
               are needed, those nodes are asked first, so that the change cannot hang on one of them.
    learn      every node that answers is told.

Without a base, a cluster is created: all given nodes have to promise and to accept.

A map carries the ids of its latest changes. A proposer whose attempt was interrupted looks there first, so that a
change is made once even if another proposer finished it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.map_delta import carried, delta_of
from storage_node.cluster.consensus.acceptor import BallotOrder, ballot_order
from storage_node.cluster.consensus.effects import Answers, Ask, Edit, NoAnswer, Pause, Steps
from storage_node.cluster.consensus.errors import ChangeUnknown, Contended, NoMajority, OtherCluster
from storage_node.cluster.consensus.map_bounds import MAX_BALLOT_LEAD
from storage_node.context.channels import resolved

__all__ = ["Edit", "Proposer"]

CHANGES_KEPT = 64
"""Number of change ids that a map carries."""
BACKOFF = Backoff(0.05, 1.0, jitter=0.8)


class _Again(Exception):
    """The attempt was overtaken, or its base is out of date."""


@dataclass
class _KnownNode:
    """A node that has identified itself."""

    endpoint: str
    version: int = 0


@dataclass
class Proposer:
    """One change; run it once.

    Args:
        endpoints: host:port of some nodes of the cluster, or of all nodes of a new one. Client endpoints work too.
        edit: see `change_map`.
        clock: monotonic seconds.
    """

    endpoints: Sequence[str]
    edit: Edit
    clock: Callable[[], float]
    draw: Callable[[], bytes] = field(default=lambda: os.urandom(16))
    jitter: random.Random = field(default_factory=random.Random)
    known: pb.ClusterMap | None = None
    """A map that is committed, which the nodes need not send."""
    maybe_made: bool = False
    """Whether a proposal was sent whose outcome is unknown."""

    def __post_init__(self) -> None:
        self.endpoints = list(dict.fromkeys(self.endpoints))
        if not self.endpoints:
            raise ValueError("a change of the map needs the endpoint (host:port) of at least one node")
        self._change_id = self.draw()
        self._unsure_version = 0
        self._highest_ballot = 0
        self._nodes: dict[bytes, _KnownNode] = {}
        self._met: dict[str, bytes] = {}
        """The node that answered at each endpoint."""
        self._silent: dict[str, str] = {}
        self._delta = pb.ClusterMap(), pb.MapDelta()
        """The map that is proposed, and its delta from the base."""
        self._is_whole = False
        """Whether maps are sent as they are: a node said no, and may have been unable to apply a delta."""

    def run(self, timeout_s: float) -> Steps:
        """Run the change; return the map that contains it. Raises what `change_map` raises."""
        deadline = self.clock() + timeout_s
        failures = 0
        while True:
            problem: Exception
            try:
                return (yield from self._attempt())
            except _Again as overtaken:
                problem = Contended(f"not within {timeout_s:g} s: other changes of the map came first ({overtaken})")
            except NoMajority as error:
                problem = error
            wait_s = BACKOFF.pause_s(failures, source=self.jitter)
            if self.clock() + wait_s >= deadline:
                if self.maybe_made:
                    raise ChangeUnknown(f"{problem}; the change may have been made, or may yet be") from problem
                raise problem
            yield Pause(wait_s)
            failures += 1

    # -- one attempt

    def _attempt(self) -> Steps:
        base = yield from self._survey()
        concerned = {node.uuid for node in base.node} if base is not None else set()
        if base is None:
            base = yield from self._make()
        while not self._is_in(base):
            made = yield from self._advance(base)
            if made is None:
                break
            base = made
            concerned |= {node.uuid for node in base.node}
        # Nodes that are no longer part of the map are told too.
        yield from self._teach(base, concerned | {node.uuid for node in base.node})
        return base

    def _is_in(self, base: pb.ClusterMap) -> bool:
        """Return whether this committed map contains the change. Raises ChangeUnknown."""
        if self._change_id in base.change:
            return True
        if self._unsure_version and base.version >= self._unsure_version:
            if base.version - self._unsure_version >= CHANGES_KEPT:
                raise ChangeUnknown("so many changes were made meanwhile that the fate of this one cannot be told")
            self._unsure_version, self.maybe_made = 0, False
        return False

    def _survey(self) -> Generator[Ask | Pause, Answers, pb.ClusterMap | None]:
        """Ask all endpoints, and those in the maps found, for the newest map."""
        self._nodes, self._silent = {}, {}
        newest = self.known
        asked: set[str] = set()
        todo = set(self.endpoints)
        while todo:
            maps = yield from self._meet(todo, self.known)
            asked |= todo
            for endpoint, map_ in maps.items():
                if newest is not None and map_.cluster_uuid != newest.cluster_uuid:
                    if endpoint in self.endpoints:
                        raise OtherCluster(
                            f"{endpoint} is of cluster {map_.cluster_uuid.hex()}, not of {newest.cluster_uuid.hex()}"
                        )
                elif newest is None or map_.version > newest.version:
                    newest = map_
            unmet = [node for node in newest.node if node.uuid not in self._nodes] if newest is not None else []
            todo = {node.peer_endpoint for node in unmet} - asked
            if not todo:  # their peer endpoints may have changed
                todo = {node.endpoint for node in unmet} - asked
        return newest

    def _meet(
        self, endpoints: Iterable[str], known_map: pb.ClusterMap | None = None, *, follow: bool = True
    ) -> Generator[Ask | Pause, Answers, dict[str, pb.ClusterMap]]:
        """Identify the nodes at these endpoints; return the maps that they know, if these are newer than `known_map`.

        `follow`: Ask nodes that give no map once more, where they listen for peers.
        """
        request = pb.GetMapRequest(known_version=known_map.version if known_map is not None else 0)
        endpoints = set(endpoints)
        maps: dict[str, pb.ClusterMap] = {}
        inner: set[str] = set()
        answers = yield Ask(dict.fromkeys(sorted(endpoints), request))
        for endpoint, answer in answers.items():
            if not isinstance(answer, pb.GetMapResponse):
                self._silent[endpoint] = answer.reason if isinstance(answer, NoAnswer) else "a wrong answer"
                continue
            self._met[endpoint] = answer.node_uuid
            if (map_ := carried(answer, known_map)) is None:
                self.known = None
                raise _Again("a node knows another map of this version")
            if map_.version > 0:
                maps[endpoint] = map_
            peer_endpoint = resolved(endpoint, answer.peer_endpoint)
            known = self._nodes.setdefault(answer.node_uuid, _KnownNode(peer_endpoint))
            known.version = max(known.version, answer.version)
            if not answer.version:
                # With TLS, only the listener for peers sees certificates, and gives operators and nodes the map.
                inner.add(peer_endpoint)
        if follow and (inner := inner - endpoints):
            maps |= yield from self._meet(inner, known_map, follow=False)
        return maps

    def _advance(self, base: pb.ClusterMap) -> Generator[Ask | Pause, Answers, pb.ClusterMap | None]:
        """Commit the version after `base`: one that another proposer has begun, or the edit's. Returns None if nothing
        changes."""
        old = {node.uuid for node in base.node}
        yield from self._teach(base, old)
        ballot = self._fresh_ballot(base)
        voters = {uuid for uuid in old if uuid in self._nodes and self._nodes[uuid].version >= base.version}
        promised, begun_by = yield from self._prepare_each(
            base, ballot, voters, lambda promised: 2 * len(promised) > len(old)
        )
        begun = begun_by.values()
        self._require_majority(promised, base, "promised")
        for map_ in begun:
            if map_.cluster_uuid != base.cluster_uuid or map_.version > base.version + 1:
                raise _Again("the map has moved on")
        undecided = [map_ for map_ in begun if map_.version == base.version + 1]
        new = pb.ClusterMap()
        if undecided:
            new.CopyFrom(max(undecided, key=lambda map_: ballot_order(map_.ballot)))
        else:
            new.CopyFrom(base)
            new.CopyFrom(self.edit(new))
            new.version = base.version
            new.ballot.CopyFrom(base.ballot)
            if new == base:
                return None
            check_map(new, base)
            new.version += 1
            new.change.append(self._change_id)
            del new.change[:-CHANGES_KEPT]
        added = [node for node in new.node if node.uuid not in old]
        promised |= yield from self._invite(added, base, ballot, required=not undecided)
        if not _is_majority(promised, new):
            # The prepare round ended with a majority of the base. Others of its nodes may be needed when nodes leave.
            rest, _ = yield from self._prepare_each(
                base, ballot, voters - promised, lambda rest: _is_majority(promised | rest, new)
            )
            promised |= rest
        self._require_majority(promised, new, "can be reached")
        new.ballot.CopyFrom(ballot)
        self._delta = new, delta_of(base, new)
        voters |= promised
        yield from self._accept_added(new, voters - old, voters & old)
        yield from self._accept(new, voters, [base, new])
        return new

    # -- a new cluster

    def _make(self) -> Steps:
        """Commit the first version, with the promises and votes of all given nodes."""
        if self._silent:
            raise NoMajority(
                "a cluster is made of nodes that all answer, and these do not: "
                + "; ".join(f"{endpoint} ({reason})" for endpoint, reason in sorted(self._silent.items())),
                sorted(self._silent),
            )
        given = set(self._nodes)
        ballot = self._fresh_ballot(None)
        promised, begun_by = yield from self._prepare_each(
            pb.ClusterMap(), ballot, given, lambda promised: promised == given
        )
        if promised != given:
            raise _Again("not all nodes have promised")
        new = half_made(begun_by, given)
        if new is None:
            new = pb.ClusterMap()
            new.CopyFrom(self.edit(None))
            if {node.uuid for node in new.node} != given:
                raise ValueError("a new cluster is made of exactly the nodes at the endpoints given")
            check_map(new, None)
            new.version = 1
            del new.change[:]
            new.change.append(self._change_id)
        new.ballot.CopyFrom(ballot)
        yield from self._accept(new, given, [new], everyone=True)
        return new

    # -- rounds

    def _fresh_ballot(self, base: pb.ClusterMap | None) -> pb.Ballot:
        self._highest_ballot = max(self._highest_ballot, base.ballot.number if base is not None else 0) + 1
        return pb.Ballot(number=self._highest_ballot, proposer=self.draw())

    def _prepare_each(
        self, base: pb.ClusterMap, ballot: pb.Ballot, voters: set[bytes], enough: Callable[[set[bytes]], bool]
    ) -> Generator[Ask | Pause, Answers, tuple[set[bytes], dict[bytes, pb.ClusterMap]]]:
        """Return the nodes that promised, and what they have accepted or learned that is newer than `base`. Raises
        _Again if outbid before `enough` is satisfied."""
        at = {self._nodes[uuid].endpoint: uuid for uuid in sorted(voters)}

        def promises(answers: Answers) -> set[bytes]:
            return {
                at[endpoint]
                for endpoint, answer in answers.items()
                if isinstance(answer, pb.PrepareResponse) and answer.promised
            }

        answers = yield Ask(
            {
                endpoint: pb.PrepareRequest(
                    cluster_uuid=base.cluster_uuid, ballot=ballot, node_uuid=uuid, known_version=base.version
                )
                for endpoint, uuid in at.items()
            },
            lambda answers: enough(promises(answers)),
        )
        promised = promises(answers)
        self._note(answers, ballot_order(ballot), decided=enough(promised))
        return promised, {
            at[endpoint]: answer.accepted
            for endpoint, answer in answers.items()
            if isinstance(answer, pb.PrepareResponse) and answer.promised and answer.HasField("accepted")
        }

    def _invite(
        self, added: Sequence[pb.MapNode], base: pb.ClusterMap, ballot: pb.Ballot, *, required: bool
    ) -> Generator[Ask | Pause, Answers, set[bytes]]:
        """Return the added nodes that can take part. Raises NoMajority if a `required` one cannot."""
        strangers = {node.peer_endpoint for node in added if node.uuid not in self._nodes}
        if strangers:
            for endpoint, map_ in (yield from self._meet(strangers)).items():
                if map_.cluster_uuid != base.cluster_uuid and required:
                    raise OtherCluster(f"{endpoint} belongs to cluster {map_.cluster_uuid.hex()} already")
                if required and any(node.uuid == self._met[endpoint] for node in map_.node):
                    raise OtherCluster(
                        f"{endpoint} was a node of this cluster by its map {map_.version}; empty its drives"
                    )
        here = {node.uuid for node in added} & set(self._nodes)
        # A node that was part of the cluster before must know what happened since, or it cannot accept.
        yield from self._teach(base, {uuid for uuid in here if self._nodes[uuid].version > 0})
        promised: set[bytes] = set()
        if here:
            promised, _ = yield from self._prepare_each(base, ballot, here, lambda promised: promised == here)
        if missing := [node.peer_endpoint for node in added if required and node.uuid not in promised]:
            reasons = (
                f"{endpoint} ({self._silent.get(endpoint, 'another node answers there')})" for endpoint in missing
            )
            raise NoMajority(f"a node that joins has to answer, and these do not: {'; '.join(reasons)}", missing)
        return promised

    def _accept_added(
        self, new: pb.ClusterMap, added: set[bytes], others: set[bytes]
    ) -> Generator[Ask | Pause, Answers, None]:
        """If a map needs votes of nodes that it adds, make those accept it before any other node does.

        Whatever nodes of the previous map have accepted must be finished before anything else. If an added node were
        lost at this moment, that could never happen: a single node extended to two could never change its map again.
        What the added nodes have accepted counts for nobody before they are in a map. Raises NoMajority and _Again,
        with nothing done.
        """
        nodes = {node.uuid for node in new.node}
        wanted = len(nodes) // 2 + 1 - len(others & nodes)
        if wanted <= 0:
            return
        at = {self._nodes[uuid].endpoint: uuid for uuid in sorted(added & nodes)}

        def accepted(answers: Answers) -> bool:
            found = (one for one in answers.values() if isinstance(one, pb.AcceptResponse) and one.accepted)
            return sum(1 for _ in found) >= wanted

        answers = yield Ask(
            {endpoint: pb.AcceptRequest(map=new, node_uuid=uuid) for endpoint, uuid in at.items()}, accepted
        )
        self._note(answers, ballot_order(new.ballot), decided=accepted(answers))
        if not accepted(answers):
            raise self._no_majority(new, "accepted the change")

    def _accept(
        self, new: pb.ClusterMap, voters: set[bytes], maps: Sequence[pb.ClusterMap], *, everyone: bool = False
    ) -> Generator[Ask | Pause, Answers, None]:
        """Return once `new` is committed: accepted by a majority of each of these maps' nodes. Raises _Again."""
        at = {self._nodes[uuid].endpoint: uuid for uuid in sorted(voters)}

        def committed(answers: Answers) -> bool:
            accepted = {
                at[endpoint]
                for endpoint, answer in answers.items()
                if isinstance(answer, pb.AcceptResponse) and answer.accepted
            }
            if everyone:
                return accepted == voters
            return all(_is_majority(accepted, map_) for map_ in maps)

        if self._change_id in new.change:
            self._unsure_version, self.maybe_made = self._unsure_version or new.version, True
        requests = {
            endpoint: pb.AcceptRequest(**self._field(new, self._nodes[uuid]), node_uuid=uuid)
            for endpoint, uuid in at.items()
        }
        answers = yield Ask(requests, committed)
        self._note(answers, ballot_order(new.ballot), decided=committed(answers))
        if not committed(answers):
            raise self._no_majority(maps[-1], "accepted the change")

    def _field(self, map_: pb.ClusterMap, node: _KnownNode) -> dict[str, Any]:
        """Return the field of a request that carries a map to this node: a delta, if it knows the map before."""
        proposed, delta = self._delta
        is_delta = map_ is proposed and node.version == delta.base_version and not self._is_whole
        return {"delta": delta} if is_delta else {"map": map_}

    def _teach(self, map_: pb.ClusterMap, uuids: set[bytes]) -> Generator[Ask | Pause, Answers, None]:
        """Send a committed map to those of these nodes that have answered so far and do not know it."""
        behind = {
            self._nodes[uuid].endpoint: self._nodes[uuid]
            for uuid in sorted(uuids)
            if uuid in self._nodes and self._nodes[uuid].version < map_.version
        }
        if behind:
            answers = yield Ask(
                {endpoint: pb.LearnRequest(**self._field(map_, node)) for endpoint, node in behind.items()}
            )
            for endpoint, answer in answers.items():
                if isinstance(answer, pb.LearnResponse):
                    behind[endpoint].version = answer.version
                elif isinstance(answer, NoAnswer):
                    self._silent[endpoint] = answer.reason

    def _note(self, answers: Answers, ballot: BallotOrder, *, decided: bool) -> None:
        """Record ballots and silent nodes. Raises _Again if another proposer was faster."""
        outbid = False
        for endpoint, answer in answers.items():
            if isinstance(answer, pb.PrepareResponse | pb.AcceptResponse):
                if answer.promise.number > self._highest_ballot + MAX_BALLOT_LEAD:
                    self._silent[endpoint] = f"it promised ballot {answer.promise.number}, which is nobody's"
                    continue
                self._highest_ballot = max(self._highest_ballot, answer.promise.number)
                said_no = not (answer.promised if isinstance(answer, pb.PrepareResponse) else answer.accepted)
                outbid = outbid or said_no
                self._is_whole |= said_no and isinstance(answer, pb.AcceptResponse)
            elif isinstance(answer, NoAnswer):
                self._silent[endpoint] = answer.reason
        if outbid and not decided:
            raise _Again("a higher ballot")

    def _require_majority(self, found: set[bytes], map_: pb.ClusterMap, done: str) -> None:
        if not _is_majority(found, map_):
            raise self._no_majority(map_, done)

    def _no_majority(self, map_: pb.ClusterMap, done: str) -> NoMajority:
        silent = {}
        for node in map_.node:
            endpoint = self._nodes[node.uuid].endpoint if node.uuid in self._nodes else node.peer_endpoint
            if node.uuid not in self._nodes or endpoint in self._silent:
                silent[endpoint] = self._silent.get(endpoint, "another node answers there")
        return NoMajority(
            f"fewer than a majority of the {len(map_.node)} nodes {done}; no answer from "
            + ("; ".join(f"{endpoint} ({reason})" for endpoint, reason in sorted(silent.items())) or "some in time"),
            sorted(silent),
        )


def _is_majority(found: set[bytes], map_: pb.ClusterMap) -> bool:
    return 2 * sum(node.uuid in found for node in map_.node) > len(map_.node)


def half_made(begun_by: Mapping[bytes, pb.ClusterMap], given: set[bytes]) -> pb.ClusterMap | None:
    """Return the cluster that another proposer has begun to create from these nodes and may have finished. Raises
    OtherCluster.

    Creating a cluster requires all its nodes. If one of the nodes asked has not accepted it, and has now promised a
    higher ballot, it can no longer be created.
    """
    for begun in begun_by.values():
        members = {node.uuid for node in begun.node}
        if begun.version == 1:
            if any(not _same_but_ballot(begun_by.get(uuid), begun) for uuid in members & given):
                continue
            if members == given:
                return begun
        raise OtherCluster(
            f"a node was asked to be part of cluster {begun.cluster_uuid.hex()} with nodes at "
            f"{', '.join(node.endpoint for node in begun.node)}, which may have been made; change that one's map, or "
            "begin with empty drives"
        )
    return None


def _same_but_ballot(one: pb.ClusterMap | None, other: pb.ClusterMap) -> bool:
    return one is not None and (one.cluster_uuid, one.version, list(one.change)) == (
        other.cluster_uuid,
        other.version,
        list(other.change),
    )


def check_map(new: pb.ClusterMap, base: pb.ClusterMap | None) -> None:
    """Raise ValueError if an edit has produced a map that no edit may produce."""
    ClusterView(new)
    if len(new.cluster_uuid) != 16 or (base is not None and new.cluster_uuid != base.cluster_uuid):
        raise ValueError("a cluster keeps the uuid of 16 bytes that it was made with")
    if not new.node:
        raise ValueError("a cluster needs at least one node")
    if base is not None and list(new.change) != list(base.change):
        raise ValueError("an edit leaves the list of changes alone")
