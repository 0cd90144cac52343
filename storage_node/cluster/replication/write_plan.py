"""Write plan: which nodes a write goes to, and what becomes of it, given what they have reported. Does no I/O.

A write goes to the first hosts in rendezvous order that answer (`ReplicaSet`, `ReplicaSelection`).

A put and a deletion, of one object or of many, are planned here and nowhere else. A `PendingWrite` collects the
reports: which nodes take part, the newest entries that they have, and whether an earlier attempt of the write is among
those. Whatever ends it before anything is changed is its result: an error, or what the earlier attempt has committed.
Otherwise `plan_write` chooses one version above all that was reported, and who commits it. The participants' answers
are recorded, and `conclude` turns them into the result.

Four rules decide:

- A write succeeds with `min_copies` commits, provided that every node that missed it has been told. Fewer commits
  never count as success, and never as failure either: the client has to repeat the write.
- Reports form a set. Their order does not matter, and the newest one is the current object.
- Every entry remembers the ids of the writes before it. A write whose id is remembered was committed, and is not
  committed again above what has replaced it.
- A condition holds for one version. The first owner commits before all others, and only if that version is still the
  newest; otherwise nobody commits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ais_loader.errors import (
    InvalidRequest,
    LoaderError,
    ObjectDenied,
    ObjectNotFound,
    SourceChanged,
    SourceUnreadable,
    WriteTooLate,
)
from ais_loader.wire.cluster_map import ClusterView, object_hashes
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Stored, info_of
from storage_node.context.errors import LeftBehind, ReplicaLost, TooFewCopies
from storage_node.store.drive.denied_names import denied_error
from storage_node.store.drive.preconditions import (
    UNCERTAINTY_NS,
    Condition,
    after,
    done_before,
    memory_of,
    took_part,
    undecided,
)
from storage_node.store.format import DENIAL_BIT, CatalogEntry, Version, epoch_of_deletion, is_allowing

_OF_THE_REQUEST = (InvalidRequest, ObjectDenied, SourceChanged, SourceUnreadable)
"""Errors that depend on the request alone, so that every node would return them."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A bucket of the map, and this node's position in it."""

    view: ClusterView
    bucket: cluster_pb.MapBucket
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

    def nobody_has(self, name: str, queried: Container[int]) -> bool:
        """Return whether the object surely does not exist, given that no node in `queried` has it.

        One owner is enough, since owners are told of all writes. While nodes join or leave, new owners may lack what
        the former ones have. Stand-ins are not told of writes, so they do not count.
        """
        if self.view.former is not None:
            return all(node in queried for node in self.view.concerned(self.bucket, [name])[0])
        return any(node in queried for node in self.view.sure_owners(self.bucket, name))

    def by(self, newest: ClusterView | None) -> tuple[ClusterView, cluster_pb.MapBucket]:
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
        chosen = (likely + unlikely)[:missing]
        self.tried.update(chosen)
        return chosen

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
        return TooFewCopies(f"{self._sentence(count)}; others may be changed already, trying again makes them equal")

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


NOTHING = Version(0, 0)
Result: TypeAlias = pb.ObjectInfo | LoaderError
"""The stored object, or the error that the client gets. A deletion returns what its tombstone says."""
Answer: TypeAlias = ReplicaLost | Version | None
"""A participant's answer to a commit: None if it has committed, or the version of another attempt of the same write
that it has instead."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A write that has to run: no node has committed it, or it is the current version but not on all owners."""

    before: tuple[CatalogEntry, ...]
    """The entries of the name on all nodes that have answered."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A version to commit, and who commits it."""

    version: Version
    modified_ns: int
    memory: bytes
    """The write ids to store in the new entry: its own, and those of the entries that it replaces."""
    commits: tuple[int, ...]
    """The nodes that commit. All other nodes that may have an older replica are invalidated before."""
    first: int | None = None
    """The node that commits before the others, and only if it has nothing newer than `not_above`."""
    not_above: Version = NOTHING
    known: Version | None = None
    """The newest version that an earlier attempt of this write is known to have committed."""


@dataclass(slots=True, eq=False)
class PendingWrite(ReplicaSelection):
    """One write of one name: what its replicas have reported, and what becomes of it."""

    is_deletion: bool = False
    condition: Condition | None = None
    """The client's condition on the current object, and the id of the write."""
    metadata: dict[str, str] = field(default_factory=dict)
    raw_metadata: bytes = b""
    """Metadata of the tombstones of a deletion that is to be uploaded to remote storage."""
    size_bytes: int = 0
    checksum: int = 0
    looked_s: float = 0.0
    """Start of the look-up of existing versions, by `clock_s`. A replica that may have missed a write since then
    refuses to commit."""
    seen: list[Version] = field(default_factory=list)
    """Versions of the name that nodes have reported."""
    before: list[CatalogEntry] = field(default_factory=list)
    """Entries of the name that nodes have reported, with the write ids that these contain."""
    found: dict[int, CatalogEntry | None] = field(default_factory=dict)
    """The entry of each node that was asked for it and has answered; None if it has none."""
    clock: int = 0
    known: Version | None = None
    not_above: Version | None = None
    """The version for which the condition was found to hold."""
    plan: WritePlan | None = None
    committed: list[int] = field(default_factory=list)
    """The nodes that have committed the plan's version."""
    overtaken_by: dict[int, Version] = field(default_factory=dict)
    """The participants that have another attempt's version instead, and which."""
    too_late: int = 0
    """Number of participants that did not commit because they may have missed another write since `looked_s`."""
    settled: Result | None = None
    """The result, once it is known."""

    @property
    def is_repeat(self) -> bool:
        return self.condition is not None and self.condition.began_ns > 0

    @property
    def is_conditional(self) -> bool:
        return self.condition is not None and not self.condition.is_empty

    @property
    def write_id(self) -> bytes:
        return self.condition.write_id if self.condition is not None else b""

    # -- reports

    def stage(
        self, node: int, size_bytes: int, checksum: int, newest: Version | None, before: CatalogEntry | None
    ) -> None:
        """Record a replica that has received the object's bytes, and what it has of the name."""
        self.taking.append(node)
        self.size_bytes, self.checksum = size_bytes, checksum
        self.seen += [newest] if newest is not None else []
        self.before += [before] if before is not None else []

    def report(self, node: int, entry: CatalogEntry | None) -> None:
        """Record what a node has of the name."""
        self.found[node] = entry
        if entry is not None:
            self.seen.append(entry.version)
            self.before.append(entry)

    # -- what ends a write before anything is changed

    def fail(self, error: LoaderError | None) -> None:
        """End the write with this error, if there is one and nothing else has ended it."""
        if self.settled is None:
            self.settled = error

    def settle(self, done: CatalogEntry) -> None:
        """End the write with what an earlier attempt has committed."""
        stored = Stored(done.size_bytes, str(done.version), done.checksum, done.modified_ns, self.metadata)
        self.settled = info_of(self.replica_set.bucket.name, self.name, stored)

    def check(self, fault: LoaderError | None, newest: ClusterView | None) -> None:
        """End a write that cannot begin, and a first attempt that a retry of the same write has overtaken.

        Args:
            fault: an error that was found elsewhere.
            newest: the newest map. If all participants have stopped being owners since the write began, their replicas
                may be about to be removed.
        """
        self.fail(fault or self.shortage() or self._outdated(newest))
        if self.settled is not None or self.is_repeat:
            return
        done = [earlier for before in self.before if (earlier := done_before(self.condition, before)) is not None]
        if len(done) >= self.replica_set.min_copies:
            self.settle(max(done, key=lambda earlier: earlier.version))
        elif done:
            self.fail(self.unfinished(0))

    def _outdated(self, newest: ClusterView | None) -> LoaderError | None:
        if newest is None or newest.version == self.replica_set.view.version:
            return None
        view, bucket = self.replica_set.by(newest)
        owners = {view.nodes[at].uuid for at in view.owners(bucket, self.name)}
        if owners.isdisjoint(self.replica_set.view.nodes[node].uuid for node in self.taking):
            return TooFewCopies(f"{self.label}: its owners have changed meanwhile; try again, nothing was changed")
        return None

    def resolve(self, outcome: CatalogEntry | LoaderError | Repeat) -> None:
        """Use what is known of earlier attempts; see `judged`."""
        if isinstance(outcome, LoaderError):
            self.fail(outcome)
        elif isinstance(outcome, Repeat):
            done = [past for entry in outcome.before if (past := done_before(self.condition, entry)) is not None]
            self.known = max((past.version for past in done), default=None)
            self.before += outcome.before
            self.seen += [entry.version for entry in outcome.before]
        else:
            self.settle(outcome)

    def decide(self, local: CatalogEntry | None, newest: CatalogEntry | None, clock: int) -> None:
        """Evaluate the condition on the current object: the entry of this node, and the newest one of any node."""
        assert self.condition is not None
        current = newest.version if newest is not None else NOTHING
        if newest is not None and newest.is_denied:
            self.fail(denied_error(self.label, newest))
            return
        done = done_before(self.condition, local) or done_before(self.condition, newest)
        if done is not None and done.version != current:
            self.settle(done)
        elif done is None and (fault := self.condition.fault(self.label, newest)) is not None:
            self.fail(fault)
        else:  # it holds, or an earlier attempt is current, perhaps on too few nodes
            self.not_above = current
            self.seen.append(current)
            self.clock = max(self.clock, clock)

    @property
    def is_of_nothing(self) -> bool:
        """Whether it is a deletion of an object that surely does not exist, by the map that it was begun with.

        A deletion that was done on some nodes finds its own tombstone, so the object did exist.
        """
        if not self.is_deletion or self.not_above is not None or self.raw_metadata:
            return False  # with metadata, there may be a remote object
        newest = max((entry for entry in self.found.values() if entry), key=_version, default=None)
        existed = newest is not None and not newest.is_tombstone
        existed |= any(done_before(self.condition, entry) is not None for entry in self.before)
        return not existed and self.replica_set.nobody_has(self.name, self.found)

    def fail_as_not_found(self, message: str) -> None:
        """End a deletion of nothing, if all owners say so.

        An owner that did not answer may have the object; it gets the tombstone when it is back. Then this is not
        `ObjectNotFound`: the tombstone also outranks whatever is put at this moment.
        """
        if all(node in self.found for node in self.owners):
            self.fail(ObjectNotFound(message))

    # -- the commits

    def record(self, node: int, answer: Answer) -> None:
        """Record the answer of a participant. Without the first owner of a condition, the write has ended."""
        assert self.plan is not None
        if answer is None:
            self.committed.append(node)
        elif isinstance(answer, ReplicaLost):
            is_late = isinstance(answer.refusal, WriteTooLate)
            self.too_late += is_late
            self.lose(answer)
            if node == self.plan.first:
                self.fail(self.unfinished(0) if is_late or answer.refusal is None else answer.refusal)
        else:
            self.overtaken_by[node] = answer

    @property
    def made(self) -> tuple[Version, Collection[int]]:
        """The version that exists by this write or by another attempt of it, and the nodes that are known to have it.
        Before the commits, it is the plan's version and no node."""
        assert self.plan is not None
        if self.overtaken_by and not self.committed:
            return max(self.overtaken_by.values()), self.overtaken_by
        return self.plan.version, self.committed

    def conclude(self, notified: bool) -> None:
        """Set the result. `notified`: whether each node that missed the write was told, or is no longer read from."""
        assert self.plan is not None
        count = sum(node in self.taking for node in self.committed)
        if self.overtaken_by:
            # Replicas of two attempts then have two versions, until an attempt that knows both repeats the write.
            enough = not self.committed and len(self.overtaken_by) >= self.replica_set.min_copies
            if enough and notified:
                self._succeed(self.made[0], 0)
            else:
                self.fail(self.unfinished(count))
        elif 0 < self.too_late == len(self.plan.commits):
            self.fail(WriteTooLate(f"{'; '.join(dict.fromkeys(self.problems))}; nothing was changed"))
        elif count < self.replica_set.min_copies or not notified:
            self.fail(self.unfinished(count))
        else:
            self._succeed(self.plan.version, self.plan.modified_ns)

    def _succeed(self, version: Version, modified_ns: int) -> None:
        if self.settled is None:
            stored = Stored(self.size_bytes, str(version), self.checksum, modified_ns, self.metadata)
            self.settled = info_of(self.replica_set.bucket.name, self.name, stored)


def plan_write(
    write: PendingWrite, clock: int, modified_ns: int, issue: Callable[[Sequence[Version], int], Version]
) -> WritePlan | LoaderError:
    """Choose the version and the participants of a write that nothing has ended; an error if it cannot run.

    Args:
        issue: returns a new version above these, with a counter above `clock`.
    """
    if (shortage := write.shortage()) is not None:
        return shortage
    local = write.replica_set.position
    if write.not_above is not None and local not in write.taking:
        return write.without_its_first_owner()
    # Former owners keep replicas until these have been moved. A deletion covers them as well.
    former = [node for node, entry in write.found.items() if entry is not None and node not in write.taking]
    version = issue(write.seen, clock)
    if version.epoch & DENIAL_BIT and not write.is_deletion:
        return denied_error(write.label, None)
    if is_allowing(write.raw_metadata) and not version.epoch & DENIAL_BIT:
        return ObjectNotFound(f"{write.label} is not denied")
    return WritePlan(
        version=version._replace(epoch=epoch_of_deletion(version.epoch, write.raw_metadata)),
        modified_ns=modified_ns,
        memory=after(write.before, memory_of(write.write_id, write.missing), modified_ns),
        commits=tuple(sorted([*write.taking, *(former if write.is_deletion else [])])),
        first=local if write.not_above is not None else None,
        not_above=write.not_above or NOTHING,
        known=write.known,
    )


def nonparticipants(
    newest: ClusterView | None, participants: Mapping[PendingWrite, Collection[int]]
) -> dict[tuple[bytes, str, tuple[str, bytes]], dict[str, Version]]:
    """Return the nodes that may have older replicas of these writes and do not take part, and the versions by name.

    They are the nodes that the newest map concerns: the writes may have begun under an older one. The keys are the uuid
    and endpoint of a node, and the name and uuid of a bucket.
    """
    missed: dict[tuple[bytes, str, tuple[str, bytes]], dict[str, Version]] = {}
    for replica_set, writes in by_replica_set(participants):
        view, bucket = replica_set.by(newest)
        concerned = view.concerned(bucket, [write.name for write in writes])
        for write, positions in zip(writes, concerned, strict=True):
            taking = {replica_set.view.nodes[node].uuid for node in participants[write]}
            for node in (view.nodes[at] for at in positions if view.nodes[at].uuid not in taking):
                names = missed.setdefault((node.uuid, node.peer_endpoint, (bucket.name, bucket.uuid)), {})
                names[write.name] = max(write.made[0], names.get(write.name, NOTHING))
    return missed


def short_writes(writes: Iterable[PendingWrite]) -> Iterable[tuple[ClusterView, int, cluster_pb.MapBucket, list[str]]]:
    """Return the objects that were committed on too few nodes, with one node that has them: see `OnShort`.

    This includes writes that are not acknowledged: their commits may be there all the same.
    """
    short: dict[tuple[int, int], tuple[ClusterView, int, cluster_pb.MapBucket, list[str]]] = {}
    for write in writes:
        if not write.is_deletion and 0 < len(write.committed) < len(write.owners):
            of = write.replica_set
            node = of.position if of.position in write.committed else write.committed[0]
            short.setdefault((id(of), node), (of.view, node, of.bucket, []))[3].append(write.name)
    return short.values()


def judged(
    label: str,
    condition: Condition,
    found: Mapping[int, CatalogEntry | None],
    silent: Mapping[int, str],
    owners: Collection[int],
) -> CatalogEntry | LoaderError | Repeat:
    """Decide the outcome of a write: the entry that it made if it must not run again, an error, or `Repeat`.

    Args:
        found: the entry of the name on each node that has answered, by the node's index; None if it has none.
        silent: why other nodes have not answered, by their numbers.
        owners: the owners' indices.
    """
    entries = [entry for entry in found.values() if entry is not None]
    newest = max(entries, key=_version, default=None)
    if newest is None:
        return Repeat(())
    done = [past for entry in entries if (past := done_before(condition, entry)) is not None]
    if done:
        last = max(done, key=_version)
        # A write that replaced it took no part in it, and did not know of it.
        is_replaced = last.version < newest.version or newest.write_id != condition.write_id
        is_everywhere = all(
            (entry := found.get(owner)) is not None and entry.version == last.version for owner in owners
        )
        return last if is_replaced or is_everywhere else Repeat(tuple(entries))
    for entry in entries:
        if (unknown := undecided(condition, label, entry)) is not None:
            return unknown
    # The newest entry lists the nodes that took part in its write. A silent node among them would have reported this
    # write. An object from before the first attempt may be replaced by it.
    is_old = newest.modified_ns + UNCERTAINTY_NS < condition.began_ns
    if not is_old and not all(took_part(newest.writes, node) for node in silent):
        return TooFewCopies(
            f"{label}: an earlier try of this write may have been done by a node that does not answer, and replaced "
            f"since ({'; '.join(silent.values())}); nothing was changed"
        )
    return Repeat(tuple(entries))


def _version(entry: CatalogEntry) -> Version:
    return entry.version


def by_replica_set(writes: Iterable[PendingWrite]) -> Iterable[tuple[ReplicaSet, list[PendingWrite]]]:
    found: dict[int, tuple[ReplicaSet, list[PendingWrite]]] = {}
    for write in writes:
        found.setdefault(id(write.replica_set), (write.replica_set, []))[1].append(write)
    return found.values()
