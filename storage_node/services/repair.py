"""Repair service: calls between nodes that make replicas equal."""

from __future__ import annotations

import grpc

from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.cluster.errors import ReplicaLost
from storage_node.cluster.repair.repair import Repair
from storage_node.services.errors import Context


class RepairService(ais_replica_pb2_grpc.RepairServicer):
    def __init__(self, repair: Repair) -> None:
        self._repair = repair

    async def Missed(self, request: wire.MissedRequest, context: Context) -> wire.MissedResponse:
        return await self._repair.missed(request)

    async def Returned(self, request: wire.ReturnedRequest, context: Context) -> wire.ReturnedResponse:
        try:
            return await self._repair.returned(request)
        except ReplicaLost as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def Push(self, request: wire.PushRequest, context: Context) -> wire.PushResponse:
        try:
            return await self._repair.push(request)
        except ReplicaLost as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def RenewLease(self, request: wire.RenewLeaseRequest, context: Context) -> wire.RenewLeaseResponse:
        return self._repair.leases.renew(request)

    async def Relay(self, request: wire.RelayRequest, context: Context) -> wire.RelayResponse:
        return await self._repair.relay(request)

    async def TooFew(self, request: wire.TooFewRequest, context: Context) -> wire.TooFewResponse:
        return self._repair.too_few(request)

    async def Progress(self, request: wire.ProgressRequest, context: Context) -> wire.ProgressResponse:
        return self._repair.progress()
