"""Anti-entropy loop: each node moves its objects to where the map wants them.

A pass goes through all names on this node's drives, page by page, and compares them with the versions of their other
owners. `plan` decides the steps: push what another owner lacks, drop what all owners have and this node does not own,
forget tombstones that guard against nothing. Nothing is remembered except on the drives, so a node that dies in a pass
simply starts a new one.

Three rules make removal safe. Every page is re-checked before anything is removed: owners sync the object first (a
power failure might undo their commit), and all nodes are asked again about tombstones (a replica in transit may escape
a single look). The map must still be the one by which the removal was decided (`map.lease`). And an object that is
being sent elsewhere is not removed here meanwhile (`Transfers.reserve_removal`).

When the map is changing and all nodes have found nothing to do under it, whoever notices finishes the change.

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import numpy as np

from ais_loader.errors import BucketNotFound, InvalidRequest, LoaderError
from ais_loader.wire.cluster_map import ClusterView, object_hashes
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.repair.copy_shortage import CopyShortage
from storage_node.cluster.repair.damage import DamageRepair
from storage_node.cluster.repair.finish_change import RETRY, all_act_by, finish
from storage_node.cluster.repair.peers import PAGE_NAMES, RepairPeers, reach
from storage_node.cluster.repair.plan import (
    Answer,
    NamePage,
    RepairWork,
    State,
    batches,
    page_of,
    plan,
    questions,
    same_owners,
)
from storage_node.cluster.repair.range_comparison import RangeComparison
from storage_node.cluster.repair.range_table import Chosen
from storage_node.cluster.repair.reconcile import Reconciler
from storage_node.cluster.repair.shortage import shortages
from storage_node.cluster.repair.transfers import GROUP_NAMES, RepairMetrics, Transfers, chunks
from storage_node.cluster.repair.unsure_copies import UnsureCopies
from storage_node.cluster.replication import replica
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.replica import from_wire
from storage_node.context.channels import Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.limits.tasks import keep_going
from storage_node.limits.wakeup import Wakeup
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry, Version, decode_entry, is_pending, name_of_key

SETTLE_S = 0.25
"""Replicas that differ may belong to a write that is being committed; they are checked again after this time."""
_FEW = 64
"""Up to this many differences in a page are re-checked; more are pushed at once."""
TOGETHER_S = 0.1
"""Unsure replicas that are read within this time are asked about together."""
RETURN_S = 2.0
_TAKEN_AT_ONCE = 64
_MOST_BYTES_BETWEEN_CHECKS = 64 << 20
"""Most bytes pushed before the map is checked again."""
log = logging.getLogger(__name__)


class Repair:
    def __init__(
        self, node: Node, membership: Membership, writes: WriteCoordinator, endpoint: Callable[[], str]
    ) -> None:
        """Args:
        writes: those that this node coordinates.
        endpoint: host:port of this node as others reach it; empty when that is not known.
        """
        self._node = node
        self._store = node.store
        self._membership = membership
        self._writes = writes
        self._endpoint = endpoint
        self.metrics = RepairMetrics()
        channels = Channels(node.caller)  # separate from those of writes, which must not wait behind transfers
        self._peers = RepairPeers(channels, self._advance_clock, node.peer_clocks)
        self.transfers = Transfers(node, channels, self.metrics)
        self.unsure = UnsureCopies(
            node.store, membership, self._peers, self._versions_of, lambda: self.metrics.clean_version
        )
        self.ranges = RangeComparison(node, membership, self._peers)
        self._reconciler = Reconciler(node, membership, self._peers, self.ranges, self.metrics, endpoint)
        self.shortage = CopyShortage(
            membership, self._peers, held=self._held_of, compare=self._compared, push=self._push
        )
        self.damage = DamageRepair(node, membership, self._peers)
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = Wakeup()
        membership.on_use(self._wake.set)
        self._woken = False
        """Whether to run a pass regardless of the map."""
        self._in_place: ClusterView | None = None
        """The map of the last pass, if that found nothing to move."""
        self.leases = writes.leases
        self.compare_all = self._reconciler.mark_everything

    def prepare(self) -> None:
        """Mark everything as unconfirmed; called before anything is served."""
        self._reconciler.mark_everything()
        self.leases.guard()

    def start(self, retained_in_place: Callable[[ClusterView], Awaitable[bool]]) -> None:
        """`retained_in_place`: the part of a pass that covers versions retained for snapshots."""
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "comparing copies after a return": self._reconciler.run,
            "making copies equal": partial(self._run, retained_in_place),
            "copying what has too few copies": self.shortage.run,
            "mending damaged copies": self.damage.run,
            "looking for damaged copies": self.damage.scrub,
            "noticing a standstill": self.leases.stay_awake,
            "asking about unsure copies": self._ask_about_unsure,
        }
        self.leases.start()
        self._tasks = [asyncio.create_task(keep_going(name, step)) for name, step in steps.items()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._peers.close()

    def wake(self) -> None:
        """Start the next pass now."""
        self._woken = True
        self._wake.set()

    def compare_again(self) -> None:
        """Compare all objects with other nodes: a drive has come back, and its replicas may be old. Call it before and
        after that."""
        self._reconciler.mark_everything()
        self.metrics.clean_version = 0

    def refill(self) -> None:
        """Find out what was on a drive that is given up. Call it before and after that."""
        self._reconciler.mark_gaps()
        self.metrics.clean_version = 0

    async def drive_lost(self) -> None:
        """Tell other nodes that a drive of this node cannot be read, so that they may have the only replicas left."""
        view = self._membership.view
        others = [] if view is None else [one for one in view.nodes if one.uuid != self._membership.node_uuid]
        # Nodes that cannot be told find out in their next pass.
        await asyncio.gather(*(self._peers.too_few(one.peer_endpoint) for one in others), return_exceptions=True)

    @property
    def peers(self) -> RepairPeers:
        return self._peers

    async def _ask_about_unsure(self) -> None:
        while True:
            await self.unsure.due.wait()
            await self.unsure.resolve()
            await asyncio.sleep(TOGETHER_S)

    # -- passes

    async def _run(self, retained_in_place: Callable[[ClusterView], Awaitable[bool]]) -> None:
        in_vain, due_s = 0, time.monotonic()
        while True:
            view = self._membership.view
            woken, self._woken = self._woken, False
            if view is not None and not woken and time.monotonic() < due_s and self._is_in_place_by(view):
                self._in_place, self.metrics.clean_version = view, view.version
            else:
                wait_s = self._node.config.cluster.repair_interval_s
                if view is not None and self._membership.position is not None:
                    before = self._done()
                    try:
                        clean, counted = await self._pass(view, retained_in_place)
                    except LoaderError as error:
                        log.warning("a pass of repair ended early: %s", error)
                        clean = counted = False
                    self._in_place = view if clean and counted else None
                    gets_on = clean or counted or self._done() != before
                    in_vain = 0 if gets_on else in_vain + 1
                    if not clean or view.is_changing:
                        wait_s = min(wait_s, RETRY.whole_s(in_vain))
                    if counted and view.is_changing:
                        await finish(view, self._membership, self._peers)
                due_s = time.monotonic() + wait_s
            self.unsure.due.set()  # a clean pass ends all doubts
            await self._wake.wait(due_s - time.monotonic())

    def _is_in_place_by(self, view: ClusterView) -> bool:
        """Return whether the result of the last pass holds under this map too.

        Buckets and jobs come and go all the time, and a pass goes through all objects.
        """
        before = self._in_place
        if before is None or self.metrics.clean_version != before.version or self._store.replicas.stale.buckets():
            return False
        return self._all_in_place() and same_owners(before, view)

    def _done(self) -> tuple[int, ...]:
        counts = self.metrics
        return counts.objects_pushed, counts.tombstones_pushed, counts.copies_dropped

    async def _pass(
        self, view: ClusterView, retained_in_place: Callable[[ClusterView], Awaitable[bool]]
    ) -> tuple[bool, bool]:
        """Compare everything on this node's drives with the other owners. Raises LoaderError.

        Returns whether there was nothing to do, and whether this node allows a change of the map to finish. Ongoing
        writes must not prevent that: another owner may always have a newer version of an object that this node owns.
        """
        counted = not view.is_changing or await all_act_by(view, self._membership, self._peers)
        in_place, record, drives = self._all_in_place(), self._store.record.current, list(self._store.drives)
        clean = True
        counts = self.metrics
        counts.names_seen = 0
        self.shortage.short.begin_pass()
        async with aclosing(self.ranges.to_compare(view)) as buckets:
            async for bucket, table, chosen in buckets:
                left = [(drive, one) for drive in self._store.drive_set.live() for one in reversed(chosen)]
                while left:
                    if self._membership.view is not view:
                        return False, False  # a new map requires a new pass
                    held = await self._node.read(_held, view, bucket, left)
                    with contextlib.suppress(BucketNotFound):
                        work = await self._mend(view, bucket, held)
                        clean, counted = clean and work.is_clean, counted and work.nothing_moves
                counts.names_seen += table.names
        self.shortage.short.end_pass()
        retained = await retained_in_place(view)
        clean, counted = clean and retained, counted and retained
        counts.passes += 1
        counts.names_before = counts.names_seen
        in_place = in_place and self._all_in_place() and self._store.record.current is record
        in_place = in_place and list(self._store.drives) == drives  # one that was away meanwhile is another one now
        counted = counted and in_place and not self._store.replicas.stale.buckets() and self._membership.view is view
        if counted:
            counts.clean_version = view.version
        return clean and in_place, counted

    def _all_in_place(self) -> bool:
        """Return whether a scan of all drives finds every object: no drive is missing, and nothing moves between
        drives."""
        return all(drive is not None for drive in self._store.drives) and not self._store.pool.moving

    async def _mend(
        self, view: ClusterView, bucket: pb.MapBucket, held: Sequence[tuple[str, CatalogEntry]]
    ) -> RepairWork:
        """Carry out the steps for one page, and return them."""
        notes, (page, answers, work) = self.shortage.short.notes, await self._plan(view, bucket, held)
        sizes = {name: state.size_bytes for name, state in zip(page.names, page.states, strict=True)}
        differing = {*itertools.chain.from_iterable(work.push.values()), *work.older_local}
        if differing and len(differing) <= _FEW:
            await asyncio.sleep(SETTLE_S)
            names = [name for name in page.names if name in differing]
            again = await self._node.read(self._records, bucket.name, names)
            if again:
                *_, still = await self._plan(view, bucket, again)
                work.push, work.older_local, work.unknown = still.push, still.older_local, work.unknown + still.unknown
                work.drop += still.drop
                work.forget += still.forget
            else:
                work.push, work.older_local = {}, {}
        if work.older_local:
            await self._node.read(
                self._mark_older, bucket, {name: state for name, (_, state) in work.older_local.items()}
            )
        await asyncio.gather(*(self._push(view, node, bucket, names, sizes) for node, names in work.push.items()))
        short = shortages(page, view.position[self._membership.node_uuid], answers)
        self.shortage.short.mended(bucket.uuid, set(page.names) - set(short), notes)
        if short:
            await self.shortage.look_after(view, bucket, list(short))
        work = await self._confirmed(view, bucket, held, work)
        await self._take_away(view, bucket, work)
        return work

    async def _confirmed(
        self, view: ClusterView, bucket: pb.MapBucket, held: Sequence[tuple[str, CatalogEntry]], work: RepairWork
    ) -> RepairWork:
        """Leave in `work` the removals that a second query of all nodes confirms.

        The owners of objects that are to be dropped sync first: a power failure might take what they have. An older
        replica in transit may escape a single query about a tombstone: it arrives where the query has already been, and
        leaves where it has not.
        """
        if work.drop or work.forget:
            names = {name for name, _ in (*work.drop, *work.forget)}
            again_held = [one for one in held if one[0] in names]
            *_, again = await self._plan(view, bucket, again_held, make_lasting=bool(work.drop))
            still = [one for one in work.drop if one in again.drop]
            work.unknown += len(work.drop) - len(still)
            work.drop, work.forget = still, [one for one in work.forget if one in again.forget]
        return work

    async def _plan(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        held: Sequence[tuple[str, CatalogEntry]],
        *,
        make_lasting: bool = False,
    ) -> tuple[NamePage, Mapping[int, Answer], RepairWork]:
        local, nodes = view.position[self._membership.node_uuid], len(view.nodes)
        page, (answers, by_this_map) = await self._ask(view, bucket, held, make_lasting=make_lasting)
        return page, answers, plan(page, local, nodes, answers, by_this_map)

    async def _compared(
        self, view: ClusterView, bucket: pb.MapBucket, held: Sequence[tuple[str, CatalogEntry]]
    ) -> tuple[NamePage, Mapping[int, Answer]]:
        page, (answers, _) = await self._ask(view, bucket, held)
        return page, answers

    async def _ask(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        held: Sequence[tuple[str, CatalogEntry]],
        *,
        make_lasting: bool = False,
    ) -> tuple[NamePage, tuple[Mapping[int, Answer], set[int]]]:
        local, nodes = view.position[self._membership.node_uuid], len(view.nodes)

        def place() -> NamePage:
            grace_s = self._node.config.cluster.tombstone_grace_s
            return page_of(view, bucket, held, now_ns=time.time_ns(), grace_s=grace_s)

        page = await self._node.read(place)
        requests = questions(page, local, nodes)
        return page, await self._peers.newest(view, bucket, requests, make_lasting=make_lasting)

    async def _held_of(self, bucket: str, names: Sequence[str]) -> list[tuple[str, CatalogEntry]]:
        return await self._node.read(self._records, bucket, names)

    async def _versions_of(self, bucket: str, names: Sequence[str]) -> dict[str, Version]:
        return {name: entry.version for name, entry in await self._held_of(bucket, names)}

    def _records(self, bucket: str, names: Sequence[str]) -> list[tuple[str, CatalogEntry]]:
        entries = zip(names, self._store.replicas.newest(bucket, names), strict=True)
        return [(name, entry) for name, entry in entries if entry is not None]

    async def _push(
        self, view: ClusterView, node: int, bucket: pb.MapBucket, names: Sequence[str], sizes: Mapping[str, int]
    ) -> None:
        try:
            names = await self.unsure.may_be_sent(view, node, bucket, names)
        except LoaderError as error:
            log.info("%d names are not copied for now: %s", len(names), error)
            return
        groups = batches(
            names, [sizes[name] for name in names], most_names=GROUP_NAMES, most_bytes=_MOST_BYTES_BETWEEN_CHECKS
        )
        try:
            for group in groups:
                if self._membership.view is not view:
                    return  # the new map may place them elsewhere
                await self.transfers.push(view.nodes[node].peer_endpoint, bucket, [names[at] for at in group])
        except (ReplicaLost, LoaderError) as error:
            log.info("%d names cannot be copied to %s for now: %s", len(names), view.nodes[node].peer_endpoint, error)

    def _mark_older(self, bucket: pb.MapBucket, names: Mapping[str, State]) -> None:
        """Mark names as stale that another owner has in a newer version; they are not served until that has arrived."""
        mine = dict(self._records(bucket.name, list(names)))
        self._store.replicas.stale.mark_names(
            bucket.uuid,
            {
                name: state.version
                for name, state in names.items()
                if name not in mine or mine[name].version < state.version
            },
        )

    async def _take_away(self, view: ClusterView, bucket: pb.MapBucket, work: RepairWork) -> None:
        """Remove entries while the map is the one that decided it, in small steps so that a new map is not delayed."""
        lease = self._membership.lease
        steps = [*((self._drop, *one) for one in work.drop), *((self._forget, *one) for one in work.forget)]
        for part in chunks(steps, _TAKEN_AT_ONCE):
            if not lease.begin(view):
                return
            free = self.transfers.reserve_removal(bucket, [name for _, name, _ in part])
            try:
                await self._node.read(self._do, bucket, [one for one in part if one[1] in free])
            finally:  # the step has ended, even if this task was cancelled
                self.transfers.end_removal(bucket, free)
                lease.end(view.version)

    def _do(self, bucket: pb.MapBucket, steps: Sequence[tuple[Callable[[str, str, State], None], str, State]]) -> None:
        replica.require_bucket(self._store, bucket.name, bucket.uuid)
        for step, name, state in steps:
            step(bucket.name, name, state)

    def _drop(self, bucket: str, name: str, state: State) -> None:
        if state.is_tombstone:
            self._store.replicas.forget_tombstone(bucket, name, state.version)
        else:
            self._store.replicas.note_removal()  # also before, for concurrent readers
            self._store.delete(bucket, name, state.version)
            self._store.replicas.note_removal()
        self.metrics.copies_dropped += 1

    def _forget(self, bucket: str, name: str, state: State) -> None:
        self.metrics.tombstones_forgotten += self._store.replicas.forget_tombstone(bucket, name, state.version)

    # -- what other nodes ask

    async def missed(self, request: wire.MissedRequest) -> wire.MissedResponse:
        """Process an announcement that others are about to commit these versions without this node. Raises
        BucketNotFound, InvalidRequest."""
        replica.require_bucket(self._store, request.bucket.name, request.bucket.uuid)
        if len(request.name) != len(request.version):
            raise InvalidRequest(f"{len(request.version)} versions of {len(request.name)} names")
        versions = [from_wire(version) for version in request.version]
        self._store.replicas.stale.mark_names(request.bucket.uuid, dict(zip(request.name, versions, strict=True)))
        await self._advance_clock(versions)
        return wire.MissedResponse(map_version=self._membership.view.version if self._membership.view else 0)

    async def relay(self, request: wire.RelayRequest) -> wire.RelayResponse:
        """Relay writes to a node that the caller cannot reach. Raises BucketNotFound, InvalidRequest."""
        if len(request.missed.name) != len(request.missed.version):
            raise InvalidRequest(f"{len(request.missed.version)} versions of {len(request.missed.name)} names")
        view, bucket = self._membership.view, request.missed.bucket
        at = view.position.get(request.node_uuid) if view is not None else None
        if view is None or at is None or view.version < request.map_version:
            return wire.RelayResponse(map_version=view.version if view is not None else 0)
        if request.node_uuid == self._membership.node_uuid:
            await self.missed(request.missed)
            return wire.RelayResponse(told=True, map_version=view.version)
        versions = dict(zip(request.missed.name, map(from_wire, request.missed.version), strict=True))
        left_s = await self._writes.invalidations.relay(
            view.nodes[at].peer_endpoint, request.node_uuid, (bucket.name, bucket.uuid), versions
        )
        notified = left_s < 0
        return wire.RelayResponse(
            told=notified, withheld=not notified, lease_left_s=max(0.0, left_s), map_version=view.version
        )

    async def returned(self, request: wire.ReturnedRequest) -> wire.ReturnedResponse:
        """Treat a returned node as available for writes again. Raises ReplicaLost."""
        view = self._membership.view
        at = view.position.get(request.node_uuid) if view is not None else None
        if view is None or at is None:
            return wire.ReturnedResponse(map_version=view.version if view is not None else 0)
        endpoint = view.nodes[at].peer_endpoint
        if request.endpoint and endpoint != request.endpoint:
            raise ReplicaLost(f"the map has {endpoint} for the node at {request.endpoint}")
        await reach(self._writes.channels, endpoint)
        await reach(self._peers.channels, endpoint)
        self._writes.invalidations.returned(endpoint)
        await self.leases.returned(request.node_uuid)
        # Writes that begin to commit from now on reach the node. The others end before it starts to compare.
        await self._writes.settle()
        # Stand-ins send their replicas to the node after it has fetched what it needs first.
        asyncio.get_running_loop().call_later(RETURN_S, self.wake)
        return wire.ReturnedResponse(map_version=view.version)

    async def push(self, request: wire.PushRequest) -> wire.PushResponse:
        """Send the objects that the caller requests. Raises ReplicaLost, LoaderError."""
        await self._node.read(replica.require_bucket, self._store, request.bucket.name, request.bucket.uuid)
        view = self._membership.view
        at = view.position.get(request.node_uuid) if view is not None else None
        bucket = view.bucket_with_uuid(request.bucket.uuid) if view is not None else None
        if view is None or at is None or bucket is None:
            raise BucketNotFound("the map has no such node or bucket")
        names = list(request.name)
        done = await self.transfers.push(view.nodes[at].peer_endpoint, bucket, names)
        written, deleted = await self._node.read(self._pending, bucket, names)
        return wire.PushResponse(objects=done, withheld=max(0, written - done), deleted=deleted)

    def _pending(self, bucket: pb.MapBucket, names: Sequence[str]) -> tuple[int, int]:
        """Return how many of these objects, and of their deletions, are still to be uploaded from here."""
        if not bucket.HasField("remote"):
            return 0, 0
        entries = (self._store.replicas.newest_entry(bucket.uuid, name) for name in names)
        pending = [entry.is_tombstone for entry in entries if entry is not None and is_pending(entry.raw_metadata)]
        return pending.count(False), pending.count(True)

    def too_few(self, request: wire.TooFewRequest) -> wire.TooFewResponse:
        """Accept a report of objects with too few replicas, one of which is here."""
        if request.HasField("bucket"):
            self.shortage.short.note(request.bucket.uuid, request.name)
        else:
            self.wake()
        return wire.TooFewResponse()

    async def left_short(self, view: ClusterView, node: int, bucket: pb.MapBucket, names: Sequence[str]) -> None:
        """Handle objects that a write of this node left with too few replicas, one of them on `node`."""
        self.metrics.short_writes += len(names)
        if view.nodes[node].uuid == self._membership.node_uuid:
            self.shortage.short.note(bucket.uuid, names)
            return
        with contextlib.suppress(ReplicaLost):  # its own next pass finds them
            await self._peers.too_few(view.nodes[node].peer_endpoint, bucket, names)

    def short_objects(self) -> dict[str, int]:
        """Return the number of objects with too few replicas per bucket, on this node's count. Thread-safe."""
        view, counts = self._membership.view, self.shortage.short.counts()
        return {} if view is None else {name: counts.get(bucket.uuid, 0) for name, bucket in view.buckets.items()}

    async def _advance_clock(self, versions: Iterable[Version]) -> None:
        """Advance the version clock beyond these versions."""
        highest = max((version.counter for version in versions), default=0)
        if highest > self._store.replicas.clock:
            with contextlib.suppress(LoaderError):  # kept in memory while the node runs
                await self._node.read(self._store.replicas.advance_past, highest)

    def progress(self) -> wire.ProgressResponse:
        view, counts, stale = self._membership.view, self.metrics, self._store.replicas.stale
        whole = stale.buckets()
        return wire.ProgressResponse(
            map_version=self._membership.lease.version,
            clean_version=counts.clean_version,
            names_seen=counts.names_seen,
            names_before=counts.names_before,
            doubtful_names=stale.count(),
            doubtful_bucket=[] if view is None else [name for name, one in view.buckets.items() if one.uuid in whole],
            silent=counts.silent,
            objects_pushed=counts.objects_pushed,
            bytes_pushed=counts.bytes_pushed,
            names_fetched=counts.names_fetched,
            short_objects={name: count for name, count in self.short_objects().items() if count},
            short_writes=counts.short_writes,
            scrub=self.damage.progress(),
            clock_offset_s=self._node.peer_clocks.widest_ms / 1000,
            clock_ahead_s=self._store.clock.ahead_ms / 1000,
        )


def _held(view: ClusterView, bucket: pb.MapBucket, left: list[tuple[Drive, Chosen]]) -> list[tuple[str, CatalogEntry]]:
    """Return about a page of the entries that one drive has of those chosen in the last of these ranges, and leave the
    rest of them. While objects move, two drives may have entries of one name."""
    held: list[tuple[str, CatalogEntry]] = []
    drive = None
    while left and len(held) < PAGE_NAMES and (not held or left[-1][0] is drive):
        drive, ((start, stop), nodes) = left.pop()
        some = drive.entries_between(bucket.uuid, start, stop, PAGE_NAMES)
        found = [(name_of_key(key), decode_entry(value)) for key, value in some]
        if len(found) == PAGE_NAMES:
            left.append((drive, Chosen((found[-1][0].encode(), stop), nodes)))
        owners = view.placement.owners(object_hashes(bucket.uuid, [name for name, _ in found]), bucket.copies)
        held += itertools.compress(found, np.any(nodes[owners], axis=1).tolist())
    return held
