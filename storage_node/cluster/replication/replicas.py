"""Replicas of a write as its coordinator drives them, on this node or on another one over gRPC.

`Replicas` calls the nodes of a map, including this one. A `ReplicaStream` is one replica of a write. Every step has a
deadline. A replica that misses one is lost, as is one whose node cannot be reached, and the coordinator continues
without it. Closing a stream that was not committed removes what it staged. `replica` is the other side.

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc.aio

from ais_loader.errors import ClockOffset, LoaderError
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc, ais_replica_pb2_grpc
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.errors import ReplicaLost
from storage_node.cluster.map.sync import newer_map
from storage_node.cluster.replication import replica
from storage_node.cluster.replication.invalidation import Bucket, InvalidationOutbox
from storage_node.cluster.replication.lease_keeper import ReadLeases
from storage_node.cluster.replication.replica import HeldWrite
from storage_node.cluster.replication.replica_set import ReplicaSelection, ReplicaSet
from storage_node.context.channels import REACH_TIMEOUT_S, STEP_TIMEOUT_S, Channels
from storage_node.context.node import Node
from storage_node.context.peer_clocks import Verdict, judge
from storage_node.store.store import Store
from storage_node.store.upload import Upload

R = TypeVar("R")
_FEW_NAMES = 128
"""Looking up this many names takes a node negligible time."""


async def outcome(step: Awaitable[R]) -> R | ReplicaLost:
    try:
        return await step
    except ReplicaLost as lost:
        return lost


async def close_all(copies: Iterable[ReplicaStream]) -> None:
    # Shielded: a call cancelled at this point must not leave streams open.
    await asyncio.shield(asyncio.gather(*(copy.close() for copy in copies)))


class ReplicaStream(ABC):
    """One replica of a write. Belongs to one task at a time."""

    def __init__(self, node: int) -> None:
        self.node = node
        """The node's index in the map."""
        self.objects = 1
        """Number of objects in the stream."""

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

    async def ask(self, request: wire.WriteRequest, timeout_s: float) -> wire.WriteResponse:
        await self.send(request, timeout_s)
        return await self.receive(timeout_s)


class LocalReplicaStream(ReplicaStream):
    """The replica on this node. A drive has no deadline: it answers or fails."""

    def __init__(self, node: int, here: Node, held: HeldWrite | None = None) -> None:
        super().__init__(node)
        self._here = here
        self._held = held or HeldWrite(here.store)
        self._answers: deque[wire.WriteResponse] = deque()

    async def begin(self, request: wire.WriteRequest) -> wire.WriteResponse:
        return await self.ask(request, STEP_TIMEOUT_S)

    async def send(self, request: wire.WriteRequest, timeout_s: float) -> None:
        try:
            answer = await self._here.read(self._held.take, request)
        except LoaderError as error:
            raise ReplicaLost(f"this node: {error}", error) from error
        if answer is not None:
            self._answers.append(answer)

    async def receive(self, timeout_s: float) -> wire.WriteResponse:
        return self._answers.popleft()

    async def close(self) -> None:
        if not self._held.has_ended:
            await asyncio.shield(
                self._here.read(self._held.abort)
            )  # a cancelled read that has not started would never run


class RemoteReplicaStream(ReplicaStream):
    """A replica on another node, for the lifetime of the stream."""

    def __init__(self, node: int, endpoint: str, channels: Channels, reach_timeout_s: float = REACH_TIMEOUT_S) -> None:
        super().__init__(node)
        self._reach_timeout_s = reach_timeout_s
        self._endpoint = endpoint
        self._channels = channels
        self._call: Any = ais_replica_pb2_grpc.ReplicaStub(channels.to(endpoint)).Write()

    async def begin(self, request: wire.WriteRequest) -> wire.WriteResponse:
        with self._channels.reporting(self._endpoint):
            async with asyncio.timeout(self._reach_timeout_s):
                await self._call.write(request)
                await self._call.initial_metadata()  # sent at once, before the node does any work
        return await self.receive(STEP_TIMEOUT_S)

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


class OwnCopy(HeldWrite):
    """The replica on this node, staged before the write began, by a coordinator that already has the bytes.

    The coordinator sends the bytes to the other owners only. Before the commit, the length and checksum of this replica
    are compared with what the others were sent. Call `drop` when the write has ended, whatever the result.
    """

    def __init__(self, store: Store, upload: Upload | LoaderError) -> None:
        """`upload` is the staged object, or the error that prevented it; repair then creates this replica."""
        super().__init__(store)
        self.upload = upload

    def _begin(self, header: Any) -> Upload | LoaderError:
        return self.upload

    def _write(self, data: bytes) -> None:
        """Ignore the bytes, since they are already staged."""

    @property
    def has_ended(self) -> bool:
        return not isinstance(self.upload, Upload) or self.upload.has_ended

    def drop(self) -> None:
        """Remove what was staged; does nothing after a commit."""
        if isinstance(self.upload, Upload):
            self.upload.abort()


class Replicas:
    def __init__(self, node: Node, channels: Channels) -> None:
        self.node = node
        self.channels = channels
        self.invalidations = InvalidationOutbox(
            channels,
            self._is_member,
            self.heard_of_map,
            self.teach,
            lambda undelivered: ReadLeases(node, undelivered, self.heard_of_map),
        )
        self.leases = self.invalidations.leases
        self.leases.keep_up = self.keep_up
        self._newest_map = "", 0
        channels.heard_of_map = self.heard_of_map

    def _is_member(self, endpoint: str) -> bool:
        view = self.node.membership.view if self.node.membership is not None else None
        return view is not None and any(node.peer_endpoint == endpoint for node in view.nodes)

    def heard_of_map(self, endpoint: str, version: int) -> None:
        """Note that the node at this endpoint knows a map of this version."""
        if version > self._newest_map[1]:
            self._newest_map = endpoint, version

    async def teach(self, endpoint: str, bucket: Bucket) -> bool:
        """Send this node's map to the node at this endpoint, if it has this very bucket; return whether it knows the
        map now."""
        view = self.node.membership.view if self.node.membership is not None else None
        known = view.buckets.get(bucket[0]) if view is not None else None
        if view is None or known is None or known.uuid != bucket[1]:
            return False
        stub = ais_cluster_pb2_grpc.ClusterStub(self.channels.to(endpoint))
        try:
            answer: cluster_pb.LearnResponse = await stub.Learn(
                cluster_pb.LearnRequest(map=view.map), timeout=self.node.config.reach_timeout_s
            )
        except grpc.aio.AioRpcError:
            return False
        return answer.version >= view.version

    async def keep_up(self) -> bool:
        """Fetch the newest map that a node has mentioned; return whether this node knows it now."""
        membership, (endpoint, version) = self.node.membership, self._newest_map
        known = membership.view.version if membership is not None and membership.view is not None else 0
        if membership is None or known >= version:
            return True
        others = [] if membership.view is None else [node.peer_endpoint for node in membership.view.nodes]
        for one in dict.fromkeys([endpoint, *others]):
            newer = await newer_map(self.channels.to(one), known, self.node.config.peer_timeout_s)
            if newer is not None and await self.node.learn(newer) >= version:
                return True
        return False

    async def has_changed(self, replica_set: ReplicaSet) -> bool:
        """Return whether a newer map is known to be in use. This node then knows it too, if it could fetch it.

        Objects that the nodes of this map lack may have been moved, by the newer one, to a node that this map does not
        have.
        """
        membership, version = self.node.membership, replica_set.view.version
        if membership is None or (self._newest_map[1] <= version and membership.view is replica_set.view):
            return False
        await self.keep_up()
        return True

    def copy(self, replica_set: ReplicaSet, node: int, held: HeldWrite | None = None) -> ReplicaStream:
        """Open a stream for one replica. `held` receives this node's own."""
        if node == replica_set.position:
            return LocalReplicaStream(node, self.node, held)
        return RemoteReplicaStream(node, replica_set.endpoint(node), self.channels, self.node.config.reach_timeout_s)

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
            asked = range(len(view.nodes)) if verdict.here else () if verdict.is_sure else write.taking
            odd = [at for at in asked if abs(offsets.get(view.nodes[at].uuid, 0)) > most_ms]
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

    def avoided(self, replica_set: ReplicaSet) -> Callable[[int], bool]:
        return lambda node: node != replica_set.position and self.channels.avoided(replica_set.endpoint(node))

    async def newest(
        self, replica_set: ReplicaSet, node: int, names: Sequence[str], *, allow_unknown: bool = False
    ) -> wire.NewestResponse:
        """Return the node's entries of these names. Raises ReplicaLost."""
        request = wire.NewestRequest(bucket=_ref(replica_set), name=names, allow_unknown=allow_unknown)
        if node == replica_set.position:
            return await self._here(replica.newest, request)
        endpoint = replica_set.endpoint(node)
        stub = ais_replica_pb2_grpc.ReplicaStub(self.channels.to(endpoint))
        timeout_s = self.node.config.reach_timeout_s if len(names) <= _FEW_NAMES else STEP_TIMEOUT_S
        with self.channels.reporting(endpoint):
            found: wire.NewestResponse = await stub.Newest(request, timeout=timeout_s)
        self.note_clock(replica_set, node, found.wall_ms)
        self.heard_of_map(endpoint, found.map_version)
        self.channels.answered(endpoint)
        return found

    async def write_tombstone(
        self,
        replica_set: ReplicaSet,
        node: int,
        name: str,
        version: wire.ObjectVersion,
        not_above: wire.ObjectVersion | None = None,
        writes: bytes = b"",
        looked_ms: int = 0,
    ) -> wire.BuryResponse:
        """Make the node write a tombstone. It refuses if it has a version newer than `not_above`, or may have missed a
        write in the last `looked_ms`. Raises ReplicaLost."""
        request = wire.BuryRequest(
            bucket=_ref(replica_set),
            name=name,
            version=version,
            not_above=not_above,
            wall_ms=self.node.store.clock.wall_ms(),
            writes=writes,
            looked_ms=looked_ms,
        )
        if node == replica_set.position:
            return await self._here(replica.write_tombstone, request)
        endpoint = replica_set.endpoint(node)
        stub = ais_replica_pb2_grpc.ReplicaStub(self.channels.to(endpoint))
        with self.channels.reporting(endpoint):
            done: wire.BuryResponse = await stub.Bury(request, timeout=STEP_TIMEOUT_S)
        self.heard_of_map(endpoint, done.map_version)
        return done

    async def _here(self, function: Callable[..., R], request: object) -> R:
        try:
            return await self.node.read(function, self.node.store, request)
        except LoaderError as error:
            raise ReplicaLost(f"this node: {error}", error) from error


def _ref(replica_set: ReplicaSet) -> wire.BucketRef:
    return wire.BucketRef(name=replica_set.bucket.name, uuid=replica_set.bucket.uuid)
