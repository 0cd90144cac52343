"""Replica selection: the copies of a write go to the first hosts in rendezvous order that answer. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from ais_loader.errors import InvalidRequest, LoaderError, SourceChanged, SourceUnreadable
from ais_loader.wire.cluster_map import ClusterView, object_hashes
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.errors import TooFewCopies, Unfinished
from storage_node.cluster.replication.replica_stream import ReplicaLost

_OF_THE_REQUEST = (InvalidRequest, SourceChanged, SourceUnreadable)
"""What any node would say of the same request."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A bucket of the map, and this node's part in it."""

    view: ClusterView
    bucket: pb.MapBucket
    position: int
    """Of this node in the map."""

    @property
    def number(self) -> int:
        return self.view.nodes[self.position].number

    @property
    def min_copies(self) -> int:
        return max(1, min(self.bucket.min_copies, self.bucket.copies))

    def rankings(self, names: Sequence[str]) -> list[list[int]]:
        """For each name one node of each host, best first: its owners, then those that take an owner's place."""
        placement = self.view.placement
        found: list[list[int]] = placement.owners(object_hashes(self.bucket.uuid, names), placement.hosts).tolist()
        return found

    def former(self, name: str) -> list[int]:
        """Nodes that may still have the object from before the nodes that are joining or leaving began to, or from
        before the number of copies was lowered."""
        if self.view.former is None and not self.bucket.former_copies:
            return []
        owners = set(self.view.owners(self.bucket, name))
        return [node for node in self.view.concerned(self.bucket, [name])[0] if node not in owners]

    def nobody_has(self, name: str, asked: Container[int]) -> bool:
        """Whether it is sure that there is no such object, as none of the nodes that were asked has one.

        One owner is enough: it has been told of all writes. While nodes join or leave the new ones may lack what the
        former ones have. Of nodes that only stand in, nobody has told any what there is.
        """
        if self.view.former is not None:
            return all(node in asked for node in self.view.concerned(self.bucket, [name])[0])
        return any(node in asked for node in self.view.sure_owners(self.bucket, name))

    def endpoint(self, node: int) -> str:
        return self.view.nodes[node].peer_endpoint

    def left_behind(self, name: str) -> LoaderError:
        """What is wrong with saying by this map what there is of a name, or is not, when there is a newer one."""
        return TooFewCopies(
            f"{self.bucket.name}/{name}: there is a newer map than {self.view.version}, by which other nodes may have "
            "it; try again, nothing was changed"
        )


@dataclass(slots=True)
class ReplicaSelection:
    """The nodes that may take part in one write, and what came of asking them."""

    replica_set: ReplicaSet
    name: str
    ranking: list[int]
    """One node of each host, best first."""
    taking: list[int] = field(default_factory=list)
    """Those that take part."""
    tried: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    fault: LoaderError | None = None
    """What any node would have against the request."""
    refusal: LoaderError | None = None
    """What a node that answered had against taking part."""
    unreachable: bool = False

    def next_nodes(self, avoided: Callable[[int], bool]) -> list[int]:
        """Who is to be asked now; empty when enough take part, or nobody is left. They count as tried from now on.

        Nodes that failed a moment ago are passed over, unless there would be too few without them.
        """
        if self.fault is not None:
            return []
        left = [node for node in self.ranking if node not in self.tried]
        likely = [node for node in left if not avoided(node)]
        short = self.replica_set.min_copies - len(self.taking) - len(likely)
        unlikely = [node for node in left if avoided(node)][: max(0, short)]
        missing = max(0, self.replica_set.bucket.copies - len(self.taking))
        asked = (likely + unlikely)[:missing]
        self.tried.update(asked)
        return asked

    @property
    def owners(self) -> list[int]:
        """Those whom it belongs to, whether they answer or not."""
        return self.ranking[: self.replica_set.bucket.copies]

    @property
    def missing(self) -> list[int] | None:
        """The numbers of the owners that take no part; None while objects move, when others may have older ones."""
        view = self.replica_set.view
        if view.former is not None:
            return None
        return [view.nodes[owner].number for owner in self.owners if owner not in self.taking]

    def lose(self, problem: ReplicaLost) -> None:
        """A node takes no part, or not any more."""
        self.problems.append(str(problem))
        self.unreachable |= problem.refusal is None
        self.refusal = self.refusal or problem.refusal
        if problem.refusal is not None and isinstance(problem.refusal, _OF_THE_REQUEST):
            self.fault = self.fault or problem.refusal

    def shortage(self) -> LoaderError | None:
        """Why the write cannot go on; None when it can."""
        if self.fault is not None or len(self.taking) >= self.replica_set.min_copies:
            return self.fault
        message = f"{self._sentence(len(self.taking))}; nothing was changed"
        if self.refusal is not None and not self.unreachable:
            return type(self.refusal)(message)
        return TooFewCopies(message)

    def without_its_first_owner(self) -> LoaderError:
        """Why a write on a condition cannot go on, which this node decides about and has no part in."""
        kind = type(self.refusal) if self.refusal is not None else TooFewCopies
        why = "; ".join(dict.fromkeys(self.problems))
        return kind(f"{self.replica_set.bucket.name}/{self.name}: its first owner cannot take it now ({why})")

    def unfinished(self, count: int) -> LoaderError:
        """What a client is told when too few nodes of those that took part have said that they are done."""
        return Unfinished(f"{self._sentence(count)}; others may be changed already, trying again makes them equal")

    def untold(self) -> LoaderError:
        """Why a write is not begun, of which a node cannot be told that may be read from."""
        label = f"{self.replica_set.bucket.name}/{self.name}"
        return TooFewCopies(
            f"{label}: a node that has an older copy cannot be told of the write, and too few others answer to be sure "
            "that nobody reads from it; nothing was changed"
        )

    def _sentence(self, count: int) -> str:
        why = "; ".join(dict.fromkeys(self.problems)) or "the map has no more hosts"
        label = f"{self.replica_set.bucket.name}/{self.name}"
        return f"{label}: {count} copies can be written now, {self.replica_set.min_copies} at least are needed ({why})"

    def require(self) -> None:
        """Raises LoaderError when the write cannot go on."""
        shortage = self.shortage()
        if shortage is not None:
            raise shortage
