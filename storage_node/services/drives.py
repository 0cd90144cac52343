"""Drives service: operator commands for the drives of this node."""

from __future__ import annotations

from collections.abc import Awaitable

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc
from storage_node.cluster.drives.manager import DriveManager
from storage_node.services.errors import Context


class DriveService(ais_cluster_pb2_grpc.DrivesServicer):
    def __init__(self, manager: DriveManager) -> None:
        self._manager = manager

    async def ListDrives(self, request: pb.ListDrivesRequest, context: Context) -> pb.ListDrivesResponse:
        return await self._manager.report()

    async def AddDrive(self, request: pb.AddDriveRequest, context: Context) -> pb.ListDrivesResponse:
        return await self._after(self._manager.add(request.path))

    async def RetireDrive(self, request: pb.DriveRequest, context: Context) -> pb.ListDrivesResponse:
        return await self._after(self._manager.retire(request.drive))

    async def ReinstateDrive(self, request: pb.DriveRequest, context: Context) -> pb.ListDrivesResponse:
        return await self._after(self._manager.reinstate(request.drive))

    async def ForgetDrive(self, request: pb.ForgetDriveRequest, context: Context) -> pb.ListDrivesResponse:
        return await self._after(self._manager.forget(request.drive, lost=request.lost))

    async def DisableDrive(self, request: pb.DriveRequest, context: Context) -> pb.ListDrivesResponse:
        return await self._after(self._manager.disable(request.drive))

    async def EnableDrive(self, request: pb.EnableDriveRequest, context: Context) -> pb.ListDrivesResponse:
        return await self._after(self._manager.enable(request.drive, request.path))

    async def _after(self, change: Awaitable[None]) -> pb.ListDrivesResponse:
        await change
        return await self._manager.report()
