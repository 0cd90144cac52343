"""Chunked put: an object that this process itself receives, stored while its bytes arrive, kept in an unnamed file
until all have arrived, or stored with others if it is in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ais_loader.errors import DriveFailed, LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import info_of
from storage_node.store.archives.source import FdSource, chunks_of
from storage_node.store.checksum import crc32c
from storage_node.store.drive.preconditions import condition_of
from storage_node.store.files import staged_file
from storage_node.store.files.object_files import drive_error
from storage_node.store.format import CatalogEntry
from storage_node.store.store import Store
from storage_node.store.write import Upload, check_announced


async def put_chunks(
    store: Store, read: Callable[..., Awaitable[Any]], header: pb.PutHeader, chunks: AsyncIterator[bytes | memoryview]
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


class Spooled:
    """Bytes of one object in an unnamed file, which disappears with this process. Belongs to one thread at a time.

    Raises DriveFull, DriveFailed.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.label = label
        self.size_bytes = 0
        self.checksum = 0
        self.folder = folder
        with self._reporting():
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - `close` closes it

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        self.checksum, self.size_bytes = crc32c(view, self.checksum), self.size_bytes + len(view)
        with self._reporting():
            while view:
                staged_file.require_space(self._file.fileno(), len(view), self.size_bytes)
                view = view[os.write(self._file.fileno(), view) :]

    @property
    def source(self) -> FdSource:
        return FdSource(self._file.fileno(), self.size_bytes)

    def chunks(self) -> Iterator[bytes]:
        with self._reporting():
            yield from chunks_of(self.source)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise drive_error(error, self.folder, "keeping an archive until it is stored") from error

    def close(self) -> None:
        self._file.close()


def spool_for(store: Store, label: str) -> Spooled:
    """Create a spool file on the drive with the most free space. Raises DriveFull, DriveFailed."""
    states = [state for state in store.pool.states() if state.problem is None]
    if not states:
        raise DriveFailed("no drive of the store can be used")
    return Spooled(Path(max(states, key=lambda state: state.free_bytes).path), label)
