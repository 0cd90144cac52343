"""Snapshot coordinator: any node makes a snapshot of a bucket with all the others, and the map keeps it.

Making one: every node holds the commits of the bucket that it coordinates, and says the highest number that it has
given or heard of. The highest of all is the cut. The map is changed to say so, with all nodes holding; each of them
retains what the cut sees before it counts the map as known. Then they let go: what is given a version from now on is
above the cut, and of what was given one before nothing is on its way any more. Then the nodes compare what the cut
sees, until all owners see the same, and the map is changed once more: now it is there.

Whatever fails on the way, the map says what is to be retained, and a snapshot in it that nobody makes any more is taken
out again. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from ais_loader.errors import ClockOffset, LoaderError, SnapshotNotFound, SnapshotReadOnly
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2 as pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2_grpc as rpc
from storage_node.cluster.channels import Channels
from storage_node.cluster.consensus.change import change_map_async
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.consensus.errors import ChangeFailed, Contended
from storage_node.cluster.errors import TooFewCopies
from storage_node.cluster.map import snapshot_mutations
from storage_node.cluster.map.membership import Membership
from storage_node.cluster.map.mutations import unchanged
from storage_node.cluster.repair.peers import reach
from storage_node.cluster.repair.transfers import bucket_ref
from storage_node.cluster.replication.replica_stream import REACH_TIMEOUT_S, STEP_TIMEOUT_S, ReplicaLost, reporting
from storage_node.cluster.replication.snapshot_barrier import DRAIN_S, HOLD_S
from storage_node.cluster.snapshots.converge import KEEP_TIMEOUT_S
from storage_node.store.drive.version_clock import VersionClock, ms_of
from storage_node.store.failpoints import failpoint
from storage_node.store.names import SNAPSHOT_MARK, bucket_not_found, check_snapshot_name
from storage_node.store.wall_clock import advice, shown

CHANGE_TIMEOUT_S = 20.0
CUT_TIMEOUT_S = 8.0
"""For the change of the map under which all nodes hold."""
BEGIN_S = 30.0
"""So long it is tried again while other changes of the map come first."""
SETTLE_S = 60.0
"""So long the nodes may differ as much as before."""
_PAUSE_S = 0.2
_BACKOFF = Backoff(_PAUSE_S, _PAUSE_S, jitter=0.5)
T = TypeVar("T")


class SnapshotCoordinator:
    def __init__(self, membership: Membership, channels: Channels, clock: VersionClock) -> None:
        self._membership = membership
        self._clock = clock
        self._channels = channels
        self.making: set[tuple[bytes, str, int]] = set()
        """The bucket's uuid, the name, and the moment at which it was begun."""
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def view(self) -> ClusterView | None:
        """None while the node belongs to no cluster and has its buckets to itself."""
        return self._membership.view

    async def listed(self, name: str) -> Sequence[cluster_pb.MapSnapshot]:
        """Oldest first. Raises BucketNotFound, ChangeFailed."""
        bucket = await self._bucket(name)
        return [one for one in bucket.snapshot if not one.maker]

    async def delete(self, bucket_name: str, name: str) -> None:
        """Raises BucketNotFound, SnapshotNotFound, ChangeFailed."""
        bucket = await self._bucket(bucket_name, to_change=True)
        await self._change(snapshot_mutations.delete_snapshot(bucket.uuid, name))

    async def create(self, bucket_name: str, name: str) -> cluster_pb.MapSnapshot:
        """Raises InvalidName, BucketNotFound, SnapshotExists, SnapshotReadOnly, Unsupported while nodes or drives come
        or go, DriveFailed, TooFewCopies when not all nodes answer, ChangeFailed.

        Goes on when the caller is cancelled.
        """
        check_snapshot_name(name)
        task = asyncio.create_task(self._create(bucket_name, name), name="making a snapshot")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _create(self, bucket_name: str, name: str) -> cluster_pb.MapSnapshot:
        view, bucket, making = await self._begin(bucket_name, name)
        try:
            failpoint("snapshot.cut_by_all")
            counted = await self._settle(view, bucket, making)
            failpoint("snapshot.settled")
            made = cluster_pb.MapSnapshot(
                name=name, cut=making.cut, created_ns=making.created_ns, objects=counted[0], size_bytes=counted[1]
            )
            nodes = frozenset(node.uuid for node in view.nodes)
            await self._change(snapshot_mutations.finish_snapshot(bucket.uuid, made, nodes))
        except BaseException:
            await self._abandon(bucket.uuid, making)
            raise
        finally:
            self.making.discard((bucket.uuid, name, making.created_ns))
        return made

    async def _begin(
        self, bucket_name: str, name: str
    ) -> tuple[ClusterView, cluster_pb.MapBucket, cluster_pb.MapSnapshot]:
        """Have the map say that it is being made."""
        until_s = time.monotonic() + BEGIN_S
        while True:
            bucket = await self._bucket(bucket_name, to_change=True)
            view = self._membership.view
            if view is None:
                raise _left()
            snapshot_mutations.require_settled(view.map, bucket)
            snapshot_mutations.require_new(bucket, name)
            try:
                return view, bucket, await self._cut(view, bucket, name)
            except _Overtaken as error:
                if time.monotonic() > until_s:
                    raise TooFewCopies(str(error)) from error
                await self._change(unchanged)
            await asyncio.sleep(_BACKOFF.pause_s())  # writes go on before it is tried again

    async def _bucket(self, name: str, *, to_change: bool = False) -> cluster_pb.MapBucket:
        """By the newest map, where this node's has none of this name. Raises BucketNotFound, ChangeFailed."""
        view = self._membership.view
        if view is None or name not in view.buckets:
            view = ClusterView(await self._change(unchanged))
        if (found := view.buckets.get(name)) is not None:
            return found
        of, mark, snapshot = name.partition(SNAPSHOT_MARK)
        if to_change and name in view.pinned:
            raise SnapshotReadOnly(f"{name!r} is a snapshot, which never changes")
        if mark and of in view.buckets:
            if name in view.pinned:
                return view.buckets[of]
            raise SnapshotNotFound(f"bucket {of!r} has no snapshot {snapshot!r}")
        raise bucket_not_found(of, view.buckets)

    # -- the cut

    async def _cut(self, view: ClusterView, bucket: cluster_pb.MapBucket, name: str) -> cluster_pb.MapSnapshot:
        """Have the map say that a snapshot with this name is being made. Raises _Overtaken, LoaderError."""
        attempt, ref = os.urandom(16), bucket_ref(bucket)
        endpoints = [node.peer_endpoint for node in sorted(view.nodes, key=lambda node: node.uuid)]
        await asyncio.gather(*(_all_needed(reach(self._channels, endpoint)) for endpoint in endpoints))
        making: cluster_pb.MapSnapshot | None = None
        try:
            hold = pb.HoldRequest(bucket=ref, attempt=attempt)
            held = [await self._hold_first(endpoints[0], hold)]
            held += await self._ask_all(endpoints[1:], "Hold", hold, DRAIN_S + REACH_TIMEOUT_S)
            failpoint("snapshot.held")
            for endpoint, answer in zip(endpoints, held, strict=True):
                self._believe(endpoint, answer.clock, answer.wall_ms)
            making = cluster_pb.MapSnapshot(
                name=name,
                cut=max(answer.clock for answer in held),
                created_ns=time.time_ns(),
                maker=self._membership.node_uuid,
            )
            self.making.add((bucket.uuid, name, making.created_ns))
            change = snapshot_mutations.begin_snapshot(bucket.uuid, making, view.version)
            try:
                await change_map_async(endpoints, change, timeout_s=CUT_TIMEOUT_S, caller=self._channels.caller)
            except (Contended, snapshot_mutations.MapChanged) as error:
                raise _Overtaken(str(error)) from error
            armed = pb.ArmedRequest(bucket=ref, attempt=attempt, cut=making.cut)
            ready = await self._ask_all(endpoints, "Armed", armed, STEP_TIMEOUT_S)
            if not all(answer.armed for answer in ready):
                raise _Overtaken("a node did not learn in time that a snapshot is being made; try again")
            release = pb.ReleaseRequest(bucket=ref, attempt=attempt)
            released = await self._ask_all(endpoints, "Release", release, STEP_TIMEOUT_S)
            if not all(answer.held for answer in released):
                raise _Overtaken("a node did not hold its writes for so long as making the snapshot took; try again")
            return making
        except BaseException:
            await asyncio.shield(self._let_go(endpoints, ref, attempt))
            if making is not None:
                self.making.discard((bucket.uuid, name, making.created_ns))
                await self._abandon(bucket.uuid, making)
            raise

    def _believe(self, endpoint: str, clock: int, wall_ms: int) -> None:
        """Raises ClockOffset: all nodes would go on above a cut that is further ahead than clocks may differ."""
        own = self._clock
        if not own.believes(clock, wall_ms):
            raise ClockOffset(
                f"no snapshot is made: the clock of {endpoint} shows {shown(wall_ms)}, its versions are of "
                f"{shown(ms_of(clock))}, and this node's clock shows {shown(own.wall_ms())}; "
                f"{advice(own.max_offset_ms)}"
            )

    async def _hold_first(self, endpoint: str, hold: pb.HoldRequest) -> pb.HoldResponse:
        """Everybody begins at the same node, so that nobody holds some nodes while somebody else holds others."""
        until_s = time.monotonic() + HOLD_S
        while True:
            try:
                held: pb.HoldResponse = await self._ask(endpoint, "Hold", hold, DRAIN_S + REACH_TIMEOUT_S)
                return held
            except TooFewCopies:
                if time.monotonic() > until_s:
                    raise
            await asyncio.sleep(_BACKOFF.pause_s())

    async def _let_go(self, endpoints: Sequence[str], ref: Any, attempt: bytes) -> None:
        """Those that do not hear of it let go by themselves."""
        request = pb.ReleaseRequest(bucket=ref, attempt=attempt)
        calls = (self._ask(endpoint, "Release", request, REACH_TIMEOUT_S) for endpoint in endpoints)
        await asyncio.gather(*calls, return_exceptions=True)

    async def _abandon(self, bucket_uuid: bytes, making: cluster_pb.MapSnapshot) -> None:
        with contextlib.suppress(LoaderError, ValueError):  # otherwise whoever finds it, see `sweep`
            await asyncio.shield(self._change(snapshot_mutations.abandon_snapshot(bucket_uuid, making)))

    # -- the same for all

    async def _settle(
        self, view: ClusterView, bucket: cluster_pb.MapBucket, making: cluster_pb.MapSnapshot
    ) -> tuple[int, int]:
        """Returns when all owners see the same: how many objects, and their bytes. Raises LoaderError."""
        endpoints = [node.peer_endpoint for node in view.nodes]
        fewest, since_s = -1, time.monotonic()
        while True:
            rounds = await asyncio.gather(*(self._settle_node(endpoint, bucket, making.cut) for endpoint in endpoints))
            differing = sum(one.differing for one in rounds)
            if not differing:
                return sum(one.objects for one in rounds), sum(one.size_bytes for one in rounds)
            if fewest < 0 or differing < fewest:
                fewest, since_s = differing, time.monotonic()
            if time.monotonic() - since_s > SETTLE_S:
                why = next((one.problem for one in rounds if one.problem), "a node does not answer")
                raise TooFewCopies(
                    f"the copies of {differing:,} objects do not become equal, so that no snapshot can be made: {why}"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _settle_node(self, endpoint: str, bucket: cluster_pb.MapBucket, cut: int) -> pb.SettleResponse:
        total, more, after = pb.SettleResponse(), True, ""
        while more:
            request = pb.SettleRequest(bucket=bucket_ref(bucket), cut=cut, start_after=after)
            page = await self._ask(endpoint, "Settle", request, KEEP_TIMEOUT_S)
            after, more = page.last, page.more
            total.differing += page.differing
            total.objects += page.objects
            total.size_bytes += page.size_bytes
            total.problem = page.problem or total.problem
        return total

    # -- asking

    async def _ask_all(self, endpoints: Sequence[str], method: str, request: Any, timeout_s: float) -> list[Any]:
        """Raises the first error, when all have answered or failed."""
        calls = (self._ask(endpoint, method, request, timeout_s) for endpoint in endpoints)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return list(answers)

    async def _ask(self, endpoint: str, method: str, request: Any, timeout_s: float) -> Any:
        """Raises LoaderError."""
        return await _all_needed(self._call(endpoint, method, request, timeout_s))

    async def _call(self, endpoint: str, method: str, request: Any, timeout_s: float) -> Any:
        with reporting(self._channels, endpoint):
            call = getattr(rpc.SnapshotCopiesStub(self._channels.to(endpoint)), method)
            return await call(request, timeout=timeout_s)

    async def _change(self, edit: Edit) -> cluster_pb.ClusterMap:
        """Raises ChangeFailed, and what the edit raises."""
        view = self._membership.view
        if view is None:
            raise _left()
        try:
            return await change_map_async(
                [node.peer_endpoint for node in view.nodes],
                edit,
                timeout_s=CHANGE_TIMEOUT_S,
                caller=self._channels.caller,
            )
        except LoaderError:
            raise  # many are a ValueError, too
        except ValueError as error:
            raise ChangeFailed(str(error)) from error


class _Overtaken(LoaderError):
    """The same may succeed at once when it is tried again."""


async def _all_needed(answer: Awaitable[T]) -> T:
    """Raises what the node said, with its endpoint, or TooFewCopies."""
    try:
        return await answer
    except ReplicaLost as lost:
        kind = TooFewCopies if lost.refusal is None or lost.may_pass else type(lost.refusal)
        raise kind(f"a snapshot is made by all nodes of the cluster together: {lost}") from lost


def _left() -> LoaderError:
    return TooFewCopies("this node is no longer part of the cluster; ask another one")
