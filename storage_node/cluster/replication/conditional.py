"""Conditional writes: the first owner of a name evaluates the conditions of all its writes.

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
owner commits first, and only if its newest version is still the one that was decided by (`PendingWrite.not_above`).

docs/guarantees.md states what is guaranteed. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import grpc.aio

from ais_loader.errors import LoaderError, StaleMap
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.errors import ReplicaLost, TooFewCopies
from storage_node.cluster.replication.replica import from_state, from_wire
from storage_node.cluster.replication.replica_set import ReplicaSet
from storage_node.cluster.replication.replicas import Replicas, outcome
from storage_node.store.drive.preconditions import Condition, done_before
from storage_node.store.format import CatalogEntry, Version

LEARN_TIMEOUT_S = 5.0
NOTHING = Version(0, 0)


@dataclass(frozen=True, slots=True)
class CurrentVersion:
    """The current state of one name."""

    newest: CatalogEntry | None
    """The newest entry on any node. For another node, it has only what the catalog reports over the wire."""
    here: CatalogEntry | None
    clock: int

    @property
    def version(self) -> Version:
        return self.newest.version if self.newest is not None else NOTHING


@dataclass(frozen=True, slots=True)
class ConditionOutcome:
    """A condition that holds, or the entry that an earlier attempt of the same write committed."""

    there: CurrentVersion
    committed_earlier: CatalogEntry | None = None


async def decide(
    nodes: Replicas, replica_set: ReplicaSet, wanted: Sequence[tuple[str, Condition]]
) -> list[ConditionOutcome | LoaderError]:
    """Evaluate conditions; one result per name, in order. The caller holds the names' locks and a lease on the map."""
    faults = [misplaced(nodes, replica_set, name) for name, _ in wanted]
    names = [name for (name, _), fault in zip(wanted, faults, strict=True) if fault is None]
    found = iter(await _current_versions(nodes, replica_set, names) if names else [])
    decided: list[ConditionOutcome | LoaderError] = []
    for (name, condition), misfit in zip(wanted, faults, strict=True):
        there = misfit or next(found)
        if isinstance(there, LoaderError):
            decided.append(there)
            continue
        committed = done_before(condition, there.here) or done_before(condition, there.newest)
        if committed is None:
            fault = condition.fault(f"{replica_set.bucket.name}/{name}", there.newest)
            decided.append(ConditionOutcome(there) if fault is None else fault)
        elif committed.version == there.version:
            decided.append(ConditionOutcome(there))  # an earlier attempt, perhaps on too few nodes: run it again
        else:
            decided.append(ConditionOutcome(there, committed))
    return decided


def misplaced(nodes: Replicas, replica_set: ReplicaSet, name: str) -> LoaderError | None:
    """Return the error if this node may not decide about a name; None if it is the first owner by the newest map."""
    membership = nodes.node.membership
    if membership is not None and membership.view is not replica_set.view:
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


async def _current_versions(
    nodes: Replicas, replica_set: ReplicaSet, names: Sequence[str]
) -> list[CurrentVersion | LoaderError]:
    """Return the current versions of names whose first owner is this node."""
    store = nodes.node.store
    uuid = replica_set.bucket.uuid

    def look() -> list[tuple[CatalogEntry | None, bool] | LoaderError]:
        found: list[tuple[CatalogEntry | None, bool] | LoaderError] = []
        for name in names:
            try:
                here = store.replicas.newest_entry(uuid, name)
                there = here if here is not None and not here.is_tombstone else None
                found.append((here, store.replicas.stale.any and store.replicas.is_stale(uuid, name, there)))
            except LoaderError as error:
                found.append(error)
        return found

    own = await nodes.node.read(look)
    asked: dict[int, list[int]] = {}
    all_nodes, avoided = range(len(replica_set.view.nodes)), nodes.avoided(replica_set)
    strict: set[int] = set()
    for at, (name, here) in enumerate(zip(names, own, strict=True)):
        if isinstance(here, LoaderError):
            continue
        if here[1] or replica_set.view.former is not None:
            strict.add(at)
        others = all_nodes if at in strict else replica_set.view.concerned(replica_set.bucket, [name])[0]
        for node in others:
            if node != replica_set.position and (at in strict or not avoided(node)):
                asked.setdefault(node, []).append(at)

    async def ask(node: int, positions: list[int]) -> tuple[int, wire.NewestResponse | ReplicaLost]:
        wanted = [names[at] for at in positions]
        answer = await outcome(nodes.newest(replica_set, node, wanted, allow_unknown=True))
        if strict.intersection(positions) and not isinstance(answer, ReplicaLost) and _is_behind(answer, replica_set):
            await _teach(nodes, replica_set, node)
            answer = await outcome(nodes.newest(replica_set, node, wanted, allow_unknown=True))
        return node, answer

    answers = dict(await asyncio.gather(*(ask(node, positions) for node, positions in asked.items())))
    for node, answer in answers.items():
        if isinstance(answer, ReplicaLost):
            is_old = isinstance(answer.refusal, StaleMap)
        else:
            is_old = answer.map_version > replica_set.view.version
            nodes.heard_of_map(replica_set.endpoint(node), answer.map_version)
        if is_old:
            await nodes.keep_up()
            return [_stale(f"{replica_set.bucket.name}/{name}") for name in names]
    states: list[list[wire.ObjectState]] = [[] for _ in names]
    silent: list[list[str]] = [[] for _ in names]
    clock = 0
    for node, positions in asked.items():
        answer = answers[node]
        if isinstance(answer, ReplicaLost) or _is_behind(answer, replica_set):
            problem = (
                str(answer)
                if isinstance(answer, ReplicaLost)
                else f"{replica_set.endpoint(node)}: acts by an older map"
            )
            for at in positions:
                silent[at].append(problem)
        if not isinstance(answer, ReplicaLost):
            clock = max(clock, answer.clock)
            for at, state in zip(positions, answer.object, strict=True):
                states[at].append(state)
                if state.unknown:
                    silent[at].append(f"{replica_set.endpoint(node)}: its drive fails")
    return [
        _joined(f"{replica_set.bucket.name}/{names[at]}", here, states[at], silent[at] if at in strict else [], clock)
        for at, here in enumerate(own)
    ]


def _is_behind(answer: wire.NewestResponse, replica_set: ReplicaSet) -> bool:
    return answer.map_version < replica_set.view.version


async def _teach(nodes: Replicas, replica_set: ReplicaSet, node: int) -> None:
    """Send the map to a node. It may continue to act by an older one while operations of that map are running there."""
    stub = cluster_rpc.ClusterStub(nodes.channels.to(replica_set.endpoint(node)))
    try:
        await stub.Learn(cluster_pb.LearnRequest(map=replica_set.view.map), timeout=LEARN_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return  # its next answer shows which map it acts by


def _joined(
    label: str,
    here: tuple[CatalogEntry | None, bool] | LoaderError,
    states: Iterable[wire.ObjectState],
    silent: Sequence[str],
    clock: int,
) -> CurrentVersion | LoaderError:
    if isinstance(here, LoaderError):
        return here
    if silent:
        return TooFewCopies(
            f"{label}: whether the condition holds cannot be told now, while the map changes or this node compares its "
            f"copies, and all nodes have to be asked ({'; '.join(silent)}); nothing was changed"
        )
    newest = here[0]
    for state in states:
        if state.HasField("version"):
            version = from_wire(state.version)
            if newest is None or newest.version < version:
                newest = from_state(state)
    return CurrentVersion(newest, here[0], clock)
