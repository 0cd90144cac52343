"""The Cluster service: a node's map, told and taken."""

from __future__ import annotations

import grpc

from protos import ais_cluster_pb2 as pb
from protos import ais_cluster_pb2_grpc
from storage_node.batch.session import BatchService
from storage_node.cluster.membership import Membership
from storage_node.services import Context, abort
from storage_node.store.errors import StoreError


class ClusterService(ais_cluster_pb2_grpc.ClusterServicer):
    def __init__(self, service: BatchService, membership: Membership) -> None:
        self._service = service
        self._membership = membership

    async def GetMap(self, request: pb.GetMapRequest, context: Context) -> pb.GetMapResponse:
        view = self._membership.view
        response = pb.GetMapResponse(node_uuid=self._membership.node_uuid)
        if view is not None and view.version > request.known_version:
            response.map.CopyFrom(view.map)
        return response

    async def Learn(self, request: pb.LearnRequest, context: Context) -> pb.LearnResponse:
        try:
            return pb.LearnResponse(version=await self._service.read(self._membership.learn, request.map))
        except StoreError as error:
            await abort(context, error)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
