"""Chunked put: an object that this process itself receives, stored while its bytes arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import info_of
from storage_node.store.drive.preconditions import condition_of
from storage_node.store.format import CatalogEntry
from storage_node.store.store import Store
from storage_node.store.write import Upload, check_announced


async def put_chunks(
    store: Store,
    read: Callable[..., Awaitable[Any]],
    header: pb.PutHeader,
    chunks: AsyncIterator[bytes | memoryview],
) -> pb.ObjectInfo:
    """Store an object. If its size is announced, one of a single chunk takes one call of `read`, which runs a function
    off the event loop. Raises LoaderError; nothing is left behind then."""
    put = _Put(store, header)
    try:
        async for chunk in chunks:
            if (entry := await read(put.take, chunk)) is not None:
                return info_of(header.bucket, header.name, entry)
        return info_of(header.bucket, header.name, await read(put.end))
    finally:
        if put.upload is not None and not put.upload.has_ended:
            # Shielded: if it were cancelled before it runs, it would never run.
            await asyncio.shield(asyncio.ensure_future(read(put.upload.abort)))


class _Put:
    """Used by one thread after another."""

    def __init__(self, store: Store, header: pb.PutHeader) -> None:
        self.upload: Upload | None = None
        self._store, self._header = store, header

    def take(self, chunk: bytes | memoryview) -> CatalogEntry | None:
        """Write a chunk. Returns the entry of the committed object if the chunk was its last one, or if an earlier
        attempt has stored it."""
        header = self._header
        if self.upload is None:
            upload = self.upload = self._store.begin_put(header.bucket, header.name, dict(header.metadata))
            upload.require(condition_of(header))
            if (settled := upload.settled()) is not None:
                return settled
        self.upload.write(chunk)
        is_last = header.HasField("size_bytes") and 0 < header.size_bytes <= self.upload.size_bytes
        return self.end() if is_last else None

    def end(self) -> CatalogEntry:
        """Commit what was written."""
        if self.upload is None:
            self.take(b"")
        assert self.upload is not None
        check_announced(self.upload, self._header)
        return self.upload.commit()


def put_small(store: Store, objects: Sequence[pb.SmallObject]) -> list[pb.ObjectInfo | LoaderError]:
    """Store objects together. Waits for drives. Returns the info or the error of each, in order."""
    uploads: list[Upload | LoaderError] = []
    for small in objects:
        checksum = small.checksum if small.HasField("checksum") else None
        content = [small.data], dict(small.metadata)
        try:
            condition = condition_of(small)
            uploads.append(
                store.stage(small.bucket, small.name, *content, checksum=checksum, condition=condition, grouped=True)
            )
        except LoaderError as error:
            uploads.append(error)
    return [
        stored if isinstance(stored, LoaderError) else info_of(small.bucket, small.name, stored)
        for small, stored in zip(objects, store.commit_many(uploads), strict=True)
    ]
