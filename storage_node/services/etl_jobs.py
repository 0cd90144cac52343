"""Job methods of the Etl service, for clients, and of the EtlPeer service, for other nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_etl_pb2_grpc
from storage_node.cluster.errors import ReplicaLost
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.context.channels import Channels
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.etl.jobs.cluster_store import NodeStore
from storage_node.etl.jobs.manager import JobManager, JobRecords
from storage_node.etl.jobs.map_records import MapRecords
from storage_node.etl.jobs.putter import Putter
from storage_node.etl.local_etl import LocalEtl
from storage_node.etl.registry.registry import RecordRegistry
from storage_node.etl.run.direct_put import direct_put_writer
from storage_node.etl.values import Transforms
from storage_node.services.errors import Context
from storage_node.services.streaming import bounded, bounded_responses

PART_TIMEOUT_S = 2.0
FAILURES_TIMEOUT_S = 10.0


class EtlJobsService(ais_etl_pb2_grpc.EtlServicer):
    """Methods of Etl that concern jobs, and CopyObject."""

    def __init__(self, node: Node, jobs: JobManager) -> None:
        self._node, self._jobs = node, jobs

    async def StartJob(self, request: pb.StartJobRequest, context: Context) -> pb.JobInfo:
        return await self._jobs.start(request)

    @bounded_responses(deadline=False)
    async def WatchJob(self, request: pb.WatchJobRequest, context: Context) -> AsyncIterator[pb.JobInfo]:
        async for info in self._jobs.watch(request):
            yield info

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        return await self._jobs.list()

    async def ListJobFailures(self, request: pb.ListJobFailuresRequest, context: Context) -> pb.ListJobFailuresResponse:
        return await self._jobs.failures(request.name)

    async def StopJob(self, request: pb.StopJobRequest, context: Context) -> pb.JobInfo:
        return await self._jobs.stop(request.name)

    async def DeleteJob(self, request: pb.DeleteJobRequest, context: Context) -> pb.DeleteJobResponse:
        await self._jobs.delete(request.name)
        return pb.DeleteJobResponse()

    @bounded
    async def CopyObject(self, request: pb.CopyObjectRequest, context: Context) -> pb.CopyObjectResponse:
        return await self._jobs.copy(request)


class EtlJobsPeerService(ais_etl_pb2_grpc.EtlPeerServicer):
    """Methods of EtlPeer that concern jobs."""

    def __init__(self, jobs: JobManager) -> None:
        self._jobs = jobs

    async def Part(self, request: pb.JobPartRequest, context: Context) -> pb.JobPartResponse:
        return await self._jobs.answer(request)


class NodeJobRecords:
    """Storage of a node's jobs: in the map of its cluster, or else in the record of its store."""

    def __init__(self, node: Node, membership: Membership) -> None:
        self._of_map = MapRecords(node, membership)
        self._of_store = RecordRegistry(node.store, node.read)

    @property
    def view(self) -> ClusterView | None:
        return self._of_map.view

    @property
    def _here(self) -> JobRecords:
        return self._of_store if self._of_map.view is None else self._of_map

    def jobs(self) -> Sequence[pb.TransformJob]:
        return self._here.jobs()

    async def start(self, job: pb.TransformJob) -> None:
        await self._here.start(job)

    async def end(self, job_uuid: bytes, state: pb.TransformJob.State, problem: str, counts: pb.JobCounts) -> None:
        await self._here.end(job_uuid, state, problem, counts)

    async def delete(self, name: str) -> None:
        await self._here.delete(name)


def jobs_of_node(
    node: Node, membership: Membership, writes: WriteCoordinator, transforms: Transforms, etl: LocalEtl
) -> JobManager:
    """Create the job manager of a node. Results that servers put to this node are stored like those of its jobs."""
    store = NodeStore(node, writes, etl.spool)
    etl.transform_http.put_result = direct_put_writer(store, Putter(store.put_small, wait_s=0.0), etl.spool)
    jobs = JobManager(
        membership.node_uuid,
        store,
        NodeJobRecords(node, membership),
        transforms,
        PeerParts(node, writes.channels),
        node.config.etl.workers,
        etl.transform_http.results_url,
    )
    loop = asyncio.get_running_loop()

    def follow(view: ClusterView) -> None:
        with contextlib.suppress(RuntimeError):  # the node has stopped
            loop.call_soon_threadsafe(jobs.changed)  # when the map is in use

    membership.on_change(follow)
    return jobs


class PeerParts:
    """Queries the other nodes of the map for their parts of a job. Belongs to the node's event loop."""

    def __init__(self, node: Node, channels: Channels) -> None:
        self._node, self._channels = node, channels

    async def parts(
        self, nodes: Sequence[bytes], request: pb.JobPartRequest
    ) -> Mapping[bytes, pb.JobPartResponse | None]:
        view = self._node.membership.view
        if view is None:
            return {}
        endpoints = {node.uuid: node.peer_endpoint for node in view.nodes}
        asked = [node for node in nodes if node in endpoints]
        answers = await asyncio.gather(*(self._ask(endpoints[node], request) for node in asked))
        return dict(zip(asked, answers, strict=True))

    async def _ask(self, endpoint: str, request: pb.JobPartRequest) -> pb.JobPartResponse | None:
        stub = ais_etl_pb2_grpc.EtlPeerStub(self._channels.to(endpoint))
        timeout_s = FAILURES_TIMEOUT_S if request.with_failures else PART_TIMEOUT_S
        try:
            with self._channels.reporting(endpoint):
                answer: pb.JobPartResponse = await stub.Part(request, timeout=timeout_s)
        except ReplicaLost:
            return None
        self._channels.answered(endpoint)
        return answer
