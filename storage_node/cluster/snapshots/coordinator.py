"""Snapshot coordinator: any node creates a snapshot of a bucket together with all others, and the map records it.

Creation: every node holds back the commits of the bucket that it coordinates, and reports the highest version number
that it has assigned or heard of. The maximum is the cut. The map is changed to record it while all nodes hold. Each
node retains what the cut sees before it acknowledges that map. Then the nodes release their commits: versions assigned
from now on are above the cut, and no commit with an earlier version is in progress any more. The nodes compare what the
cut sees until all owners see the same, and the map is changed once more to mark the snapshot as complete.

If anything fails, the map still says what must be retained, and a snapshot in it that nobody is creating any more is
removed. Belongs to the node's event loop.
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
from storage_node.cluster.consensus.change import change_map_async
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.consensus.errors import ChangeFailed, Contended
from storage_node.cluster.map import snapshot_mutations
from storage_node.cluster.map.mutations import unchanged
from storage_node.cluster.repair.peers import reach
from storage_node.cluster.repair.transfers import bucket_ref
from storage_node.cluster.replication.commit import DRAIN_S, HOLD_S
from storage_node.cluster.snapshots.converge import KEEP_TIMEOUT_S
from storage_node.context.channels import REACH_TIMEOUT_S, STEP_TIMEOUT_S, Channels
from storage_node.context.errors import ReplicaLost, TooFewCopies
from storage_node.context.membership import Membership
from storage_node.store.drive.version_clock import VersionClock, advice, ms_of, shown
from storage_node.store.failpoints import failpoint
from storage_node.store.names import SNAPSHOT_MARK, bucket_not_found, check_snapshot_name

CHANGE_TIMEOUT_S = 20.0
CUT_TIMEOUT_S = 8.0
"""Time limit for the change of the map during which all nodes hold."""
BEGIN_S = 30.0
"""How long to retry while other changes of the map come first."""
SETTLE_S = 60.0
"""How long the number of differences may fail to decrease."""
_PAUSE_S = 0.2
_BACKOFF = Backoff(_PAUSE_S, _PAUSE_S, jitter=0.5)
T = TypeVar("T")


class SnapshotCoordinator:
    def __init__(self, membership: Membership, channels: Channels, clock: VersionClock) -> None:
        self._membership = membership
        self._clock = clock
        self._channels = channels
        self.making: set[tuple[bytes, str, int]] = set()
        """The bucket's uuid, the name, and the time at which creation began."""
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def view(self) -> ClusterView | None:
        """The map; None while the node belongs to no cluster and has its own buckets."""
        return self._membership.view

    async def listed(self, name: str) -> Sequence[cluster_pb.MapSnapshot]:
        """List snapshots, oldest first. Raises BucketNotFound, ChangeFailed."""
        bucket = await self._bucket(name)
        return [one for one in bucket.snapshot if not one.maker]

    async def delete(self, bucket_name: str, name: str) -> None:
        """Delete a snapshot. Raises BucketNotFound, SnapshotNotFound, ChangeFailed."""
        bucket = await self._bucket(bucket_name, to_change=True)
        await self._change(snapshot_mutations.delete_snapshot(bucket.uuid, name))

    async def create(self, bucket_name: str, name: str) -> cluster_pb.MapSnapshot:
        """Create a snapshot. Continues if the caller is cancelled.

        Raises InvalidName, BucketNotFound, SnapshotExists, SnapshotReadOnly; Unsupported while nodes or drives are
        being added or removed; DriveFailed; TooFewCopies if not all nodes answer; ChangeFailed.
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
            snapshot = cluster_pb.MapSnapshot(
                name=name, cut=making.cut, created_ns=making.created_ns, objects=counted[0], size_bytes=counted[1]
            )
            nodes = frozenset(node.uuid for node in view.nodes)
            await self._change(snapshot_mutations.finish_snapshot(bucket.uuid, snapshot, nodes))
        except BaseException:
            await self._abandon(bucket.uuid, making)
            raise
        finally:
            self.making.discard((bucket.uuid, name, making.created_ns))
        return snapshot

    async def _begin(
        self, bucket_name: str, name: str
    ) -> tuple[ClusterView, cluster_pb.MapBucket, cluster_pb.MapSnapshot]:
        """Record in the map that the snapshot is being created."""
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
            await asyncio.sleep(_BACKOFF.pause_s())  # let writes proceed before the retry

    async def _bucket(self, name: str, *, to_change: bool = False) -> cluster_pb.MapBucket:
        """Return the bucket, by the newest map if this node's map lacks it. Raises BucketNotFound, ChangeFailed."""
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
        """Choose the cut while all nodes hold, and record it in the map. Raises _Overtaken, LoaderError."""
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
                await change_map_async(view, change, timeout_s=CUT_TIMEOUT_S, caller=self._channels.caller)
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
            await asyncio.shield(self._release(endpoints, ref, attempt))
            if making is not None:
                self.making.discard((bucket.uuid, name, making.created_ns))
                await self._abandon(bucket.uuid, making)
            raise

    def _believe(self, endpoint: str, clock: int, wall_ms: int) -> None:
        """Raise ClockOffset if the cut is further ahead than clocks may differ: all nodes would have to continue above
        it."""
        own = self._clock
        if not own.believes(clock, wall_ms):
            raise ClockOffset(
                f"no snapshot is made: the clock of {endpoint} shows {shown(wall_ms)}, its versions are of "
                f"{shown(ms_of(clock))}, and this node's clock shows {shown(own.wall_ms())}; "
                f"{advice(own.max_offset_ms)}"
            )

    async def _hold_first(self, endpoint: str, hold: pb.HoldRequest) -> pb.HoldResponse:
        """Hold the first node. All coordinators start at the same node, so that two of them cannot each hold a part of
        the nodes."""
        until_s = time.monotonic() + HOLD_S
        while True:
            try:
                held: pb.HoldResponse = await self._ask(endpoint, "Hold", hold, DRAIN_S + REACH_TIMEOUT_S)
                return held
            except TooFewCopies:
                if time.monotonic() > until_s:
                    raise
            await asyncio.sleep(_BACKOFF.pause_s())

    async def _release(self, endpoints: Sequence[str], ref: Any, attempt: bytes) -> None:
        """Release all nodes; those that cannot be reached release by themselves."""
        request = pb.ReleaseRequest(bucket=ref, attempt=attempt)
        calls = (self._ask(endpoint, "Release", request, REACH_TIMEOUT_S) for endpoint in endpoints)
        await asyncio.gather(*calls, return_exceptions=True)

    async def _abandon(self, bucket_uuid: bytes, making: cluster_pb.MapSnapshot) -> None:
        with contextlib.suppress(LoaderError, ValueError):  # otherwise `sweep` removes it
            await asyncio.shield(self._change(snapshot_mutations.abandon_snapshot(bucket_uuid, making)))

    # -- the same for all

    async def _settle(
        self, view: ClusterView, bucket: cluster_pb.MapBucket, making: cluster_pb.MapSnapshot
    ) -> tuple[int, int]:
        """Return the number of objects and their bytes once all owners see the same. Raises LoaderError."""
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
        """Call a method on all nodes. Raises the first error once all have answered or failed."""
        calls = (self._ask(endpoint, method, request, timeout_s) for endpoint in endpoints)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return list(answers)

    async def _ask(self, endpoint: str, method: str, request: Any, timeout_s: float) -> Any:
        """Call a method on a node. Raises LoaderError."""
        return await _all_needed(self._channels.ask(endpoint, rpc.SnapshotCopiesStub, method, request, timeout_s))

    async def _change(self, edit: Edit) -> cluster_pb.ClusterMap:
        """Change the map. Raises ChangeFailed, and what the edit raises."""
        view = self._membership.view
        if view is None:
            raise _left()
        try:
            return await change_map_async(view, edit, timeout_s=CHANGE_TIMEOUT_S, caller=self._channels.caller)
        except LoaderError:
            raise  # many of them are ValueErrors as well
        except ValueError as error:
            raise ChangeFailed(str(error)) from error


class _Overtaken(LoaderError):
    """The same call may succeed at once when it is retried."""


async def _all_needed(answer: Awaitable[T]) -> T:
    """Await an answer; raise the node's error with its endpoint, or TooFewCopies if there is none."""
    try:
        return await answer
    except ReplicaLost as lost:
        kind = TooFewCopies if lost.refusal is None or lost.may_pass else type(lost.refusal)
        raise kind(f"a snapshot is made by all nodes of the cluster together: {lost}") from lost


def _left() -> LoaderError:
    return TooFewCopies("this node is no longer part of the cluster; ask another one")
