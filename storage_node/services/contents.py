"""Contents services: operations on many objects of a bucket, for clients and for other nodes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator

from ais_loader.errors import InvalidName, InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.wire.denied import checked_contents, checked_reason
from ais_loader.wire.generated import ais_contents_pb2 as pb
from ais_loader.wire.object_info import info_of
from ais_loader.wire.redundancy import companion_name
from ais_loader.wire.reserved import ALLOWED, DENIED
from storage_node.cluster.coding.coding import Coding
from storage_node.cluster.map.buckets import ClusterBuckets
from storage_node.cluster.repair.usage import PAGE_NAMES, UsageScan, names_page, summary_of
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.replica import failures, write_tombstones
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.node import Node
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.counters import count_each
from storage_node.limits.tasks import results_of
from storage_node.remote.inventory.inventories import is_hidden
from storage_node.remote.tier import RemoteTier
from storage_node.services.errors import Context
from storage_node.store.denied_objects import check_denied_names, denied_page
from storage_node.store.drive.preconditions import Condition, parse_condition
from storage_node.store.format import encode_metadata
from storage_node.store.names import shown_name
from storage_node.store.read.heads import local_heads
from storage_node.store.summary import NameSummary

MAX_NAMES = 10_000
"""Maximum number of names in one deletion request."""
MAX_HEADS = 1000
"""Maximum number of names in one request to describe objects, each of which has metadata."""


class ContentsService:
    def __init__(self, node: Node, writes: WriteCoordinator, tier: RemoteTier, coding: Coding) -> None:
        self._node = node
        self._store = node.store
        self._writes = writes
        self._tier = tier
        self._coding = coding
        self._cluster = ClusterBuckets(node.membership, node.caller)

    async def DeleteMany(self, request: pb.DeleteManyRequest, context: Context) -> pb.DeleteManyResponse:
        names = list(request.name)
        if len(names) > MAX_NAMES:
            raise InvalidRequest(f"{len(names):,} names with one request: at most {MAX_NAMES:,}")
        condition = parse_condition(False, "", request.write_id, request.repeat_ms)
        bucket = self._tier.buckets.find(request.bucket)
        if bucket is None:
            return self._deleted(await self._delete_copies(request.bucket, names, condition))
        if bucket.remote.is_write_back and not all(map(is_hidden, names)):
            return self._deleted(await self._delete_later(bucket, names, condition))
        async with self._tier.bucket_writes.hold(bucket, names):
            refused = await self._tier.writes.delete(bucket, names)
            left = [name for name, error in zip(names, refused, strict=True) if error is None]
            results = await self._delete_copies(request.bucket, left, condition)
        deleted = (None if isinstance(one, ObjectNotFound) else one for one in results)  # a cold object has no copy
        return self._deleted([next(deleted) if error is None else error for error in refused])

    async def Deny(self, request: pb.DenyRequest, context: Context) -> pb.DenyResponse:
        names, contents = list(dict.fromkeys(request.name)), checked_contents(request.content)
        if len(names) > MAX_NAMES:
            raise InvalidRequest(f"{len(names):,} names with one request: at most {MAX_NAMES:,}")
        check_denied_names(names)
        reason = "" if request.allow else checked_reason(request.reason)
        denied, allowed = ([], contents) if request.allow else (contents, [])
        replica_set = self._writes.replica_set(request.bucket)
        if replica_set is not None:
            await self._cluster.deny(replica_set.view, request.bucket, denied, allowed, reason)
            raw_metadata = encode_metadata({ALLOWED: ""} if request.allow else {DENIED: reason})
            results = await self._writes.deny(replica_set, names, raw_metadata)
        else:
            bucket, denials = request.bucket, self._store.denied
            await self._node.read(denials.change_contents, bucket, denied, allowed, reason)
            results = await self._node.read(denials.allow if request.allow else denials.deny, bucket, names, reason)
        return pb.DenyResponse(failure=failures(results))

    async def ListDenied(self, request: pb.ListDeniedRequest, context: Context) -> pb.ListDeniedResponse:
        page = await self._node.read(denied_page, self._store, request)
        if (replica_set := self._writes.replica_set(request.bucket)) is not None:
            groups = {copy.group for one in page.name for on in one.drive for copy in on.copy if copy.group}
            left = {group: await self._left_in_group(replica_set, group) for group in groups}
            for one in page.name:
                for on in one.drive:
                    of_groups = [left[copy.group] for copy in on.copy if copy.group]
                    if any(names is None or one.name in names for names in of_groups):
                        on.purged_ns = 0
        return page

    async def _left_in_group(self, replica_set: ReplicaSet, group: str) -> set[str] | None:
        """Return the objects of which the fragments of a group have bytes; None if they may be of any."""
        bucket = companion_name(replica_set.bucket.uuid)
        newest = functools.partial(self._writes.replica_set_to_read, bucket)
        if (companion := newest()) is None:
            return set()
        tally = NameSummary(f"{group}/", 0)
        try:
            names, fragments = await self._coding.contents(replica_set.bucket, bytes.fromhex(group))
            scan = UsageScan(self._node, self._writes.channels, companion, newest, f"{group}/", tally)
            async for _ in scan.run():
                pass
        except LoaderError:
            return None
        # Until those before have been deleted, there are more fragments than the manifest names.
        is_sure = tally.objects <= fragments and not (await self._node.read(scan.summary)).silent
        return names if is_sure else None

    def _deleted(self, results: list[LoaderError | None]) -> pb.DeleteManyResponse:
        count_each(self._node.metrics, "delete", ["" if one is None else one.kind for one in results])
        return pb.DeleteManyResponse(failure=failures(results))

    async def _delete_later(
        self, bucket: RemoteBucket, names: list[str], condition: Condition | None
    ) -> list[LoaderError | None]:
        """Delete objects whose remote objects are deleted afterwards."""
        faults = ((name, self._tier.backends.of(bucket).name_fault(name)) for name in names)
        refused = {name: InvalidName(f"{bucket.name}/{shown_name(name)}: {fault}") for name, fault in faults if fault}
        left = [name for name in names if name not in refused]
        mark = await self._tier.write_back.deletion_mark(bucket, left, None)
        if (replica_set := self._writes.replica_set(bucket.name)) is not None:
            results = await self._writes.delete_many(replica_set, left, condition, mark)
        else:
            delete = self._tier.host.delete_object
            results = await results_of(delete(bucket.name, name, condition, mark) for name in left)
        deleted = (None if isinstance(one, ObjectNotFound) else one for one in results)
        return [refused.get(name) or next(deleted) for name in names]

    async def _delete_copies(
        self, bucket: str, names: list[str], condition: Condition | None
    ) -> list[LoaderError | None]:
        if (replica_set := self._writes.replica_set(bucket)) is not None:
            return await self._writes.delete_many(replica_set, names, condition)
        return await self._node.read(self._store.delete_many, bucket, names, condition)

    async def HeadMany(self, request: pb.HeadManyRequest, context: Context) -> pb.HeadManyResponse:
        if len(request.name) > MAX_HEADS:
            raise InvalidRequest(f"{len(request.name):,} names with one request: at most {MAX_HEADS:,}")
        found = await self._node.read(local_heads, self._store, request.bucket, request.name)
        if (bucket := self._tier.buckets.find(request.bucket)) is not None:
            found = await self._tier.descriptions.with_cold(bucket, request.name, found)
        answer = pb.HeadManyResponse()
        for position, (name, one) in enumerate(zip(request.name, found, strict=True)):
            if isinstance(one, LoaderError):
                answer.object.add()
                answer.failure.add(position=position, error={"kind": one.kind, "message": str(one)})
            else:
                answer.object.append(info_of(request.bucket, name, one))
        kinds = [one.kind if isinstance(one, LoaderError) else "" for one in found]
        count_each(self._node.metrics, "head", kinds)
        return answer

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
        answer.map_version = self._node.map_version  # the version after the change
        return answer

    async def ListNames(self, request: pb.ListNamesRequest, context: Context) -> pb.ListNamesResponse:
        page = await self._node.read(names_page, self._node.store, request)
        page.map_version = self._node.map_version
        return page
