"""Commit protocol of replicated writes.

A write has three phases. The bytes are *staged*: every chosen replica receives them, verifies length and checksum, and
reports the newest version of the name that it has. Nothing is visible yet. Then the coordinator *chooses* one version
above all that it has heard of. Then every replica *commits*: one atomic catalog write per drive, which changes nothing
if the drive already has a newer version.

The steps of one call of `commit`, in this order:

1. Lease: pin the map version, so that no newer map is confirmed while the write is running.
2. Name locks: writes of one name that this node coordinates run one after another.
3. Repeats: if the client sent this write before, find out what became of that attempt.
4. Conditions: the first owner of the name evaluates `if_version` and `if_absent`.
5. Barrier: wait while a snapshot of the bucket is being cut.
6. Former owners: while objects move between nodes, ask those that may have a newer version.
7. Choose the version.
8. Invalidate: tell nodes that may hold an older replica and do not take part in the write. No replica
   commits before each of them has been told or has lost its read lease.
9. Commit conditional entries on this node. If its replica has changed since step 4, they end here.
10. Commit on all other replicas, and record which ones failed.
11. Invalidate the replicas that failed after they had staged the object.

The client is told of success when `min_copies` replicas have committed and every invalidation was delivered. Otherwise
it is told to retry.

If a replica dies before step 10, it is counted as lost. The write goes on if enough replicas remain. If it dies during
step 10, it has either the old object or the new one, and repair compares it with the others when it is back. If the
coordinator dies between two commits, some replicas have the new version and some the old one. Repair keeps the newer
one everywhere. The client got no answer and repeats the write under the same id; step 3 then finds the commit, so that
the write takes effect once. No file is visible under a name before its commit, so that a crash at any point leaves
whole objects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ais_loader.errors import InvalidRequest, LoaderError, WriteTooLate
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.object_info import Stored, info_of
from storage_node.cluster.errors import ReplicaLost, refused
from storage_node.cluster.replication.conditional import decide
from storage_node.cluster.replication.locks import NameLocks, SnapshotBarrier
from storage_node.cluster.replication.nonparticipants import (
    invalidate_after_commits,
    invalidate_nonparticipants,
    map_version,
    outdated,
)
from storage_node.cluster.replication.read_lease import clock_s, ms_since
from storage_node.cluster.replication.repeats import Repeat, resolve
from storage_node.cluster.replication.replica import from_state, from_wire, to_wire
from storage_node.cluster.replication.replica_set import ReplicaSelection, ReplicaSet
from storage_node.cluster.replication.replicas import Replicas, ReplicaStream, close_all, outcome
from storage_node.context.channels import STEP_TIMEOUT_S
from storage_node.store.drive.preconditions import Condition, done_before
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.write_memory import after, memory_of

OnShort: TypeAlias = Callable[[ClusterView, int, cluster_pb.MapBucket, Sequence[str]], Awaitable[None]]
"""Called with objects that were committed on fewer nodes than the bucket requires: the map, one node that has them, the
bucket, and the objects' names."""
Result: TypeAlias = pb.ObjectInfo | LoaderError
"""The stored object, or the error that the client gets."""


@dataclass(slots=True)
class PendingWrite(ReplicaSelection):
    """One object whose replicas are being written."""

    metadata: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    checksum: int = 0
    copies: list[tuple[ReplicaStream, int]] = field(default_factory=list)
    """The streams to the replicas that staged it, each with the object's position in that stream's group."""
    seen: list[Version] = field(default_factory=list)
    """Versions of the name that nodes have reported."""
    before: list[CatalogEntry] = field(default_factory=list)
    """Catalog entries of the name that nodes have reported, with the write ids that these contain."""
    clock: int = 0
    looked_s: float = field(default_factory=clock_s)
    """Start of the look-up of existing versions, by `clock_s`. A replica that may have missed a write since then
    refuses to commit."""
    known: Version | None = None
    """The newest version that an earlier attempt of this write is known to have committed."""
    too_late: int = 0
    """Number of replicas that did not commit because they may have missed another write since `looked_s`."""
    condition: Condition | None = None
    """The client's condition on the current object, and the id of the write."""
    not_above: Version | None = None
    """The version for which the condition was found to hold. The commit on this node fails if the node has a newer one
    by then."""
    settled: Result | None = None
    """The result, if it is known before the commit or without it."""

    def take(self, copy: ReplicaStream, place: int, answer: wire.WriteResponse | ReplicaLost) -> None:
        """Record a replica's answer to the end of the object's bytes."""
        if isinstance(answer, ReplicaLost):
            self.lose(answer)
            return
        one = answer.staged.object[place]
        if one.HasField("error"):
            self.lose(refused(self.replica_set.endpoint(copy.node), one.error))
            return
        try:
            newest = from_wire(one.newest) if one.HasField("newest") else None
            before = from_state(one.before)
        except InvalidRequest as error:
            self.lose(ReplicaLost(f"{self.replica_set.endpoint(copy.node)}: {error}"))
            return
        self.taking.append(copy.node)
        self.copies.append((copy, place))
        self.size_bytes, self.checksum = one.size_bytes, one.checksum
        self.clock = max(self.clock, answer.staged.clock)
        if newest is not None:
            self.seen.append(newest)
        if before is not None:
            self.before.append(before)

    def memory(self, modified_ns: int) -> bytes:
        """Encode the write ids to store in the new entry: its own, and those of the entries it replaces."""
        write_id = self.condition.write_id if self.condition is not None else b""
        return after(self.before, memory_of(write_id, self.missing), modified_ns)

    def settle_overtaken(self) -> None:
        """End a first attempt that a retry of the same write has overtaken. It changes nothing."""
        if self.condition is None or self.condition.began_ns:
            return
        done = [made for before in self.before if (made := done_before(self.condition, before)) is not None]
        if len(done) >= self.replica_set.min_copies:
            self.settle(max(done, key=lambda made: made.version))
        elif done:
            self.settled = self.unfinished(0)

    def settle(self, done: CatalogEntry) -> None:
        """Set the result to what an earlier attempt has committed."""
        stored = Stored(done.size_bytes, str(done.version), done.checksum, done.modified_ns, self.metadata)
        self.settled = info_of(self.replica_set.bucket.name, self.name, stored)


class CommitProtocol:
    """Commits staged objects on their replicas. Belongs to the node's event loop."""

    def __init__(self, nodes: Replicas) -> None:
        self._nodes = nodes
        self.names = NameLocks()
        """Held by every change of a name on this node, deletions included."""
        self.on_short: OnShort = _nobody
        self.barrier = SnapshotBarrier()
        self._running: set[asyncio.Future[Any]] = set()

    async def settle(self) -> None:
        """Wait for the commits in progress, for at most `STEP_TIMEOUT_S`. A commit on a drive has no deadline."""
        if self._running:
            await asyncio.wait(self._running, timeout=STEP_TIMEOUT_S)

    def track(self, step: asyncio.Future[Any]) -> None:
        """Make `settle` wait for this step."""
        self._running.add(step)
        step.add_done_callback(self._running.discard)

    async def commit(self, entries: Sequence[PendingWrite], copies: Sequence[ReplicaStream]) -> list[Result]:
        """Choose versions, commit on all replicas, and close all `copies`.

        Continues if the caller is cancelled: a client that disconnects is no reason to leave replicas that differ.

        Returns one result per entry, in order.
        """
        task = asyncio.ensure_future(self._commit_and_close(entries, copies))
        self.track(task)
        return await asyncio.shield(task)

    async def _commit_and_close(self, entries: Sequence[PendingWrite], copies: Sequence[ReplicaStream]) -> list[Result]:
        membership = self._nodes.node.membership
        version = min(entry.replica_set.view.version for entry in entries) if entries else 0
        if membership is not None:
            membership.lease.hold(version)
        try:
            async with self.names.hold((entry.replica_set.bucket.uuid, entry.name) for entry in entries):
                for entry, fault in zip(entries, self._nodes.clock_faults(entries), strict=True):
                    entry.settled = fault or entry.shortage() or outdated(self._nodes, entry)
                    if entry.settled is None:
                        entry.settle_overtaken()
                await self._resolve([entry for entry in entries if entry.settled is None])
                await self._decide([entry for entry in entries if entry.settled is None])
                going = [entry for entry in entries if entry.settled is None]
                async with self.barrier.passing(entry.replica_set.bucket.uuid for entry in going):
                    done = iter(await self._commit_all(going, copies) if going else [])
                ended = {id(entry) for entry in going}
                return [next(done) if id(entry) in ended else entry.settled or entry.unfinished(0) for entry in entries]
        finally:
            if membership is not None:
                membership.lease.end(version)
            await close_all(copies)

    async def _resolve(self, entries: Sequence[PendingWrite]) -> None:
        """Find the outcome of earlier attempts, and end the entries that need no new commit."""
        by_target: dict[int, list[tuple[PendingWrite, Condition]]] = {}
        for entry in entries:
            if entry.condition is not None and entry.condition.began_ns:
                by_target.setdefault(id(entry.replica_set), []).append((entry, entry.condition))
        for mine in by_target.values():
            wanted = [(entry.name, condition) for entry, condition in mine]
            for (entry, _), found in zip(mine, await resolve(self._nodes, mine[0][0].replica_set, wanted), strict=True):
                if isinstance(found, LoaderError):
                    entry.settled = found
                elif isinstance(found, Repeat):
                    tries = [done for before in found.before if (done := done_before(entry.condition, before))]
                    entry.known = max((done.version for done in tries), default=None)
                    entry.before += found.before
                    entry.seen += [before.version for before in found.before]
                else:
                    entry.settle(found)

    async def _decide(self, entries: Sequence[PendingWrite]) -> None:
        """Evaluate the conditions, and end the entries for which they do not hold."""
        by_target: dict[int, list[tuple[PendingWrite, Condition]]] = {}
        for entry in entries:
            if entry.condition is not None and not entry.condition.is_empty:
                by_target.setdefault(id(entry.replica_set), []).append((entry, entry.condition))
        for mine in by_target.values():
            replica_set = mine[0][0].replica_set
            wanted = [(entry.name, condition) for entry, condition in mine]
            for (entry, _), decided in zip(mine, await decide(self._nodes, replica_set, wanted), strict=True):
                if isinstance(decided, LoaderError):
                    entry.settled = decided
                elif decided.committed_earlier is not None:
                    entry.settle(decided.committed_earlier)
                elif replica_set.position not in entry.taking:
                    entry.settled = entry.without_its_first_owner()
                else:
                    entry.not_above = decided.there.version
                    entry.seen.append(decided.there.version)
                    entry.clock = max(entry.clock, decided.there.clock)

    async def _commit_here_first(
        self,
        entries: Sequence[PendingWrite],
        requests: dict[int, list[wire.CommitObject]],
        wall_ms: int,
        looked_s: float,
    ) -> dict[int, wire.WriteResponse | ReplicaLost]:
        """Commit conditional entries on this node before any other, and end those whose condition no longer holds.

        Returns the answers by `id` of the replica's stream. It is empty if no entry has a condition.
        """
        deciding = [entry for entry in entries if entry.not_above is not None]
        copies = {
            id(copy): copy for entry in deciding for copy, _ in entry.copies if copy.node == entry.replica_set.position
        }
        answers: dict[int, wire.WriteResponse | ReplicaLost] = {}
        for key, copy in copies.items():
            commit = wire.WriteCommit(object=requests[key], wall_ms=wall_ms, looked_ms=ms_since(looked_s))
            answers[key] = await outcome(copy.ask(wire.WriteRequest(commit=commit), STEP_TIMEOUT_S))
        for entry in deciding:
            for copy, place in entry.copies:
                if (answer := answers.get(id(copy))) is not None:
                    entry.settled = _refusal(entry, answer, place)
            if entry.settled is not None:
                for copy, place in entry.copies:
                    requests[id(copy)][place] = wire.CommitObject()
        return answers

    async def _commit_all(self, entries: Sequence[PendingWrite], copies: Sequence[ReplicaStream]) -> list[Result]:
        await self._ask_former(entries)
        try:
            versions = await self._nodes.node.read(self._choose, entries)
        except LoaderError as error:
            return [error for _ in entries]
        modified_ns = time.time_ns()
        requests = {id(copy): [wire.CommitObject() for _ in range(copy.objects)] for copy in copies}
        parts = {id(copy): copy for entry in entries for copy, _ in entry.copies}
        for entry, version in zip(entries, versions, strict=True):
            writes = entry.memory(modified_ns)
            for copy, place in entry.copies:
                one = wire.CommitObject(version=to_wire(version), modified_ns=modified_ns, writes=writes)
                if entry.known is not None:
                    one.known.CopyFrom(to_wire(entry.known))
                if entry.not_above is not None and copy.node == entry.replica_set.position:
                    one.not_above.CopyFrom(to_wire(entry.not_above))
                requests[id(copy)][place] = one
        by_map = map_version(self._nodes)
        taking, announced_s = [entry.taking for entry in entries], clock_s()
        if not await invalidate_nonparticipants(self._nodes, entries, versions, taking):
            return [entry.untold() for entry in entries]
        wall_ms = self._nodes.node.store.clock.wall_ms()
        looked_s = min(entry.looked_s for entry in entries)
        by_copy = await self._commit_here_first(entries, requests, wall_ms, looked_s)
        rest = {key: copy for key, copy in parts.items() if key not in by_copy}
        answers = await asyncio.gather(
            *(
                outcome(copy.ask(wire.WriteRequest(commit=commit), STEP_TIMEOUT_S))
                for copy, commit in (
                    (
                        copy,
                        wire.WriteCommit(object=requests[key], wall_ms=wall_ms, looked_ms=ms_since(looked_s)),
                    )
                    for key, copy in rest.items()
                )
            )
        )
        by_copy |= dict(zip(rest, answers, strict=True))
        for key, copy in parts.items():
            answer = by_copy[key]
            if not isinstance(answer, ReplicaLost):
                self._nodes.heard_of_map(entries[0].replica_set.endpoint(copy.node), answer.committed.map_version)
        done = [[] if entry.settled is not None else _committed(entry, by_copy) for entry in entries]
        self._report_short(entries, done)
        told = not any(done) or await invalidate_after_commits(
            self._nodes, entries, versions, done, by_map=by_map, announced_s=announced_s
        )
        return [
            entry.settled or _result(entry, version, modified_ns, len(there), told)
            for entry, version, there in zip(entries, versions, done, strict=True)
        ]

    def _report_short(self, entries: Sequence[PendingWrite], done: Sequence[Sequence[int]]) -> None:
        """Report objects on too few nodes. This includes writes that are not acknowledged: their commits may be there
        all the same."""
        short: dict[tuple[int, int], tuple[ReplicaSet, list[str]]] = {}
        for entry, there in zip(entries, done, strict=True):
            if there and len(there) < len(entry.owners):
                here = entry.replica_set.position
                node = here if here in there else there[0]
                short.setdefault((id(entry.replica_set), node), (entry.replica_set, []))[1].append(entry.name)
        for (_, node), (replica_set, names) in short.items():
            self.track(asyncio.ensure_future(self.on_short(replica_set.view, node, replica_set.bucket, names)))

    def _choose(self, entries: Sequence[PendingWrite]) -> list[Version]:
        store = self._nodes.node.store
        clock = max((entry.clock for entry in entries), default=0)
        membership = self._nodes.node.membership
        for entry in entries:
            entry.seen += store.replicas.announced(entry.replica_set.bucket.uuid, entry.name)
            if membership is not None and membership.view is not entry.replica_set.view:
                # The write began under an older map. If the newer map has committed this name earlier, that version
                # must not outrank this write.
                here = store.replicas.newest_entry(entry.replica_set.bucket.uuid, entry.name)
                entry.seen += [here.version] if here is not None else []
        return [store.replicas.next_version(entry.replica_set.number, entry.seen, clock) for entry in entries]

    async def _ask_former(self, entries: Sequence[PendingWrite]) -> None:
        """Ask former owners for their versions. While objects move, they may have newer ones than the owners."""
        asked: dict[tuple[int, int], list[PendingWrite]] = {}
        replica_sets: dict[int, ReplicaSet] = {}
        for entry in entries:
            for node in entry.replica_set.former(entry.name):
                if node not in entry.taking:
                    replica_sets[id(entry.replica_set)] = entry.replica_set
                    asked.setdefault((id(entry.replica_set), node), []).append(entry)

        async def ask(replica_set: ReplicaSet, node: int, mine: Sequence[PendingWrite]) -> None:
            answer = await outcome(self._nodes.newest(replica_set, node, [entry.name for entry in mine]))
            if not isinstance(answer, ReplicaLost):
                for entry, found in zip(mine, answer.object, strict=True):
                    entry.clock = max(entry.clock, answer.clock)
                    if (before := from_state(found)) is not None:
                        entry.seen.append(before.version)
                        entry.before.append(before)

        await asyncio.gather(*(ask(replica_sets[key], node, mine) for (key, node), mine in asked.items()))


async def _nobody(view: ClusterView, node: int, bucket: cluster_pb.MapBucket, names: Sequence[str]) -> None:
    """Ignore the report; the default until repair listens."""


def _committed(entry: PendingWrite, answers: dict[int, wire.WriteResponse | ReplicaLost]) -> list[int]:
    """Return the nodes that have committed this version."""
    committed: list[int] = []
    others: list[Version] = []
    for copy, place in entry.copies:
        answer = answers[id(copy)]
        if isinstance(answer, ReplicaLost):
            entry.lose(answer)
        elif answer.committed.object[place].HasField("error"):
            lost = refused(entry.replica_set.endpoint(copy.node), answer.committed.object[place].error)
            entry.too_late += isinstance(lost.refusal, WriteTooLate)
            entry.lose(lost)
        else:
            one = answer.committed.object[place]
            if one.superseded:
                others.append(Version(one.version.epoch, one.version.counter, one.version.node))
            else:
                committed.append(copy.node)
    if others:
        # Replicas of two attempts then have two versions, until an attempt that knows both repeats the write.
        enough = not committed and len(others) >= entry.replica_set.min_copies
        entry.settled = _stored(entry, max(others), 0) if enough else entry.unfinished(len(committed))
    return committed


def _refusal(entry: PendingWrite, answer: wire.WriteResponse | ReplicaLost, place: int) -> LoaderError | None:
    """Return the reason why this node did not commit an entry; None if it did."""
    if isinstance(answer, ReplicaLost):
        return answer.refusal or entry.unfinished(0)
    one = answer.committed.object[place]
    if not one.HasField("error"):
        return None
    refusal = refused(entry.replica_set.endpoint(entry.replica_set.position), one.error).refusal
    return entry.unfinished(0) if isinstance(refusal, WriteTooLate) else refusal


def _result(entry: PendingWrite, version: Version, modified_ns: int, committed: int, told: bool) -> Result:
    """Return success if at least `min_copies` nodes have committed and every invalidation was delivered."""
    if 0 < entry.too_late == len(entry.copies):
        return WriteTooLate(f"{'; '.join(dict.fromkeys(entry.problems))}; nothing was changed")
    if committed < entry.replica_set.min_copies or not told:
        return entry.unfinished(committed)
    return _stored(entry, version, modified_ns)


def _stored(entry: PendingWrite, version: Version, modified_ns: int) -> pb.ObjectInfo:
    stored = Stored(entry.size_bytes, str(version), entry.checksum, modified_ns, entry.metadata)
    return info_of(entry.replica_set.bucket.name, entry.name, stored)
