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
from collections.abc import Sequence

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


async def _decide(replicas: Replicas, replica_set: ReplicaSet, writes: Sequence[PendingWrite]) -> None:
    """Evaluate conditions on names whose first owner is this node."""
    store, view = replicas.node.store, replica_set.view
    uuid = replica_set.bucket.uuid

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

    own: dict[PendingWrite, CatalogEntry | None] = {}
    groups: dict[int, list[PendingWrite]] = {}
    strict: set[PendingWrite] = set()
    for write, result in zip(writes, await replicas.node.read(read_entries), strict=True):
        if isinstance(result, LoaderError):
            write.fail(result)
            continue
        own[write], is_stale = result
        if is_stale or view.former is not None:
            strict.add(write)
        others = range(len(view.nodes)) if write in strict else view.concerned(replica_set.bucket, [write.name])[0]
        for node in others:
            if node != replica_set.position and (write in strict or not replicas.avoids(replica_set, node)):
                groups.setdefault(node, []).append(write)

    async def ask(node: int, mine: list[PendingWrite]) -> wire.NewestResponse | ReplicaLost:
        names = [write.name for write in mine]
        answer = await outcome(replicas.newest, replica_set, node, names, allow_unknown=True)
        if strict.intersection(mine) and not isinstance(answer, ReplicaLost) and answer.map_version < view.version:
            await _teach(replicas, replica_set, node)
            answer = await outcome(replicas.newest, replica_set, node, names, allow_unknown=True)
        return answer

    answers = dict(zip(groups, await asyncio.gather(*(ask(node, mine) for node, mine in groups.items())), strict=True))
    for answer in answers.values():
        if isinstance(answer, ReplicaLost):
            is_old = isinstance(answer.refusal, StaleMap)
        else:
            is_old = answer.map_version > view.version
        if is_old:
            await replicas.keep_up()
            for write in writes:
                write.fail(_stale(write.label))
            return
    newest = dict(own)
    silent: dict[PendingWrite, list[str]] = {write: [] for write in own}
    clock = 0
    for node, answer in answers.items():
        endpoint = replica_set.endpoint(node)
        if isinstance(answer, ReplicaLost):
            for write in groups[node]:
                silent[write].append(str(answer))
            continue
        clock = max(clock, answer.clock)
        for write, state in zip(groups[node], answer.object, strict=True):
            if answer.map_version < view.version:
                silent[write].append(f"{endpoint}: acts by an older map")
            if state.unknown:
                silent[write].append(f"{endpoint}: its drive fails")
            existing, entry = newest[write], from_state(state)
            if entry is not None and (existing is None or existing.version < entry.version):
                newest[write] = entry
    for write, local in own.items():
        if write in strict and silent[write]:
            write.fail(
                TooFewCopies(
                    f"{write.label}: whether the condition holds cannot be told now, while the map changes or this "
                    f"node compares its copies, and all nodes have to be asked ({'; '.join(silent[write])}); nothing "
                    "was changed"
                )
            )
        else:
            write.decide(local, newest[write], clock)


async def _teach(replicas: Replicas, replica_set: ReplicaSet, node: int) -> None:
    """Send the map to a node. It may continue to act by an older one while operations of that map are running there."""
    stub = cluster_rpc.ClusterStub(replicas.channels.to(replica_set.endpoint(node)))
    try:
        await stub.Learn(cluster_pb.LearnRequest(map=replica_set.view.map), timeout=LEARN_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return  # its next answer shows which map it acts by
