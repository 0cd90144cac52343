"""Listing filter: leaves out of a node's listing what its owners have deleted since.

A node that stood in for an owner, or was one by an earlier map, has copies that go when repair comes past them. Nobody
tells it of deletions until then, as nobody reads these copies; but a list is made of what all nodes have, and an object
may be there and nowhere else. So it asks the owners before it lists them. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from storage_node.cluster.replication.replica import from_wire
from storage_node.cluster.replication.replica_client import ReplicaClient, outcome
from storage_node.cluster.replication.replica_set import ReplicaSet
from storage_node.cluster.replication.replica_stream import ReplicaLost
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.stale_replicas import ReplicaStale

Listed = list[tuple[str, CatalogEntry]]


async def not_deleted(nodes: ReplicaClient, replica_set: ReplicaSet, found: Listed) -> Listed:
    """Without those of which an owner says that they have been deleted since.

    Raises ReplicaStale when no owner of one says anything: it may have been deleted, and it may be nowhere else.
    """
    if not found:
        return found
    asked = await nodes.node.read(_of_others, replica_set, [name for name, _ in found])
    if not asked:
        return found
    answers = await asyncio.gather(
        *(outcome(nodes.newest(replica_set, node, names, allow_unknown=True)) for node, names in asked.items())
    )
    tombstones: dict[str, Version] = {}
    unsaid = {name for names in asked.values() for name in names}
    for answer, names in zip(answers, asked.values(), strict=True):
        if isinstance(answer, ReplicaLost):
            continue  # another owner knows, or nobody
        for name, state in zip(names, answer.object, strict=True):
            if not state.unknown:
                unsaid.discard(name)
            if state.is_tombstone:
                tombstones[name] = max(from_wire(state.version), tombstones.get(name, Version(0, 0)))
    if unsaid:
        raise ReplicaStale(f"no owner says whether {next(iter(unsaid))!r} is still there")
    return [(name, record) for name, record in found if name not in tombstones or tombstones[name] < record.version]


def _of_others(replica_set: ReplicaSet, names: Sequence[str]) -> dict[int, list[str]]:
    """Names that this node does not own, by each node that does."""
    asked: dict[int, list[str]] = {}
    for name, having in zip(names, replica_set.view.holders(replica_set.bucket, names), strict=True):
        if replica_set.position not in having:
            for node in having:
                asked.setdefault(node, []).append(name)
    return asked
