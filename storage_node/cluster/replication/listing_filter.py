"""Listing filter: leaves out of a node's listing what its owners have deleted since.

A node that stood in for an owner, or was one by an earlier map, has copies that go when repair comes past them. Nobody
tells it of deletions until then, as nobody reads these copies; but a list is made of what all nodes have, and an object
may be there and nowhere else. So it asks the owners before it lists them. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio

from storage_node.cluster.replication.replica import from_wire
from storage_node.cluster.replication.replica_client import ReplicaClient, outcome
from storage_node.cluster.replication.replica_set import ReplicaSet
from storage_node.cluster.replication.replica_stream import ReplicaLost
from storage_node.store.format import CatalogEntry, Version

Listed = list[tuple[str, CatalogEntry]]


async def not_deleted(nodes: ReplicaClient, replica_set: ReplicaSet, found: Listed) -> Listed:
    """Without those of which an owner says that they have been deleted since."""
    if not found:
        return found
    holders = await nodes.node.read(replica_set.view.holders, replica_set.bucket, [name for name, _ in found])
    asked: dict[int, list[str]] = {}
    for (name, _), having in zip(found, holders, strict=True):
        if replica_set.position not in having:
            for node in having:
                asked.setdefault(node, []).append(name)
    answers = await asyncio.gather(
        *(outcome(nodes.newest(replica_set, node, names, allow_unknown=True)) for node, names in asked.items())
    )
    tombstones: dict[str, Version] = {}
    for answer, names in zip(answers, asked.values(), strict=True):
        if isinstance(answer, ReplicaLost):
            continue  # another owner knows, or nobody
        for name, state in zip(names, answer.object, strict=True):
            if state.is_tombstone:
                tombstones[name] = max(from_wire(state.version), tombstones.get(name, Version(0, 0)))
    return [(name, record) for name, record in found if name not in tombstones or tombstones[name] < record.version]
