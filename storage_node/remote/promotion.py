"""Promotion into a remote bucket: ordinary writes of it, whose bytes come from files of this machine."""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader.errors import BucketNotFound, LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Described, stored_of
from storage_node.limits.tasks import OffLoop
from storage_node.promote.group_promotion import GroupPromotion, Heads
from storage_node.promote.job import Job, Outcome, stamp_metadata
from storage_node.promote.source import SourceFile
from storage_node.remote.tier import RemoteTier


class RemotePromotion(GroupPromotion):
    """The promotion of one group. Belongs to the event loop of its tier. Raises BucketNotFound."""

    def __init__(self, tier: RemoteTier, job: Job, work: OffLoop, heads: Heads) -> None:
        super().__init__(tier.host.store, job, work, heads)
        if (bucket := tier.buckets.find(job.bucket)) is None:
            raise BucketNotFound(f"bucket {job.bucket!r} has been deleted meanwhile, or its remote storage was changed")
        self._tier, self._bucket = tier, bucket
        self._condition = pb.PutCondition(if_absent=job.overwrite == "never")

    async def _put_small(self, objects: Sequence[pb.SmallObject]) -> Sequence[Described | LoaderError]:
        for small in objects:
            small.condition.CopyFrom(self._condition)
        try:
            return await self._tier.bucket_writes.put_group(objects)
        except LoaderError as error:
            return [error] * len(objects)

    async def _put_large(self, source: SourceFile) -> Outcome:
        found = source.found
        header = pb.PutHeader(
            bucket=self._bucket.name,
            name=found.name,
            metadata=stamp_metadata(source),
            size_bytes=source.size_bytes,
            checksum=await self._work(source.checksum, self._job.go_on),
            condition=self._condition,
        )
        info = await self._tier.bucket_writes.put(self._bucket, header, lambda: self._pieces(source))
        return Outcome(found.path, found.name, stored_of(info))
