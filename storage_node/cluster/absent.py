"""Who has copies of an object, or will get them, but takes no part in a write of it: told before the write is done.

A node that was not there when a write began may be back before it ends, and its former owners keep objects that are on
their way to other nodes. What these have is old from the moment at which the write is committed, so they are told just
before; from then on they do not answer reads of it until they have the new version, or nothing. A node that cannot be
told is away, and compares itself with the others before it serves again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from protos import ais_cluster_pb2 as pb
from protos import ais_replica_pb2 as wire
from protos import ais_replica_pb2_grpc
from protos.cluster_map import ClusterView
from storage_node.cluster.copies import REACH_TIMEOUT_S, CopyLost, reporting
from storage_node.cluster.replica import from_wire, to_wire
from storage_node.cluster.targets import Candidates, Target, TooFewCopies
from storage_node.store.errors import StoreError
from storage_node.store.format import Version

if TYPE_CHECKING:
    from storage_node.cluster.nodes import Nodes
    from storage_node.cluster.staged import Staged


def holders(nodes: Nodes, target: Target, names: Sequence[str]) -> tuple[ClusterView, pb.MapBucket, list[list[int]]]:
    """By the newest map, where the bucket is still in it: the write may have begun under an older one."""
    membership = nodes.service.membership
    view = membership.view if membership is not None else None
    bucket = view.buckets.get(target.bucket.name) if view is not None else None
    if view is None or bucket is None or bucket.uuid != target.bucket.uuid:
        view, bucket = target.view, target.bucket
    return view, bucket, view.holders(bucket, names)


async def tell_absent(nodes: Nodes, entries: Sequence[Staged], versions: Sequence[Version]) -> None:
    """Tell those that should have copies of these entries, and get none, that what they have is about to be old."""
    missed: dict[tuple[str, bytes], wire.MissedRequest] = {}
    for target, mine in _by_target(entries, versions):
        view, bucket, found = holders(nodes, target, [entry.name for entry, _ in mine])
        for (entry, version), positions in zip(mine, found, strict=True):
            taking = {target.view.nodes[copy.node].uuid for copy, _ in entry.copies}
            for node in (view.nodes[at] for at in positions):
                if node.uuid == target.view.nodes[target.position].uuid:
                    if node.uuid not in taking:
                        nodes.service.store.doubts.doubt_names(bucket.uuid, {entry.name: version})
                elif node.uuid not in taking and not nodes.channels.avoided(node.endpoint):
                    request = missed.setdefault((node.endpoint, bucket.uuid), wire.MissedRequest())
                    request.bucket.name, request.bucket.uuid = bucket.name, bucket.uuid
                    request.name.append(entry.name)
                    request.version.append(to_wire(version))

    await asyncio.gather(*(_tell(nodes, endpoint, request) for (endpoint, _), request in missed.items()))


async def tell_missed(nodes: Nodes, target: Target, name: str, node: int, version: wire.ObjectVersion) -> bool:
    """Tell one node that it has no part in this version of an object, should an older one come to it; False."""
    bucket = target.bucket
    if node == target.position:
        nodes.service.store.doubts.doubt_names(bucket.uuid, {name: from_wire(version)})
        return False
    request = wire.MissedRequest(
        bucket=wire.BucketRef(name=bucket.name, uuid=bucket.uuid), name=[name], version=[version]
    )
    await _tell(nodes, target.endpoint(node), request)
    return False


async def _tell(nodes: Nodes, endpoint: str, request: wire.MissedRequest) -> None:
    stub = ais_replica_pb2_grpc.RepairStub(nodes.channels.to(endpoint))
    try:
        with reporting(nodes.channels, endpoint):
            await stub.Missed(request, timeout=REACH_TIMEOUT_S)
    except CopyLost:
        return


def outdated(nodes: Nodes, entry: Candidates) -> StoreError | None:
    """What is wrong with a write whose nodes all have stopped being owners since it began: they may be about to go."""
    target, name, membership = entry.target, entry.name, nodes.service.membership
    if membership is None or membership.view is None or membership.view.version == target.view.version:
        return None
    view, bucket, _ = holders(nodes, target, [])
    owners = {view.nodes[at].uuid for at in view.owners(bucket, name)}
    if owners.isdisjoint(target.view.nodes[node].uuid for node in entry.taking):
        return TooFewCopies(f"{bucket.name}/{name}: its owners have changed meanwhile; try again, nothing was changed")
    return None


def absent(nodes: Nodes, target: Target, name: str, taking: Iterable[int]) -> list[int]:
    """Further nodes that a deletion has to reach, as far as they can be reached; positions in the target's map."""
    known = set(taking)
    view, _, found = holders(nodes, target, [name])
    positions = (target.view.position.get(view.nodes[at].uuid) for at in found[0])
    avoided = nodes.avoided(target)
    return [at for at in positions if at is not None and at not in known and not avoided(at)]


def _by_target(
    entries: Sequence[Staged], versions: Sequence[Version]
) -> Iterable[tuple[Target, list[tuple[Staged, Version]]]]:
    found: dict[int, tuple[Target, list[tuple[Staged, Version]]]] = {}
    for entry, version in zip(entries, versions, strict=True):
        found.setdefault(id(entry.target), (entry.target, []))[1].append((entry, version))
    return found.values()
