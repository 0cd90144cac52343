"""Inventories of the remote buckets of one process: made here, stored as hidden objects, and read by clients.

The data are stored first, the description last: replacing that one is what makes the new inventory the valid one, so
that a refresh that does not end leaves the old one. Before an object is put to the remote storage or deleted there, a
mark with its name is stored. Readers of the inventory ask the remote storage for the marked objects, so a mark is
correct whether the change then happens or not. The marks that are older than a listing are removed after it.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ais_loader.errors import InvalidRequest, RemoteUnavailable
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.inventory import (
    PREFIX,
    ROWS,
    Block,
    BlockIndex,
    Description,
    Row,
    changed_name,
    current_name,
    encoded,
    rows_of,
)
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.remote.drivers.driver import RemoteObject
from storage_node.remote.inventory.split_listing import ListedRange, SplitListing
from storage_node.remote.location.skipped_names import SkippedNames
from storage_node.store.chunked_put import Spooled, spool_for
from storage_node.store.store import Store

if TYPE_CHECKING:
    from storage_node.remote.arriving.object_intake import StoreObject
    from storage_node.remote.location.backend import Backend
    from storage_node.remote.location.backends import Backends

STREAMS = 16
"""Number of listing requests at the same time, of those that the host's limit admits."""
PROGRESS_S = 0.5
"""Time between two reports of progress."""
MARKS_AT_ONCE = 32
_HEAD = struct.Struct("<III")
"""Count of rows, and lengths of their names and of their details."""


class RowRun:
    """Belongs to one thread at a time. Raises DriveFull, DriveFailed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._spool: Spooled | None = None

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows, at least one, whose names are increasing and follow those before."""
        if self._spool is None:
            self._spool = spool_for(self._store, "an inventory")
        block = encoded(rows)
        self._spool.write(_HEAD.pack(block.length, len(block.names), len(block.details)) + block.names + block.details)

    def __iter__(self) -> Iterator[Row]:
        if self._spool is None:
            return
        source, at = self._spool.source, 0
        while at < source.size_bytes:
            count, names, details = _HEAD.unpack(source.pread(_HEAD.size, at))
            at += _HEAD.size
            content = source.pread(names + details, at)
            at += names + details
            yield from rows_of(Block(count, content[:names], content[names:]))

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None


class InventoryWriter:
    """Data of one inventory. Belongs to one thread at a time. Raises DriveFull, DriveFailed."""

    def __init__(self, store: Store) -> None:
        self._names: Spooled = spool_for(store, "an inventory")
        try:
            self._details: Spooled = spool_for(store, "an inventory")
        except BaseException:
            self._names.close()
            raise
        self.count = 0
        self.content_bytes = 0
        """Sum of the objects' sizes."""

    @property
    def size_bytes(self) -> int:
        return self._names.size_bytes + self._details.size_bytes

    def write(self, runs: Sequence[RowRun]) -> BlockIndex:
        """Write the rows of these runs, each of which follows the one before it. Returns where the blocks are.

        Raises RemoteUnavailable for names that are not in order.
        """
        rows = itertools.chain.from_iterable(runs)
        names, details, firsts, last = [0], [0], [], b""
        while group := list(itertools.islice(rows, ROWS)):
            for row in group:
                if row.name <= last:
                    raise RemoteUnavailable(f"the remote storage lists {row.name.decode()!r} twice, or out of order")
                last = row.name
            block = encoded(group)
            self._names.write(block.names)
            self._details.write(block.details)
            names.append(self._names.size_bytes)
            details.append(self._details.size_bytes)
            firsts.append(group[0].name)
            self.count += block.length
            self.content_bytes += sum(row.size_bytes for row in group)
        return BlockIndex(self.count, names, details, firsts)

    def chunks(self) -> Iterator[bytes]:
        """Iterate over the data."""
        return itertools.chain(self._names.chunks(), self._details.chunks())

    def close(self) -> None:
        self._names.close()
        self._details.close()


def is_hidden(name: str) -> bool:
    """Whether an object is a part of an inventory, and has no remote object."""
    return name.startswith(PREFIX)


class Inventories:
    """Belongs to one event loop. `read`: runs a function that may wait for a drive, off the loop."""

    def __init__(
        self, store: Store, *, read: Callable[..., Awaitable[Any]], store_object: StoreObject, backends: Backends
    ) -> None:
        self._store, self._read = store, read
        self._store_object, self._backends = store_object, backends

    async def note_changes(self, bucket: RemoteBucket, names: Iterable[str]) -> None:
        """Mark objects that are about to be changed in the remote storage. Raises what storing an object raises."""
        if not (id_ := bucket.remote.inventory):
            return
        turns = asyncio.Semaphore(MARKS_AT_ONCE)

        async def mark(name: str) -> None:
            async with turns:
                await self._put(bucket, changed_name(id_, name), iter(()), 0)

        fault = self._backends.of(bucket).name_fault  # such a change is refused
        await asyncio.gather(*(mark(name) for name in names if not fault(name)))

    async def refresh(
        self, bucket: RemoteBucket, request: remote_pb.RefreshInventoryRequest
    ) -> AsyncGenerator[remote_pb.RefreshInventoryResponse, None]:
        """Make the inventory whose id the bucket's remote has, and yield the progress.

        Raises InvalidRequest, Unsupported, RemoteUnavailable, RemoteDenied, DriveFull, and what storing an object
        raises.
        """
        if not request.id or bucket.remote.inventory != request.id:
            raise InvalidRequest(f"bucket {bucket.name!r} has another inventory, or has been given none, meanwhile")
        refresh = _Refresh(self._store, self._read, self._backends.of(bucket), request.prefix)
        task = asyncio.create_task(self._make(bucket, refresh))
        try:
            while not (await asyncio.wait([task], timeout=PROGRESS_S))[0]:
                yield remote_pb.RefreshInventoryResponse(listed=refresh.listed)
            description = await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.shield(self._read(refresh.close))
        yield remote_pb.RefreshInventoryResponse(listed=refresh.listed, description=description)

    async def _make(self, bucket: RemoteBucket, refresh: _Refresh) -> str:
        id_, writer = bucket.remote.inventory, await self._read(InventoryWriter, self._store)
        try:
            listed_ns = time.time_ns()
            await refresh.list()
            index = await self._read(refresh.write_to, writer)
            data = f"data-{secrets.token_hex(8)}"
            await self._put(bucket, f"{PREFIX}{id_}/{data}", writer.chunks(), writer.size_bytes)
            description = Description(
                place=bucket.remote.place,
                prefix=refresh.prefix,
                count=writer.count,
                size_bytes=writer.content_bytes,
                skipped=refresh.skipped.count,
                skipped_names=tuple(refresh.skipped.names),
                listed_ns=listed_ns,
                data=data,
            )
            content: bytes = description.to_bytes(index)
            await self._put(bucket, current_name(id_), iter((content,)), len(content))
            return content.partition(b"\n")[0].decode()
        finally:
            await asyncio.shield(self._read(writer.close))

    async def _put(self, bucket: RemoteBucket, name: str, content: Iterator[bytes], size_bytes: int) -> None:
        async def chunks() -> AsyncGenerator[bytes, None]:
            while chunk := await self._read(next, content, b""):
                yield chunk

        header = pb.PutHeader(bucket=bucket.name, name=name, size_bytes=size_bytes)
        async with aclosing(chunks()) as content_of:
            await self._store_object(header, content_of)


class _Refresh:
    """Rows of one refresh, on their way to the data of an inventory."""

    def __init__(self, store: Store, read: Callable[..., Awaitable[Any]], backend: Backend, prefix: str) -> None:
        self._store, self._read, self._backend = store, read, backend
        self.prefix = prefix
        self.listed = 0
        self.skipped = SkippedNames()
        self._runs: list[RowRun] = []
        self._run_of: dict[int, RowRun] = {}

    async def list(self) -> None:
        """List the remote storage."""
        # A folder is read by one thread at a time.
        streams = 1 if self._backend.remote.scheme == "file" else STREAMS
        listing = SplitListing(self._backend.list, self.prefix, streams=streams, take=self._take_page)
        ranges = await listing.run()
        self._runs = [self._run_of[id(one)] for one in ranges if id(one) in self._run_of]
        for one in ranges:
            self.skipped.add(one.skipped)

    async def _take_page(self, range_: ListedRange, page: Sequence[RemoteObject]) -> None:
        rows = [Row(one.name.encode(), one.size_bytes, max(0, one.modified_ns), one.etag.encode()) for one in page]
        if (run := self._run_of.get(id(range_))) is None:
            run = self._run_of[id(range_)] = RowRun(self._store)
        await self._read(run.append, rows)
        self.listed += len(rows)

    def write_to(self, writer: InventoryWriter) -> BlockIndex:
        """Write all rows. Returns the index of the blocks. Raises RemoteUnavailable for names that are not in order."""
        return writer.write(self._runs)

    def close(self) -> None:
        for run in {*self._runs, *self._run_of.values()}:
            run.close()
