"""Compose service: creates an object from parts of others, by the same path as a PUT.

The parts become the messages of a PUT. Therefore everything that holds for a PUT holds here: the object is staged,
verified, replicated, and visible completely or not at all. It needs memory for a few messages of 1 MiB, whatever the
size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from ais_loader.errors import ObjectNotFound
from ais_loader.wire.generated import ais_compose_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects
from ais_loader.wire.object_info import info_of
from ais_loader.wire.reserved import require_unreserved
from storage_node.cluster.repair.source_reader import SourceRange, SourceReader
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.context.node import Node
from storage_node.remote.tier import RemoteTier
from storage_node.services.errors import Context
from storage_node.services.lane.calls import ObjectBytes
from storage_node.services.object_writes import ObjectWrites
from storage_node.store.checksum import combine, crc32c
from storage_node.store.compose import check_parts, composed_metadata, done_earlier

PROGRESS_S = 1.0


class ComposeService:
    def __init__(self, node: Node, writes: WriteCoordinator, object_writes: ObjectWrites, tier: RemoteTier) -> None:
        self._node = node
        self._tier = tier
        self._sources = SourceReader(node, writes)
        self._objects = object_writes

    async def Compose(self, request: pb.ComposeRequest, context: Context) -> AsyncIterator[pb.ComposeResponse]:
        check_parts(request)
        require_unreserved(request.object.metadata)
        composing = Composing(request, self._sources)
        writing = asyncio.ensure_future(self._write(composing))
        reported_bytes = 0
        try:
            while not (await asyncio.wait([writing], timeout=PROGRESS_S))[0]:
                if composing.moved_bytes > reported_bytes:  # without progress nothing is sent
                    reported_bytes = composing.moved_bytes
                    yield pb.ComposeResponse(moved_bytes=reported_bytes)
            info = await writing
            yield pb.ComposeResponse(moved_bytes=composing.moved_bytes, info=info)
        finally:
            writing.cancel()
            await asyncio.wait([writing])

    async def _write(self, composing: Composing) -> objects.ObjectInfo:
        """Return what was stored, possibly by an earlier attempt whose response was lost. Raises LoaderError."""
        header = composing.request.object
        for part in composing.request.part:
            bucket = self._tier.buckets.find(part.range.bucket) if part.HasField("range") else None
            if bucket is not None:
                await self._tier.reads.ensure(bucket, part.range.name)
        if header.condition.repeat_ms and (done := await self._objects.done_earlier(header)) is not None:
            return done
        try:
            return await self._store(composing)
        except ObjectNotFound:
            # A composed object may replace its own source. A retry then does not find the source.
            if not header.condition.write_id:
                raise
            entry = await self._node.read(done_earlier, self._node.store, header)
            if entry is None:
                raise
            again = pb.ComposeRequest(object=header, inherit_metadata=True)
            again.part.add().range.CopyFrom(
                pb.ComposeRange(bucket=header.bucket, name=header.name, version=str(entry.version))
            )
            try:
                # It may not have enough replicas yet. Its checks were made at the first attempt.
                return await self._store(Composing(again, self._sources))
            except ObjectNotFound:
                return info_of(header.bucket, header.name, entry)  # it has been replaced since

    async def _store(self, composing: Composing) -> objects.ObjectInfo:
        async with aclosing(composing.messages()) as messages:
            return await self._objects.store(messages)


class Composing:
    """Produces the messages of the PUT that a request amounts to."""

    def __init__(self, request: pb.ComposeRequest, sources: SourceReader) -> None:
        self.request = request
        self._sources = sources
        self._checksum = 0
        self._open: SourceRange | None = None
        self.moved_bytes = 0

    async def messages(self) -> AsyncGenerator[Any, None]:
        """Yield the messages. Raises LoaderError; CorruptObject if all replicas of a source are damaged."""
        request = self.request
        try:
            header = objects.PutHeader()
            header.CopyFrom(request.object)
            if request.part and request.part[0].HasField("range"):
                self._open = await self._sources.open(request.part[0].range)
                header.metadata.clear()
                header.metadata.update(composed_metadata(request, self._open.info.metadata, self._open.info.size_bytes))
            yield objects.PutRequest(header=header)
            for part in request.part:
                if part.HasField("range"):
                    if self._open is None:
                        self._open = await self._sources.open(part.range)
                    while chunk := await self._open.next():
                        self.moved_bytes += len(chunk)
                        yield ObjectBytes(memoryview(chunk))  # a PutRequest would take two more copies
                    size_bytes = self._open.size_bytes
                    self._checksum = combine(self._checksum, self._open.checksum, size_bytes)
                    await self._open.close()
                    self._open = None
                elif part.data:
                    self.moved_bytes += len(part.data)
                    self._checksum = crc32c(part.data, self._checksum)
                    yield objects.PutRequest(data=part.data)
            yield objects.PutRequest(end=objects.PutEnd(size_bytes=self.moved_bytes, checksum=self._checksum))
        finally:
            if self._open is not None:
                await self._open.close()
