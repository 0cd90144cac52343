"""Services between nodes: Replica, for coordinators of writes, and Repair, which makes replicas equal."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication import replica
from storage_node.cluster.replication.replica import HeldWrite
from storage_node.context.node import Node
from storage_node.limits.call_slots import CallStream, Received
from storage_node.services.errors import Context
from storage_node.store.store import Store

Q = TypeVar("Q")
R = TypeVar("R")


class ReplicaService(ais_replica_pb2_grpc.ReplicaServicer):
    def __init__(self, node: Node) -> None:
        self._node = node
        self._store = node.store

    async def Write(self, requests: AsyncIterator[Received[wire.WriteRequest]], context: Any) -> None:
        # Not a generator: one that is cancelled at a yield would keep what is staged until it is collected.
        with self._node.replica_streams.open("") as stream:
            held = HeldWrite(self._store, self._known_map)
            await context.send_initial_metadata(())  # this node is alive, however long the drive may take
            try:
                await self._take_all(held, requests, stream, context)
            finally:
                # Also when the coordinator has died: its stream ends, and no other node knows of the staged files.
                # Shielded: if it were cancelled before it runs, it would never run.
                if not held.has_ended:
                    await asyncio.shield(self._node.read(held.abort))

    async def _take_all(
        self, held: HeldWrite, requests: AsyncIterator[Received[wire.WriteRequest]], stream: CallStream, context: Any
    ) -> None:
        async with aclosing(stream.messages(requests, keeps=_is_group)) as messages:
            async for request in messages:
                if (response := await self._node.read(held.take, request)) is not None:
                    await stream.waiting(context.write(response))

    async def Newest(self, request: wire.NewestRequest, context: Context) -> wire.NewestResponse:
        map_version = self._node.membership.lease.version
        return await self._answer(functools.partial(replica.newest, map_version=map_version), request, context)

    async def Bury(self, request: wire.BuryRequest, context: Context) -> wire.BuryResponse:
        return await self._answer(
            functools.partial(replica.write_tombstone, known_map=self._known_map), request, context
        )

    async def Versions(self, request: wire.VersionsRequest, context: Context) -> wire.VersionsResponse:
        return await self._answer(
            functools.partial(replica.versions, view=self._node.membership.view), request, context
        )

    def _known_map(self) -> int:
        return self._node.map_version

    async def _answer(self, function: Callable[[Store, Q], R], request: Q, context: Context) -> R:
        return await self._node.read(function, self._store, request)


def _is_group(request: wire.WriteRequest) -> bool:
    """Return whether a message is a group, whose objects are in memory until they are committed."""
    return bool(request.WhichOneof("part") == "group")


class RepairService(ais_replica_pb2_grpc.RepairServicer):
    def __init__(self, repair: Repair) -> None:
        self._repair = repair

    async def Missed(self, request: wire.MissedRequest, context: Context) -> wire.MissedResponse:
        return await self._repair.missed(request)

    async def Returned(self, request: wire.ReturnedRequest, context: Context) -> wire.ReturnedResponse:
        return await self._repair.returned(request)

    async def Push(self, request: wire.PushRequest, context: Context) -> wire.PushResponse:
        return await self._repair.push(request)

    async def RenewLease(self, request: wire.RenewLeaseRequest, context: Context) -> wire.RenewLeaseResponse:
        return self._repair.leases.renew(request)

    async def Relay(self, request: wire.RelayRequest, context: Context) -> wire.RelayResponse:
        return await self._repair.relay(request)

    async def TooFew(self, request: wire.TooFewRequest, context: Context) -> wire.TooFewResponse:
        return self._repair.too_few(request)

    async def Compare(self, request: wire.CompareRequest, context: Context) -> wire.CompareResponse:
        return await self._repair.ranges.answer(request)

    async def Progress(self, request: wire.ProgressRequest, context: Context) -> wire.ProgressResponse:
        return self._repair.progress()
