"""Put writer: stores the messages of one PUT, in this store or on the owners in the cluster, or deletes an object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from ais_loader import errors
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import info_of
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.put_groups import PutGroups
from storage_node.cluster.replication.write_plan import Result
from storage_node.context.node import Node
from storage_node.limits.call_slots import current_tenant
from storage_node.services.lane.socket_payload import SocketPayload
from storage_node.store.checksum import crc32c
from storage_node.store.chunked_put import put_chunks, put_small
from storage_node.store.compose import done_earlier
from storage_node.store.drive.preconditions import Condition, condition_of
from storage_node.store.format import CatalogEntry
from storage_node.store.store import Store
from storage_node.store.write import Upload, check_announced, check_content

_SMALL_BYTES = 64 << 10
"""Largest object that is held in memory, which no budget counts, until others can be committed with it."""
_GROUPS = 1
_STALL_S = 0.01
_NO_END = "the PUT ended without the message that says what was sent; nothing was stored"
_UNKNOWN_PART = "a message of a PUT that is neither header nor data nor end"


class PutWriter:
    def __init__(self, node: Node, writes: WriteCoordinator) -> None:
        self._node = node
        self._store = node.store
        self._writes = writes
        self._groups: dict[str, PutGroups[pb.ObjectInfo]] = {}
        """Each tenant has its own, so that none waits for the turn of another."""

    async def done_earlier(self, header: pb.PutHeader) -> pb.ObjectInfo | None:
        """Return what an earlier attempt of a write has stored; None if the write must proceed. Raises LoaderError,
        OutcomeUnknown."""
        if (replica_set := self._writes.replica_set(header.bucket)) is not None:
            return await self._writes.done_earlier(replica_set, header)
        entry = await self._node.read(done_earlier, self._store, header)
        return info_of(header.bucket, header.name, entry) if entry is not None else None

    async def delete(self, bucket: str, name: str, condition: Condition | None, mark: bytes = b"") -> None:
        """Delete an object. `mark`: metadata of a tombstone that is to be uploaded. Raises LoaderError."""
        if (replica_set := self._writes.replica_set(bucket)) is not None:
            await self._writes.delete(replica_set, name, condition, mark)
            return
        delete = partial(self._store.delete, condition=condition, keep_tombstone=bool(mark), raw_metadata=mark)
        await self._node.read(delete, bucket, name)

    async def store_group(self, objects: Sequence[pb.SmallObject]) -> list[Result]:
        """Store small objects with few commits. Returns one result per object, in order."""
        return await self._writes.put_many(objects, self._store_here)

    async def _store_here(self, objects: Sequence[pb.SmallObject]) -> list[Result]:
        return await self._node.read(put_small, self._store, objects)

    async def _store_small(self, header: pb.PutHeader, messages: AsyncIterator[pb.PutRequest]) -> pb.ObjectInfo:
        """Store a small object together with others that arrive at the same time. Raises LoaderError."""
        small = await _small_object(header, messages)
        tenant = current_tenant.get()
        groups = self._groups.get(tenant)
        if groups is None:
            for idle in [other for other, of_other in self._groups.items() if of_other.is_idle]:
                del self._groups[idle]
            groups = self._groups[tenant] = PutGroups(self.store_group, 0.0, groups=_GROUPS, stall_s=_STALL_S)
        return await groups.put(small)

    async def store_chunks(self, header: pb.PutHeader, chunks: AsyncIterator[bytes | memoryview]) -> pb.ObjectInfo:
        """Store an object whose bytes arrive in chunks, from this node itself. Raises LoaderError; StaleMap before a
        chunk is taken."""
        if self._writes.replica_set(header.bucket) is None:
            return await put_chunks(self._store, self._node.read, header, chunks)
        async with aclosing(_messages(header, chunks)) as messages:
            return await self._stream(await anext(messages), messages)

    async def store(
        self, messages: AsyncIterator[pb.PutRequest], take_from_socket: Callable[[], None] | None = None
    ) -> pb.ObjectInfo:
        """Store the object of one PUT, whatever the source of its messages. Raises LoaderError.

        `take_from_socket`: Requests that bytes arrive as SocketPayload from now on, if possible.
        """
        first = await anext(messages, None)
        if first is None:
            raise errors.InvalidRequest(_NO_END)
        if first.HasField("header") and _is_small(first.header):
            return await self._store_small(first.header, messages)
        return await self._stream(first, messages, take_from_socket)

    async def _stream(
        self,
        first: pb.PutRequest,
        messages: AsyncIterator[pb.PutRequest],
        take_from_socket: Callable[[], None] | None = None,
    ) -> pb.ObjectInfo:
        """Store an object while its messages arrive."""
        if first.HasField("header") and (replica_set := self._writes.replica_set(first.header.bucket)) is not None:
            return await self._writes.put(replica_set, first.header, messages)
        put = _Put(self._store)
        try:
            with_first: tuple[pb.PutRequest, ...] = ()
            if first.HasField("header") and take_from_socket is not None:
                take_from_socket()
                with_first = (first,)  # saves a switch to a thread, as costly as a small PUT
            elif (entry := await self._node.read(put.take, first)) is not None:
                return info_of(put.header.bucket, put.header.name, entry)
            async for request in messages:
                if (entry := await self._node.read(put.take, *with_first, request)) is not None:
                    return info_of(put.header.bucket, put.header.name, entry)
                with_first = ()
            raise errors.InvalidRequest(_NO_END)
        finally:
            if put.upload is not None and not put.upload.has_ended:
                # Shielded: if it were cancelled before it runs, it would never run.
                await asyncio.shield(self._node.read(put.upload.abort))


def _is_small(header: pb.PutHeader) -> bool:
    return header.HasField("size_bytes") and header.size_bytes <= _SMALL_BYTES


async def _small_object(header: pb.PutHeader, messages: AsyncIterator[pb.PutRequest]) -> pb.SmallObject:
    """Receive the rest of a PUT. Raises ContentMismatch, InvalidRequest."""
    parts: list[bytes] = []
    received = _Received(f"{header.bucket}/{header.name}")
    async for message in messages:
        part = message.WhichOneof("part")
        if part == "data":
            parts.append(bytes(message.data))
            received.add(parts[-1])
            if received.size_bytes > header.size_bytes:
                check_announced(received, header)
        elif part == "end":
            check_content(received, message.end.size_bytes, message.end.checksum)
            check_announced(received, header)
            small = pb.SmallObject(
                bucket=header.bucket, name=header.name, checksum=received.checksum, data=b"".join(parts)
            )
            small.metadata.update(header.metadata)
            small.condition.CopyFrom(header.condition)
            return small
        else:
            raise errors.InvalidRequest(
                "a second header in one PUT" if part == "header" else f"{_UNKNOWN_PART}: {part}"
            )
    raise errors.InvalidRequest(_NO_END)


class _Received:
    def __init__(self, label: str) -> None:
        self.label = label
        self.size_bytes = self.checksum = 0

    def add(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self.checksum = crc32c(data, self.checksum)


async def _messages(
    header: pb.PutHeader, chunks: AsyncIterator[bytes | memoryview]
) -> AsyncGenerator[pb.PutRequest, None]:
    yield pb.PutRequest(header=header)
    size_bytes, checksum = 0, 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        checksum = crc32c(chunk, checksum)
        yield pb.PutRequest(data=bytes(chunk))
    yield pb.PutRequest(end=pb.PutEnd(size_bytes=size_bytes, checksum=checksum))


class _Put:
    """The messages of one PUT, processed one after another on reader threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.header = pb.PutHeader()
        self.upload: Upload | None = None

    def take(self, *requests: pb.PutRequest) -> CatalogEntry | None:
        """Process messages. Return the catalog entry of the committed object if the last message was among them, or if
        an earlier attempt has stored it; otherwise None.

        Raises LoaderError.
        """
        for request in requests:
            if (entry := self._take(request)) is not None:
                return entry
        return None

    def _take(self, request: pb.PutRequest) -> CatalogEntry | None:
        part = request.WhichOneof("part")
        if part == "header":
            if self.upload is not None:
                raise errors.InvalidRequest("a second header in one PUT")
            self.header = request.header
            condition = condition_of(self.header)
            self.upload = self._store.begin_put(self.header.bucket, self.header.name, dict(self.header.metadata))
            self.upload.require(condition)
            return self.upload.settled()
        if self.upload is None:
            raise errors.InvalidRequest("a PUT begins with its header")
        if part == "data":
            if isinstance(request, SocketPayload):
                ending = request.each(self.upload.write)
                return self._take(ending) if ending is not None else None
            self.upload.write(request.data)
            return None
        if part != "end":
            raise errors.InvalidRequest(_UNKNOWN_PART)
        check_content(self.upload, request.end.size_bytes, request.end.checksum)
        check_announced(self.upload, self.header)
        return self.upload.commit()
