"""Store of a job over remote buckets: cold objects are fetched before they are read, and results are uploaded.

Every node lists the remote storage for itself, and processes the sources that it would own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from ais_loader.errors import LoaderError, NotFound, RemoteUnavailable
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Stored, stored_of
from storage_node.context.remote_buckets import RemoteBuckets
from storage_node.etl.jobs.job_store import Input, JobPage, JobStore, ListedSource, put_messages
from storage_node.etl.jobs.stamp import source_version
from storage_node.etl.values import Content
from storage_node.limits.tasks import results_of
from storage_node.remote.inventory.inventories import is_hidden
from storage_node.remote.tier import RemoteTier


class RemoteStore:
    """`JobStore` that adds remote buckets to another one, which has what is stored.

    Args:
        tier: Returns the remote tier, which an embedded store starts when it is first used.
        on_tier: Awaits work on the event loop of the tier.
    """

    def __init__(
        self,
        stored: JobStore,
        buckets: RemoteBuckets,
        tier: Callable[[], RemoteTier],
        on_tier: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]],
    ) -> None:
        self._stored, self._buckets, self._tier, self._on_tier = stored, buckets, tier, on_tier
        self.mine, self.owner = stored.mine, stored.owner

    def require(self, bucket: str, to_bucket: str) -> None:
        self._stored.require(bucket, to_bucket)
        if (remote := self._buckets.find(to_bucket)) is not None:
            remote.require_writable()

    async def page(self, bucket: str, prefix: str, start_after: str) -> JobPage:
        page = await self._stored.page(bucket, prefix, start_after)
        if (remote := self._buckets.find(bucket)) is None:
            return page
        listed = await self._on_tier(self._tier().descriptions.page(remote, prefix, start_after))
        sizes = {info.name: info.size_bytes for info in listed.object} | dict(page.objects)
        while page.next is not None and listed.more and page.next < listed.next:
            page = await self._stored.page(bucket, prefix, page.next)
            sizes.update(page.objects)
        end = min(filter(None, (page.next, listed.next)), default=None)
        names = sorted(name for name in sizes if not is_hidden(name) and (end is None or name <= end))
        return JobPage([ListedSource(name, sizes[name]) for name in names], end)

    async def heads(self, bucket: str, names: Sequence[str]) -> list[Stored | LoaderError]:
        found = await self._stored.heads(bucket, names)
        if (remote := self._buckets.find(bucket)) is None:
            return found
        if remote.validates:
            here = [name for name, one in zip(names, found, strict=True) if isinstance(one, Stored)]
            await self._on_tier(self._tier().reads.warm(remote, here))
            found = await self._stored.heads(bucket, names)
        known: list[Stored | LoaderError] = await self._on_tier(
            self._tier().descriptions.with_cold(remote, names, found)
        )
        return known

    async def read(self, bucket: str, names: Sequence[str]) -> list[Input | LoaderError]:
        """See `JobStore.read`. The version of a copy is that of its remote object."""
        if (remote := self._buckets.find(bucket)) is None:
            return await self._stored.read(bucket, names)
        missing = await self._on_tier(results_of(self._tier().reads.ensure(remote, name) for name in names))
        found = await self._stored.read(bucket, names)
        heads = await self._stored.heads(bucket, names)
        for at, (one, head) in enumerate(zip(found, heads, strict=True)):
            if isinstance(one, Input):
                if isinstance(head, Stored) and head.version == one.version:
                    found[at] = one._replace(version=source_version(head))
            elif (error := missing[at]) is not None:
                found[at] = error
            elif isinstance(one, NotFound):
                found[at] = RemoteUnavailable(f"{bucket}/{names[at]}: it was fetched, and its copy is gone")
        return found

    async def put_small(self, objects: Sequence[pb.SmallObject]) -> list[Stored | LoaderError]:
        if not self._buckets.of({small.bucket for small in objects}):
            return await self._stored.put_small(objects)
        done = await self._on_tier(self._tier().bucket_writes.put_group(objects))
        return [one if isinstance(one, LoaderError) else stored_of(one) for one in done]

    async def put_large(self, bucket: str, name: str, metadata: dict[str, str], content: Content) -> Stored:
        if (remote := self._buckets.find(bucket)) is None:
            return await self._stored.put_large(bucket, name, metadata, content)
        header = pb.PutHeader(
            bucket=bucket, name=name, metadata=metadata, size_bytes=content.size_bytes, checksum=content.checksum
        )
        put = self._tier().bucket_writes.put(remote, header, lambda: self._chunks(content))
        return stored_of(await self._on_tier(put))

    async def _chunks(self, content: Content) -> AsyncGenerator[bytes, None]:
        async for message in put_messages(content, self._tier().host.read):
            if message.data:
                yield message.data

    async def delete(self, bucket: str, name: str, version: str) -> None:
        if (remote := self._buckets.find(bucket)) is None:
            await self._stored.delete(bucket, name, version)
        else:
            request = pb.DeleteRequest(bucket=bucket, name=name, if_version=version)
            await self._on_tier(self._tier().bucket_writes.delete(remote, request))
