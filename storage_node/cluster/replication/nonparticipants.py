"""Invalidation of non-participants: nodes that may hold an older replica and take no part in a write are told of it.

A node that was down when a write began may be back before it ends, and former owners keep objects that are being moved
to other nodes. Their replicas become outdated when the write commits, so they are told just before. From then on they
do not answer reads of the object until they have the new version, or until the write turns out not to exist. See
`invalidation` for nodes that cannot be reached.

Several maps matter here: a node that knows a newer map may already have sent an old replica to a node that this
coordinator has not heard of. Participants and told nodes therefore report the version of their map. A newer map is
fetched, and the nodes that it adds are told as well, before the write is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ais_loader.errors import LoaderError
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.errors import TooFewCopies
from storage_node.cluster.replication.read_lease import clock_s
from storage_node.cluster.replication.replica_set import ReplicaSelection, ReplicaSet
from storage_node.store.format import Version

GIVEN_UP_S = 30.0
"""A node that was told of a write and cannot find it anywhere after this time assumes that it did not happen. If the
commit takes longer, the node is told again before the write is acknowledged."""
_MOST_MAPS = 5
"""Most map changes during the acknowledgement of one write."""

if TYPE_CHECKING:
    from storage_node.cluster.replication.invalidation import Bucket
    from storage_node.cluster.replication.replicas import Replicas


def concerned(
    nodes: Replicas, replica_set: ReplicaSet, names: Sequence[str]
) -> tuple[ClusterView, pb.MapBucket, list[list[int]]]:
    """Return the nodes concerned by the newest map, if the bucket is still in it: the write may have begun under an
    older one."""
    membership = nodes.node.membership
    view = membership.view if membership is not None else None
    bucket = view.buckets.get(replica_set.bucket.name) if view is not None else None
    if view is None or bucket is None or bucket.uuid != replica_set.bucket.uuid:
        view, bucket = replica_set.view, replica_set.bucket
    return view, bucket, view.concerned(bucket, names)


def map_version(nodes: Replicas) -> int:
    membership = nodes.node.membership
    return 0 if membership is None or membership.view is None else membership.view.version


async def invalidate_nonparticipants(
    nodes: Replicas,
    entries: Sequence[ReplicaSelection],
    versions: Sequence[Version],
    taking: Sequence[Collection[int]],
) -> bool:
    """Tell the nodes that may hold older replicas of these entries and take no part in the write.

    Returns whether each of them was told, or can no longer be read from.

    Args:
        taking: the nodes that take part in the write, per entry.
    """
    missed: dict[tuple[str, Bucket], dict[str, Version]] = {}
    for replica_set, rows in _by_replica_set(entries):
        view, bucket, found = concerned(nodes, replica_set, [entries[row].name for row in rows])
        for row, positions in zip(rows, found, strict=True):
            there = {replica_set.view.nodes[node].uuid for node in taking[row]}
            for node in (view.nodes[at] for at in positions):
                if node.uuid in there:
                    continue
                if node.uuid == replica_set.view.nodes[replica_set.position].uuid:
                    nodes.node.store.replicas.stale.mark_names(bucket.uuid, {entries[row].name: versions[row]})
                else:
                    names = missed.setdefault((node.peer_endpoint, (bucket.name, bucket.uuid)), {})
                    names[entries[row].name] = max(versions[row], names.get(entries[row].name, versions[row]))
    told = await asyncio.gather(
        *(nodes.invalidations.invalidate(endpoint, of, names) for (endpoint, of), names in missed.items())
    )
    return all(told)


async def invalidate_after_commits(
    nodes: Replicas,
    entries: Sequence[ReplicaSelection],
    versions: Sequence[Version],
    committed: Sequence[Collection[int]],
    *,
    by_map: int,
    announced_s: float,
) -> bool:
    """After the commits, tell participants that were lost, and nodes that a newer map than `by_map` adds.

    A write without any known commit is not acknowledged, so nobody needs to be told. If the commits took long, all
    nodes are told once more; `announced_s` is when they were told before.

    Returns whether all have been told. Returns False if the map keeps changing, or if this node is no longer in the
    cluster.
    """
    done = [row for row, there in enumerate(committed) if there]
    entries, versions = [entries[row] for row in done], [versions[row] for row in done]
    committed = [committed[row] for row in done]
    told_by = by_map
    lost = any(set(entry.taking) - set(there) for entry, there in zip(entries, committed, strict=True))
    lost |= clock_s() - announced_s > GIVEN_UP_S / 2  # they may assume by now that the write did not happen
    for _ in range(_MOST_MAPS):
        if not await nodes.keep_up() or (nodes.node.membership is not None and nodes.node.membership.position is None):
            return False
        if told_by == (told_by := map_version(nodes)) and not lost:
            return True
        lost = False
        if not await invalidate_nonparticipants(nodes, entries, versions, committed):
            return False
    return False


async def invalidate_one(nodes: Replicas, replica_set: ReplicaSet, node: int, versions: Mapping[str, Version]) -> bool:
    """Tell one node that it takes no part in these versions, by name, in case it receives older ones; see
    `invalidate_nonparticipants`."""
    bucket = replica_set.bucket
    if node == replica_set.position:
        nodes.node.store.replicas.stale.mark_names(bucket.uuid, versions)
        return True
    return await nodes.invalidations.invalidate(replica_set.endpoint(node), (bucket.name, bucket.uuid), versions)


def outdated(nodes: Replicas, entry: ReplicaSelection) -> LoaderError | None:
    """Return the error of a write whose participants have all stopped being owners since it began; their replicas may
    be about to be removed."""
    replica_set, name, membership = entry.replica_set, entry.name, nodes.node.membership
    if membership is None or membership.view is None or membership.view.version == replica_set.view.version:
        return None
    view, bucket, _ = concerned(nodes, replica_set, [])
    owners = {view.nodes[at].uuid for at in view.owners(bucket, name)}
    if owners.isdisjoint(replica_set.view.nodes[node].uuid for node in entry.taking):
        return TooFewCopies(f"{bucket.name}/{name}: its owners have changed meanwhile; try again, nothing was changed")
    return None


def _by_replica_set(entries: Sequence[ReplicaSelection]) -> Iterable[tuple[ReplicaSet, list[int]]]:
    """Group the positions of entries by replica set."""
    found: dict[int, tuple[ReplicaSet, list[int]]] = {}
    for row, entry in enumerate(entries):
        found.setdefault(id(entry.replica_set), (entry.replica_set, []))[1].append(row)
    return found.values()
