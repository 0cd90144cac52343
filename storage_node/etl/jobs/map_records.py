"""Storage of jobs in a cluster's map."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ais_loader.errors import Unsupported
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.etl.jobs import edits
from storage_node.etl.registry.registry import change_cluster_map


class MapRecords:
    """`JobRecords` of a node in a cluster. Belongs to its event loop."""

    def __init__(self, node: Node, membership: Membership) -> None:
        self._node, self._membership = node, membership

    @property
    def view(self) -> ClusterView | None:
        return self._membership.view

    def jobs(self) -> Sequence[pb.TransformJob]:
        view = self._membership.view
        return [] if view is None else view.map.job

    async def start(self, job: pb.TransformJob) -> None:
        await self._change(lambda jobs: edits.started(jobs, job))

    async def end(self, job_uuid: bytes, state: pb.TransformJob.State, problem: str, counts: pb.JobCounts) -> None:
        await self._change(lambda jobs: edits.ended(jobs, job_uuid, state, problem, counts))

    async def delete(self, name: str) -> None:
        await self._change(lambda jobs: edits.deleted(jobs, name))

    async def _change(self, change: Callable[[Sequence[pb.TransformJob]], list[pb.TransformJob]]) -> None:
        view = self._membership.view
        if view is None:
            raise Unsupported("this node is part of no cluster, and jobs are kept in the map of one")

        def edit(map_: cluster_pb.ClusterMap | None) -> cluster_pb.ClusterMap:
            if map_ is None:
                raise ValueError("there is no cluster")
            jobs = [pb.TransformJob.FromString(job.SerializeToString()) for job in change(map_.job)]
            del map_.job[:]
            map_.job.extend(jobs)
            return map_

        await change_cluster_map(self._node, view, edit)
