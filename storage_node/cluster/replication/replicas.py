"""Replicas of a write as its coordinator drives them, on this node or on another one, by lane or over gRPC.

`Replicas` calls the nodes of a map, including this one. A `Participant` is one node's part in a group of writes: it
stages puts over a `ReplicaStream`, or writes tombstones. Every step has a deadline. A node that misses one is lost to
the writes, as is one that cannot be reached, and the coordinator continues without it. Closing a stream that was not
committed removes what it staged. `replica` is the other side.

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

import grpc.aio

from ais_loader.errors import ClockOffset, InvalidRequest, LoaderError, SourceChanged, SourceUnreadable
from ais_loader.wire.cluster_map import by_key
from ais_loader.wire.frame import FrameError
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc, ais_contents_pb2_grpc, ais_replica_pb2_grpc
from ais_loader.wire.generated import ais_contents_pb2 as contents
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.replication import replica
from storage_node.cluster.replication.invalidation import Bucket, InvalidationOutbox
from storage_node.cluster.replication.lease_keeper import ReadLeases
from storage_node.cluster.replication.replica import HeldWrite, from_state, from_wire, to_wire
from storage_node.cluster.replication.write_plan import Answer, PendingWrite, ReplicaSelection, ReplicaSet, WritePlan
from storage_node.context.channels import REACH_TIMEOUT_S, STEP_TIMEOUT_S, Channels, newer_map
from storage_node.context.errors import ReplicaLost, refused
from storage_node.context.membership import Membership
from storage_node.context.node import Node, Verdict, judge
from storage_node.limits.tasks import OffLoop
from storage_node.store.format import Version
from storage_node.store.store import Store
from storage_node.store.write import Upload

Q = TypeVar("Q")
R = TypeVar("R")
P = ParamSpec("P")
_FEW_NAMES = 128
"""Looking up this many names takes a node negligible time."""


async def outcome(step: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R | ReplicaLost:
    """Return the result of a step, or the reason why its node is lost to the writes.

    The step is called here: a task that is cancelled before it starts leaves no coroutine that nobody awaits.
    """
    try:
        return await step(*args, **kwargs)
    except ReplicaLost as lost:
        return lost


class ReplicaStream(ABC):
    """The messages of one replica, or of one group of small replicas. Belongs to one task at a time."""

    @abstractmethod
    async def begin(self, request: wire.WriteRequest) -> wire.WriteResponse:
        """Send the first message and return its answer. Raises ReplicaLost, quickly if the node is down."""

    @abstractmethod
    async def send(self, request: wire.WriteRequest, timeout_s: float) -> None:
        """Send a message without waiting for an answer. Raises ReplicaLost."""

    @abstractmethod
    async def receive(self, timeout_s: float) -> wire.WriteResponse:
        """Return the next answer. Raises ReplicaLost."""

    @abstractmethod
    async def close(self) -> None: ...

    @property
    def has_failed(self) -> bool:
        """Whether the node is known to have dropped what it has staged."""
        return False

    async def ask(self, request: wire.WriteRequest, timeout_s: float) -> wire.WriteResponse:
        await self.send(request, timeout_s)
        return await self.receive(timeout_s)


class LocalReplicaStream(ReplicaStream):
    """The replica on this node. A drive has no deadline: it answers or fails."""

    def __init__(self, node: Node, held: HeldWrite | None = None) -> None:
        self._node = node
        self._held = held or HeldWrite(node.store)
        self._answers: deque[wire.WriteResponse] = deque()

    async def begin(self, request: wire.WriteRequest) -> wire.WriteResponse:
        return await self.ask(request, STEP_TIMEOUT_S)

    async def send(self, request: wire.WriteRequest, timeout_s: float) -> None:
        try:
            answer = await self._node.read(self._held.take, request)
        except LoaderError as error:
            raise ReplicaLost(f"this node: {error}", error) from error
        if answer is not None:
            self._answers.append(answer)

    async def receive(self, timeout_s: float) -> wire.WriteResponse:
        return self._answers.popleft()

    async def close(self) -> None:
        if not self._held.has_ended:
            # Shielded: a cancelled read that has not started would never run.
            await asyncio.shield(self._node.read(self._held.abort))


class RemoteReplicaStream(ReplicaStream):
    """A replica on another node, for the lifetime of the stream."""

    def __init__(self, endpoint: str, channels: Channels, reach_timeout_s: float = REACH_TIMEOUT_S) -> None:
        self._reach_timeout_s = reach_timeout_s
        self._endpoint = endpoint
        self._channels = channels
        self._call: Any = channels.lanes.begin(endpoint) or self._by_grpc()

    def _by_grpc(self) -> Any:
        return ais_replica_pb2_grpc.ReplicaStub(self._channels.to(self._endpoint)).Write()

    async def begin(self, request: wire.WriteRequest) -> wire.WriteResponse:
        with self._channels.reporting(self._endpoint):
            async with asyncio.timeout(self._reach_timeout_s):
                try:
                    await self._reach(request)
                except (OSError, FrameError, ReplicaLost):  # of a lane; nothing is staged
                    self._call.cancel()
                    self._call = self._by_grpc()
                    await self._reach(request)
        return await self.receive(STEP_TIMEOUT_S)

    async def _reach(self, request: wire.WriteRequest) -> None:
        """Begin the write, and wait until the node is known to be alive, which waits for no drive."""
        await self._call.write(request)
        await self._call.initial_metadata()

    async def send(self, request: wire.WriteRequest, timeout_s: float) -> None:
        with self._channels.reporting(self._endpoint):
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)

    async def receive(self, timeout_s: float) -> wire.WriteResponse:
        with self._channels.reporting(self._endpoint):
            async with asyncio.timeout(timeout_s):
                answer = await self._call.read()
            if answer is grpc.aio.EOF:
                raise ReplicaLost(f"{self._endpoint}: it ended the write ({await self._call.details()})")
        self._channels.answered(self._endpoint)
        found: wire.WriteResponse = answer
        return found

    async def close(self) -> None:
        self._call.cancel()

    @property
    def has_failed(self) -> bool:
        return bool(self._call.done())


class OwnCopy(HeldWrite):
    """The replica on this node, staged before the write began, by a coordinator that already has the bytes.

    The coordinator sends the bytes to the other owners only. Before the commit, the length and checksum of this replica
    are compared with what the others were sent.
    """

    def __init__(self, store: Store, upload: Upload | LoaderError) -> None:
        """`upload` is the staged object, or the error that prevented it; repair then creates this replica."""
        super().__init__(store)
        self.upload = upload

    @classmethod
    async def staged(
        cls, store: Store, work: OffLoop, replica_set: ReplicaSet, name: str, stage: Callable[[], Upload]
    ) -> OwnCopy | None:
        """Stage the replica by `stage`; return None if this node is no owner. Raises errors of the source; for errors
        of this node, other replicas make up."""

        def staged() -> Upload | LoaderError:
            try:
                replica.require_bucket(store, replica_set.bucket.name, replica_set.bucket.uuid)
                return stage()
            except (SourceChanged, SourceUnreadable):
                raise
            except LoaderError as error:
                return error

        return cls(store, await work(staged)) if replica_set.is_owner(name) else None

    def is_alone(self, replica_set: ReplicaSet) -> bool:
        """Whether no other node needs the bytes."""
        return isinstance(self.upload, Upload) and replica_set.bucket.copies == 1

    def _begin(self, header: Any) -> Upload | LoaderError:
        return self.upload

    def _write(self, data: bytes) -> None:
        """Ignore the bytes, since they are already staged."""

    @property
    def has_ended(self) -> bool:
        return not isinstance(self.upload, Upload) or self.upload.has_ended

    def abort(self) -> None:
        if isinstance(self.upload, Upload):
            self.upload.abort()


class Participant(ABC):
    """One node's part in a group of writes."""

    def __init__(self, replicas: Replicas, replica_set: ReplicaSet, node: int, writes: list[PendingWrite]) -> None:
        """`node`: the node's index in the map."""
        self.node, self.writes = node, writes
        self._replicas, self._replica_set = replicas, replica_set

    @property
    def endpoint(self) -> str:
        return self._replica_set.endpoint(self.node)

    @property
    def planned(self) -> list[PendingWrite]:
        """The writes that this node has to commit and that nothing has ended."""
        return [one for one in self.writes if one.settled is None and one.plan and self.node in one.plan.commits]

    @abstractmethod
    async def commit(self, writes: Sequence[PendingWrite], looked_ms: int) -> list[Answer]:
        """Commit these writes of the group; return one answer for each. Raises ReplicaLost."""


class StagedReplicas(Participant):
    """The part of a node that stages the bytes of puts. `held` receives those of this node."""

    def __init__(
        self,
        replicas: Replicas,
        replica_set: ReplicaSet,
        node: int,
        writes: list[PendingWrite],
        held: HeldWrite | None = None,
    ) -> None:
        super().__init__(replicas, replica_set, node, writes)
        local_node = replicas.node
        self.stream: ReplicaStream = (
            LocalReplicaStream(local_node, held)
            if node == replica_set.position
            else RemoteReplicaStream(self.endpoint, replicas.channels, local_node.config.cluster.reach_timeout_s)
        )

    def staged(self, answer: wire.WriteResponse | ReplicaLost) -> None:
        """Record the node's answer to the end of the bytes."""
        if not isinstance(answer, ReplicaLost):
            self._replicas.note_clock(self._replica_set, self.node, answer.staged.wall_ms)
        for place, write in enumerate(self.writes):
            if isinstance(answer, ReplicaLost):
                write.lose(answer)
            elif (one := answer.staged.object[place]).HasField("error"):
                write.lose(refused(self.endpoint, one.error))
            else:
                try:
                    newest = from_wire(one.newest) if one.HasField("newest") else None
                    before = from_state(one.before)
                except InvalidRequest as error:
                    write.lose(ReplicaLost(f"{self.endpoint}: {error}"))
                    continue
                write.clock = max(write.clock, answer.staged.clock)
                write.stage(self.node, one.size_bytes, one.checksum, newest, before)

    async def commit(self, writes: Sequence[PendingWrite], looked_ms: int) -> list[Answer]:
        planned = set(writes)
        commit = wire.WriteCommit(wall_ms=self._replicas.node.store.clock.wall_ms(), looked_ms=looked_ms)
        for write in self.writes:
            one = commit.object.add()  # without a version, the object is given up
            if write not in planned or (plan := write.plan) is None:
                continue
            one.version.CopyFrom(to_wire(plan.version))
            one.modified_ns, one.writes = plan.modified_ns, plan.memory
            if plan.known is not None:
                one.known.CopyFrom(to_wire(plan.known))
            if plan.first == self.node:
                one.not_above.CopyFrom(to_wire(plan.not_above))
        answer = (await self.stream.ask(wire.WriteRequest(commit=commit), STEP_TIMEOUT_S)).committed
        self._replicas.note_map_version(self.endpoint, answer.map_version)
        return [self._answer(one) for write, one in zip(self.writes, answer.object, strict=True) if write in planned]

    def _answer(self, one: wire.CommittedObject) -> Answer:
        if one.HasField("error"):
            return refused(self.endpoint, one.error)
        version = one.version
        return Version(version.epoch, version.counter, version.node) if one.superseded else None


class Tombstones(Participant):
    """The part of a node that writes tombstones."""

    async def commit(self, writes: Sequence[PendingWrite], looked_ms: int) -> list[Answer]:
        able = [write for write in writes if write.plan is not None]
        planned = [(write.name, write.plan) for write in able if write.plan is not None]
        raw_metadata = able[0].raw_metadata if able else b""
        if (
            len(planned) > 1
            and all(plan.first is None for _, plan in planned)
            and all(write.raw_metadata == raw_metadata for write in able)
        ):
            return await self._commit_group(planned, looked_ms, raw_metadata)
        answers: list[Answer] = []
        for write, (name, plan) in zip(able, planned, strict=True):
            limit = to_wire(plan.not_above) if plan.first == self.node else None
            request = wire.BuryRequest(
                bucket=_ref(self._replica_set),
                name=name,
                version=to_wire(plan.version),
                not_above=limit,
                wall_ms=self._replicas.node.store.clock.wall_ms(),
                writes=plan.memory,
                looked_ms=looked_ms,
                metadata=write.raw_metadata,
            )
            done = await outcome(self._replicas.ask, self._replica_set, self.node, replica.write_tombstone, request)
            answers.append(done if isinstance(done, ReplicaLost) else None)
        return answers

    async def _commit_group(
        self, planned: Sequence[tuple[str, WritePlan]], looked_ms: int, raw_metadata: bytes
    ) -> list[Answer]:
        request = contents.BuryManyRequest(
            bucket=_ref(self._replica_set),
            name=[name for name, _ in planned],
            version=[to_wire(plan.version) for _, plan in planned],
            writes=[plan.memory for _, plan in planned],
            wall_ms=self._replicas.node.store.clock.wall_ms(),
            looked_ms=looked_ms,
            metadata=raw_metadata,
        )
        answer = await self._replicas.ask(self._replica_set, self.node, replica.write_tombstones, request)
        answers: list[Answer] = [None] * len(planned)
        for failure in answer.failure:
            answers[failure.position] = refused(self.endpoint, failure.error)
        return answers


async def close_all(parts: Iterable[StagedReplicas]) -> None:
    # Shielded: a call cancelled at this point must not leave streams open.
    await asyncio.shield(asyncio.gather(*(part.stream.close() for part in parts)))


class Replicas:
    def __init__(self, node: Node, membership: Membership, compare: Callable[[], None]) -> None:
        """`compare`: see `ReadLeases`."""
        self.node = node
        self.membership = membership
        self.channels = Channels(node.caller, self.note_map_version)
        self.invalidations = InvalidationOutbox(
            self.channels,
            self._is_member,
            self.note_map_version,
            self.teach,
            lambda undelivered: ReadLeases(node, undelivered, self.note_map_version, self.keep_up, compare),
        )
        self.leases = self.invalidations.leases
        self._newest_map = "", 0

    def _is_member(self, endpoint: str) -> bool:
        view = self.membership.view
        return view is not None and any(node.peer_endpoint == endpoint for node in view.nodes)

    def note_map_version(self, endpoint: str, version: int) -> None:
        """Note that the node at this endpoint knows a map of this version."""
        if version > self._newest_map[1]:
            self._newest_map = endpoint, version

    async def teach(self, endpoint: str, bucket: Bucket) -> bool:
        """Send this node's map to the node at this endpoint, if it has this very bucket; return whether it knows the
        map now."""
        view = self.membership.view
        known = view.buckets.get(bucket[0]) if view is not None else None
        if view is None or known is None or known.uuid != bucket[1]:
            return False
        stub = ais_cluster_pb2_grpc.ClusterStub(self.channels.to(endpoint))
        try:
            answer: cluster_pb.LearnResponse = await stub.Learn(
                cluster_pb.LearnRequest(map=view.map), timeout=self.node.config.cluster.reach_timeout_s
            )
        except grpc.aio.AioRpcError:
            return False
        return answer.version >= view.version

    async def keep_up(self) -> bool:
        """Fetch the newest map that a node has mentioned; return whether this node knows it now."""
        view, (endpoint, version) = self.membership.view, self._newest_map
        if view is not None and view.version >= version:
            return True
        others = [] if view is None else [node.peer_endpoint for node in view.nodes]
        for one in dict.fromkeys([endpoint, *others]):
            known = None if view is None else view.map
            newer = await newer_map(self.channels.to(one), known, self.node.config.reads.peer_timeout_s)
            if newer is not None and await self.node.learn(newer) >= version:
                return True
        return False

    async def has_changed(self, replica_set: ReplicaSet) -> bool:
        """Return whether a newer map is known to be in use. This node then knows it too, if it could fetch it.

        Objects that the nodes of this map lack may have been moved, by the newer one, to a node that this map does not
        have.
        """
        if self._newest_map[1] <= replica_set.view.version and self.membership.view is replica_set.view:
            return False
        await self.keep_up()
        return True

    def clock_faults(self, writes: Iterable[ReplicaSelection]) -> list[ClockOffset | None]:
        """Return the clock error that blocks each of these writes, which this node coordinates; None where there is
        none. In order.

        A node whose clock most others contradict coordinates no writes. If two nodes contradict each other and no third
        one can decide, neither does. A wrong clock elsewhere blocks nobody: a node that is behind refuses the version
        itself, and the clock of one that is ahead is ignored.
        """
        clocks, most_ms = self.node.peer_clocks, self.node.store.clock.max_offset_ms
        faults: list[ClockOffset | None] = []
        judged: tuple[object, dict[bytes, int], Verdict] | None = None
        for write in writes:
            view, position = write.replica_set.view, write.replica_set.position
            if judged is None or judged[0] is not view:
                offsets = clocks.offsets_ms({node.uuid for at, node in enumerate(view.nodes) if at != position})
                judged = view, offsets, judge(offsets, most_ms)
            _, offsets, verdict = judged
            checked = range(len(view.nodes)) if verdict.here else () if verdict.is_sure else write.taking
            odd = [at for at in checked if abs(offsets.get(view.nodes[at].uuid, 0)) > most_ms]
            if not odd:
                faults.append(None)
                continue
            node = view.nodes[odd[0]]
            why = clocks.describe(node.peer_endpoint, offsets[node.uuid], most_ms)
            faults.append(ClockOffset(f"{write.replica_set.bucket.name}/{write.name}: {why}; nothing was changed"))
        return faults

    def note_clock(self, replica_set: ReplicaSet, node: int, wall_ms: int) -> None:
        """Record the wall clock that a node has just reported."""
        if node != replica_set.position:
            self.node.peer_clocks.note(replica_set.view.nodes[node].uuid, wall_ms)

    def next_round(self, writes: Iterable[PendingWrite]) -> dict[int, list[PendingWrite]]:
        """Return the nodes to ask next, with the writes that still lack participants; empty if there is none."""
        asked = ((write, write.next_nodes(partial(self.avoids, write.replica_set))) for write in writes)
        return by_key((node, write) for write, nodes in asked for node in nodes)

    def avoids(self, replica_set: ReplicaSet, node: int) -> bool:
        """Return whether another node failed recently."""
        return node != replica_set.position and self.channels.avoided(replica_set.endpoint(node))

    async def newest(
        self, replica_set: ReplicaSet, node: int, names: Sequence[str], *, allow_unknown: bool = False
    ) -> wire.NewestResponse:
        """Return the node's entries of these names. Raises ReplicaLost."""
        request = wire.NewestRequest(bucket=_ref(replica_set), name=names, allow_unknown=allow_unknown)
        timeout_s = self.node.config.cluster.reach_timeout_s if len(names) <= _FEW_NAMES else STEP_TIMEOUT_S
        found = await self.ask(replica_set, node, replica.newest, request, timeout_s)
        if node != replica_set.position:
            self.note_clock(replica_set, node, found.wall_ms)
            self.channels.answered(replica_set.endpoint(node))
        return found

    async def ask(
        self,
        replica_set: ReplicaSet,
        node: int,
        read_local: Callable[[Store, Q], R],
        request: Q,
        timeout_s: float = STEP_TIMEOUT_S,
    ) -> R:
        """Send a request to a node. Raises ReplicaLost.

        Args:
            here: what this node answers the request with, if it is the one.
        """
        if node == replica_set.position:
            try:
                return await self.node.read(read_local, self.node.store, request)
            except LoaderError as error:
                raise ReplicaLost(f"this node: {error}", error) from error
        endpoint = replica_set.endpoint(node)
        with self.channels.reporting(endpoint):
            answer: Any = await _CALLS[type(request)](self.channels.to(endpoint))(request, timeout=timeout_s)
        self.note_map_version(endpoint, answer.map_version)
        return cast(R, answer)


def _ref(replica_set: ReplicaSet) -> wire.BucketRef:
    return wire.BucketRef(name=replica_set.bucket.name, uuid=replica_set.bucket.uuid)


_CALLS: dict[type, Callable[[Any], Any]] = {
    wire.NewestRequest: lambda channel: ais_replica_pb2_grpc.ReplicaStub(channel).Newest,
    wire.BuryRequest: lambda channel: ais_replica_pb2_grpc.ReplicaStub(channel).Bury,
    contents.BuryManyRequest: lambda channel: ais_contents_pb2_grpc.ContentsReplicaStub(channel).BuryMany,
}
