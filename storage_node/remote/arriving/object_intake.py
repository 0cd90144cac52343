"""Object intake: stores an object as it comes from the remote storage, and passes it to readers who wait for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol

from ais_loader.errors import DriveFull, StaleMap
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.put_groups import PutGroup, PutGroups
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.remote.arriving.arrivals import Arrival, Arrivals, Read
from storage_node.remote.arriving.arriving_part import NotStored
from storage_node.remote.copies.cache_space import CacheSpace
from storage_node.remote.copies.object_metadata import metadata_of
from storage_node.remote.location.remote_read import RemoteRead
from storage_node.store.checksum import crc32c
from storage_node.store.files.segment_format import MAX_OBJECT_BYTES

MEMORY_BYTES = 32 << 20
"""Largest sum of small objects that are arriving, or wait for their commit."""
STALL_S = 0.01
"""See `PutGroups`."""


class StoreObject(Protocol):
    """Stores an object, in this store or in the cluster."""

    async def __call__(self, header: pb.PutHeader, chunks: AsyncIterator[bytes | memoryview]) -> pb.ObjectInfo:
        """Raises LoaderError."""


class ObjectIntake:
    """
    Args:
        put_group: Stores small objects together. They arrive in memory, within `MEMORY_BYTES`, and are committed with
            others that arrive at the same time.
        space: The room for copies on this node.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        store_object: StoreObject,
        put_group: PutGroup[pb.ObjectInfo],
        space: CacheSpace,
        read: Read,
    ) -> None:
        self._arrivals = arrivals
        self._store_object, self._space, self._read = store_object, space, read
        self._groups = PutGroups(put_group, 0.0, stall_s=STALL_S)
        self._memory = MemoryBudget(MEMORY_BYTES)
        self.close = self._groups.close

    async def store(
        self, bucket: RemoteBucket, arriving: RemoteRead, arrival: Arrival | None, version: str, *, make_room: bool
    ) -> pb.ObjectInfo | None:
        """Store an object as it arrives. Returns None if it has to be fetched again, into the room made for it.

        Raises VersionConflict, NotStored.
        """
        found = arriving.info
        header = pb.PutHeader(bucket=bucket.name, name=found.name, size_bytes=found.size_bytes)
        header.metadata.update(metadata_of(found))
        if version:
            header.condition.if_version = version
        else:
            header.condition.if_absent = True
        held_bytes = found.size_bytes if found.size_bytes <= MAX_OBJECT_BYTES else 0
        await self._memory.acquire(held_bytes)
        try:
            data = None
            if held_bytes or not found.size_bytes:
                data = await arriving.read()
                self._arrivals.note((bucket.uuid, found.name))

            async def put() -> pb.ObjectInfo:
                if data is not None:
                    return await self._groups.put(_small_object(header, data))
                async with aclosing(self._arriving_chunks(bucket, arriving, arrival)) as chunks:
                    return await self._store_object(header, chunks)

            try:
                try:
                    return await put()
                except StaleMap:
                    # Only the first owner decides on conditions, and it cannot be reached. No byte was taken yet.
                    header.ClearField("condition")
                    return await put()
            except DriveFull as full:
                if arrival is not None:  # its readers go on
                    async with aclosing(self._arriving_chunks(bucket, arriving, arrival)) as rest:
                        async for _ in rest:
                            if arrival.is_broken:
                                break
                if not make_room or not await self._space.relieve(bucket, found.name, found.size_bytes):
                    raise NotStored(str(full), found) from full
                if data is None and (arrival is None or not arrival.is_complete):
                    return None
            try:
                if arrival is None:
                    return await put()
                async with aclosing(self._kept_chunks(arrival)) as chunks:
                    return await self._store_object(header, chunks)
            except DriveFull as full:
                raise NotStored(str(full), found) from full
        finally:
            self._memory.release(held_bytes)

    async def _arriving_chunks(
        self, bucket: RemoteBucket, arriving: RemoteRead, arrival: Arrival | None
    ) -> AsyncGenerator[bytes | memoryview, None]:
        """Yield the rest of an object, after readers who wait for it have got it."""
        async for chunk in arriving:
            self._arrivals.note((bucket.uuid, arriving.info.name))
            if arrival is not None:
                await arrival.write(chunk)
            yield chunk

    async def _kept_chunks(self, arrival: Arrival) -> AsyncGenerator[bytes, None]:
        chunks = arrival.chunks()
        while chunk := await self._read(next, chunks, b""):
            yield chunk


def _small_object(header: pb.PutHeader, data: bytes) -> pb.SmallObject:
    small = pb.SmallObject(bucket=header.bucket, name=header.name, data=data, checksum=crc32c(data))
    small.metadata.update(header.metadata)
    small.condition.CopyFrom(header.condition)
    return small
