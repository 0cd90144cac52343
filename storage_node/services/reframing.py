"""Re-framing of archives as they are put.

A PUT into a bucket that requests it is replaced, message by message, as if the client had sent the re-framed archive.
Therefore a standalone node and a coordinator of replicas behave alike, and all replicas receive the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.context.node import Node
from storage_node.store.archives.kinds import can_reframe
from storage_node.store.checksum import crc32c
from storage_node.store.reframe_on_put import Spooled, reframed_bytes, replacement, spool_for
from storage_node.store.write import check_announced, check_content

_CHUNK_END = b""


class Reframing:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._store = node.store

    def _wanted(self, bucket: str, name: str) -> bool:
        if not can_reframe(name):
            return False
        view = self._node.membership.view
        if view is not None and bucket in view.buckets:
            return view.buckets[bucket].reframe
        found = self._store.find_bucket(bucket)
        return found is not None and found.reframe

    async def messages(
        self, first: pb.PutRequest | None, messages: AsyncIterator[pb.PutRequest]
    ) -> AsyncGenerator[pb.PutRequest, None]:
        """Yield the messages of one PUT, given the first one, if any, and the others.

        Raises ContentMismatch, InvalidRequest, DriveFull, DriveFailed.
        """
        if first is None:
            return
        if not first.HasField("header") or not self._wanted(first.header.bucket, first.header.name):
            yield first
            async for message in messages:
                yield message
            return
        header, read = first.header, self._node.read
        spool = stored = await read(spool_for, self._store, f"{header.bucket}/{header.name}")
        try:
            async for message in messages:
                part = message.WhichOneof("part")
                if part == "data":
                    await read(spool.write, message.data)
                elif part == "end":
                    check_content(spool, message.end.size_bytes, message.end.checksum)
                    check_announced(spool, header)
                    break
                else:
                    raise InvalidRequest(f"a message of a PUT that is neither data nor end: {part}")
            else:
                yield first
                return  # the consumer of these messages notices that the end is missing
            stored, metadata = await self._replacement(header, spool)
            header.size_bytes, header.checksum = stored.size_bytes, stored.checksum
            header.metadata.clear()
            header.metadata.update(metadata)
            yield pb.PutRequest(header=header)
            chunks = stored.chunks()
            while chunk := await read(next, chunks, _CHUNK_END):
                yield pb.PutRequest(data=chunk)
            yield pb.PutRequest(end=pb.PutEnd(size_bytes=stored.size_bytes, checksum=stored.checksum))
        finally:
            spool.close()
            stored.close()

    async def _replacement(self, header: pb.PutHeader, spool: Spooled) -> tuple[Spooled, dict[str, str]]:
        work = asyncio.ensure_future(
            asyncio.to_thread(replacement, self._store, header.name, dict(header.metadata), spool)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # its files must not be closed while it runs
            if work.exception() is None:
                work.result()[0].close()
            raise

    async def group(self, request: pb.PutManyRequest) -> pb.PutManyRequest:
        """Re-frame small objects. Raises DriveFull, DriveFailed."""
        for small in request.object:
            if self._wanted(small.bucket, small.name):
                await asyncio.to_thread(self._reframe, small)
        return request

    def _reframe(self, small: pb.SmallObject) -> None:
        if small.HasField("checksum") and small.checksum != crc32c(small.data):
            return  # the store will refuse it
        label = f"{small.bucket}/{small.name}"
        try:
            found = reframed_bytes(self._store, label, small.name, [small.data], dict(small.metadata))
        except LoaderError:
            return  # in any case, the original can be stored
        if found is not None:
            small.data, metadata = found
            small.checksum = crc32c(small.data)
            small.metadata.clear()
            small.metadata.update(metadata)
