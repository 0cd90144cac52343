"""Fetch owner: the node of a cluster that fetches an object for all of them, which is the object's first owner.

If it cannot be reached, the next owner fetches. So each object leaves the remote storage once, however many nodes want
it, unless a node fails meanwhile. An owner that has evicted its copy gets it from another owner, not from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc.aio

from ais_loader.errors import ObjectNotFound, RemoteUnavailable
from ais_loader.wire.generated import ais_remote_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2_grpc as rpc
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated.ais_replica_pb2_grpc import RepairStub
from storage_node.cluster.repair.transfers import bucket_ref
from storage_node.context.channels import STEP_TIMEOUT_S, Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.call_slots import current_tenant
from storage_node.remote.arriving.relay import TakeResponse
from storage_node.store.replica_state import not_found_message


class FetchOwner:
    """A store without a cluster fetches every object itself."""

    def __init__(self, membership: Membership, channels: Channels, timeout_s: float) -> None:
        """`timeout_s`: longest silence of another node that fetches."""
        self._membership = membership
        self._channels = channels
        self._timeout_s = timeout_s

    async def forward(
        self, bucket: RemoteBucket, name: str, version: str, take: TakeResponse, *, with_bytes: bool
    ) -> bool:
        """Ask the node that is responsible for an object to fetch it. Return True once it has; False if this node is.

        `take`: called with each message of that node. `with_bytes`: whether it sends the bytes as they arrive. Raises
        that node's error.
        """
        if (found := self._membership.placed(bucket.name)) is None:
            return False
        view, placed = found
        request = pb.FetchRequest(
            bucket=bucket.name,
            bucket_uuid=bucket.uuid,
            name=name,
            version=version,
            tenant=current_tenant.get(),
            with_bytes=with_bytes,
        )
        owners = [view.nodes[node] for node in view.owners(placed, name)]
        for owner in sorted(owners, key=lambda node: self._channels.avoided(node.peer_endpoint)):
            if owner.uuid == self._membership.node_uuid:
                return False
            try:
                await self._ask(owner.peer_endpoint, request, take)
            except ReplicaLost as lost:
                if lost.refusal is not None and not lost.may_pass:
                    raise lost.refusal from lost
                continue
            return True
        if bucket.remote.is_write_back:
            raise RemoteUnavailable(f"{bucket.name}/{name}: no node answers that may have a write of it")
        return False

    async def settle(self, bucket: RemoteBucket, names: Sequence[str]) -> None:
        """Wait for the fetches of these objects on other nodes, but those that do not answer: their fetches end with
        them."""
        if (found := self._membership.placed(bucket.name)) is None:
            return
        view, placed = found
        by_node: dict[int, list[str]] = {}
        for name, nodes in zip(names, view.concerned(placed, names), strict=True) if names else ():
            for node in nodes:
                by_node.setdefault(node, []).append(name)

        async def settle(node: int, mine: list[str]) -> None:
            endpoint = view.nodes[node].peer_endpoint
            request = pb.SettleFetchesRequest(bucket=bucket.name, bucket_uuid=bucket.uuid, name=mine)
            with contextlib.suppress(ReplicaLost):
                await self._channels.ask(endpoint, rpc.RemotePeerStub, "SettleFetches", request, self._timeout_s)

        others = {node: mine for node, mine in by_node.items() if view.nodes[node].uuid != self._membership.node_uuid}
        await asyncio.gather(*(settle(node, mine) for node, mine in others.items()))

    async def copy_here(self, bucket: RemoteBucket, name: str) -> bool:
        """Have another owner send its copy, if this node is an owner that lacks it. Returns whether one has sent it.

        Raises RemoteUnavailable if no other owner has it, as far as they answer, and not all do; ObjectNotFound if one
        has deleted it, and the deletion is still to be uploaded. In a bucket that is written back, the newest write may
        be on `min_copies` owners alone: it raises RemoteUnavailable if so many do not answer, and returns False if
        fewer do not.
        """
        if (found := self._membership.placed(bucket.name)) is None:
            return False
        view, placed = found
        is_back = bucket.remote.is_write_back
        owners = [view.nodes[node] for node in view.owners(placed, name)]
        own_uuid = self._membership.node_uuid
        if own_uuid not in [owner.uuid for owner in owners]:
            return False
        request = wire.PushRequest(bucket=bucket_ref(placed), name=[name], node_uuid=own_uuid)
        silent: list[str] = []
        is_withheld = False
        for endpoint in [owner.peer_endpoint for owner in owners if owner.uuid != own_uuid]:
            try:
                if self._channels.avoided(endpoint):
                    raise ReplicaLost(f"{endpoint} does not answer")
                answer: wire.PushResponse
                answer = await self._channels.ask(endpoint, RepairStub, "Push", request, STEP_TIMEOUT_S)
            except ReplicaLost as lost:
                silent.append(str(lost))
                continue
            if answer.objects:
                return True
            if answer.deleted:
                raise ObjectNotFound(not_found_message(bucket.name, name))
            if answer.withheld:
                is_withheld = True
                silent.append(f"{endpoint} compares it with other nodes first")
        if is_withheld or len(silent) >= (max(1, placed.min_copies) if is_back else 1):
            why = "; ".join(silent)
            raise RemoteUnavailable(f"{bucket.name}/{name}: another node may have it, which did not send it: {why}")
        return False

    async def _ask(self, endpoint: str, request: pb.FetchRequest, take: TakeResponse) -> None:
        stub: Any = rpc.RemotePeerStub(self._channels.to(endpoint))
        with self._channels.reporting(endpoint):
            call = stub.Fetch(request)
            try:
                while True:
                    async with asyncio.timeout(self._timeout_s):
                        response = await call.read()
                    if response is grpc.aio.EOF:
                        break
                    await take(response)
            finally:
                call.cancel()
        self._channels.answered(endpoint)
