"""Contents services: operations on many objects of a bucket, for clients and for other nodes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator

from ais_loader.errors import InvalidRequest, LoaderError, ObjectDeleted, ObjectNotFound
from ais_loader.wire.generated import ais_contents_pb2 as pb
from ais_loader.wire.object_info import info_of
from storage_node.cluster.repair.usage import PAGE_NAMES, UsageScan, names_page, summary_of
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.replica import failures, write_tombstones
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.counters import count_each
from storage_node.remote.tier import RemoteTier
from storage_node.services.errors import Context
from storage_node.services.object_writes import ObjectWrites
from storage_node.store.drive.preconditions import Condition, parse_condition
from storage_node.store.summary import NameSummary

MAX_NAMES = 10_000
"""Maximum number of names in one deletion request."""
MAX_HEADS = 1000
"""Maximum number of names in one request to describe objects, each of which has metadata."""

_MISSING = (ObjectNotFound.kind, ObjectDeleted.kind)


class ContentsService:
    def __init__(self, node: Node, writes: WriteCoordinator, objects: ObjectWrites, tier: RemoteTier) -> None:
        self._node = node
        self._store = node.store
        self._writes = writes
        self._tier = tier
        self._objects = objects

    async def DeleteMany(self, request: pb.DeleteManyRequest, context: Context) -> pb.DeleteManyResponse:
        names = list(request.name)
        if len(names) > MAX_NAMES:
            raise InvalidRequest(f"{len(names):,} names with one request: at most {MAX_NAMES:,}")
        condition = parse_condition(False, "", request.write_id, request.repeat_ms)
        if (back := self._objects.written_back(request.bucket)) is not None:
            return self._deleted(await self._delete_later(back, names, condition))
        refused = await self._objects.delete_remote(request.bucket, names)
        left = [name for name, error in zip(names, refused, strict=True) if error is None]
        results = await self._delete_copies(request.bucket, left, condition)
        if self._objects.is_remote(request.bucket):
            results = [None if isinstance(one, ObjectNotFound) else one for one in results]  # a cold object has no copy
        deleted = iter(results)
        return self._deleted([next(deleted) if error is None else error for error in refused])

    def _deleted(self, results: list[LoaderError | None]) -> pb.DeleteManyResponse:
        count_each(self._node.metrics, "delete", ["" if one is None else one.kind for one in results])
        return pb.DeleteManyResponse(failure=failures(results))

    async def _delete_later(
        self, bucket: RemoteBucket, names: list[str], condition: Condition | None
    ) -> list[LoaderError | None]:
        """Delete objects whose remote objects are deleted afterwards."""
        mark = await self._tier.write_back.deletion_mark(bucket, names, None)
        if (replica_set := self._writes.replica_set(bucket.name)) is not None:
            return await self._writes.delete_many(replica_set, names, condition, mark)

        def delete() -> list[LoaderError | None]:
            results: list[LoaderError | None] = []
            for name in names:
                try:
                    self._store.delete(bucket.name, name, keep_tombstone=True, condition=condition, raw_metadata=mark)
                    results.append(None)
                except ObjectNotFound:
                    results.append(None)
                except LoaderError as error:
                    results.append(error)
            return results

        return await self._node.read(delete)

    async def _delete_copies(
        self, bucket: str, names: list[str], condition: Condition | None
    ) -> list[LoaderError | None]:
        if (replica_set := self._writes.replica_set(bucket)) is not None:
            return await self._writes.delete_many(replica_set, names, condition)
        return await self._node.read(self._store.delete_many, bucket, names, condition)

    async def HeadMany(self, request: pb.HeadManyRequest, context: Context) -> pb.HeadManyResponse:
        if len(request.name) > MAX_HEADS:
            raise InvalidRequest(f"{len(request.name):,} names with one request: at most {MAX_HEADS:,}")
        answer, kinds = await self._node.read(self._heads, request)
        if (bucket := self._tier.buckets.find(request.bucket)) is not None:
            await self._add_cold(bucket, request, answer, kinds)
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

    async def _add_cold(
        self, bucket: RemoteBucket, request: pb.HeadManyRequest, answer: pb.HeadManyResponse, kinds: list[str]
    ) -> None:
        """Describe the objects that are not stored here from the remote storage."""
        cold = [failure.position for failure in answer.failure if failure.error.kind in _MISSING]
        found = await self._tier.descriptions.heads(bucket, [request.name[position] for position in cold])
        kept = [failure for failure in answer.failure if failure.error.kind not in _MISSING]
        del answer.failure[:]
        answer.failure.extend(kept)
        for position, info in zip(cold, found, strict=True):
            if isinstance(info, LoaderError):
                answer.failure.add(position=position, error={"kind": info.kind, "message": str(info)})
                kinds[position] = info.kind
            else:
                answer.object[position].CopyFrom(info)
                kinds[position] = ""

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


class ContentsReplicaService:
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
