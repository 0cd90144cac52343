"""Write coordinator: the node that receives a client's write runs it on all replicas.

The bytes are forwarded to the owners as they arrive, and each owner stages them. `commit` describes how the version is
chosen and the replicas commit. A failure before the commits leaves nothing visible. Replicas become equal whatever
happens, because a commit changes nothing where a newer version is: of two writers of one name, the higher version wins
on every node. If a coordinator dies between two commits, one node has the old object and another the new one, until
repair makes them equal.

While one node waits for another, it holds nothing but staged files. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.object_info import Stored, info_of
from storage_node.cluster.errors import ReplicaLost, TooFewCopies, of_one_of_many, refused
from storage_node.cluster.replication.commit import CommitProtocol, OnShort, PendingWrite, Result
from storage_node.cluster.replication.conditional import decide, misplaced
from storage_node.cluster.replication.delete_many import Deletions
from storage_node.cluster.replication.listing_filter import Listed, not_deleted
from storage_node.cluster.replication.nonparticipants import (
    invalidate_after_commits,
    invalidate_nonparticipants,
    invalidate_one,
    map_version,
)
from storage_node.cluster.replication.read_lease import clock_s, ms_since
from storage_node.cluster.replication.repeats import Repeat, done_by, resolve
from storage_node.cluster.replication.replica import HeldWrite, from_state, from_wire, to_wire
from storage_node.cluster.replication.replica_set import ReplicaSelection, ReplicaSet
from storage_node.cluster.replication.replicas import Replicas, ReplicaStream, close_all, outcome
from storage_node.context.channels import STEP_TIMEOUT_S, Channels
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.store.drive.preconditions import Condition, condition_of
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.names import check_object_name, object_name_fault
from storage_node.store.replica_state import not_found_message
from storage_node.store.upload import checked_metadata
from storage_node.store.write_memory import after, memory_of

_LOOK_BEFORE_BYTES = 1 << 20
"""Smallest announced size at which a condition is also evaluated before the bytes are received."""


class WriteCoordinator:
    """Coordinates the writes that this node receives from clients."""

    def __init__(self, node: Node, membership: Membership) -> None:
        self._node = node
        self._membership = membership
        self.channels = self._channels = Channels(node.caller)
        self._nodes = Replicas(node, self._channels)
        self.leases = self._nodes.leases
        """The read leases that this node holds and grants."""
        self.invalidations = self._nodes.invalidations
        self._commits = CommitProtocol(self._nodes)
        self.snapshot_barrier = self._commits.barrier
        self._deletions = Deletions(self._nodes, self._commits, self.replica_set)

    @property
    def on_short(self) -> OnShort:
        return self._commits.on_short

    @on_short.setter
    def on_short(self, listener: OnShort) -> None:
        self._commits.on_short = listener

    async def settle(self) -> None:
        """Wait for the commits and deletions in progress, for a limited time; see `CommitProtocol.settle`."""
        await self._commits.settle()

    async def close(self) -> None:
        """Finish the commits in progress, then close."""
        await self._commits.settle()
        await self._nodes.leases.stop()
        await self._nodes.invalidations.close()
        await self._channels.close()

    def replica_set(self, bucket: str) -> ReplicaSet | None:
        """Return the nodes that store this bucket's objects; None if the cluster has no such bucket.

        Raises TooFewCopies if this node was removed from the map.
        """
        view = self._membership.view
        return self._in(view, view.buckets.get(bucket)) if view is not None else None

    def replica_set_to_read(self, bucket: str) -> ReplicaSet | None:
        """Return the same as `replica_set`, for snapshots too."""
        view = self._membership.view
        return self._in(view, view.to_read(bucket)) if view is not None else None

    def _in(self, view: ClusterView, bucket: cluster_pb.MapBucket | None) -> ReplicaSet | None:
        if bucket is None:
            return None
        position = view.position.get(self._membership.node_uuid)
        if position is None:
            raise TooFewCopies("this node is no longer part of the cluster; ask another one")
        return ReplicaSet(view, bucket, position)

    async def not_deleted(self, bucket: str, found: Listed) -> Listed:
        """Remove the objects from a listing of this node that it may not list, because they may have been deleted
        elsewhere."""
        try:
            replica_set = self.replica_set(bucket)  # listings of snapshots are already filtered by owner
        except TooFewCopies:
            return found
        return found if replica_set is None else await not_deleted(self._nodes, replica_set, found)

    # -- one object

    async def put(
        self,
        replica_set: ReplicaSet,
        header: pb.PutHeader,
        messages: AsyncIterator[pb.PutRequest],
        held: HeldWrite | None = None,
    ) -> pb.ObjectInfo:
        """Store an object whose header has been received. Raises LoaderError.

        `held` receives this node's own replica, if it is an owner.
        """
        check_object_name(header.name)
        staged = PendingWrite(replica_set, header.name, replica_set.rankings([header.name])[0])
        staged.metadata = checked_metadata(dict(header.metadata))
        staged.condition = condition_of(header)
        if staged.condition is not None:
            if staged.condition.began_ns and (done := await self.done_earlier(replica_set, header)) is not None:
                return done
            if (
                not staged.condition.is_empty
                and (done := await self._decided(replica_set, header, staged.condition)) is not None
            ):
                return done
        copies: list[ReplicaStream] = []
        try:
            await self._open(staged, header, copies, held)
            async for message in messages:
                part = message.WhichOneof("part")
                if part == "data":
                    await self._forward(staged, wire.WriteRequest(data=bytes(message.data)))
                elif part == "end":
                    await self._end(staged, message.end)
                    break
                else:
                    raise InvalidRequest(f"a message of a PUT that is neither data nor end: {part}")
            else:
                raise InvalidRequest("the PUT ended without the message that says what was sent; nothing was stored")
        except BaseException:
            await close_all(copies)
            raise
        result = (await self._commits.commit([staged], copies))[0]
        if isinstance(result, LoaderError):
            raise result
        return result

    async def done_earlier(self, replica_set: ReplicaSet, header: pb.PutHeader) -> pb.ObjectInfo | None:
        """Return the object that an earlier attempt of this write stored; None if the write has to run. Raises
        LoaderError, OutcomeUnknown."""
        condition = condition_of(header)
        if condition is None:
            return None
        done = (await resolve(self._nodes, replica_set, [(header.name, condition)]))[0]
        if isinstance(done, LoaderError):
            raise done
        if isinstance(done, Repeat):
            return None
        stored = Stored(done.size_bytes, str(done.version), done.checksum, done.modified_ns, dict(header.metadata))
        return info_of(replica_set.bucket.name, header.name, stored)

    async def _decided(
        self, replica_set: ReplicaSet, header: pb.PutHeader, condition: Condition
    ) -> pb.ObjectInfo | None:
        """Evaluate the condition before a large object is received; return what an earlier attempt stored. Raises
        LoaderError."""
        if (misfit := misplaced(self._nodes, replica_set, header.name)) is not None:
            raise misfit
        if header.HasField("size_bytes") and header.size_bytes < _LOOK_BEFORE_BYTES:
            return None
        decided = (await decide(self._nodes, replica_set, [(header.name, condition)]))[0]
        if isinstance(decided, LoaderError):
            raise decided
        return (
            info_of(replica_set.bucket.name, header.name, decided.committed_earlier)
            if decided.committed_earlier is not None
            else None
        )

    async def _open(
        self, staged: PendingWrite, header: pb.PutHeader, copies: list[ReplicaStream], held: HeldWrite | None
    ) -> None:
        """Open a stream to each owner, and to the next node in the ranking for each one that refuses. All streams are
        added to `copies`."""
        replica_set = staged.replica_set
        request = wire.WriteRequest(header=wire.WriteHeader(object=header, bucket_uuid=replica_set.bucket.uuid))

        async def ask(node: int) -> None:
            copy = self._nodes.copy(replica_set, node, held)
            copies.append(copy)
            answer = await outcome(copy.begin(request))
            if isinstance(answer, ReplicaLost):
                staged.lose(answer)
            elif answer.HasField("staged"):
                staged.lose(refused(replica_set.endpoint(node), answer.staged.object[0].error))
            else:
                staged.taking.append(node)
                staged.copies.append((copy, 0))

        while nodes := staged.next_nodes(self._nodes.avoided(replica_set)):
            await asyncio.gather(*(ask(node) for node in nodes))
        staged.require()

    async def _forward(self, staged: PendingWrite, request: wire.WriteRequest) -> None:
        """Forward bytes to all replicas. A node lost here is not replaced, since the earlier bytes are gone; repair
        creates its replica."""
        before, staged.copies, staged.taking = staged.copies, [], []
        sent = await asyncio.gather(*(outcome(copy.send(request, STEP_TIMEOUT_S)) for copy, _ in before))
        for (copy, place), result in zip(before, sent, strict=True):
            if isinstance(result, ReplicaLost):
                staged.lose(result)
            else:
                staged.copies.append((copy, place))
                staged.taking.append(copy.node)
        staged.require()

    async def _end(self, staged: PendingWrite, end: pb.PutEnd) -> None:
        before, staged.copies, staged.taking = staged.copies, [], []
        request = wire.WriteRequest(end=end)
        staged.looked_s = clock_s()
        answers = await asyncio.gather(*(outcome(copy.ask(request, STEP_TIMEOUT_S)) for copy, _ in before))
        for (copy, place), answer in zip(before, answers, strict=True):
            staged.take(copy, place, answer)
            if not isinstance(answer, ReplicaLost):
                self._nodes.note_clock(staged.replica_set, copy.node, answer.staged.wall_ms)
        staged.require()

    # -- many small objects

    async def put_many(
        self, request: pb.PutManyRequest, put_here: Callable[[pb.PutManyRequest], Awaitable[pb.PutManyResponse]]
    ) -> pb.PutManyResponse:
        """Store a group of small objects. `put_here` stores those whose bucket does not belong to the cluster."""
        found: dict[str, ReplicaSet | None] = {}
        try:
            for name in {small.bucket for small in request.object}:
                found[name] = self.replica_set(name)
        except TooFewCopies as error:
            return pb.PutManyResponse(result=[_result(error) for _ in request.object])
        replica_sets = [found[small.bucket] for small in request.object]
        there = [
            (small, replica_set)
            for small, replica_set in zip(request.object, replica_sets, strict=True)
            if replica_set is not None
        ]
        if not there:
            return await put_here(request)
        stored = iter(await self._put_group([small for small, _ in there], [replica_set for _, replica_set in there]))
        here = [small for small, replica_set in zip(request.object, replica_sets, strict=True) if replica_set is None]
        kept = iter((await put_here(pb.PutManyRequest(object=here))).result if here else [])
        return pb.PutManyResponse(
            result=[next(kept) if replica_set is None else _result(next(stored)) for replica_set in replica_sets]
        )

    async def _put_group(self, objects: Sequence[pb.SmallObject], replica_sets: Sequence[ReplicaSet]) -> list[Result]:
        """Store small objects with one message to each node. Returns one result per object, in order."""
        entries = [
            PendingWrite(replica_set, small.name, []) for replica_set, small in zip(replica_sets, objects, strict=True)
        ]
        for entry, small in zip(entries, objects, strict=True):
            try:
                check_object_name(small.name)
                entry.metadata = checked_metadata(dict(small.metadata))
                entry.condition = condition_of(small)
                if entry.condition is not None and not entry.condition.is_empty:
                    entry.fault = misplaced(self._nodes, entry.replica_set, small.name)
            except LoaderError as error:
                entry.fault = error
        for replica_set in {id(replica_set): replica_set for replica_set in replica_sets}.values():
            mine = [entry for entry in entries if entry.replica_set is replica_set and entry.fault is None]
            for entry, ranking in zip(mine, replica_set.rankings([entry.name for entry in mine]), strict=True):
                entry.ranking = ranking
        copies: list[ReplicaStream] = []
        try:
            while await self._stage_round(entries, objects, copies):
                pass  # entries with too few replicas try the next nodes
        except BaseException:
            await close_all(copies)
            raise
        return await self._commits.commit(entries, copies)

    async def _stage_round(
        self, entries: Sequence[PendingWrite], objects: Sequence[pb.SmallObject], copies: list[ReplicaStream]
    ) -> bool:
        """Send the group to the next nodes of every entry that lacks replicas; False if there was nothing to send."""
        wanted: dict[int, list[int]] = {}
        for at, entry in enumerate(entries):
            for node in entry.next_nodes(self._nodes.avoided(entry.replica_set)):
                wanted.setdefault(node, []).append(at)

        async def stage(node: int, positions: list[int]) -> None:
            group = wire.WriteGroup(object=[objects[at] for at in positions])
            for at in positions:
                bucket = entries[at].replica_set.bucket
                group.bucket_uuid[bucket.name] = bucket.uuid
            copy = self._nodes.copy(entries[positions[0]].replica_set, node)
            copy.objects = len(positions)
            copies.append(copy)
            answer = await outcome(copy.begin(wire.WriteRequest(group=group)))
            if not isinstance(answer, ReplicaLost):
                self._nodes.note_clock(entries[positions[0]].replica_set, node, answer.staged.wall_ms)
            for place, at in enumerate(positions):
                entries[at].take(copy, place, answer)

        await asyncio.gather(*(stage(node, positions) for node, positions in wanted.items()))
        return bool(wanted)

    # -- deleting

    async def delete(self, replica_set: ReplicaSet, name: str, condition: Condition | None = None) -> None:
        """Write a tombstone on all owners. Raises VersionConflict; raises ObjectNotFound, and changes nothing, if every
        owner reports that there is no such object."""
        if object_name_fault(name):
            raise ObjectNotFound(not_found_message(replica_set.bucket.name, name))
        lease = self._membership.lease
        lease.hold(replica_set.view.version)
        try:
            async with self._commits.names.hold([(replica_set.bucket.uuid, name)]):
                not_above: Version | None = None
                before: tuple[CatalogEntry, ...] = ()
                if condition is not None and condition.began_ns:
                    found = (await resolve(self._nodes, replica_set, [(name, condition)]))[0]
                    if isinstance(found, LoaderError):
                        raise found
                    if not isinstance(found, Repeat):
                        return
                    before = found.before
                if condition is not None and not condition.is_empty:
                    decided = (await decide(self._nodes, replica_set, [(name, condition)]))[0]
                    if isinstance(decided, LoaderError):
                        raise decided
                    not_above = decided.there.version
                write_id = condition.write_id if condition is not None else b""
                await self._delete(replica_set, name, not_above, write_id, before)
        finally:
            lease.end(replica_set.view.version)

    async def _delete(
        self,
        replica_set: ReplicaSet,
        name: str,
        not_above: Version | None,
        write_id: bytes,
        before: Sequence[CatalogEntry],
    ) -> None:
        asked = ReplicaSelection(replica_set, name, replica_set.rankings([name])[0])
        found: dict[int, wire.ObjectState] = {}
        clock, looked_s = 0, clock_s()

        async def ask(node: int) -> bool:
            nonlocal clock
            answer = await outcome(self._nodes.newest(replica_set, node, [name]))
            if isinstance(answer, ReplicaLost):
                asked.lose(answer)
                return False
            found[node], clock = answer.object[0], max(clock, answer.clock)
            return True

        while nodes := asked.next_nodes(self._nodes.avoided(replica_set)):
            answered = await asyncio.gather(*(ask(node) for node in nodes))
            asked.taking += [node for node, there in zip(nodes, answered, strict=True) if there]
        asked.require()
        if (fault := self._nodes.clock_faults([asked])[0]) is not None:
            raise fault
        await asyncio.gather(*(ask(node) for node in replica_set.former(name) if node not in found))
        states = [state for state in found.values() if state.HasField("version")]
        newest = max(states, key=lambda state: from_wire(state.version), default=None)
        entries = [*before, *(entry for state in states if (entry := from_state(state)) is not None)]
        if not before and done_by(write_id, entries):
            raise asked.unfinished(0)  # a retry of this write has overtaken it
        existed = (
            not_above is not None or (newest is not None and not newest.is_tombstone) or done_by(write_id, entries)
        )
        absent = not existed and replica_set.nobody_has(name, found)
        if absent and await self._nodes.has_changed(replica_set):
            raise replica_set.left_behind(name)
        if absent and all(node in found for node in asked.owners):
            raise ObjectNotFound(not_found_message(replica_set.bucket.name, name))
        # A node that did not answer may have the object; it gets the tombstone when it is back. This is not
        # `ObjectNotFound`: the tombstone also outranks whatever is put at this moment.
        having = [node for node, state in found.items() if node in asked.taking or state.HasField("version")]
        rest = [node for node in found if node not in having]
        seen = [from_wire(state.version) for state in states] + ([not_above] if not_above is not None else [])
        seen += self._node.store.replicas.announced(replica_set.bucket.uuid, name)
        writes = after(entries, memory_of(write_id, asked.missing), time.time_ns())
        seen += [entry.version for entry in before]
        await self._leave_tombstones(asked, having, rest, seen, clock, not_above, writes, looked_s)

    async def delete_many(
        self, replica_set: ReplicaSet, names: Sequence[str], condition: Condition | None = None
    ) -> list[LoaderError | None]:
        """Delete several objects as `delete` does. Returns None or the error for each, in order."""
        results = await self._deletions.delete(replica_set, names, condition or Condition())
        return [result if result is None else of_one_of_many(result) for result in results]

    async def _leave_tombstones(
        self,
        asked: ReplicaSelection,
        nodes: Sequence[int],
        rest: Sequence[int],
        seen: list[Version],
        clock: int,
        not_above: Version | None,
        writes: bytes,
        looked_s: float,
    ) -> None:
        """Write tombstones on `nodes`. The nodes of `rest` are former owners without a replica, and are only
        invalidated.

        `not_above`: see `PendingWrite.not_above`.
        """
        replica_set = asked.replica_set
        store = self._node.store

        async def write_on(
            node: int, version: wire.ObjectVersion, limit: wire.ObjectVersion | None = None
        ) -> int | None:
            result = await outcome(
                self._nodes.write_tombstone(replica_set, node, asked.name, version, limit, writes, ms_since(looked_s))
            )
            if isinstance(result, ReplicaLost):
                asked.lose(result)
                return None
            return node

        async def choose_and_write() -> tuple[list[int], bool]:
            async with self._commits.barrier.passing([replica_set.bucket.uuid]):
                chosen = await self._node.read(store.replicas.next_version, replica_set.number, seen, clock)
                return await write_all(chosen)

        async def write_all(chosen: Version) -> tuple[list[int], bool]:
            version = to_wire(chosen)
            by_map, announced_s = map_version(self._nodes), clock_s()
            told = [*nodes, *rest]
            invalidating = (invalidate_one(self._nodes, replica_set, node, {asked.name: chosen}) for node in rest)
            first: list[int] = []
            if not_above is not None:
                here = replica_set.position
                if here not in asked.taking or await write_on(here, version, to_wire(not_above)) is None:
                    raise asked.without_its_first_owner()
                first = [here]
            left = [node for node in nodes if node not in first]
            others = invalidate_nonparticipants(self._nodes, [asked], [chosen], [told])
            found, heard = await asyncio.gather(
                asyncio.gather(*(write_on(node, version) for node in left)), asyncio.gather(others, *invalidating)
            )
            deleted_on = first + [node for node in found if node is not None]
            there = [*deleted_on, *rest]
            lost = ReplicaSelection(replica_set, asked.name, asked.ranking, taking=told)
            if not deleted_on:
                return deleted_on, True
            told_later = await invalidate_after_commits(
                self._nodes, [lost], [chosen], [there], by_map=by_map, announced_s=announced_s
            )
            return deleted_on, all(heard) and told_later

        lease = self._membership.lease
        lease.hold(replica_set.view.version)
        writing = asyncio.ensure_future(choose_and_write())
        writing.add_done_callback(lambda _: lease.end(replica_set.view.version))
        self._commits.track(writing)
        deleted_on, told = await asyncio.shield(writing)
        count = sum(node in asked.taking for node in deleted_on)
        if count < replica_set.min_copies or not told:
            raise asked.unfinished(count)


def _result(stored: Result) -> pb.PutResult:
    if isinstance(stored, LoaderError):
        error = of_one_of_many(stored)
        return pb.PutResult(error=pb.Error(kind=error.kind, message=str(error)))
    return pb.PutResult(info=stored)
