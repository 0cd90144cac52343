"""Listing filter: keeps outdated replicas out of a node's listing.

A node that stood in for an owner, or was one by an earlier map, has replicas that repair will remove. It is not told of
later writes, as nobody reads these replicas. But a listing merges the names of all nodes, and such an object may exist
on this node only. The node therefore asks the owners before it lists these objects.

What an owner has deleted since is left out. So is what an owner has evicted in a newer version, which the remote
storage has. If an owner has a newer version, or was told of one, the name is in doubt: the owner that has it lists it,
and may fall silent before it does. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ais_loader.wire.cluster_map import by_key
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.replication.replica import from_wire
from storage_node.cluster.replication.replicas import Replicas, outcome
from storage_node.cluster.replication.write_plan import NOTHING, ReplicaSet
from storage_node.context.errors import ReplicaLost
from storage_node.store.buckets import ReplicaStale
from storage_node.store.format import CatalogEntry, Version

Listed = Sequence[tuple[str, CatalogEntry]]


class Filtered(NamedTuple):
    objects: Listed
    in_doubt: Sequence[str] = ()
    """Names of which an owner knows a newer version."""


async def current(replicas: Replicas, replica_set: ReplicaSet, found: Listed) -> Filtered:
    """Return those of the listed objects that no owner knows to be outdated.

    Raises ReplicaStale if no owner of an object answers: it may have been deleted, and it may exist on this node only.
    """
    requests = await replicas.node.read(_of_others, replica_set, [name for name, _ in found]) if found else {}
    if not requests:
        return Filtered(found)
    answers = await asyncio.gather(
        *(outcome(replicas.newest, replica_set, node, names, allow_unknown=True) for node, names in requests.items())
    )
    gone: dict[str, Version] = {}
    newest: dict[str, Version] = {}
    unsaid = {name for names in requests.values() for name in names}
    for answer, names in zip(answers, requests.values(), strict=True):
        if isinstance(answer, ReplicaLost):
            continue  # another owner may answer
        for name, state in zip(names, answer.object, strict=True):
            if not state.unknown:
                unsaid.discard(name)
            if state.is_tombstone or state.HasField("evicted"):
                _note(gone, name, state.version if state.is_tombstone else state.evicted)
            elif state.HasField("version"):
                _note(newest, name, state.version)
            if state.HasField("announced"):
                _note(newest, name, state.announced)
    if unsaid:
        raise ReplicaStale(f"no owner says whether {next(iter(unsaid))!r} is still there")
    left = [(name, entry) for name, entry in found if name not in gone or gone[name] < entry.version]
    in_doubt = {name for name, entry in left if entry.version < newest.get(name, NOTHING)}
    return Filtered([one for one in left if one[0] not in in_doubt], sorted(in_doubt))


def _note(versions: dict[str, Version], name: str, version: wire.ObjectVersion) -> None:
    versions[name] = max(from_wire(version), versions.get(name, NOTHING))


def owns(replica_set: ReplicaSet, names: Sequence[bytes]) -> bool:
    """Whether readers ask this node for each of these names, in UTF-8."""
    view = replica_set.view
    return len(view.nodes) == 1 or not _of_others(replica_set, [name.decode() for name in names])


def _of_others(replica_set: ReplicaSet, names: Sequence[str]) -> dict[int, list[str]]:
    """Group the names that this node does not own by the nodes that own them."""
    found = zip(names, replica_set.view.holders(replica_set.bucket, names), strict=True)
    return by_key((node, name) for name, having in found if replica_set.position not in having for node in having)
