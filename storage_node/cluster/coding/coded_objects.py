"""Coded objects of one node: ranges of them, and files of them where something needs files.

Most reads take ranges from fragments and store nothing (group_reader.py). Members of archives, transforms and jobs need
files: the object is stored again, with the version that it has. Repair codes it again later. Belongs to the node's
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

from ais_loader.errors import BucketNotFound, CorruptObject, LoaderError
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.coding.group_reader import GroupReader, Wanted
from storage_node.context.node import Node
from storage_node.limits.tasks import results_of
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.retained_replicas import KeptVersion, retained_coded
from storage_node.store.write import Upload

WINDOW_BYTES = 4 << 20
"""Bytes that are read from fragments at once for one reader."""
SMALL_BYTES = 128 << 10
"""Objects up to this size are read whole for a range, because only a whole object has a checksum to compare."""
_RECALLED_AT_ONCE = 4


class CodedObjects:
    def __init__(self, node: Node, groups: GroupReader) -> None:
        self._node, self.groups = node, groups
        self._recalling: dict[tuple[bytes, str, Version], asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_RECALLED_AT_ONCE)

    def _bucket(self, bucket_uuid: bytes) -> cluster_pb.MapBucket:
        view = self._node.membership.view
        bucket = None if view is None else view.bucket_with_uuid(bucket_uuid)
        if bucket is None:
            raise BucketNotFound(f"no bucket of the cluster has the uuid {bucket_uuid.hex()}")
        return bucket

    async def read(
        self, bucket_uuid: bytes, ranges: Sequence[tuple[CatalogEntry, int, int]], *, verify: bool = False
    ) -> list[memoryview | LoaderError]:
        """Return ranges of objects of a bucket, or the error of each, in order. A range has an entry, a start and a
        size. Whole objects are verified, ranges of large ones with `verify`. Raises BucketNotFound."""
        wanted = [
            Wanted(entry.group, entry.offset, entry.size_bytes, entry.checksum)
            if size_bytes == entry.size_bytes or entry.size_bytes <= SMALL_BYTES
            else Wanted(entry.group, entry.offset + start, size_bytes)
            for entry, start, size_bytes in ranges
        ]
        found = await self.groups.read(self._bucket(bucket_uuid), wanted, verify=verify)
        return [
            data if isinstance(data, LoaderError) or len(data) == size_bytes else data[start : start + size_bytes]
            for data, (_, start, size_bytes) in zip(found, ranges, strict=True)
        ]

    async def chunks(
        self, bucket_uuid: bytes, entry: CatalogEntry, start: int, size_bytes: int, *, verify: bool = True
    ) -> AsyncGenerator[memoryview, None]:
        """Yield a range of an object in order, with the next window being read; one without bytes if it is empty.
        Raises LoaderError."""
        end = start + size_bytes
        windows = [(at, min(WINDOW_BYTES, end - at)) for at in range(start, max(start + 1, end), WINDOW_BYTES)]
        ahead: asyncio.Task[list[memoryview | LoaderError]] | None = None
        try:
            for number in range(len(windows)):
                reading = ahead or self._window(bucket_uuid, entry, windows[0], verify)
                ahead = self._window(bucket_uuid, entry, windows[number + 1], verify) if windows[number + 1 :] else None
                [data] = await reading
                if isinstance(data, LoaderError):
                    raise data
                yield data
        finally:
            if ahead is not None:
                ahead.cancel()

    def _window(
        self, bucket_uuid: bytes, entry: CatalogEntry, window: tuple[int, int], verify: bool
    ) -> asyncio.Task[list[memoryview | LoaderError]]:
        return asyncio.create_task(self.read(bucket_uuid, [(entry, *window)], verify=verify))

    # -- files

    async def recall(self, bucket_uuid: bytes, name: str, entry: CatalogEntry) -> None:
        """Store an object here again. Callers at the same time share the work. Raises DriveFull, NodeUnavailable,
        LoaderError."""
        key = bucket_uuid, name, entry.version  # a snapshot may see an older one
        if (task := self._recalling.get(key)) is None:
            task = self._recalling[key] = asyncio.create_task(self._store(bucket_uuid, name, entry))
            task.add_done_callback(lambda _: self._recalling.pop(key))
        await asyncio.shield(task)

    async def recall_all(self, bucket_uuid: bytes, objects: Iterable[tuple[str, CatalogEntry]]) -> None:
        """Store objects of a bucket here again, given by name and entry. Raises the first error, after all of them."""
        for result in await results_of(self.recall(bucket_uuid, name, entry) for name, entry in objects):
            if isinstance(result, LoaderError):
                raise result

    async def _store(self, bucket_uuid: bytes, name: str, entry: CatalogEntry) -> None:
        node, bucket = self._node, self._bucket(bucket_uuid).name

        def begin() -> Upload | KeptVersion | None:
            [now] = node.store.replicas.newest(bucket, [name])
            if now is None or now.version != entry.version:  # a snapshot may see it
                return retained_coded(node.store, bucket_uuid, name, entry.version)
            if now.has_file:
                return None
            upload = node.store.begin_put(bucket, name, entry.metadata)
            upload.assign(entry.version, entry.modified_ns, is_copy=True, durable=True)
            return upload

        async with self._turns:
            upload = await node.read(begin)
            if upload is None:
                return
            try:
                async for data in self.chunks(bucket_uuid, entry, 0, entry.size_bytes):
                    await node.read(upload.write, data)
                if (upload.size_bytes, upload.checksum) != (entry.size_bytes, entry.checksum):
                    raise CorruptObject(f"{bucket}/{name}: its group has other bytes than what was put")
                await node.read(upload.commit)
            finally:
                await node.read(upload.abort)
