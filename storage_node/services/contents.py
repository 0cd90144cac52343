"""Contents services: operations on many objects of a bucket, for clients and for other nodes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.wire.generated import ais_contents_pb2 as pb
from ais_loader.wire.generated import ais_contents_pb2_grpc
from ais_loader.wire.object_info import info_of
from storage_node.cluster.repair.usage import PAGE_NAMES, UsageScan, names_page, summary_of
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.replica import failures, write_tombstones
from storage_node.context.node import Node
from storage_node.services.calls import bounded, bounded_responses, count_each
from storage_node.services.errors import Context
from storage_node.store.drive.preconditions import parse_condition
from storage_node.store.summary import NameSummary

MAX_NAMES = 10_000
"""Maximum number of names in one deletion request."""
MAX_HEADS = 1000
"""Maximum number of names in one request to describe objects, each of which has metadata."""


class ContentsService(ais_contents_pb2_grpc.ContentsServicer):
    def __init__(self, node: Node, writes: WriteCoordinator) -> None:
        self._node = node
        self._store = node.store
        self._writes = writes

    @bounded
    async def DeleteMany(self, request: pb.DeleteManyRequest, context: Context) -> pb.DeleteManyResponse:
        names = list(request.name)
        if len(names) > MAX_NAMES:
            raise InvalidRequest(f"{len(names):,} names with one request: at most {MAX_NAMES:,}")
        condition = parse_condition(False, "", request.write_id, request.repeat_ms)
        if (replica_set := self._writes.replica_set(request.bucket)) is not None:
            results = await self._writes.delete_many(replica_set, names, condition)
        else:
            results = await self._node.read(self._store.delete_many, request.bucket, names, condition)
        count_each(self._node.metrics, "delete", ["" if one is None else one.kind for one in results])
        return pb.DeleteManyResponse(failure=failures(results))

    async def HeadMany(self, request: pb.HeadManyRequest, context: Context) -> pb.HeadManyResponse:
        if len(request.name) > MAX_HEADS:
            raise InvalidRequest(f"{len(request.name):,} names with one request: at most {MAX_HEADS:,}")
        answer, kinds = await self._node.read(self._heads, request)
        count_each(self._node.metrics, "head", kinds)
        return answer

    def _heads(self, request: pb.HeadManyRequest) -> tuple[pb.HeadManyResponse, list[str]]:
        """Return the response, and for each name the kind of its failure, or "". Raises BucketNotFound."""
        answer, kinds = pb.HeadManyResponse(), []
        self._store.bucket(request.bucket)
        for position, name in enumerate(request.name):
            try:
                answer.object.append(info_of(request.bucket, name, self._store.head(request.bucket, name)))
                kinds.append("")
            except LoaderError as error:
                answer.object.add()
                answer.failure.add(position=position, error={"kind": error.kind, "message": str(error)})
                kinds.append(error.kind)
        return answer, kinds

    @bounded_responses(deadline=False)
    async def Summarize(self, request: pb.SummarizeRequest, context: Context) -> AsyncIterator[pb.SummarizeResponse]:
        tally = NameSummary(request.prefix, request.depth)
        if (replica_set := self._writes.replica_set_to_read(request.bucket)) is not None:
            newest = functools.partial(self._writes.replica_set_to_read, request.bucket)
            scan = UsageScan(self._node, self._writes.channels, replica_set, newest, request.prefix, tally)
            async for counted in scan.run():
                yield pb.SummarizeResponse(counted=counted)
            summary = await self._node.read(scan.summary)
        else:
            async for counted in self._count_here(request, tally):
                yield pb.SummarizeResponse(counted=counted)
            summary = await self._node.read(summary_of, tally)
        yield pb.SummarizeResponse(counted=tally.objects, summary=summary)

    async def _count_here(self, request: pb.SummarizeRequest, tally: NameSummary) -> AsyncIterator[int]:
        """Count the objects of a node without a cluster. Raises LoaderError."""
        found = self._store.objects(request.bucket, request.prefix)

        def count_some() -> bool:
            some = [(name, entry.size_bytes) for name, entry in itertools.islice(found, PAGE_NAMES)]
            tally.add(some)
            return len(some) == PAGE_NAMES

        while await self._node.read(count_some):
            yield tally.objects


class ContentsReplicaService(ais_contents_pb2_grpc.ContentsReplicaServicer):
    def __init__(self, node: Node) -> None:
        self._node = node

    async def BuryMany(self, request: pb.BuryManyRequest, context: Context) -> pb.BuryManyResponse:
        answer = await self._node.read(write_tombstones, self._node.store, request)
        membership = self._node.membership
        view = membership.view if membership is not None else None
        answer.map_version = view.version if view is not None else 0  # the version after the change
        return answer

    async def ListNames(self, request: pb.ListNamesRequest, context: Context) -> pb.ListNamesResponse:
        page = await self._node.read(names_page, self._node.store, request)
        page.map_version = self._node.map_version
        return page
