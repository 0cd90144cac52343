"""Store of a job in a cluster: reads sources from any node with a valid replica, and writes results to their owners."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from ais_loader import errors
from ais_loader.errors import BucketNotFound, LoaderError, NodeUnavailable, NotFound
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_contents_pb2
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated.ais_contents_pb2_grpc import ContentsStub
from ais_loader.wire.object_info import Stored, stored_of
from storage_node.cluster.repair.source_reader import SourceReader
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.replicas import OwnCopy
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.errors import ReplicaLost
from storage_node.context.node import Node
from storage_node.etl.jobs.job_store import (
    Input,
    JobPage,
    OwnStore,
    local_inputs,
    put_messages,
    stage_content,
)
from storage_node.etl.jobs.shares import Division, takers
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content, Spool
from storage_node.store.drive.preconditions import parse_condition
from storage_node.store.names import bucket_not_found
from storage_node.store.read.heads import local_heads

HEADS_TIMEOUT_S = 10.0
_HEADS = 1000
"""Maximum number of names in one request."""


class NodeStore:
    """`JobStore` of a node, in a cluster or outside of one. Belongs to the node's event loop."""

    def __init__(self, node: Node, writes: WriteCoordinator, spool: Spool) -> None:
        self._node, self._writes, self._spool = node, writes, spool
        self._own = OwnStore(node.store, node.read, spool)
        self._sources = SourceReader(node, writes)

    @property
    def _view(self) -> ClusterView | None:
        return self._node.membership.view

    def _to_read(self, bucket: str) -> ReplicaSet | None:
        """Return the replica set; None for a bucket of this node alone. Raises BucketNotFound."""
        found = self._writes.replica_set_to_read(bucket)
        if found is None and (view := self._view) is not None:
            raise bucket_not_found(bucket, view.buckets)
        return found

    def require(self, bucket: str, to_bucket: str) -> None:
        self._to_read(bucket)
        self._own.require(bucket, to_bucket)

    def mine(self, bucket: str, names: Sequence[str], division: Division) -> list[bool]:
        replica_set = self._to_read(bucket)
        if replica_set is None:
            return self._own.mine(bucket, names, division)
        local = replica_set.position
        return [taker == local for taker in takers(replica_set.view, replica_set.bucket, names, division)]

    async def page(self, bucket: str, prefix: str, start_after: str) -> JobPage:
        self._to_read(bucket)
        return await self._own.page(bucket, prefix, start_after)

    # -- look-up

    async def heads(self, bucket: str, names: Sequence[str]) -> list[Stored | LoaderError]:
        replica_set = self._to_read(bucket)
        if replica_set is None:
            return await self._own.heads(bucket, names)
        holders = replica_set.view.holders(replica_set.bucket, names) if names else []
        avoided = self._writes.channels.avoided
        first_owners = [having[0] for having in holders]
        holders = [
            sorted(having, key=lambda at: at != replica_set.position and avoided(replica_set.endpoint(at)))
            for having in holders
        ]
        found: dict[int, Stored | LoaderError] = {}
        for turn in range(max(map(len, holders), default=0)):
            by_node: dict[int, list[int]] = {}
            for at, having in enumerate(holders):
                # Names without an answer, or not found so far, may still be on another node.
                if turn < len(having) and not isinstance(found.get(at), Stored):
                    by_node.setdefault(having[turn], []).append(at)
            answers = await asyncio.gather(
                *(self._ask(replica_set, node, [names[at] for at in mine]) for node, mine in by_node.items())
            )
            for mine, answer in zip(by_node.values(), answers, strict=True):
                for at, one in zip(mine, answer, strict=True):
                    # "Unreachable" outranks "not found".
                    if isinstance(one, Stored) or at not in found or isinstance(found[at], NotFound):
                        found[at] = one
            if turn == 0 and not replica_set.view.is_changing:
                # The first owner receives all writes, so its "not found" is final. That of another is not certain.
                for at, having in enumerate(holders):
                    if isinstance(found.get(at), NotFound):
                        holders[at] = having[:1]
                        if having[0] != first_owners[at]:
                            found[at] = NodeUnavailable(f"{bucket}/{names[at]}: its first owner does not answer now")
        return [found[at] for at in range(len(names))]

    async def _ask(self, replica_set: ReplicaSet, node: int, names: Sequence[str]) -> list[Stored | LoaderError]:
        bucket = replica_set.bucket.name
        if node == replica_set.position:
            try:
                return await self._node.read(local_heads, self._node.store, bucket, names)
            except LoaderError as error:
                return [error] * len(names)
        endpoint, channels = replica_set.endpoint(node), self._writes.channels
        found: list[Stored | LoaderError] = []
        for start in range(0, len(names), _HEADS):
            some = names[start : start + _HEADS]
            request = ais_contents_pb2.HeadManyRequest(bucket=bucket, name=some)
            answer: ais_contents_pb2.HeadManyResponse
            try:
                answer = await channels.ask(endpoint, ContentsStub, "HeadMany", request, HEADS_TIMEOUT_S)
            except ReplicaLost as lost:
                found += [NodeUnavailable(str(lost))] * len(some)
                continue
            part: list[Stored | LoaderError] = [stored_of(info) for info in answer.object]
            for failure in answer.failure:
                part[failure.position] = errors.from_node(failure.error.kind, failure.error.message)
            found += part
        return found

    # -- reading

    async def read(self, bucket: str, names: Sequence[str]) -> list[Input | LoaderError]:
        if self._to_read(bucket) is None:
            return await self._own.read(bucket, names)
        found = await self._node.read(local_inputs, self._node.store, self._spool, bucket, names)
        for at, one in enumerate(found):
            if isinstance(one, LoaderError):  # this replica may be stale, damaged, or not here yet
                try:
                    found[at] = await self._from_anywhere(bucket, names[at])
                except LoaderError as error:
                    found[at] = error
        return found

    async def _from_anywhere(self, bucket: str, name: str) -> Input:
        source = await self._sources.open(compose_pb.ComposeRange(bucket=bucket, name=name))
        try:
            size_bytes = source.info.size_bytes
            if size_bytes <= MAX_IN_MEMORY_BYTES:
                parts = []
                while chunk := await source.next():
                    parts.append(chunk)
                return Input(source.info.version, Content(size_bytes, source.checksum, memoryview(b"".join(parts))))
            with self._spool.filling(f"{bucket}/{name}", size_bytes) as content:
                while chunk := await source.next():
                    await self._node.read(content.append, memoryview(chunk))
                content.checksum = source.checksum
                return Input(source.info.version, content)
        finally:
            await source.close()

    # -- storing

    def owner(self, bucket: str, name: str) -> bytes:
        replica_set = self._writes.replica_set(bucket)
        if replica_set is None:
            return b""
        owners = replica_set.view.owners(replica_set.bucket, name)
        return b"" if replica_set.position in owners else replica_set.view.nodes[owners[0]].uuid

    async def put_small(self, objects: Sequence[pb.SmallObject]) -> list[Stored | LoaderError]:
        if self._view is None:
            return await self._own.put_small(objects)
        return await self._writes.put_small(objects)

    async def put_large(self, bucket: str, name: str, metadata: dict[str, str], content: Content) -> Stored:
        replica_set = self._writes.replica_set(bucket)
        if replica_set is None:
            if self._view is not None:
                raise BucketNotFound(f"bucket {bucket!r} has been deleted meanwhile")
            return await self._own.put_large(bucket, name, metadata, content)
        header = pb.PutHeader(
            bucket=bucket, name=name, metadata=metadata, size_bytes=content.size_bytes, checksum=content.checksum
        )
        stage = partial(stage_content, self._node.store, bucket, name, metadata, content)
        held = await OwnCopy.staged(self._node.store, self._node.read, replica_set, name, stage)
        alone = held is not None and held.is_alone(replica_set)
        async with contextlib.aclosing(put_messages(content, self._node.read, with_data=not alone)) as messages:
            return stored_of(await self._writes.put(replica_set, header, messages, held))

    async def delete(self, bucket: str, name: str, version: str) -> None:
        replica_set = self._writes.replica_set(bucket)
        if replica_set is None:
            await self._own.delete(bucket, name, version)
        else:
            await self._writes.delete(replica_set, name, parse_condition(False, version))
