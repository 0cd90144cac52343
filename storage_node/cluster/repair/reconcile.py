"""Catch-up of a returning node: it finds out what it missed before it serves reads of replicated objects.

First the node tells every other node that it is back. From then on it takes part in their writes, or is told of those
in which it does not. Then it compares its objects with those of the others, bucket by bucket: the digests of ranges
(`range_comparison`), and the names in the ranges that differ. What it has in an older version, or lacks, counts as
stale, name by name, until the newer version has arrived. Everything else in a bucket is served as soon as the bucket
has been compared. Silent nodes delay it by at most `reconcile_patience_s`; after that it serves what it has, and
reports that.

A node that has given up a drive serves what is on the others and finds out what it lacks in the same way. Silent nodes
then only make it continue to compare.

If the node dies meanwhile, it starts over: nothing of the comparison is stored. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from ais_loader.errors import BucketNotFound, DriveFailed, LoaderError
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.reserved import REMOTE_ETAG
from storage_node.cluster.repair.peers import PAGE_NAMES, RepairPeers
from storage_node.cluster.repair.plan import UNKNOWN, State, batches, compare, owned_by
from storage_node.cluster.repair.range_comparison import RangeComparison
from storage_node.cluster.repair.range_table import EVERYTHING, Span
from storage_node.cluster.repair.transfers import GROUP_BYTES, GROUP_NAMES, RepairMetrics, chunks
from storage_node.cluster.replication import invalidation
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.limits.wakeup import Wakeup
from storage_node.store.drive.preconditions import checked
from storage_node.store.format import Version
from storage_node.store.replica_state import StaleName

BACKOFF, RETRY = Backoff(0.1, 1.0, jitter=0), Backoff(0.1, 5.0, jitter=0)
RESOLVE_INTERVAL_S = 0.25
MAX_MISSING = 100_000
"""Most names that are remembered as missing. Beyond that, everything the node lacks in the bucket counts as stale, and
it compares again once it has those."""
_HIGHEST = Version(2**32, 0)
log = logging.getLogger(__name__)


class Reconciler:
    def __init__(
        self,
        node: Node,
        membership: Membership,
        peers: RepairPeers,
        ranges: RangeComparison,
        counts: RepairMetrics,
        endpoint: Callable[[], str],
    ) -> None:
        """`endpoint` returns host:port of this node as others reach it; empty if unknown."""
        self._node = node
        self._store = node.store
        self._membership = membership
        self._peers = peers
        self._ranges = ranges
        self._counts = counts
        self._endpoint = endpoint
        self._missing = 0
        self._requests = 0
        self._filled: set[bytes] = set()
        """Nodes compared since a drive was given up."""
        self._retry_s, self._failures = 0.0, 0
        self._doubt = Wakeup()
        node.store.replicas.stale.on_doubt = self._doubt.set

    def mark_everything(self) -> None:
        """Mark all replicated buckets as stale. A comparison in progress has to start over."""
        self._requests += 1
        view = self._membership.view
        if view is not None and len(view.nodes) > 1:
            self._store.replicas.stale.mark_buckets(view.copied)

    def mark_gaps(self) -> None:
        """Mark everything that this node lacks as stale, since it may have been on a lost drive. Call it before the
        drive is given up and again afterwards."""
        self._requests += 1
        self._filled.clear()
        view = self._membership.view
        if view is not None and len(view.nodes) > 1:
            self._store.replicas.stale.mark_gaps(view.copied)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if self._store.replicas.stale.buckets():
                await self._return()
            elif self._store.replicas.stale.buckets_with_gaps():
                await self._fill_gaps()
            if self._store.replicas.stale.any:
                try:
                    await self.resolve()
                except LoaderError as error:
                    log.warning("copies that may be old are not brought up to date for now: %s", error)
            await asyncio.sleep(RESOLVE_INTERVAL_S)
            if not self._store.replicas.stale.bucket_uuids():
                await self._doubt.wait()

    # -- coming back

    async def _return(self) -> None:
        """Compare this node with all others. Afterwards, no bucket counts as stale as a whole."""
        began_s, requests = time.monotonic(), self._requests
        deadline_s = began_s + self._node.config.cluster.reconcile_patience_s
        view, silent = await self._announce(deadline_s)
        if view is None:
            return
        left = [
            (bucket, [node for node in self._others(view) if node.peer_endpoint not in silent])
            for bucket in view.copied.values()
        ]
        failures = 0
        while left and self._requests == requests:
            lost: set[bytes] = set()
            for bucket, nodes in left:
                for node in [one for one in nodes if one.uuid not in lost]:
                    try:
                        await self._compare_existing(view, bucket, node)
                        nodes.remove(node)
                    except (ReplicaLost, LoaderError) as error:
                        log.info("comparing with %s: %s", node.peer_endpoint, error)
                        lost.add(node.uuid)
                if not nodes and not silent and self._requests == requests:
                    self._store.replicas.stale.trust_bucket(bucket.uuid)
            left = [one for one in left if one[1]]
            if left and time.monotonic() > deadline_s:
                silent = sorted({*silent, *(node.peer_endpoint for _, nodes in left for node in nodes)})
                break
            if left:
                await asyncio.sleep(BACKOFF.pause_s(failures))
                failures += 1
        if self._requests != requests:
            return
        self._counts.silent = tuple(silent)
        if silent:
            log.warning(
                "this node serves copies that may be old: %s did not answer for %g s, and may have newer ones",
                ", ".join(silent),
                time.monotonic() - began_s,
            )
        for bucket_uuid in self._store.replicas.stale.buckets():
            self._store.replicas.stale.trust_bucket(bucket_uuid)

    async def _announce(self, deadline_s: float) -> tuple[ClusterView | None, list[str]]:
        """Announce the comparison to the other nodes. Return the map for it, and the nodes that were silent."""
        failures = 0
        versions: dict[bytes, int] = {}
        while True:
            view = self._membership.view
            if view is None or self._membership.position is None:
                return None, []  # removed from the map: there is nothing to compare
            silent: list[str] = []
            for node in self._others(view):
                if node.uuid not in versions:
                    try:
                        versions[node.uuid] = await self._peers.returned(
                            node.peer_endpoint, self._membership.node_uuid, self._endpoint()
                        )
                    except ReplicaLost:
                        silent.append(node.peer_endpoint)
            late = time.monotonic() > deadline_s
            behind = view.version < max(versions.values(), default=0)
            if (not silent and not behind and self._membership.view is view) or late:
                return view, silent
            await asyncio.sleep(BACKOFF.pause_s(failures))
            failures += 1

    async def _fill_gaps(self) -> None:
        """Compare with the next node what this one lacks. Missing names are fetched between two nodes.

        After the last node, only the names found to be missing count as stale.
        """
        view, requests = self._membership.view, self._requests
        local = self._membership.position
        if view is None or local is None or self._missing >= MAX_MISSING or time.monotonic() < self._retry_s:
            return
        stale, gaps = self._store.replicas.stale, self._store.replicas.stale.buckets_with_gaps()
        # While this node joins, readers ask the former owners as well.
        joining = view.nodes[local].state == pb.MapNode.JOINING
        left = [node for node in self._others(view) if node.uuid not in self._filled and not joining]
        for node in left:
            try:
                for bucket in view.copied.values():
                    if bucket.uuid in gaps:
                        await self._compare_existing(view, bucket, node)
            except (ReplicaLost, LoaderError) as error:
                log.info("looking for what was lost with a drive at %s: %s", node.peer_endpoint, error)
                continue
            if self._missing < MAX_MISSING and self._requests == requests:
                self._filled.add(node.uuid)
                self._failures = 0
            return
        if left:
            self._retry_s = time.monotonic() + RETRY.pause_s(self._failures)
            self._failures += 1
        elif self._membership.view is view and self._requests == requests:
            for bucket_uuid in gaps:
                stale.trust_gaps(bucket_uuid)

    def _others(self, view: ClusterView) -> list[pb.MapNode]:
        return [node for node in view.nodes if node.uuid != self._membership.node_uuid]

    async def _compare_existing(self, view: ClusterView, bucket: pb.MapBucket, node: pb.MapNode) -> None:
        try:
            for span in await self._differing(view, bucket, node):
                await self._compare(view, bucket, node, span)
        except BucketNotFound:
            return  # deleted in the meantime
        except ReplicaLost as lost:
            if not isinstance(lost.refusal, BucketNotFound):
                raise  # otherwise it has no objects of this bucket

    async def _differing(self, view: ClusterView, bucket: pb.MapBucket, node: pb.MapNode) -> list[Span]:
        """Return the ranges of names in which the node may have something newer. Raises ReplicaLost.

        All names, while objects move, because readers then ask nodes that are no owners; of a remote bucket, because
        copies may have been evicted; and if a drive of this node fails.
        """
        if not view.is_changing and not bucket.HasField("remote"):
            with contextlib.suppress(LoaderError):
                tables = await self._ranges.tables(view, [bucket])
                found = await self._ranges.differing(view, view.position[node.uuid], tables, with_strays=True)
                return found.get(bucket.uuid, [EVERYTHING])
        return [EVERYTHING]

    async def _compare(self, view: ClusterView, bucket: pb.MapBucket, node: pb.MapNode, span: Span) -> None:
        """Find the names of a range that the node has in newer versions. Raises ReplicaLost, LoaderError."""
        local = view.position[self._membership.node_uuid]
        joining = view.nodes[local].state == pb.MapNode.JOINING
        # Beyond a range that differs, only what this node owns was compared.
        owner_uuid = b"" if span == EVERYTHING else self._membership.node_uuid
        after, until = (name.decode() for name in span)
        while True:
            theirs, after = await self._peers.versions(
                node.peer_endpoint, bucket, after, until, owner_uuid, view.version
            )
            names = [name for name, _ in theirs]
            owned = await self._node.read(owned_by, view, bucket, names, local)
            mine = await self._node.read(self._states, bucket.name, names)
            wanted: dict[str, Version] = {}
            for name, state in compare(theirs, mine, owned):
                if state.is_tombstone and not state.is_evicted:
                    await self._node.read(self._write_tombstone, bucket.name, name, state)
                    continue
                if mine[name] is None:
                    if joining or bucket.HasField("remote"):
                        continue  # repair pushes it, or it may have been evicted here
                    if self._missing >= MAX_MISSING:
                        self._filled.clear()
                        self._store.replicas.stale.mark_gaps([bucket.uuid])
                        continue
                    self._missing += 1
                wanted[name] = state.version
            if wanted:
                self._store.replicas.stale.mark_names(bucket.uuid, wanted)
            if not after:
                return

    def _write_tombstone(self, bucket: str, name: str, state: State) -> None:
        writes, metadata = checked(state.writes), state.raw_metadata
        self._store.delete(bucket, name, state.version, keep_tombstone=True, writes=writes, raw_metadata=metadata)

    def _states(self, bucket: str, names: Sequence[str]) -> dict[str, State | None]:
        found: dict[str, State | None] = {}
        for name in names:
            try:
                entry = self._store.replicas.newest(bucket, [name])[0]
            except DriveFailed:
                found[name] = UNKNOWN
                continue
            found[name] = entry and State(entry.version, entry.is_tombstone, entry.size_bytes)
        return found

    # -- fetching

    async def resolve(self) -> None:
        """Fetch newer versions of stale names, as far as possible now. Raises LoaderError."""
        view = self._membership.view
        if view is None:
            return
        stale = self._store.replicas.stale
        for bucket_uuid in stale.bucket_uuids():
            bucket = view.bucket_with_uuid(bucket_uuid)
            if bucket is None or self._store.find_bucket(bucket.name) is None:
                if all(one.uuid_bytes != bucket_uuid for one in self._store.buckets().values()):
                    stale.forget_bucket(bucket_uuid)
                continue  # otherwise, a map that has it comes into use in a moment
            for names in chunks(list(stale.names(bucket_uuid)), PAGE_NAMES):
                await self._resolve(view, bucket, names)
        if not stale.count():
            self._missing = 0

    async def _resolve(self, view: ClusterView, bucket: pb.MapBucket, names: Sequence[str]) -> None:
        found = await self._node.read(self._still_older, bucket, names)
        left = {name: mine for name, mine in found.items() if mine is not UNKNOWN}  # its drive accepts no writes
        local = self._membership.position
        owned = await self._node.read(owned_by, view, bucket, names, local) if local is not None else set()
        for name in [name for name, mine in left.items() if name not in owned]:
            # The name belongs to other nodes by now; a repair pass drops this replica once they have the new one.
            if left[name] is None:
                self._store.replicas.stale.trust_name(bucket.uuid, name, _HIGHEST)
                del left[name]
        if not left:
            return
        others = [at for at, node in enumerate(view.nodes) if node.uuid != self._membership.node_uuid]
        stale = self._store.replicas.stale.names(bucket.uuid)
        answers, _ = await self._peers.newest(view, bucket, {node: list(left) for node in others})
        sources: dict[int, list[tuple[str, State]]] = {}
        for name, mine in left.items():
            known = {node: answers.get(node, {}).get(name, UNKNOWN) for node in others}
            best_node, best = None, mine
            for node, state in known.items():
                if state is not None and state is not UNKNOWN and (best is None or _is_better(state, best)):
                    best_node, best = node, state
            if best is not None and best.is_evicted:
                await self._node.read(self._remove_outdated, bucket, name, best.version)
                best_node = None
            if best_node is not None and best is not None and name in owned:
                sources.setdefault(best_node, []).append((name, best))
            elif best_node is None and name in stale and all(state is not UNKNOWN for state in known.values()):
                await self._give_up(bucket, name, stale[name])
        for node, wanted in sources.items():
            try:
                await self._fetch(view.nodes[node].peer_endpoint, bucket, wanted)
            except ReplicaLost as lost:
                log.info("newer versions of %d names cannot be fetched for now: %s", len(wanted), lost)

    async def _give_up(self, bucket: pb.MapBucket, name: str, stale: StaleName) -> None:
        """Stop treating a name as stale, as it was when no node had the announced version."""
        if time.monotonic() - stale.since_s > invalidation.GIVEN_UP_S:
            if bucket.HasField("remote"):
                await self._node.read(self._remove_copy, bucket, name)
            self._store.replicas.stale.trust_name(bucket.uuid, name, stale.version, only_if=stale)

    def _remove_outdated(self, bucket: pb.MapBucket, name: str, evicted: Version) -> None:
        """Remove what is older than a copy that another node has evicted. The remote storage has that one."""
        entry = self._store.replicas.newest_entry(bucket.uuid, name)
        if entry is not None and entry.version < evicted:
            self._store.delete(bucket.name, name, entry.version)
        self._store.replicas.stale.trust_name(bucket.uuid, name, evicted)

    def _remove_copy(self, bucket: pb.MapBucket, name: str) -> None:
        """Remove a copy of a remote object. The announced version may have been evicted everywhere, and this older one
        must not come back in its place."""
        entry = self._store.replicas.newest_entry(bucket.uuid, name)
        if entry is not None and not entry.is_tombstone and REMOTE_ETAG in entry.metadata:
            self._store.delete(bucket.name, name, entry.version)

    async def _fetch(self, endpoint: str, bucket: pb.MapBucket, wanted: Sequence[tuple[str, State]]) -> None:
        names, sizes = [name for name, _ in wanted], [state.size_bytes for _, state in wanted]
        for group in batches(names, sizes, most_names=GROUP_NAMES, most_bytes=4 * GROUP_BYTES):
            part = {names[at]: sizes[at] for at in group}
            await self._peers.push(endpoint, bucket, part, self._membership.node_uuid)
            left = await self._node.read(self._still_older, bucket, list(part))
            self._counts.names_fetched += len(part) - len(left)
            self._counts.bytes_fetched += sum(size for name, size in part.items() if name not in left)

    def _still_older(self, bucket: pb.MapBucket, names: Sequence[str]) -> dict[str, State | None]:
        """Return this node's state of the names that are still stale, and mark the others as up to date."""
        left: dict[str, State | None] = {}
        for name, state in self._states(bucket.name, names).items():
            wanted = self._store.replicas.stale.wanted(bucket.uuid, name)
            if wanted is None:
                continue
            if state is not None and state is not UNKNOWN and state.version >= wanted:
                self._store.replicas.stale.trust_name(bucket.uuid, name, state.version)
            else:
                left[name] = state
        return left


def _is_better(state: State, than: State) -> bool:
    """Return whether a node's state is newer. Of one version, what is stored comes before what was evicted."""
    return state.version > than.version or (state.version == than.version and than.is_evicted and not state.is_evicted)
