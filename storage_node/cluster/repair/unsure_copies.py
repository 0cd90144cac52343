"""Unsure replicas: those that a node held, as a stand-in or an early owner, before a new map makes it an owner.

A node that is not an owner is not told of later writes of an object. Before a map comes into use under which other
nodes lose objects, each node therefore notes what it has, by the file generations of its drives. A replica in an older
file counts as unsure if the node was not told of the object's writes. It is not read, and all nodes that were told are
asked for their versions. A newer one is fetched like a missed write. Neither is the replica sent to another owner that
was not told, since that owner would serve it; so replicas that arrive later are sure.

This ends once the node has gone through all its objects under a map by which nothing moves. What it had when it started
is compared anyway, see `reconcile`.

`follow` and `is_unsure` are thread-safe; the rest belongs to the node's event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ais_loader.errors import LoaderError
from ais_loader.wire.cluster_map import ClusterView, by_key
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.repair.peers import PAGE_NAMES, RepairPeers
from storage_node.cluster.repair.plan import UNKNOWN
from storage_node.cluster.repair.transfers import chunks
from storage_node.context.membership import Membership
from storage_node.limits.wakeup import Wakeup
from storage_node.store.drive.drive import Drive
from storage_node.store.format import MAX_GENERATION, CatalogEntry, Version, decode_entry
from storage_node.store.store import Store

MAX_VIEWS = 8
MAX_NAMES = 100_000
"""Most names to ask about, and most names known to be sure. Beyond that, the answer is determined again."""


class _Since(NamedTuple):
    """The maps and the node's files at the moment when it, or others, began to own more."""

    views: tuple[ClusterView, ...]
    """The maps before each change since then."""
    version: int
    """Version of the first map since then."""
    generations: dict[str, int]
    """The next file generation of each drive, by its uuid; files from it on are newer."""

    def notified(self, bucket_uuid: bytes, names: Sequence[str]) -> list[set[bytes]] | None:
        """Return, for each name, the nodes that were told of all its writes; if there are none, those that were told of
        some. None for a bucket created since then."""
        found: list[list[set[bytes]]] = [[] for _ in names]
        for view in self.views:
            if (bucket := view.bucket_with_uuid(bucket_uuid)) is not None:
                for sets, positions in zip(found, view.concerned(bucket, names), strict=True):
                    sets.append({view.nodes[at].uuid for at in positions})
        if not found or not found[0]:
            return None
        return [set.intersection(*sets) or set.union(*sets) for sets in found]


class UnsureCopies:
    def __init__(
        self,
        store: Store,
        membership: Membership,
        peers: RepairPeers,
        records: Callable[[str, Sequence[str]], Awaitable[Mapping[str, Version]]],
        clean_version: Callable[[], int],
    ) -> None:
        """Args:
        records: the versions of what this node has of names of a bucket; raises LoaderError.
        clean_version: the map under which this node has gone through all that it has and found nothing to move.
        """
        self._store = store
        self._membership = membership
        self._peers = peers
        self._records = records
        self._clean_version = clean_version
        self._lock = threading.Lock()
        self._since: _Since | None = None
        self._pending: dict[bytes, dict[str, Version]] = {}
        self._sure: dict[tuple[bytes, str], Version] = {}
        self.due = Wakeup()
        """Set when `resolve` may have something to do."""
        membership.on_change(self.follow)

    def follow(self, view: ClusterView) -> None:
        """Note this node's files before a new map is used."""
        before, local = self._membership.view, self._membership.node_uuid
        if before is None or local not in before.position or _owning(before) == _owning(view):
            return
        with self._lock:
            drives = [drive for drive in self._store.drives if drive is not None]
            generations = {drive.identity.drive_uuid: _next_generation(drive) for drive in drives}
            views = self._since.views if self._since is not None else ()
            # Of many the first and the last ones say the most.
            views = (*views[:1], *views[max(1, len(views) - MAX_VIEWS + 2) :], before)
            self._since = _Since(views, view.version, generations)
            self._pending, self._sure = {}, {}
        if _owning(before) - _owning(view):  # joining nodes make nobody else an owner
            self._store.replicas.stale.mark_unsure(self.is_unsure)

    def is_unsure(self, bucket_uuid: bytes, name: str, found: CatalogEntry) -> bool:
        """Return whether this replica must not be read; it is then queued for a query."""
        since = self._since
        notified = since.notified(bucket_uuid, [name]) if since is not None and not found.is_tombstone else None
        if since is None or notified is None or self._membership.node_uuid in notified[0]:
            return False
        drive = self._store.drive_set.at(self._store.drive_set.placement.owner(bucket_uuid, name))
        if found.has_file and found.generation >= since.generations.get(drive.identity.drive_uuid, MAX_GENERATION):
            return False
        with self._lock:
            if self._sure.get((bucket_uuid, name)) == found.version:
                return False
            names = self._pending.setdefault(bucket_uuid, {})
            if sum(map(len, self._pending.values())) < MAX_NAMES:
                names[name] = found.version
        self.due.set()
        return True

    def note_sent(self, bucket_uuid: bytes, coded: Iterable[tuple[str, bytes]]) -> None:
        """Note coded entries that another owner has sent: unlike files, they do not tell when they came."""
        with self._lock:
            if self._since is not None and len(self._sure) < MAX_NAMES:
                self._sure |= {(bucket_uuid, name): decode_entry(value).version for name, value in coded}

    async def resolve(self) -> None:
        """Ask other nodes about the replicas that somebody wanted to read."""
        view, since = self._membership.view, self._since
        if view is None or since is None:
            return
        if not view.is_changing and self._clean_version() == view.version >= since.version:
            with self._lock:
                if self._since is since:
                    self._since = None
                    self._store.replicas.stale.mark_unsure(None)
            return
        with self._lock:
            pending, self._pending = self._pending, {}
        for bucket_uuid, names in pending.items():
            if (bucket := view.bucket_with_uuid(bucket_uuid)) is not None:
                for part in chunks(list(names), PAGE_NAMES):
                    await self._resolve(view, since, bucket, {name: names[name] for name in part})

    async def may_be_sent(
        self, view: ClusterView, to: int, bucket: pb.MapBucket, names: Sequence[str]
    ) -> Sequence[str]:
        """Return those of these names whose replicas may be sent to a node of the map."""
        since = self._since
        notified = since.notified(bucket.uuid, names) if since is not None else None
        if since is None or notified is None:
            return names
        ends = {self._membership.node_uuid, view.nodes[to].uuid}
        unsure = [name for name, nodes in zip(names, notified, strict=True) if ends.isdisjoint(nodes)]
        if not unsure:
            return names
        found = await self._records(bucket.name, unsure)
        sure: set[str] = set()
        for part in chunks(list(found), PAGE_NAMES):
            sure |= await self._resolve(view, since, bucket, {name: found[name] for name in part})
        return [name for name in names if name not in unsure or name in sure]

    async def _resolve(
        self, view: ClusterView, since: _Since, bucket: pb.MapBucket, names: dict[str, Version]
    ) -> set[str]:
        """Return the names that are sure: no node of the map that was told of their writes has a newer version, and all
        such nodes have answered."""
        rows = list(names)
        uuids = since.notified(bucket.uuid, rows) or [set() for _ in rows]
        owners: list[Sequence[int]] = [[view.position[one] for one in nodes if one in view.position] for nodes in uuids]
        requests = by_key((node, name) for name, nodes in zip(rows, owners, strict=True) for node in nodes)
        answers, _ = await self._peers.newest(view, bucket, requests)
        newer: dict[str, Version] = {}
        sure: set[str] = set()
        for name, positions in zip(rows, owners, strict=True):
            states = [answers.get(node, {}).get(name, UNKNOWN) for node in positions]
            highest = max((one.version for one in states if one is not None), default=names[name])
            if highest > names[name]:
                newer[name] = highest
            elif UNKNOWN not in states:
                sure.add(name)
                with self._lock:
                    if self._since is since and len(self._sure) < MAX_NAMES:
                        self._sure[bucket.uuid, name] = names[name]
        if newer:
            self._store.replicas.stale.mark_names(bucket.uuid, newer)
        return sure


def _next_generation(drive: Drive) -> int:
    try:
        return drive.generations.next
    except LoaderError:
        return MAX_GENERATION  # it accepts no writes, so all its files are old


def _owning(view: ClusterView) -> set[bytes]:
    return {node.uuid for node in view.nodes if node.state != pb.MapNode.LEAVING}
