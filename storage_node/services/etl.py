"""Services of ETL: Etl, for clients, by any node for all nodes; EtlPeer, between nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_etl_pb2_grpc
from storage_node.cluster.map.revoked_tokens import RevokedTokens
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.put_groups import PutGroups
from storage_node.context.channels import Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.etl.jobs.job_store import JobStore
from storage_node.etl.jobs.job_tokens import JobTokens, kept_of
from storage_node.etl.jobs.manager import JobManager
from storage_node.etl.local_etl import LocalEtl
from storage_node.etl.registry.calls import TransformCalls
from storage_node.etl.run.direct_put import direct_put_writer
from storage_node.etl.run.node_transforms import NodeTransforms
from storage_node.security.rights.granted import GRANTED
from storage_node.security.rights.scopes import Right
from storage_node.services import token_gate
from storage_node.services.call_table import CALLER, Role
from storage_node.services.errors import Context

STATE_TIMEOUT_S = 5.0
PART_TIMEOUT_S = 2.0
FAILURES_TIMEOUT_S = 10.0
T = TypeVar("T")


class EtlService:
    """The calls of the Etl service that are not as in an embedded store."""

    def __init__(self, jobs: JobManager, calls: TransformCalls) -> None:
        self._jobs, self._calls = jobs, calls

    async def GetTransform(self, request: pb.GetTransformRequest, context: Context) -> pb.TransformInfo:
        granted = GRANTED.get()
        sees_code = granted is not None and granted.scopes.may(Right.ETL_CODE, request.name)
        return await self._calls.get(request.name, with_code=sees_code or CALLER.get() is Role.OPERATOR)

    async def StartJob(self, request: pb.StartJobRequest, context: Context) -> pb.JobInfo:
        granted = GRANTED.get()
        return await self._jobs.start(request, kept_of(granted.claims) if granted is not None else None)

    async def WatchJob(self, request: pb.WatchJobRequest, context: Context) -> AsyncIterator[pb.JobInfo]:
        async for info in self._jobs.watch(request):
            yield info


class EtlPeers:
    """Queries the other nodes of the map about transforms and jobs. Belongs to the node's event loop."""

    def __init__(self, node: Node, channels: Channels) -> None:
        self._node, self._channels = node, channels

    async def states(self, request: pb.TransformStateRequest) -> dict[bytes, pb.TransformStateResponse | None]:
        """Return the states of transforms on all other nodes; None if a node did not answer."""
        membership = self._node.membership
        if membership.view is None:
            return {}
        others = [one.uuid for one in membership.view.nodes if one.uuid != membership.node_uuid]
        return await self._ask(others, lambda stub: stub.State(request, timeout=STATE_TIMEOUT_S))

    async def parts(self, nodes: Sequence[bytes], request: pb.JobPartRequest) -> dict[bytes, pb.JobPartResponse | None]:
        """Return the parts of a job of those of these nodes that are in the map; None if a node did not answer."""
        timeout_s = FAILURES_TIMEOUT_S if request.with_failures else PART_TIMEOUT_S
        return await self._ask(nodes, lambda stub: stub.Part(request, timeout=timeout_s))

    async def _ask(
        self, nodes: Sequence[bytes], call: Callable[[ais_etl_pb2_grpc.EtlPeerStub], Awaitable[T]]
    ) -> dict[bytes, T | None]:
        view = self._node.membership.view
        known = {} if view is None else {node.uuid: node.peer_endpoint for node in view.nodes}
        endpoints = {node: known[node] for node in nodes if node in known}

        async def ask(endpoint: str) -> T | None:
            try:
                with self._channels.reporting(endpoint):
                    answer = await call(ais_etl_pb2_grpc.EtlPeerStub(self._channels.to(endpoint)))
            except ReplicaLost:
                return None
            self._channels.answered(endpoint)
            return answer

        return dict(zip(endpoints, await asyncio.gather(*map(ask, endpoints.values())), strict=True))


def jobs_of_node(
    node: Node,
    membership: Membership,
    writes: WriteCoordinator,
    store: JobStore,
    transforms: NodeTransforms,
    etl: LocalEtl,
    revoked: RevokedTokens,
) -> JobManager:
    """Create the job manager of a node. Results that servers put to this node are stored like those of its jobs."""
    etl.transform_http.put_result = direct_put_writer(store, PutGroups(store.put_small, wait_s=0.0), etl.spool)
    jobs = JobManager(
        membership.node_uuid,
        store,
        etl.registry,
        transforms,
        EtlPeers(node, writes.channels).parts,
        node.config.etl.workers,
        etl.transform_http.results_url,
        JobTokens(lambda: revoked.ids, lambda: token_gate.now_s()),
    )
    loop = asyncio.get_running_loop()

    def follow() -> None:
        with contextlib.suppress(RuntimeError):  # the node has stopped
            loop.call_soon_threadsafe(jobs.changed)

    node.on_change(follow)
    return jobs
