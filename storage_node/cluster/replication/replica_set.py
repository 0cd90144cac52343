"""Replica selection: a write goes to the first hosts in rendezvous order that answer. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from ais_loader.errors import InvalidRequest, LoaderError, SourceChanged, SourceUnreadable
from ais_loader.wire.cluster_map import ClusterView, object_hashes
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.context.errors import LeftBehind, ReplicaLost, TooFewCopies, Unfinished

_OF_THE_REQUEST = (InvalidRequest, SourceChanged, SourceUnreadable)
"""Errors that depend on the request alone, so that every node would return them."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A bucket of the map, and this node's position in it."""

    view: ClusterView
    bucket: pb.MapBucket
    position: int
    """This node's index in the map."""

    @property
    def number(self) -> int:
        return self.view.nodes[self.position].number

    @property
    def min_copies(self) -> int:
        return max(1, min(self.bucket.min_copies, self.bucket.copies))

    def rankings(self, names: Sequence[str]) -> list[list[int]]:
        """Return one node per host for each name, best first: its owners, then the nodes that stand in for them."""
        placement = self.view.placement
        found: list[list[int]] = placement.owners(object_hashes(self.bucket.uuid, names), placement.hosts).tolist()
        return found

    def former(self, name: str) -> list[int]:
        """Return nodes that may still have the object from an earlier map, or from before the number of copies was
        lowered."""
        if self.view.former is None and not self.bucket.former_copies:
            return []
        owners = set(self.view.owners(self.bucket, name))
        return [node for node in self.view.concerned(self.bucket, [name])[0] if node not in owners]

    def nobody_has(self, name: str, asked: Container[int]) -> bool:
        """Return whether the object surely does not exist, given that no node in `asked` has it.

        One owner is enough, since owners are told of all writes. While nodes join or leave, new owners may lack what
        the former ones have. Stand-ins are not told of writes, so they do not count.
        """
        if self.view.former is not None:
            return all(node in asked for node in self.view.concerned(self.bucket, [name])[0])
        return any(node in asked for node in self.view.sure_owners(self.bucket, name))

    def by(self, newest: ClusterView | None) -> tuple[ClusterView, pb.MapBucket]:
        """Return the newest map and its bucket, if this bucket is still in it; else this map and this bucket."""
        bucket = newest.buckets.get(self.bucket.name) if newest is not None else None
        if newest is None or bucket is None or bucket.uuid != self.bucket.uuid:
            return self.view, self.bucket
        return newest, bucket

    def endpoint(self, node: int) -> str:
        return self.view.nodes[node].peer_endpoint

    def is_owner(self, name: str) -> bool:
        """Return whether this node should have a replica, unless another node has to stand in."""
        return self.position in self.rankings([name])[0][: self.bucket.copies]

    def left_behind(self, name: str) -> LoaderError:
        """Return the error for an answer by this map when there is a newer one."""
        return LeftBehind(
            f"{self.bucket.name}/{name}: there is a newer map than {self.view.version}, by which other nodes may have "
            "it; try again, nothing was changed"
        )


@dataclass(slots=True, eq=False)
class ReplicaSelection:
    """The nodes that may take part in one write, and the outcome of asking them."""

    replica_set: ReplicaSet
    name: str
    ranking: list[int]
    """One node per host, best first."""
    taking: list[int] = field(default_factory=list)
    """Nodes that take part."""
    tried: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    fault: LoaderError | None = None
    """An error that every node would return for this request."""
    refusal: LoaderError | None = None
    """The reason of a node that answered and refused."""
    unreachable: bool = False

    def next_nodes(self, avoided: Callable[[int], bool]) -> list[int]:
        """Return the nodes to ask next; empty if enough take part or no node is left. They count as tried.

        Nodes that failed a moment ago are skipped, unless too few would remain.
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
    def label(self) -> str:
        return f"{self.replica_set.bucket.name}/{self.name}"

    @property
    def owners(self) -> list[int]:
        """The owners, whether they answer or not."""
        return self.ranking[: self.replica_set.bucket.copies]

    @property
    def missing(self) -> list[int] | None:
        """The numbers of the owners that take no part; None while objects move, since other nodes may then have older
        replicas."""
        view = self.replica_set.view
        if view.former is not None:
            return None
        return [view.nodes[owner].number for owner in self.owners if owner not in self.taking]

    def lose(self, problem: ReplicaLost) -> None:
        """Record that a node takes no part, or no longer."""
        self.problems.append(str(problem))
        self.unreachable |= problem.refusal is None
        self.refusal = self.refusal or problem.refusal
        if problem.refusal is not None and isinstance(problem.refusal, _OF_THE_REQUEST):
            self.fault = self.fault or problem.refusal

    def shortage(self) -> LoaderError | None:
        """Return the error that stops the write; None if it can go on."""
        if self.fault is not None or len(self.taking) >= self.replica_set.min_copies:
            return self.fault
        message = f"{self._sentence(len(self.taking))}; nothing was changed"
        if self.refusal is not None and not self.unreachable:
            return type(self.refusal)(message)
        return TooFewCopies(message)

    def without_its_first_owner(self) -> LoaderError:
        """Return the error for a conditional write in which this node, the first owner, cannot take part."""
        kind = type(self.refusal) if self.refusal is not None else TooFewCopies
        why = "; ".join(dict.fromkeys(self.problems))
        return kind(f"{self.label}: its first owner cannot take it now ({why})")

    def unfinished(self, count: int) -> LoaderError:
        """Return the error for a write that too few participants have confirmed."""
        return Unfinished(f"{self._sentence(count)}; others may be changed already, trying again makes them equal")

    def untold(self) -> LoaderError:
        """Return the error for a write that is not begun, because a readable node cannot be told of it."""
        return TooFewCopies(
            f"{self.label}: a node that has an older copy cannot be told of the write, and too few others answer to be "
            "sure that nobody reads from it; nothing was changed"
        )

    def _sentence(self, count: int) -> str:
        why = "; ".join(dict.fromkeys(self.problems)) or "the map has no more hosts"
        needed = self.replica_set.min_copies
        return f"{self.label}: {count} copies can be written now, {needed} at least are needed ({why})"

    def require(self) -> None:
        """Raise a LoaderError if the write cannot go on."""
        shortage = self.shortage()
        if shortage is not None:
            raise shortage
