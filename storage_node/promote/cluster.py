"""Promotion into a bucket of a cluster: this node coordinates ordinary writes whose bytes come from its files.

A large file is staged here directly if this node is one of its owners, and streamed to the other owners. All replicas
compare checksums before anything is committed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_promote_pb2 as wire
from ais_loader.wire.object_info import Stored, info_of, stored_of
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.replicas import OwnCopy
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.limits.tasks import OffLoop
from storage_node.promote.group_promotion import GroupPromotion, Heads
from storage_node.promote.into_store import stage
from storage_node.promote.job import Job, Outcome, stamp_metadata
from storage_node.promote.source import SourceFile
from storage_node.store.checksum import crc32c
from storage_node.store.read.heads import local_heads
from storage_node.store.store import Store
from storage_node.store.write import Upload


class ClusterPromotion(GroupPromotion):
    """The promotion of one group, by one map. Belongs to the node's event loop."""

    def __init__(
        self, store: Store, writes: WriteCoordinator, replica_set: ReplicaSet, job: Job, work: OffLoop, heads: Heads
    ) -> None:
        super().__init__(store, job, work, heads)
        self._writes, self._replica_set = writes, replica_set

    async def _put_small(self, objects: Sequence[pb.SmallObject]) -> Sequence[Stored | LoaderError]:
        return await self._writes.put_small(objects)

    async def _put_large(self, source: SourceFile) -> Outcome:
        replica_set, found = self._replica_set, source.found
        header = pb.PutHeader(bucket=self._job.bucket, name=found.name, metadata=stamp_metadata(source))
        stage_here = partial(stage, self._store, self._job, source)
        held = await OwnCopy.staged(self._store, self._work, replica_set, found.name, stage_here)
        upload = held.upload if held is not None else None
        method = upload.method if isinstance(upload, Upload) else "copied"
        info = await self._writes.put(replica_set, header, self._messages(source, held), held)
        return Outcome(found.path, found.name, stored_of(info), method=method)

    async def _messages(self, source: SourceFile, held: OwnCopy | None) -> AsyncIterator[pb.PutRequest]:
        upload = held.upload if held is not None else None
        if held is not None and isinstance(upload, Upload) and held.is_alone(self._replica_set):
            yield pb.PutRequest(end=pb.PutEnd(size_bytes=upload.size_bytes, checksum=upload.checksum))
            return
        checksum = size_bytes = 0
        async for piece in self._pieces(source, linked=isinstance(upload, Upload) and upload.linked):
            checksum, size_bytes = crc32c(piece, checksum), size_bytes + len(piece)
            yield pb.PutRequest(data=piece)
        yield pb.PutRequest(end=pb.PutEnd(size_bytes=size_bytes, checksum=checksum))


def have(store: Store, request: wire.HaveRequest) -> wire.HaveResponse:
    """Return this node's objects of these names, which nodes of the last release ask for. Raises BucketNotFound,
    Closed."""
    found = zip(request.name, local_heads(store, request.bucket, request.name), strict=True)
    infos = (
        pb.ObjectInfo() if isinstance(one, LoaderError) else info_of(request.bucket, name, one) for name, one in found
    )
    return wire.HaveResponse(object=infos)
