"""Commit protocol: the one way in which a node changes objects that have replicas, whether it puts or deletes them.

A put has three phases. The bytes are *staged*: every chosen replica receives them, verifies length and checksum, and
reports the newest version of the name that it has. Nothing is visible yet. Then the coordinator *plans*: it chooses one
version above all that it has heard of (`write_plan`). Then every replica *commits*: one atomic catalog write per drive,
which changes nothing if the drive already has a newer version. A deletion is the same without bytes: its replicas
commit a tombstone. Deleting one object is deleting many with one name.

The steps of one call of `commit`, in this order:

1. Map pin: until the write ends, this node reports that it still acts by this map.
2. Name locks: writes of one name that this node coordinates run one after another.
3. Check the puts: they end here if clocks differ too much, too few replicas are staged, all owners have changed, or a
   retry of the same write has overtaken this one. Deletions are checked after step 6.
4. Repeats: if the client sent this write before, find out what became of that attempt (`conditions.resolve`).
5. Conditions: the first owner of the name evaluates `if_version` and `if_absent` (`conditions.decide`).
6. Look: ask the owners of what is to be deleted for their entries, and the next nodes in the ranking for those that do
   not answer. Staging has done that for a put.
7. Barrier: wait while a snapshot of the bucket is being cut.
8. Former owners: while objects move between nodes, ask those that may have a newer version. A deletion of what nobody
   has ends here.
9. Plan: choose the version and the participants.
10. Invalidate: tell nodes that may hold an older replica and do not take part in the write. No replica commits before
    each of them has been told or can no longer be read from. If neither is reached for one of them, the whole call ends
    here, with nothing changed.
11. Count the staged replicas again: a put that has lost too many ends here.
12. Commit on this node, if it has decided about conditions: all writes that it takes part in, before anyone else. The
    conditional ones end here if that fails, or if its replica has changed since step 5.
13. Commit on all other participants, and record which ones failed.
14. Report objects that were committed on fewer nodes than they have owners (`OnShort`).
15. Invalidate the participants that failed. Do the same for a repeat that finds another attempt of it on the others.

The client is told of success when `min_copies` replicas have committed and every node that missed the write was told or
can no longer be read from. Otherwise it is told to retry.

A replica that fails while staging is dropped. A broken stream is noticed in step 11, any other failure after staging
only in step 13. A replica that dies during its commit has either the old object or the new one, and compares it with
the others when it is back. If the coordinator dies between two commits, some replicas have the new version and some the
old one, so that readers may see the new object and then the old one. Each node's repair compares its names with the
other owners at intervals, and keeps the newer version everywhere. The client got no answer and repeats the write under
the same id; step 4 then finds the commit, so that the write takes effect once. No file is visible under a name before
its commit, so that a crash at any point leaves whole objects.

Some nodes hold an older replica and do not take part: nodes that were down, and former owners. Step 10 tells them
before any commit. From then on they do not answer reads of the object until they have the new version, or until the
write turns out not to exist. See `invalidation` for nodes that cannot be reached. Several maps matter here: a node that
knows a newer map may already have sent an old replica to a node that this coordinator has not heard of. Participants
and told nodes therefore report the version of their map. A newer map is fetched, and the nodes that it adds are told as
well, in step 15.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from ais_loader.errors import DriveFailed, InvalidRequest, LoaderError
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.replication import invalidation
from storage_node.cluster.replication.conditions import decide, resolve
from storage_node.cluster.replication.replica import from_state
from storage_node.cluster.replication.replicas import (
    Participant,
    Replicas,
    StagedReplicas,
    Tombstones,
    close_all,
    outcome,
)
from storage_node.cluster.replication.write_plan import (
    PendingWrite,
    Result,
    by_replica_set,
    nonparticipants,
    plan_write,
    short_writes,
)
from storage_node.context.channels import STEP_TIMEOUT_S
from storage_node.context.errors import ReplicaLost, TooFewCopies
from storage_node.limits.name_locks import NameLocks
from storage_node.store.replica_state import clock_s, ms_since, not_found_message

HOLD_S = 10.0
DRAIN_S = 5.0
"""Part of `HOLD_S` for which `hold` waits for the writes inside the barrier."""


class _Hold:
    def __init__(self, attempt: bytes) -> None:
        self.attempt = attempt
        self.over = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None


class SnapshotBarrier:
    def __init__(self) -> None:
        self._passing: Counter[bytes] = Counter()
        self._holds: dict[bytes, _Hold] = {}
        self._drained = asyncio.Event()

    @contextlib.asynccontextmanager
    async def passing(self, buckets: Iterable[bytes]) -> AsyncIterator[None]:
        """Enter the barrier for these buckets (uuids). Waits while one is held, at most `HOLD_S` per hold."""
        mine = set(buckets)
        while held := [self._holds[bucket] for bucket in mine if bucket in self._holds]:
            await held[0].over.wait()
        self._passing.update(mine)
        try:
            yield
        finally:
            self._passing -= Counter(mine)
            self._drained.set()

    async def hold(self, bucket: bytes, attempt: bytes) -> None:
        """Hold a bucket, and return once no write is inside; call `release` afterwards.

        Raises TooFewCopies, and does not hold the bucket, if another attempt holds it or writes take too long.
        """
        if bucket in self._holds:
            raise TooFewCopies("another snapshot of the bucket is being made; try again")
        hold = self._holds[bucket] = _Hold(attempt)
        hold.timer = asyncio.get_running_loop().call_later(HOLD_S, self._end, bucket, hold)
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._passing[bucket]:
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            self._end(bucket, hold)
            raise TooFewCopies(f"writes into the bucket have been under way for {DRAIN_S:g} s; try again") from None
        except BaseException:
            self._end(bucket, hold)
            raise

    def holds(self, bucket: bytes, attempt: bytes) -> bool:
        """Return whether no write has entered since this attempt's `hold`."""
        hold = self._holds.get(bucket)
        return hold is not None and hold.attempt == attempt

    def release(self, bucket: bytes, attempt: bytes) -> bool:
        """Release the bucket; return whether this attempt still held it."""
        hold = self._holds.get(bucket)
        if hold is None or hold.attempt != attempt:
            return False
        self._end(bucket, hold)
        return True

    def _end(self, bucket: bytes, hold: _Hold) -> None:
        if self._holds.get(bucket) is hold:
            del self._holds[bucket]
        if hold.timer is not None:
            hold.timer.cancel()
        hold.over.set()


OnShort: TypeAlias = Callable[[ClusterView, int, cluster_pb.MapBucket, Sequence[str]], Awaitable[None]]
"""Called with objects that were committed on fewer nodes than the bucket's `copies`: the map, one node that has them,
the bucket, and the objects' names."""
_MOST_MAPS = 5
"""Most map changes during the acknowledgement of one write."""


class CommitProtocol:
    """Commits puts and deletions on their replicas. Belongs to the node's event loop."""

    def __init__(self, replicas: Replicas, on_short: OnShort) -> None:
        self._replicas = replicas
        self._on_short = on_short
        self._names = NameLocks()
        self.barrier = SnapshotBarrier()
        self._running: set[asyncio.Future[Any]] = set()

    async def settle(self) -> None:
        """Wait for the commits in progress, for at most `STEP_TIMEOUT_S`. A commit on a drive has no deadline."""
        if self._running:
            await asyncio.wait(self._running, timeout=STEP_TIMEOUT_S)

    def _track(self, step: asyncio.Future[Any]) -> None:
        """Make `settle` wait for this step."""
        self._running.add(step)
        step.add_done_callback(self._running.discard)

    async def commit(self, writes: Sequence[PendingWrite], staged: Sequence[StagedReplicas] = ()) -> list[Result]:
        """Run all steps for puts, whose bytes are staged, or for deletions. Closes all streams of `staged`.

        Continues if the caller is cancelled: a client that disconnects is no reason to leave replicas that differ.

        Returns one result per write, in order.
        """
        task = asyncio.ensure_future(self._run(writes, staged))
        self._track(task)
        await asyncio.wait([task])  # unlike `shield`, leaves the error of a task whose caller has gone to be logged
        return task.result()

    async def _run(self, writes: Sequence[PendingWrite], staged: Sequence[StagedReplicas]) -> list[Result]:
        lease = self._replicas.membership.lease
        version = min((write.replica_set.view.version for write in writes), default=0)
        lease.hold(version)
        try:
            async with self._names.hold((write.replica_set.bucket.uuid, write.name) for write in writes):
                self._check([write for write in writes if not write.is_deletion])
                if repeats := [write for write in _unsettled(writes) if write.is_repeat]:
                    await resolve(self._replicas, repeats)
                if conditional := [write for write in _unsettled(writes) if write.is_conditional]:
                    await decide(self._replicas, conditional)
                await self._look([write for write in _unsettled(writes) if write.is_deletion])
                going = _unsettled(writes)
                async with self.barrier.passing(write.replica_set.bucket.uuid for write in going):
                    await self._ask_former(going)
                    await self._end_absent(going)
                    await self._commit(_unsettled(going), staged)
            return [write.settled or write.unfinished(0) for write in writes]
        finally:
            lease.end(version)
            await close_all(staged)

    # -- what is there

    def _check(self, writes: Sequence[PendingWrite]) -> None:
        for write, fault in zip(writes, self._replicas.clock_faults(writes), strict=True):
            write.check(fault, self._replicas.membership.view)

    async def _look(self, writes: Sequence[PendingWrite]) -> None:
        """Ask the owners of what is to be deleted, and the next nodes in the ranking for those that do not answer."""
        for write in writes:
            write.looked_s = clock_s()
        while wanted := self._replicas.next_round(writes):
            await asyncio.gather(*(self._ask(node, mine, taking=True) for node, mine in wanted.items()))
        self._check(writes)

    async def _ask_former(self, writes: Sequence[PendingWrite]) -> None:
        """Ask former owners for their versions. While objects move, they may have newer ones than the owners."""
        former: dict[tuple[int, int], list[PendingWrite]] = {}
        for write in writes:
            for node in write.replica_set.former(write.name):
                if node not in write.taking and node not in write.found:
                    former.setdefault((id(write.replica_set), node), []).append(write)
        await asyncio.gather(*(self._ask(node, mine, taking=False) for (_, node), mine in former.items()))

    async def _ask(self, node: int, writes: Sequence[PendingWrite], *, taking: bool) -> None:
        replica_set = writes[0].replica_set
        # One name fails with its drive; many names fail one by one.
        answer = await outcome(
            self._replicas.newest,
            replica_set,
            node,
            [write.name for write in writes],
            allow_unknown=len(writes) > 1 and writes[0].is_deletion,
        )
        for row, write in enumerate(writes):
            if isinstance(answer, ReplicaLost):
                write.lose(answer)
                continue
            try:
                if answer.object[row].unknown:
                    raise DriveFailed("the drive of this name fails")
                write.report(node, from_state(answer.object[row]))
            except (DriveFailed, InvalidRequest) as error:
                refusal = error if isinstance(error, DriveFailed) else None
                write.lose(ReplicaLost(f"{replica_set.endpoint(node)}: {error}", refusal))
                continue
            write.clock = max(write.clock, answer.clock)
            write.taking += [node] if taking else []

    async def _end_absent(self, writes: Sequence[PendingWrite]) -> None:
        """End the deletions of what nobody has."""
        for replica_set, absent in by_replica_set(write for write in writes if write.is_of_nothing):
            has_changed = await self._replicas.has_changed(replica_set)
            for write in absent:
                if has_changed:
                    write.fail(replica_set.left_behind(write.name))
                else:
                    write.fail_as_not_found(not_found_message(replica_set.bucket.name, write.name))

    # -- the commits

    def _plan(self, writes: Sequence[PendingWrite]) -> None:
        store, newest = self._replicas.node.store.replicas, self._replicas.membership.view
        denied = self._replicas.node.store.denied
        clock, modified_ns = max((write.clock for write in writes), default=0), time.time_ns()
        for write in writes:
            replica_set, uuid = write.replica_set, write.replica_set.bucket.uuid
            write.seen += store.announced(uuid, write.name)
            if newest is not replica_set.view and (local := store.newest_entry(uuid, write.name)) is not None:
                # The write began under an older map. If the newer map has committed this name earlier, that version
                # must not outrank this write.
                write.seen.append(local.version)
            planned = plan_write(write, clock, modified_ns, partial(store.next_version, replica_set.number))
            if not write.is_deletion:
                planned = denied.content_error(uuid, write.name, write.checksum, write.size_bytes) or planned
            if isinstance(planned, LoaderError):
                write.fail(planned)
            else:
                write.plan = planned

    async def _commit(self, writes: Sequence[PendingWrite], staged: Sequence[StagedReplicas]) -> None:
        """Commit writes, and set their results."""
        try:
            await self._replicas.node.read(self._plan, writes)
        except LoaderError as error:  # this node cannot issue versions
            for write in writes:
                write.fail(error)
        plans = {write: write.plan for write in _unsettled(writes) if write.plan is not None}
        if not plans:
            return
        notified_map_version, notified_at_s = self._map_version, clock_s()
        if not await self._invalidate({write: plan.commits for write, plan in plans.items()}):
            for write in plans:
                write.fail(write.untold())
            return
        for gone in (replica for replica in staged if replica.stream.has_failed):
            for write in gone.planned:
                write.taking.remove(gone.node)
                write.lose(ReplicaLost(f"{gone.endpoint}: it has ended the write"))
        for write in plans:
            write.fail(write.shortage())
        parts: list[Participant] = [*staged, *self._tombstones(plans)]
        looked_s = min(write.looked_s for write in plans)
        first = [part for part in parts if any(plans[write].first == part.node for write in part.planned)]
        for part in first:
            await self._commit_on(part, looked_s)
        await asyncio.gather(*(self._commit_on(part, looked_s) for part in parts if part not in first and part.planned))
        for short in short_writes(plans):
            self._track(asyncio.ensure_future(self._on_short(*short)))
        notified = await self._invalidate_lost(
            [write for write in plans if write.made[1]], notified_map_version, notified_at_s
        )
        for write in plans:
            write.conclude(notified)

    def _tombstones(self, writes: Iterable[PendingWrite]) -> Iterable[Tombstones]:
        parts: dict[tuple[int, int], Tombstones] = {}
        for write in writes:
            for node in write.plan.commits if write.is_deletion and write.plan is not None else ():
                empty = Tombstones(self._replicas, write.replica_set, node, [])
                parts.setdefault((id(write.replica_set), node), empty).writes.append(write)
        return parts.values()

    @staticmethod
    async def _commit_on(part: Participant, looked_s: float) -> None:
        writes = part.planned
        answers = await outcome(part.commit, writes, ms_since(looked_s))
        for at, write in enumerate(writes):
            write.record(part.node, answers if isinstance(answers, ReplicaLost) else answers[at])

    # -- nodes that miss the write

    @property
    def _map_version(self) -> int:
        view = self._replicas.membership.view
        return 0 if view is None else view.version

    async def _invalidate(self, participants: Mapping[PendingWrite, Collection[int]]) -> bool:
        """Tell the nodes that may hold older replicas and take no part in the writes.

        Returns whether each of them was told, or can no longer be read from.
        """
        membership, steps = self._replicas.membership, []
        for (uuid, endpoint, bucket), versions in nonparticipants(membership.view, participants).items():
            if uuid == membership.node_uuid:
                self._replicas.node.store.replicas.stale.mark_names(bucket[1], versions)
            else:
                steps.append(self._replicas.invalidations.invalidate(endpoint, bucket, versions))
        return all(await asyncio.gather(*steps))

    async def _invalidate_lost(
        self, writes: Sequence[PendingWrite], notified_map_version: int, notified_at_s: float
    ) -> bool:
        """After the commits, tell lost participants, and nodes that a newer map than `notified_map_version` adds.

        A write that no node is known to have is not acknowledged, so nobody needs to be told. If the commits took long,
        all nodes are told once more; `notified_at_s` is when they were told before.

        Returns whether all have been told. Returns False if the map keeps changing, or if this node is no longer in the
        cluster.
        """
        if not writes:
            return True
        lost = any(set(write.plan.commits) - set(write.made[1]) for write in writes if write.plan is not None)
        # By then they may assume that the write did not happen.
        lost |= clock_s() - notified_at_s > invalidation.GIVEN_UP_S / 2
        for _ in range(_MOST_MAPS):
            if not await self._replicas.keep_up() or self._replicas.membership.position is None:
                return False
            if notified_map_version == (notified_map_version := self._map_version) and not lost:
                return True
            lost = False
            if not await self._invalidate({write: write.made[1] for write in writes}):
                return False
        return False


def _unsettled(writes: Iterable[PendingWrite]) -> list[PendingWrite]:
    """Return the writes that nothing has ended."""
    return [write for write in writes if write.settled is None]
