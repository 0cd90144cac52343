"""Listing filter: removes objects from a node's listing that their owners have deleted.

A node that stood in for an owner, or was one by an earlier map, has replicas that repair will remove. It is not told of
deletions, as nobody reads these replicas. But a listing merges the names of all nodes, and such an object may exist on
this node only. The node therefore asks the owners before it lists these objects. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from storage_node.cluster.replication.replica import from_wire
from storage_node.cluster.replication.replicas import Replicas, outcome
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.errors import ReplicaLost
from storage_node.store.buckets import ReplicaStale
from storage_node.store.format import CatalogEntry, Version

Listed = list[tuple[str, CatalogEntry]]


async def not_deleted(replicas: Replicas, replica_set: ReplicaSet, found: Listed) -> Listed:
    """Remove the objects that an owner has deleted since.

    Raises ReplicaStale if no owner of an object answers: it may have been deleted, and it may exist on this node only.
    """
    if not found:
        return found
    requests = await replicas.node.read(_of_others, replica_set, [name for name, _ in found])
    if not requests:
        return found
    answers = await asyncio.gather(
        *(outcome(replicas.newest, replica_set, node, names, allow_unknown=True) for node, names in requests.items())
    )
    tombstones: dict[str, Version] = {}
    unsaid = {name for names in requests.values() for name in names}
    for answer, names in zip(answers, requests.values(), strict=True):
        if isinstance(answer, ReplicaLost):
            continue  # another owner may answer
        for name, state in zip(names, answer.object, strict=True):
            if not state.unknown:
                unsaid.discard(name)
            if state.is_tombstone:
                tombstones[name] = max(from_wire(state.version), tombstones.get(name, Version(0, 0)))
    if unsaid:
        raise ReplicaStale(f"no owner says whether {next(iter(unsaid))!r} is still there")
    return [(name, entry) for name, entry in found if name not in tombstones or tombstones[name] < entry.version]


def _of_others(replica_set: ReplicaSet, names: Sequence[str]) -> dict[int, list[str]]:
    """Group the names that this node does not own by the nodes that own them."""
    requests: dict[int, list[str]] = {}
    for name, having in zip(names, replica_set.view.holders(replica_set.bucket, names), strict=True):
        if replica_set.position not in having:
            for node in having:
                requests.setdefault(node, []).append(name)
    return requests
