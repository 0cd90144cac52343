"""Etl service: creates, lists, stops and replaces transforms, by any node for all nodes."""

from __future__ import annotations

import asyncio

from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_etl_pb2_grpc
from storage_node.cluster.errors import ReplicaLost
from storage_node.context.channels import Channels
from storage_node.context.node import Node
from storage_node.etl.jobs.manager import JobManager
from storage_node.etl.registry.calls import TransformCalls
from storage_node.services.access import CALLER, Role
from storage_node.services.errors import Context
from storage_node.services.etl_jobs import EtlJobsPeerService, EtlJobsService

STATE_TIMEOUT_S = 5.0


class EtlService(EtlJobsService):
    """The complete Etl service."""

    def __init__(self, node: Node, jobs: JobManager, calls: TransformCalls) -> None:
        super().__init__(node, jobs)
        self._calls = calls

    async def InitTransform(self, request: pb.InitTransformRequest, context: Context) -> pb.TransformInfo:
        return await self._calls.init(request)

    async def ListTransforms(self, request: pb.ListTransformsRequest, context: Context) -> pb.ListTransformsResponse:
        return await self._calls.list()

    async def GetTransform(self, request: pb.GetTransformRequest, context: Context) -> pb.TransformInfo:
        return await self._calls.get(request.name, with_code=CALLER.get() is Role.OPERATOR)

    async def SetTransform(self, request: pb.SetTransformRequest, context: Context) -> pb.TransformInfo:
        return await self._calls.set(request)

    async def DeleteTransform(self, request: pb.DeleteTransformRequest, context: Context) -> pb.DeleteTransformResponse:
        await self._calls.delete(request.name)
        return pb.DeleteTransformResponse()


class EtlPeerService(EtlJobsPeerService):
    """Calls between nodes about transforms and jobs."""

    def __init__(self, jobs: JobManager, calls: TransformCalls) -> None:
        super().__init__(jobs)
        self._calls = calls

    async def State(self, request: pb.TransformStateRequest, context: Context) -> pb.TransformStateResponse:
        return self._calls.state(request)


class PeerStates:
    """Queries the other nodes of the map for the states of transforms. Belongs to the node's event loop."""

    def __init__(self, node: Node, channels: Channels) -> None:
        self._node, self._channels = node, channels

    async def __call__(self, request: pb.TransformStateRequest) -> dict[bytes, pb.TransformStateResponse | None]:
        membership = self._node.membership
        view = membership.view
        if view is None:
            return {}
        others = [one for one in view.nodes if one.uuid != membership.node_uuid]
        answers = await asyncio.gather(*(self._ask(one.peer_endpoint, request) for one in others))
        return {one.uuid: answer for one, answer in zip(others, answers, strict=True)}

    async def _ask(self, endpoint: str, request: pb.TransformStateRequest) -> pb.TransformStateResponse | None:
        stub = ais_etl_pb2_grpc.EtlPeerStub(self._channels.to(endpoint))
        try:
            with self._channels.reporting(endpoint):
                answer: pb.TransformStateResponse = await stub.State(request, timeout=STATE_TIMEOUT_S)
        except ReplicaLost:
            return None
        return answer
