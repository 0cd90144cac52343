"""Bulk deletion: many objects with one query and one order to each node.

Each name has its own versions, replicas and result, as in a single deletion. Each node is asked once for its entries of
all names that concern it, and is then told once to write all its tombstones. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ais_loader.errors import BucketNotFound, DriveFailed, InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.wire.generated import ais_contents_pb2 as contents
from ais_loader.wire.generated import ais_contents_pb2_grpc
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.errors import ReplicaLost, TooFewCopies, refused
from storage_node.cluster.replication.commit import CommitProtocol
from storage_node.cluster.replication.nonparticipants import (
    invalidate_after_commits,
    invalidate_nonparticipants,
    invalidate_one,
    map_version,
)
from storage_node.cluster.replication.read_lease import clock_s, ms_since
from storage_node.cluster.replication.repeats import Repeat, done_by, resolve
from storage_node.cluster.replication.replica import (
    error_to_wire,
    from_state,
    from_wire,
    late_fault,
    require_bucket,
    to_wire,
)
from storage_node.cluster.replication.replica_set import ReplicaSelection, ReplicaSet
from storage_node.cluster.replication.replicas import Replicas, outcome
from storage_node.context.channels import STEP_TIMEOUT_S
from storage_node.store.drive.preconditions import Condition
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.names import object_name_fault
from storage_node.store.replica_state import not_found_message
from storage_node.store.store import Store
from storage_node.store.write_memory import after, checked, memory_of

AT_ONCE = 1000
"""Most names in one message to a node."""
_MOST_MAPS = 5
"""Most map changes during the query phase before a deletion gives up."""


@dataclass(slots=True)
class _Deletion(ReplicaSelection):
    """One object that is being deleted."""

    found: dict[int, wire.ObjectState] = field(default_factory=dict)
    """The answer of each node that was asked for its entry and replied."""
    before: tuple[CatalogEntry, ...] = ()
    """Entries reported when the outcome of an earlier attempt was looked up."""
    clock: int = 0
    looked_s: float = field(default_factory=clock_s)
    deleted_on: list[int] = field(default_factory=list)
    """Nodes that have committed the tombstone."""
    _decoded: dict[int, CatalogEntry | None] = field(default_factory=dict)

    @property
    def seen(self) -> list[Version]:
        return [entry.version for entry in self._entries]

    @property
    def _found(self) -> list[CatalogEntry]:
        """The decoded entries of `found`; each answer is decoded once. Raises InvalidRequest."""
        if len(self._decoded) != len(self.found):
            self._decoded = {node: from_state(state) for node, state in self.found.items()}
        return [entry for entry in self._decoded.values() if entry is not None]

    @property
    def _entries(self) -> list[CatalogEntry]:
        return [*self.before, *self._found]

    def memory(self, write_id: bytes, now_ns: int) -> bytes:
        """Encode the write ids to store in the tombstone."""
        return after(self._entries, memory_of(write_id, self.missing), now_ns)

    def existed(self, write_id: bytes) -> bool:
        newest = max(self._found, key=lambda entry: entry[:3], default=None)
        return (newest is not None and not newest.is_tombstone) or done_by(write_id, self._entries)

    def is_overtaken(self, write_id: bytes) -> bool:
        """Return whether a retry of this first attempt has been committed before it."""
        return done_by(write_id, self._entries)

    @property
    def having(self) -> list[int]:
        """Nodes that need a tombstone."""
        return [node for node, state in self.found.items() if node in self.taking or state.HasField("version")]

    @property
    def rest(self) -> list[int]:
        """Former owners that have nothing to delete."""
        return [node for node in self.found if node not in self.having]


class _LeftBehind(Exception):
    """The map has changed since the nodes were asked. Nothing has been changed."""


class Deletions:
    def __init__(self, nodes: Replicas, commits: CommitProtocol, newest: Callable[[str], ReplicaSet | None]) -> None:
        """`newest` returns the replica set of a bucket by the newest map of this node; it raises TooFewCopies."""
        self._nodes = nodes
        self._commits = commits
        self._newest = newest

    async def delete(
        self, replica_set: ReplicaSet, names: Sequence[str], condition: Condition
    ) -> list[LoaderError | None]:
        """Write tombstones on all owners. Returns None or the error for each name, in order.

        A repeated name finds no object the second time. `condition` has the id of the write.
        """
        different = [name for name in dict.fromkeys(names) if not object_name_fault(name)]
        done: dict[str, LoaderError | None] = {}
        for first in range(0, len(different), AT_ONCE):
            group = different[first : first + AT_ONCE]
            async with self._commits.names.hold((replica_set.bucket.uuid, name) for name in group):
                done.update(zip(group, await self._delete_by_newest(replica_set, group, condition), strict=True))
        missing = {name: ObjectNotFound(not_found_message(replica_set.bucket.name, name)) for name in set(names)}
        return [done.pop(name, missing[name]) for name in names]

    async def _delete_by_newest(
        self, replica_set: ReplicaSet, names: Sequence[str], condition: Condition
    ) -> list[LoaderError | None]:
        for _ in range(_MOST_MAPS):
            try:
                return await self._delete(replica_set, names, condition)
            except _LeftBehind:
                try:
                    newest = self._newest(replica_set.bucket.name)
                except TooFewCopies as error:
                    return [error] * len(names)
                if newest is None or newest.bucket.uuid != replica_set.bucket.uuid:
                    gone = BucketNotFound(f"bucket {replica_set.bucket.name!r} has been deleted meanwhile")
                    return [gone] * len(names)
                replica_set = newest
        return [replica_set.left_behind(name) for name in names]

    async def _delete(
        self, replica_set: ReplicaSet, names: Sequence[str], condition: Condition
    ) -> list[LoaderError | None]:
        """Delete by one map. Raises _LeftBehind if it has changed."""
        settled: dict[str, LoaderError | None] = {}
        before: dict[str, tuple[CatalogEntry, ...]] = {}
        if condition.began_ns:
            earlier = await resolve(self._nodes, replica_set, [(name, condition) for name in names])
            if await self._nodes.has_changed(replica_set):
                raise _LeftBehind
            for name, found in zip(names, earlier, strict=True):
                if isinstance(found, Repeat):
                    before[name] = found.before
                else:
                    settled[name] = found if isinstance(found, LoaderError) else None
        left = [name for name in names if name not in settled]
        rankings = replica_set.rankings(left)
        entries = [
            _Deletion(replica_set, name, ranking, before=before.get(name, ()))
            for name, ranking in zip(left, rankings, strict=True)
        ]
        while await self._ask_round(replica_set, entries):
            pass  # names with too few answers are asked of the next nodes
        faults = self._nodes.clock_faults(entries)
        results: dict[str, LoaderError | None] = settled | {
            entry.name: entry.shortage() or fault for entry, fault in zip(entries, faults, strict=True)
        }
        for entry in entries:
            if results[entry.name] is None and not condition.began_ns and entry.is_overtaken(condition.write_id):
                results[entry.name] = entry.unfinished(0)
        going = [entry for entry in entries if results[entry.name] is None]
        former: dict[int, list[_Deletion]] = {}
        for entry in going:
            for node in replica_set.former(entry.name):
                if node not in entry.found:
                    former.setdefault(node, []).append(entry)
        await asyncio.gather(*(self._ask(replica_set, node, mine) for node, mine in former.items()))
        absent = [
            entry
            for entry in going
            if not entry.existed(condition.write_id) and replica_set.nobody_has(entry.name, entry.found)
        ]
        if absent and await self._nodes.has_changed(replica_set):
            raise _LeftBehind
        for entry in absent:
            if all(node in entry.found for node in entry.owners):
                results[entry.name] = ObjectNotFound(not_found_message(replica_set.bucket.name, entry.name))
        # A node that did not answer may have the object; it gets the tombstone when it is back. This is not
        # `ObjectNotFound`: the tombstone also outranks whatever is put at this moment.
        to_delete = [entry for entry in going if results[entry.name] is None]
        if to_delete:
            results.update(await self._leave_tombstones(replica_set, to_delete, condition.write_id))
        return [results[name] for name in names]

    async def _ask_round(self, replica_set: ReplicaSet, entries: Sequence[_Deletion]) -> bool:
        """Ask the next nodes for every entry that has too few answers; False if there was nothing to ask."""
        wanted: dict[int, list[_Deletion]] = {}
        avoided = self._nodes.avoided(replica_set)
        for entry in entries:
            for node in entry.next_nodes(avoided):
                wanted.setdefault(node, []).append(entry)
        await asyncio.gather(*(self._ask(replica_set, node, mine, taking=True) for node, mine in wanted.items()))
        return bool(wanted)

    async def _ask(
        self, replica_set: ReplicaSet, node: int, entries: Sequence[_Deletion], *, taking: bool = False
    ) -> None:
        answer = await outcome(
            self._nodes.newest(replica_set, node, [entry.name for entry in entries], allow_unknown=True)
        )
        for row, entry in enumerate(entries):
            if isinstance(answer, ReplicaLost):
                entry.lose(answer)
            elif answer.object[row].unknown:
                entry.lose(
                    refused(replica_set.endpoint(node), error_to_wire(DriveFailed("the drive of this name fails")))
                )
            else:
                entry.found[node], entry.clock = answer.object[row], max(entry.clock, answer.clock)
                if taking:
                    entry.taking.append(node)

    async def _leave_tombstones(
        self, replica_set: ReplicaSet, entries: Sequence[_Deletion], write_id: bytes
    ) -> dict[str, LoaderError | None]:
        membership = self._nodes.node.membership
        if membership is not None:
            membership.lease.hold(replica_set.view.version)
        writing = asyncio.ensure_future(self._choose_and_write(replica_set, entries, write_id))
        if membership is not None:
            writing.add_done_callback(lambda _: membership.lease.end(replica_set.view.version))
        self._commits.track(writing)
        try:
            told = await asyncio.shield(writing)
        except LoaderError as error:
            return {entry.name: error for entry in entries}
        results: dict[str, LoaderError | None] = {}
        for entry in entries:
            count = sum(node in entry.taking for node in entry.deleted_on)
            results[entry.name] = None if told and count >= replica_set.min_copies else entry.unfinished(count)
        return results

    async def _choose_and_write(self, replica_set: ReplicaSet, entries: Sequence[_Deletion], write_id: bytes) -> bool:
        """Choose versions and write; return whether every invalidation was delivered. Raises LoaderError, with nothing
        changed."""
        async with self._commits.barrier.passing([replica_set.bucket.uuid]):
            versions = await self._nodes.node.read(self._choose, replica_set, entries)
            return await self._write_all(replica_set, entries, versions, write_id)

    def _choose(self, replica_set: ReplicaSet, entries: Sequence[_Deletion]) -> list[Version]:
        store = self._nodes.node.store
        clock = max((entry.clock for entry in entries), default=0)
        announced, uuid = store.replicas.announced, replica_set.bucket.uuid
        return [
            store.replicas.next_version(replica_set.number, [*entry.seen, *announced(uuid, entry.name)], clock)
            for entry in entries
        ]

    async def _write_all(
        self, replica_set: ReplicaSet, entries: Sequence[_Deletion], versions: Sequence[Version], write_id: bytes
    ) -> bool:
        """Write all tombstones; return whether every invalidation was delivered."""
        now_ns = time.time_ns()
        memories = [entry.memory(write_id, now_ns) for entry in entries]
        by_map, announced_s = map_version(self._nodes), clock_s()
        tombstones: dict[int, list[int]] = {}
        missed: dict[int, dict[str, Version]] = {}
        for row, entry in enumerate(entries):
            for node in entry.having:
                tombstones.setdefault(node, []).append(row)
            for node in entry.rest:
                missed.setdefault(node, {})[entry.name] = versions[row]

        async def write_on(node: int, rows: Sequence[int]) -> None:
            mine = {entries[row].name: (versions[row], memories[row]) for row in rows}
            looked_s = min(entries[row].looked_s for row in rows)
            found = await outcome(self._write_on(replica_set, node, mine, looked_s))
            for row, problem in zip(rows, found if isinstance(found, list) else [found] * len(rows), strict=True):
                if problem is None:
                    entries[row].deleted_on.append(node)
                else:
                    entries[row].lose(problem)

        heard, _ = await asyncio.gather(
            asyncio.gather(
                invalidate_nonparticipants(self._nodes, entries, versions, [list(entry.found) for entry in entries]),
                *(invalidate_one(self._nodes, replica_set, node, names) for node, names in missed.items()),
            ),
            asyncio.gather(*(write_on(node, rows) for node, rows in tombstones.items())),
        )
        lost = [
            ReplicaSelection(replica_set, entry.name, entry.ranking, taking=[*entry.having, *entry.rest])
            for entry in entries
        ]
        there = [[*entry.deleted_on, *entry.rest] if entry.deleted_on else [] for entry in entries]
        if not any(there):
            return True
        told = await invalidate_after_commits(
            self._nodes, lost, versions, there, by_map=by_map, announced_s=announced_s
        )
        return all(heard) and told

    async def _write_on(
        self, replica_set: ReplicaSet, node: int, tombstones: Mapping[str, tuple[Version, bytes]], looked_s: float
    ) -> list[ReplicaLost | None]:
        """Make one node write tombstones. Returns None or the reason of failure for each. Raises ReplicaLost."""
        bucket = wire.BucketRef(name=replica_set.bucket.name, uuid=replica_set.bucket.uuid)
        request = contents.BuryManyRequest(
            bucket=bucket,
            name=list(tombstones),
            version=[to_wire(version) for version, _ in tombstones.values()],
            writes=[writes for _, writes in tombstones.values()],
            wall_ms=self._nodes.node.store.clock.wall_ms(),
            looked_ms=ms_since(looked_s),
        )
        endpoint = replica_set.endpoint(node)
        if node == replica_set.position:
            try:
                answer = await self._nodes.node.read(write_tombstones, self._nodes.node.store, request)
            except LoaderError as error:
                raise ReplicaLost(f"this node: {error}", error) from error
        else:
            stub = ais_contents_pb2_grpc.ContentsReplicaStub(self._nodes.channels.to(endpoint))
            with self._nodes.channels.reporting(endpoint):
                answer = await stub.BuryMany(request, timeout=STEP_TIMEOUT_S)
            self._nodes.heard_of_map(endpoint, answer.map_version)
        results: list[ReplicaLost | None] = [None] * len(tombstones)
        for failure in answer.failure:
            results[failure.position] = refused(endpoint, failure.error)
        return results


def write_tombstones(store: Store, request: contents.BuryManyRequest) -> contents.BuryManyResponse:
    """Write tombstones on this node, as a coordinator requested. Raises LoaderError."""
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    if len(request.name) != len(request.version) or len(request.writes) not in (0, len(request.name)):
        raise InvalidRequest(
            f"{len(request.version)} versions and {len(request.writes)} memories of {len(request.name)} names"
        )
    writes = [*map(checked, request.writes)] or [b""] * len(request.name)
    tombstones = list(zip(request.name, map(from_wire, request.version), writes, strict=True))
    for _, version, _ in tombstones:
        store.replicas.require_believable(version, request.wall_ms)
    late = [late_fault(store, request.bucket.uuid, *one, request.looked_ms) for one in tombstones]
    taken = [one for one, fault in zip(tombstones, late, strict=True) if fault is None]
    left = iter(store.write_tombstones(request.bucket.name, taken))
    return contents.BuryManyResponse(failure=failures([fault or next(left) for fault in late]))


def failures(results: Sequence[object]) -> list[contents.DeleteFailure]:
    """Return the errors among these results, with their positions."""
    return [
        contents.DeleteFailure(position=at, error=error_to_wire(result))
        for at, result in enumerate(results)
        if isinstance(result, LoaderError)
    ]
