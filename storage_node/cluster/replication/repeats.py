"""Repeated writes: what became of a write that a client sends again because it has lost the answer.

Every node of the map is asked what it has of the name, for the first try may have been done by any of them alone. The
id of a write that was done stands in the entry that it made, or in the memory of those that replaced it (see
`write_memory`). What nobody knows was not done, and is done now, if all have answered. A node that is silent may have
done it, which matters if somebody has written since: doing it now would put the older write on top of the newer one.

The caller holds the names. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ais_loader.errors import BucketNotFound, InvalidRequest, LoaderError
from storage_node.cluster.errors import TooFewCopies
from storage_node.cluster.replication.replica import from_state
from storage_node.cluster.replication.replica_client import ReplicaClient, outcome
from storage_node.cluster.replication.replica_set import ReplicaSet
from storage_node.cluster.replication.replica_stream import ReplicaLost
from storage_node.store.drive.preconditions import Condition, done_before, undecided
from storage_node.store.format import CatalogEntry
from storage_node.store.write_memory import UNCERTAINTY_NS, took_part


@dataclass(frozen=True, slots=True)
class Repeat:
    """A write that may go on: no node has done it, or it is what there is, but not on all owners."""

    before: tuple[CatalogEntry, ...]
    """What there is of the name, on all nodes that have answered."""


def judged(
    label: str,
    condition: Condition,
    found: Mapping[int, CatalogEntry | None],
    silent: Mapping[int, str],
    owners: Collection[int],
) -> CatalogEntry | LoaderError | Repeat:
    """What became of a write; the entry that it made, if it need not be done again.

    Args:
        found: what each node that has answered has of the name.
        silent: why others have not answered, by their numbers.
    """
    entries = [entry for entry in found.values() if entry is not None]
    newest = max(entries, key=lambda entry: entry.version, default=None)
    if newest is None:
        return Repeat(())
    done = [past for entry in entries if (past := done_before(condition, entry)) is not None]
    if done:
        last = max(done, key=lambda entry: entry.version)
        # Whoever has replaced it took no part in it, and did not hear of it.
        is_replaced = last.version < newest.version or newest.write_id != condition.write_id
        is_everywhere = all(
            (entry := found.get(owner)) is not None and entry.version == last.version for owner in owners
        )
        return last if is_replaced or is_everywhere else Repeat(tuple(entries))
    for entry in entries:
        if (unknown := undecided(condition, label, entry)) is not None:
            return unknown
    # What those took part in that are silent now would know of it. What was there before may be replaced by it.
    is_old = newest.modified_ns + UNCERTAINTY_NS < condition.began_ns
    if not is_old and not all(took_part(newest.writes, node) for node in silent):
        return TooFewCopies(
            f"{label}: an earlier try of this write may have been done by a node that does not answer, and replaced "
            f"since ({'; '.join(silent.values())}); nothing was changed"
        )
    return Repeat(tuple(entries))


def done_by(write_id: bytes, entries: Iterable[CatalogEntry]) -> bool:
    """Whether one of these was made by a try of this write, be it replaced since. What it took away was there then: a
    deletion that has been done on some nodes finds nothing but its own tombstone."""
    having = [entry for entry in entries if write_id in entry.writes]  # by chance, perhaps; found for certain below
    made = Condition(write_id=write_id) if having else None
    return made is not None and any(done_before(made, entry) is not None for entry in having)


async def resolve(
    nodes: ReplicaClient, replica_set: ReplicaSet, wanted: Sequence[tuple[str, Condition]]
) -> list[CatalogEntry | LoaderError | Repeat]:
    """See `judged`; of each name, in order."""
    names = [name for name, _ in wanted]
    everybody = range(len(replica_set.view.nodes))
    numbers = [node.number for node in replica_set.view.nodes]
    answers = await asyncio.gather(
        *(outcome(nodes.newest(replica_set, node, names, allow_unknown=True)) for node in everybody)
    )
    if await nodes.has_changed(replica_set):
        return [replica_set.left_behind(name) for name in names]
    results: list[CatalogEntry | LoaderError | Repeat] = []
    for at, (name, condition) in enumerate(wanted):
        found: dict[int, CatalogEntry | None] = {}
        silent: dict[int, str] = {}
        for node, answer in zip(everybody, answers, strict=True):
            if isinstance(answer, ReplicaLost):
                if isinstance(answer.refusal, BucketNotFound):
                    found[node] = None  # it has not heard of the bucket yet
                else:
                    silent[numbers[node]] = str(answer)
            elif answer.object[at].unknown:
                silent[numbers[node]] = f"{replica_set.endpoint(node)}: its drive fails"
            else:
                try:
                    found[node] = from_state(answer.object[at])
                except InvalidRequest as error:
                    silent[numbers[node]] = f"{replica_set.endpoint(node)}: {error}"
        owners = replica_set.view.owners(replica_set.bucket, name)
        results.append(judged(f"{replica_set.bucket.name}/{name}", condition, found, silent, owners))
    return results
