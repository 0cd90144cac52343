"""Write coordinator: the node that receives a client's write runs it on all replicas.

The bytes are forwarded to the owners as they arrive, and each owner stages them. `commit` describes how puts and
deletions choose a version and commit it. A failure before the commits leaves nothing visible. Replicas become equal
whatever happens, because a commit changes nothing where a newer version is: of two writers of one name, the higher
version wins on every node. If a coordinator dies between two commits, one node has the old object and another the new
one, until repair makes them equal.

While one node waits for another, it holds nothing but staged files. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

from ais_loader.errors import BucketNotFound, InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_contents_pb2 as contents
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.object_info import Stored, stored_of
from storage_node.cluster.replication.commit import CommitProtocol, OnShort
from storage_node.cluster.replication.conditions import decide, misplaced, resolve
from storage_node.cluster.replication.listing_filter import Filtered, Listed, current, owns
from storage_node.cluster.replication.replica import HeldWrite, to_wire, write_tombstones
from storage_node.cluster.replication.replicas import LocalReplicaStream, Replicas, StagedReplicas, close_all, outcome
from storage_node.cluster.replication.write_plan import PendingWrite, ReplicaSet, Result, by_replica_set
from storage_node.context.channels import STEP_TIMEOUT_S
from storage_node.context.errors import LeftBehind, ReplicaLost, TooFewCopies, refused
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.store.drive.preconditions import Condition, condition_of, parse_version
from storage_node.store.names import check_object_name, object_name_fault
from storage_node.store.replica_state import clock_s, not_found_message
from storage_node.store.write import checked_metadata

_LOOK_BEFORE_BYTES = 1 << 20
"""Smallest announced size at which a condition is also evaluated before the bytes are received."""
_MOST_NAMES = 1000
"""Most names that are deleted at once."""
_MOST_MAPS = 5
"""Most map changes before a deletion gives up."""
PutLocal: TypeAlias = Callable[[Sequence[pb.SmallObject]], Awaitable[list[Result]]]


class WriteCoordinator:
    """Coordinates the writes that this node receives from clients."""

    def __init__(self, node: Node, membership: Membership, on_short: OnShort, compare: Callable[[], None]) -> None:
        """
        Args:
            compare: makes this node compare its replicas with those of all others before it serves them.
        """
        self._membership = membership
        self._replicas = replicas = Replicas(node, membership, compare)
        self.channels = replicas.channels
        self.leases = replicas.leases
        """The read leases that this node holds and grants."""
        self.invalidations = replicas.invalidations
        self._commits = CommitProtocol(replicas, on_short)
        self.snapshot_barrier = self._commits.barrier

    async def settle(self) -> None:
        """Wait for the commits in progress, for a limited time; see `CommitProtocol.settle`."""
        await self._commits.settle()

    async def close(self) -> None:
        """Finish the commits in progress, then close."""
        await self._commits.settle()
        await self.leases.stop()
        await self.invalidations.close()
        await self.channels.close()

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

    async def current(self, bucket: str, found: Listed) -> Filtered:
        """Remove the objects from a listing of this node that are outdated, as far as their owners know."""
        replica_set = self._to_filter_by(bucket)
        return Filtered(found) if replica_set is None else await current(self._replicas, replica_set, found)

    def owns(self, bucket: str, names: Sequence[bytes]) -> bool:
        """Whether this node owns all objects of a listing, so that `current` would keep them."""
        replica_set = self._to_filter_by(bucket)
        return replica_set is None or owns(replica_set, names)

    def _to_filter_by(self, bucket: str) -> ReplicaSet | None:
        try:
            return self.replica_set(bucket)  # listings of snapshots are already filtered by owner
        except TooFewCopies:
            return None

    # -- one object

    async def put(
        self,
        replica_set: ReplicaSet,
        header: pb.PutHeader,
        messages: AsyncIterator[pb.PutRequest],
        held: HeldWrite | None = None,
    ) -> pb.ObjectInfo:
        """Store an object whose header has been received. Raises LoaderError.

        `held` receives this node's own replica, if it is an owner. It belongs to this call and to its commit, which
        continues if the caller is cancelled.
        """
        parts: list[StagedReplicas] = []
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(close_all, parts)
            if held is not None:
                undo.push_async_callback(LocalReplicaStream(self._replicas.node, held).close)
            check_object_name(header.name)
            write = _write_of(replica_set, header)
            if write.is_repeat and (done := await self.done_earlier(replica_set, header)) is not None:
                return done
            if write.is_conditional and (done := await self._decided(replica_set, header)) is not None:
                return done
            await self._open(write, header, parts, held)
            async for message in messages:
                part = message.WhichOneof("part")
                if part == "data":
                    await self._forward(write, parts, wire.WriteRequest(data=bytes(message.data)))
                elif part == "end":
                    await self._end(write, parts, message.end)
                    break
                else:
                    raise InvalidRequest(f"a message of a PUT that is neither data nor end: {part}")
            else:
                raise InvalidRequest("the PUT ended without the message that says what was sent; nothing was stored")
            undo.pop_all()
        return _raised((await self._commits.commit([write], parts))[0])

    async def done_earlier(self, replica_set: ReplicaSet, header: pb.PutHeader) -> pb.ObjectInfo | None:
        """Return the object that an earlier attempt of this write stored; None if the write has to run. Raises
        LoaderError, OutcomeUnknown."""
        write = _write_of(replica_set, header)
        if write.condition is not None:
            await resolve(self._replicas, [write])
        return _raised(write.settled) if write.settled is not None else None

    async def _decided(self, replica_set: ReplicaSet, header: pb.PutHeader) -> pb.ObjectInfo | None:
        """Evaluate the condition before a large object is received; return what an earlier attempt stored. Raises
        LoaderError."""
        write = _write_of(replica_set, header)
        if header.HasField("size_bytes") and header.size_bytes < _LOOK_BEFORE_BYTES:
            write.fail(misplaced(self._replicas, replica_set, header.name))
        else:
            await decide(self._replicas, [write])
        return _raised(write.settled) if write.settled is not None else None

    async def _open(
        self, write: PendingWrite, header: pb.PutHeader, parts: list[StagedReplicas], held: HeldWrite | None
    ) -> None:
        """Open a stream to each owner, and to the next node in the ranking for each one that refuses. All streams are
        added to `parts`."""
        replica_set = write.replica_set
        request = wire.WriteRequest(header=wire.WriteHeader(object=header, bucket_uuid=replica_set.bucket.uuid))

        async def ask(node: int) -> None:
            part = StagedReplicas(self._replicas, replica_set, node, [write], held)
            parts.append(part)
            answer = await outcome(part.stream.begin, request)
            if isinstance(answer, ReplicaLost):
                write.lose(answer)
            elif answer.HasField("staged"):
                write.lose(refused(part.endpoint, answer.staged.object[0].error))
            else:
                write.taking.append(node)

        while nodes := self._replicas.next_round([write]):
            await asyncio.gather(*(ask(node) for node in nodes))
        write.require()

    async def _forward(self, write: PendingWrite, parts: Sequence[StagedReplicas], request: wire.WriteRequest) -> None:
        """Forward bytes to all replicas. A node lost here is not replaced, since the earlier bytes are gone; repair
        creates its replica."""
        participants = [part for part in parts if part.node in write.taking]
        sent = await asyncio.gather(*(outcome(part.stream.send, request, STEP_TIMEOUT_S) for part in participants))
        for part, result in zip(participants, sent, strict=True):
            if isinstance(result, ReplicaLost):
                write.taking.remove(part.node)
                write.lose(result)
        write.require()

    async def _end(self, write: PendingWrite, parts: Sequence[StagedReplicas], end: pb.PutEnd) -> None:
        participants, write.taking = [part for part in parts if part.node in write.taking], []
        request = wire.WriteRequest(end=end)
        write.looked_s = clock_s()
        answers = await asyncio.gather(*(outcome(part.stream.ask, request, STEP_TIMEOUT_S) for part in participants))
        for part, answer in zip(participants, answers, strict=True):
            part.staged(answer)
        write.require()

    # -- many small objects

    async def put_many(self, objects: Sequence[pb.SmallObject], put_local: PutLocal) -> list[Result]:
        """Store a group of small objects. `put_local` stores those whose bucket does not belong to the cluster. Returns
        one result per object, in order."""
        found: dict[str, ReplicaSet | None] = {}
        try:
            for name in {small.bucket for small in objects}:
                found[name] = self.replica_set(name)
        except TooFewCopies as error:
            return [error] * len(objects)
        placed = [(small, replica_set) for small in objects if (replica_set := found[small.bucket]) is not None]
        if not placed:
            return await put_local(objects)
        stored = iter(await self._put_group(placed))
        local = [small for small in objects if found[small.bucket] is None]
        results = iter(await put_local(local) if local else [])
        return [next(results) if found[small.bucket] is None else next(stored) for small in objects]

    async def put_small(self, objects: Sequence[pb.SmallObject]) -> list[Stored | LoaderError]:
        """Store a group of small objects of a job. Those whose bucket does not belong to the cluster fail."""

        async def gone(objects: Sequence[pb.SmallObject]) -> list[Result]:
            return [BucketNotFound(f"bucket {small.bucket!r} has been deleted meanwhile") for small in objects]

        results = await self.put_many(objects, gone)
        return [result if isinstance(result, LoaderError) else stored_of(result) for result in results]

    async def _put_group(self, objects: Sequence[tuple[pb.SmallObject, ReplicaSet]]) -> list[Result]:
        """Store small objects with one message to each node. Returns one result per object, in order."""
        began_s = clock_s()
        writes = {PendingWrite(of, small.name, [], looked_s=began_s): small for small, of in objects}
        for write, small in writes.items():
            try:
                check_object_name(small.name)
                write.metadata, write.condition = checked_metadata(dict(small.metadata)), condition_of(small)
                if write.is_conditional:
                    write.fault = misplaced(self._replicas, write.replica_set, small.name)
            except LoaderError as error:
                write.fault = error
        for replica_set, mine in by_replica_set(write for write in writes if write.fault is None):
            for write, ranking in zip(mine, replica_set.rankings([write.name for write in mine]), strict=True):
                write.ranking = ranking
        parts: list[StagedReplicas] = []

        async def stage(node: int, mine: list[PendingWrite]) -> None:
            group = wire.WriteGroup(object=[writes[write] for write in mine])
            for write in mine:
                group.bucket_uuid[write.replica_set.bucket.name] = write.replica_set.bucket.uuid
            part = StagedReplicas(self._replicas, mine[0].replica_set, node, mine)
            parts.append(part)
            part.staged(await outcome(part.stream.begin, wire.WriteRequest(group=group)))

        try:
            while wanted := self._replicas.next_round(writes):  # those with too few replicas try the next nodes
                await asyncio.gather(*(stage(node, mine) for node, mine in wanted.items()))
        except BaseException:
            await close_all(parts)
            raise
        return await self._commits.commit([*writes], parts)

    # -- deleting

    async def delete(
        self, replica_set: ReplicaSet, name: str, condition: Condition | None = None, raw_metadata: bytes = b""
    ) -> None:
        """Write a tombstone on all owners. Raises VersionConflict; raises ObjectNotFound, and changes nothing, if every
        owner reports that there is no such object, unless the tombstone has metadata."""
        _raised((await self._delete(replica_set, [name], condition, raw_metadata))[0])

    async def delete_many(
        self,
        replica_set: ReplicaSet,
        names: Sequence[str],
        condition: Condition | None = None,
        raw_metadata: bytes = b"",
    ) -> list[LoaderError | None]:
        """Delete several objects as `delete` does. Returns None or the error for each, in order.

        A repeated name finds no object the second time.
        """
        results = await self._delete(replica_set, names, condition, raw_metadata)
        return [result if isinstance(result, LoaderError) else None for result in results]

    async def deny(
        self, replica_set: ReplicaSet, names: Sequence[str], raw_metadata: bytes
    ) -> list[LoaderError | None]:
        """Write tombstones with this metadata, which denies names or allows them, on all owners; and on all other nodes
        that have anything of these names and answer. Returns None or the error for each, in order."""
        results = await self._delete(replica_set, names, None, raw_metadata)
        view, bucket = replica_set.view, replica_set.bucket
        done = [
            (name, one.version) for name, one in zip(names, results, strict=True) if not isinstance(one, LoaderError)
        ]
        for at in range(0, len(done), _MOST_NAMES):
            some = done[at : at + _MOST_NAMES]
            request = contents.BuryManyRequest(
                bucket=wire.BucketRef(name=bucket.name, uuid=bucket.uuid),
                name=[name for name, _ in some],
                version=[to_wire(parse_version(version)) for _, version in some],
                wall_ms=self._replicas.node.store.clock.wall_ms(),
                metadata=raw_metadata,
                only_known=True,
            )
            asked = (
                outcome(self._replicas.ask, replica_set, node, write_tombstones, request)
                for node in range(len(view.nodes))
            )
            await asyncio.gather(*asked)  # a node that does not answer compares what it has when it is back
        return [result if isinstance(result, LoaderError) else None for result in results]

    async def _delete(
        self, replica_set: ReplicaSet, names: Sequence[str], condition: Condition | None, raw_metadata: bytes
    ) -> list[Result]:
        done: dict[str, Result] = {}
        left = [name for name in dict.fromkeys(names) if not object_name_fault(name)]
        for _ in range(_MOST_MAPS):
            for first in range(0, len(left), _MOST_NAMES):
                group = left[first : first + _MOST_NAMES]
                writes = [
                    PendingWrite(
                        replica_set, name, ranking, is_deletion=True, condition=condition, raw_metadata=raw_metadata
                    )
                    for name, ranking in zip(group, replica_set.rankings(group), strict=True)
                ]
                done.update(zip(group, await self._commits.commit(writes), strict=True))
            left = [name for name in left if isinstance(done[name], LeftBehind)]
            if not left:
                break
            try:
                newest = self.replica_set(replica_set.bucket.name)
                if newest is None or newest.bucket.uuid != replica_set.bucket.uuid:
                    raise BucketNotFound(f"bucket {replica_set.bucket.name!r} has been deleted meanwhile")
            except (BucketNotFound, TooFewCopies) as error:
                done.update(dict.fromkeys(left, error))
                break
            replica_set = newest
        missing = {name: ObjectNotFound(not_found_message(replica_set.bucket.name, name)) for name in set(names)}
        return [done.pop(name, missing[name]) for name in names]


def _write_of(replica_set: ReplicaSet, header: pb.PutHeader) -> PendingWrite:
    """Return the write of a header. Raises InvalidRequest."""
    ranking, metadata = replica_set.rankings([header.name])[0], checked_metadata(dict(header.metadata))
    return PendingWrite(replica_set, header.name, ranking, condition=condition_of(header), metadata=metadata)


def _raised(result: Result) -> pb.ObjectInfo:
    if isinstance(result, LoaderError):
        raise result
    return result
