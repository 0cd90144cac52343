"""Conditions and repeats: what a write has to find out before it may run.

**Conditional writes.** The first owner of a name evaluates the conditions of all its writes.

Linearizability needs one place that decides, and one current version to decide by. The place is the first owner of the
name by the newest map. It holds the name's lock, so that no other write of the name that it coordinates runs at the
same time. A node that is not the first owner answers `StaleMap` and names the one that is.

The current version is the newest that any owner reports. This node is up to date, so it has every acknowledged write,
and its own version would be enough for those. The other owners are asked because another node may have coordinated a
write in which this one took no part, and which may still be running.

Two situations require more: nodes are joining or leaving, or this node's replica may be stale. Then every node of the
map must answer, and must act by this map. Otherwise a former first owner could still decide by an older map. A node
that is behind is taught the map once and asked again. If one stays silent, the write fails with `TooFewCopies` and
changes nothing.

Between the decision and the commit, a replica of a write by another coordinator may still arrive. Therefore the first
owner commits first, and only if its newest version is still the one that was decided by (`WritePlan.not_above`).

**Repeated writes.** The client may have lost the answer to an earlier attempt. Any single node may have committed it,
so every node of the map is asked for its entry of the name. The id of a committed write is stored in the entry that it
made, and in the memory of the entries that replaced that one (see `write_memory`). If no node knows the id and all have
answered, the write was not done, and runs now. If a node is silent, it may have committed the write. This matters if
another write followed: running it again would put the older object on top of the newer one.

docs/guarantees.md states what is guaranteed. The caller holds the names' locks and a lease on the map. Belongs to the
node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import grpc.aio

from ais_loader.errors import BucketNotFound, InvalidRequest, LoaderError, StaleMap
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.replication.replica import from_state
from storage_node.cluster.replication.replicas import Replicas, outcome
from storage_node.cluster.replication.write_plan import PendingWrite, ReplicaSet, by_replica_set, judged
from storage_node.context.errors import ReplicaLost, TooFewCopies
from storage_node.store.format import CatalogEntry

LEARN_TIMEOUT_S = 5.0


async def resolve(replicas: Replicas, writes: Sequence[PendingWrite]) -> None:
    """Ask all nodes what became of earlier attempts of these writes, and end those that must not run again."""
    for replica_set, mine in by_replica_set(writes):
        names = [write.name for write in mine]
        nodes = replica_set.view.nodes
        answers = await asyncio.gather(
            *(outcome(replicas.newest, replica_set, at, names, allow_unknown=True) for at in range(len(nodes)))
        )
        if await replicas.has_changed(replica_set):
            for write in mine:
                write.fail(replica_set.left_behind(write.name))
            continue
        for row, write in enumerate(mine):
            found: dict[int, CatalogEntry | None] = {}
            silent: dict[int, str] = {}
            for at, (node, answer) in enumerate(zip(nodes, answers, strict=True)):
                try:
                    if isinstance(answer, ReplicaLost):
                        if not isinstance(answer.refusal, BucketNotFound):
                            silent[node.number] = str(answer)
                        else:
                            found[at] = None  # it does not know the bucket yet
                    elif answer.object[row].unknown:
                        silent[node.number] = f"{node.peer_endpoint}: its drive fails"
                    else:
                        found[at] = from_state(answer.object[row])
                except InvalidRequest as error:
                    silent[node.number] = f"{node.peer_endpoint}: {error}"
            assert write.condition is not None
            owners = replica_set.view.owners(replica_set.bucket, write.name)
            write.resolve(judged(write.label, write.condition, found, silent, owners))


async def decide(replicas: Replicas, writes: Sequence[PendingWrite]) -> None:
    """Evaluate the conditions of these writes, and end those for which they do not hold."""
    for replica_set, mine in by_replica_set(writes):
        for write in mine:
            write.fail(misplaced(replicas, replica_set, write.name))
        if mine := [write for write in mine if write.settled is None]:
            await _decide(replicas, replica_set, mine)


def misplaced(replicas: Replicas, replica_set: ReplicaSet, name: str) -> LoaderError | None:
    """Return the error if this node may not decide about a name; None if it is the first owner by the newest map."""
    if replicas.membership.view is not replica_set.view:
        return _stale(f"{replica_set.bucket.name}/{name}")
    first = replica_set.view.owners(replica_set.bucket, name)[:1]
    if first != [replica_set.position]:
        where = replica_set.endpoint(first[0]) if first else "nobody"
        return StaleMap(
            f"{replica_set.bucket.name}/{name}: by map {replica_set.view.version} {where} decides about writes on "
            "conditions"
        )
    return None


def _stale(label: str) -> StaleMap:
    return StaleMap(f"{label}: the map of the cluster is a newer one by now; nothing was changed, try again")


@dataclass(slots=True)
class _Known:
    """Entries of the name of one write, as far as nodes have told them."""

    own: CatalogEntry | None
    """The entry of this node, which has every acknowledged write."""
    needs_all: bool
    """Whether every node has to answer, and to act by this map."""
    newest: CatalogEntry | None
    silent: list[str] = field(default_factory=list)
    """Nodes that have not answered, or whose answer does not count, with the reasons."""


async def _decide(replicas: Replicas, replica_set: ReplicaSet, writes: Sequence[PendingWrite]) -> None:
    """Evaluate conditions on names whose first owner is this node.

    1. Read: this node's entries, and for which names every node is needed (`_own_entries`).
    2. Ask: the other owners, or every node for these (`_nodes_to_ask`). One that is behind is taught the map once.
    3. Compare: an answer by a newer map ends all writes, since another node may be the first owner by it. Otherwise
       the newest entry of each name counts, whoever has it.
    4. Decide: by that entry. A name for which a needed node is silent is not decided: its write fails.
    """
    known = await _own_entries(replicas, replica_set, writes)
    asked = _nodes_to_ask(replicas, replica_set, known)
    answers = await asyncio.gather(
        *(
            _ask(replicas, replica_set, node, mine, by_this_map=any(known[write].needs_all for write in mine))
            for node, mine in asked.items()
        )
    )
    if any(_is_newer(answer, replica_set.view.version) for answer in answers):
        await replicas.keep_up()
        for write in writes:
            write.fail(_stale(write.label))
        return
    for (node, mine), answer in zip(asked.items(), answers, strict=True):
        _compare(replica_set, node, answer, [known[write] for write in mine])
    clock = max((answer.clock for answer in answers if not isinstance(answer, ReplicaLost)), default=0)
    for write, of_name in known.items():
        if of_name.needs_all and of_name.silent:
            write.fail(
                TooFewCopies(
                    f"{write.label}: whether the condition holds cannot be told now, while the map changes or this "
                    f"node compares its copies, and all nodes have to be asked ({'; '.join(of_name.silent)}); nothing "
                    "was changed"
                )
            )
        else:
            write.decide(of_name.own, of_name.newest, clock)


async def _own_entries(
    replicas: Replicas, replica_set: ReplicaSet, writes: Sequence[PendingWrite]
) -> dict[PendingWrite, _Known]:
    """Read this node's entries. Fails the writes whose entries cannot be read."""
    store, uuid, is_changing = replicas.node.store, replica_set.bucket.uuid, replica_set.view.former is not None

    def read_entries() -> list[tuple[CatalogEntry | None, bool] | LoaderError]:
        found: list[tuple[CatalogEntry | None, bool] | LoaderError] = []
        for write in writes:
            try:
                local = store.replicas.newest_entry(uuid, write.name)
                existing = local if local is not None and not local.is_tombstone else None
                found.append((local, store.replicas.stale.any and store.replicas.is_stale(uuid, write.name, existing)))
            except LoaderError as error:
                found.append(error)
        return found

    known: dict[PendingWrite, _Known] = {}
    for write, result in zip(writes, await replicas.node.read(read_entries), strict=True):
        if isinstance(result, LoaderError):
            write.fail(result)
        else:
            entry, is_stale = result
            known[write] = _Known(entry, is_stale or is_changing, entry)
    return known


def _nodes_to_ask(
    replicas: Replicas, replica_set: ReplicaSet, known: Mapping[PendingWrite, _Known]
) -> dict[int, list[PendingWrite]]:
    """Return the nodes to ask, and the writes to ask each of them about."""
    view, asked = replica_set.view, dict[int, list[PendingWrite]]()
    for write, of_name in known.items():
        others = range(len(view.nodes)) if of_name.needs_all else view.concerned(replica_set.bucket, [write.name])[0]
        for node in others:
            if node != replica_set.position and (of_name.needs_all or not replicas.avoids(replica_set, node)):
                asked.setdefault(node, []).append(write)
    return asked


async def _ask(
    replicas: Replicas, replica_set: ReplicaSet, node: int, writes: Sequence[PendingWrite], *, by_this_map: bool
) -> wire.NewestResponse | ReplicaLost:
    names = [write.name for write in writes]
    answer = await outcome(replicas.newest, replica_set, node, names, allow_unknown=True)
    if by_this_map and not isinstance(answer, ReplicaLost) and answer.map_version < replica_set.view.version:
        await _teach(replicas, replica_set, node)
        answer = await outcome(replicas.newest, replica_set, node, names, allow_unknown=True)
    return answer


def _is_newer(answer: wire.NewestResponse | ReplicaLost, version: int) -> bool:
    """Whether a node answers by a newer map, or refuses because it has one."""
    if isinstance(answer, ReplicaLost):
        return isinstance(answer.refusal, StaleMap)
    return answer.map_version > version


def _compare(
    replica_set: ReplicaSet, node: int, answer: wire.NewestResponse | ReplicaLost, names: Sequence[_Known]
) -> None:
    """Keep the newer entries of a node's answer, and the reason if the answer does not count."""
    if isinstance(answer, ReplicaLost):
        for known in names:
            known.silent.append(str(answer))
        return
    endpoint = replica_set.endpoint(node)
    for known, state in zip(names, answer.object, strict=True):
        if answer.map_version < replica_set.view.version:
            known.silent.append(f"{endpoint}: acts by an older map")
        if state.unknown:
            known.silent.append(f"{endpoint}: its drive fails")
        entry = from_state(state)
        if entry is not None and (known.newest is None or known.newest.version < entry.version):
            known.newest = entry


async def _teach(replicas: Replicas, replica_set: ReplicaSet, node: int) -> None:
    """Send the map to a node. It may continue to act by an older one while operations of that map are running there."""
    stub = cluster_rpc.ClusterStub(replicas.channels.to(replica_set.endpoint(node)))
    try:
        await stub.Learn(cluster_pb.LearnRequest(map=replica_set.view.map), timeout=LEARN_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return  # its next answer shows which map it acts by
