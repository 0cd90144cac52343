"""Confirmation of a map that removes something: by a majority of the nodes of the map that this node knows.

Whoever sends a map claims that it is committed. For most maps that is enough, since the next map corrects a wrong one.
But a map that lacks a bucket, a snapshot or a node makes this node delete objects, drop retained versions, or stop
listening to a node. Such a map is used only if as many nodes have accepted that very map as its commit requires. A node
that is merely behind asks the nodes that are ahead, for which it is the newest map.

A map whose version is far ahead is confirmed too, as it would block all later maps.
"""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import grpc.aio

from ais_loader.errors import NodeUnavailable
from ais_loader.wire.cluster_map import ClusterView, added_buckets
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from storage_node.cluster.consensus.acceptor import AcceptorState
from storage_node.cluster.consensus.acceptor_store import AcceptorStore
from storage_node.cluster.consensus.map_bounds import MAX_FIRST_VERSION, MapRefused, require_ballot, require_map
from storage_node.context.channels import Channels
from storage_node.context.membership import Membership

VERSIONS_AHEAD = 1 << 16
"""A map further ahead than this needs confirmation."""
CONFIRM_TIMEOUT_S = 3.0


class NotConfirmed(NodeUnavailable):
    """Too few nodes report that they have accepted a map; it may be sent again."""


def digest(map_: pb.ClusterMap) -> bytes:
    """Hash a map's content without its ballot: a proposer that finishes another's change proposes the same content with
    a ballot of its own."""
    bare = pb.ClusterMap()
    bare.CopyFrom(map_)
    bare.ClearField("ballot")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).digest()


def witnessed(state: AcceptorState, version: int, of: bytes) -> bool:
    """Return whether this node has accepted or committed the map with this version and digest."""
    known = (state.accepted, state.committed)
    return any(map_ is not None and map_.version == version and digest(map_) == of for map_ in known)


def removals(known: pb.ClusterMap, new: pb.ClusterMap) -> str:
    """Describe what a later map lacks, for people; empty if nothing."""
    is_grown = added_buckets(known, new) is not None
    buckets = {bucket.uuid: bucket for bucket in new.bucket} if not is_grown else {}
    nodes = {node.uuid for node in new.node}
    for bucket in known.bucket if not is_grown else ():
        after = buckets.get(bucket.uuid)
        if after is None or after.name != bucket.name:
            return f"bucket {bucket.name!r}"
        left = {(one.name, one.cut, one.created_ns) for one in after.snapshot}
        for one in bucket.snapshot:
            if not one.maker and (one.name, one.cut, one.created_ns) not in left:
                return f"snapshot {one.name!r} of bucket {bucket.name!r}"
    for node in known.node:
        if node.uuid not in nodes:
            return f"node {node.uuid.hex()}"
    return ""


class MapConfirmation:
    """Confirms maps with the other nodes. Belongs to the node's event loop."""

    def __init__(self, membership: Membership, acceptor_store: AcceptorStore, channels: Channels) -> None:
        self._membership = membership
        self._acceptor_store = acceptor_store
        self._channels = channels

    async def require(self, map_: pb.ClusterMap) -> None:
        """Raise MapRefused for an invalid map, and NotConfirmed for one that removes what others have kept."""
        view = self._membership.view
        require_map(map_, view.map if view is not None else None)
        require_ballot(self._acceptor_store.state.promise, map_.ballot)
        if view is None:
            if map_.version > MAX_FIRST_VERSION:
                raise MapRefused(f"a first map of version {map_.version:,}, at most {MAX_FIRST_VERSION:,}")
            if all(node.uuid != self._membership.node_uuid for node in map_.node):
                raise MapRefused("a map without this node, which belongs to no cluster")
            return
        if map_.version <= view.version or map_.cluster_uuid != view.map.cluster_uuid:
            return  # the map will not be used
        lost = removals(view.map, map_)
        if map_.version > view.version + VERSIONS_AHEAD:
            lost = lost or f"versions {view.version} to {map_.version:,}"
        if lost and not await self._is_confirmed(view, map_):
            raise NotConfirmed(
                f"map {map_.version} is without {lost}, and fewer than a majority of the nodes of map {view.version} "
                "say that they have accepted it"
            )

    async def _is_confirmed(self, view: ClusterView, map_: pb.ClusterMap) -> bool:
        request = pb.WitnessRequest(cluster_uuid=map_.cluster_uuid, version=map_.version, digest=digest(map_))
        others = [node for node in view.nodes if node.uuid != self._membership.node_uuid]
        found = int(
            len(others) < len(view.nodes) and witnessed(self._acceptor_store.state, map_.version, request.digest)
        )
        pending = {asyncio.ensure_future(self._ask(node.peer_endpoint, request)) for node in others}
        try:
            while pending and 2 * found <= len(view.nodes):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                found += sum(one.result() for one in done)
        finally:
            for one in pending:
                one.cancel()
        return 2 * found > len(view.nodes)

    async def _ask(self, endpoint: str, request: pb.WitnessRequest) -> bool:
        stub = rpc.ClusterStub(self._channels.to(endpoint))
        try:
            answer: pb.WitnessResponse = await stub.Witness(request, timeout=CONFIRM_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return answer.accepted

    async def close(self) -> None:
        await self._channels.close()
