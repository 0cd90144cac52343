"""Repeated writes: the outcome of an attempt whose answer the client has lost.

Any single node may have committed the first attempt, so every node of the map is asked for its entry of the name. The
id of a committed write is stored in the entry that it made, and in the memory of the entries that replaced that one
(see `write_memory`). If no node knows the id and all have answered, the write was not done, and runs now. If a node is
silent, it may have committed the write. This matters if another write followed: running it again would put the older
object on top of the newer one.

The caller holds the names' locks. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ais_loader.errors import BucketNotFound, InvalidRequest, LoaderError
from storage_node.cluster.errors import ReplicaLost, TooFewCopies
from storage_node.cluster.replication.replica import from_state
from storage_node.cluster.replication.replica_set import ReplicaSet
from storage_node.cluster.replication.replicas import Replicas, outcome
from storage_node.store.drive.preconditions import Condition, done_before, undecided
from storage_node.store.format import CatalogEntry
from storage_node.store.write_memory import UNCERTAINTY_NS, took_part


@dataclass(frozen=True, slots=True)
class Repeat:
    """A write that has to run: no node has committed it, or it is the current version but not on all owners."""

    before: tuple[CatalogEntry, ...]
    """The entries of the name on all nodes that have answered."""


def judged(
    label: str,
    condition: Condition,
    found: Mapping[int, CatalogEntry | None],
    silent: Mapping[int, str],
    owners: Collection[int],
) -> CatalogEntry | LoaderError | Repeat:
    """Decide the outcome of a write: the entry that it made if it must not run again, an error, or `Repeat`.

    Args:
        found: the entry of the name on each node that has answered, by the node's number; None if it has none.
        silent: why other nodes have not answered, by their numbers.
    """
    entries = [entry for entry in found.values() if entry is not None]
    newest = max(entries, key=lambda entry: entry.version, default=None)
    if newest is None:
        return Repeat(())
    done = [past for entry in entries if (past := done_before(condition, entry)) is not None]
    if done:
        last = max(done, key=lambda entry: entry.version)
        # A write that replaced it took no part in it, and did not know of it.
        is_replaced = last.version < newest.version or newest.write_id != condition.write_id
        is_everywhere = all(
            (entry := found.get(owner)) is not None and entry.version == last.version for owner in owners
        )
        return last if is_replaced or is_everywhere else Repeat(tuple(entries))
    for entry in entries:
        if (unknown := undecided(condition, label, entry)) is not None:
            return unknown
    # The newest entry lists the nodes that took part in its write. A silent node among them would have reported this
    # write. An object from before the first attempt may be replaced by it.
    is_old = newest.modified_ns + UNCERTAINTY_NS < condition.began_ns
    if not is_old and not all(took_part(newest.writes, node) for node in silent):
        return TooFewCopies(
            f"{label}: an earlier try of this write may have been done by a node that does not answer, and replaced "
            f"since ({'; '.join(silent.values())}); nothing was changed"
        )
    return Repeat(tuple(entries))


def done_by(write_id: bytes, entries: Iterable[CatalogEntry]) -> bool:
    """Return whether one of these entries was made by an attempt of this write, even if it was replaced since. A
    deletion that was done on some nodes then finds its own tombstone, so the object did exist."""
    having = [entry for entry in entries if write_id in entry.writes]  # may match by chance; verified below
    made = Condition(write_id=write_id) if having else None
    return made is not None and any(done_before(made, entry) is not None for entry in having)


async def resolve(
    nodes: Replicas, replica_set: ReplicaSet, wanted: Sequence[tuple[str, Condition]]
) -> list[CatalogEntry | LoaderError | Repeat]:
    """Ask all nodes, and decide the outcome of each write with `judged`; in order."""
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
                    found[node] = None  # it does not know the bucket yet
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
