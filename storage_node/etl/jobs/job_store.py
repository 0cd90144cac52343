"""Store of a job: listing and reading sources, looking up and storing results, on a store without a cluster.

For a cluster, see cluster_store.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple, Protocol

from ais_loader.errors import BucketNotFound, LoaderError, NotFound, VersionConflict
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Stored, stored_of
from storage_node.etl.jobs.shares import Division
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content, Spool
from storage_node.limits.tasks import OffLoop
from storage_node.store.chunked_put import put_small
from storage_node.store.drive.preconditions import parse_condition
from storage_node.store.listing import PAGE_BYTES
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.frame_plan import FrameSpan
from storage_node.store.read.heads import local_heads
from storage_node.store.read.object_reader import open_object
from storage_node.store.store import Store
from storage_node.store.write import Upload

PAGE_NAMES = 1000
_PIECE_BYTES = 1 << 20


class ListedSource(NamedTuple):
    name: str
    size_bytes: int
    """Size in bytes; -1 if this node does not know it."""


class JobPage(NamedTuple):
    objects: list[ListedSource]
    next: str | None
    """Name after which the next page starts; None if there is none."""


class Input(NamedTuple):
    version: str
    content: Content


class JobStore(Protocol):
    """Access to sources and results. Belongs to the event loop that transforms run on."""

    def require(self, bucket: str, to_bucket: str) -> None:
        """Check the buckets of a job. Raises BucketNotFound, SnapshotReadOnly, StoreReadOnly."""

    def mine(self, bucket: str, names: Sequence[str], division: Division) -> list[bool]:
        """Return which names this node processes, according to the current map. Raises BucketNotFound."""

    async def page(self, bucket: str, prefix: str, start_after: str) -> JobPage:
        """Return a page of the objects on this node, in name order. Raises LoaderError."""

    async def heads(self, bucket: str, names: Sequence[str]) -> list[Stored | LoaderError]:
        """Return the current object of each name; NotFound only if it is certain that there is none. Raises
        LoaderError."""

    async def read(self, bucket: str, names: Sequence[str]) -> list[Input | LoaderError]:
        """Read complete, verified objects. Each content becomes the caller's."""

    def owner(self, bucket: str, name: str) -> bytes:
        """Return the uuid of the first owner of an object of this name; empty if this node is one of the owners."""

    async def put_small(self, objects: Sequence[pb.SmallObject]) -> list[Stored | LoaderError]: ...
    async def put_large(self, bucket: str, name: str, metadata: dict[str, str], content: Content) -> Stored:
        """Store an object. The content remains the caller's. Raises LoaderError."""

    async def delete(self, bucket: str, name: str, version: str) -> None:
        """Delete an object, in this version only. Raises VersionConflict, ObjectNotFound, LoaderError."""


class OwnStore:
    """`JobStore` of a store that is not part of a cluster: it processes all sources."""

    def __init__(self, store: Store, work: OffLoop, spool: Spool) -> None:
        self._store, self._work, self._spool = store, work, spool

    def require(self, bucket: str, to_bucket: str) -> None:
        self._store.bucket(bucket)
        self._store.bucket_to_change(to_bucket)

    def mine(self, bucket: str, names: Sequence[str], division: Division) -> list[bool]:
        return [True] * len(names)

    async def page(self, bucket: str, prefix: str, start_after: str) -> JobPage:
        return await self._work(self._page, bucket, prefix, start_after)

    def _page(self, bucket: str, prefix: str, start_after: str) -> JobPage:
        page = self._store.replicas.page(bucket, prefix, start_after, most=PAGE_NAMES, most_bytes=PAGE_BYTES)
        found = [ListedSource(name, entry.size_bytes) for name, entry in page.objects]
        return JobPage(sorted(found + [ListedSource(name, -1) for name in page.in_doubt]), page.next)

    async def heads(self, bucket: str, names: Sequence[str]) -> list[Stored | LoaderError]:
        return await self._work(local_heads, self._store, bucket, names)

    async def read(self, bucket: str, names: Sequence[str]) -> list[Input | LoaderError]:
        return await self._work(local_inputs, self._store, self._spool, bucket, names)

    def owner(self, bucket: str, name: str) -> bytes:
        return b""

    async def put_small(self, objects: Sequence[pb.SmallObject]) -> list[Stored | LoaderError]:
        done = await self._work(put_small, self._store, objects)
        return [one if isinstance(one, LoaderError) else stored_of(one) for one in done]

    async def put_large(self, bucket: str, name: str, metadata: dict[str, str], content: Content) -> Stored:
        return await self._work(lambda: stored_of(stage_content(self._store, bucket, name, metadata, content).commit()))

    async def delete(self, bucket: str, name: str, version: str) -> None:
        await self._work(partial(self._store.delete, condition=parse_condition(False, version)), bucket, name)


def local_inputs(store: Store, spool: Spool, bucket: str, names: Sequence[str]) -> list[Input | LoaderError]:
    """Read objects: those that fit into memory in frames, as for a batch; larger ones, and those that the batch fails
    to read, one by one."""
    found: list[Input | LoaderError | None] = [None] * len(names)
    with closing(StoreBatch.of_files(store, batch_pb.BatchRequest(bucket=[bucket], name=names))) as batch:
        for span in _spans(batch):
            _read_span(batch, span, found)
    return [
        _local_input(store, spool, bucket, name) if one is None else one for name, one in zip(names, found, strict=True)
    ]


def _spans(batch: StoreBatch) -> Iterator[FrameSpan]:
    """Yield frames of present entries that fit into memory."""
    first, payload_bytes = 0, 0
    for position, (size_bytes, status) in enumerate(zip(batch.sizes.tolist(), batch.status.tolist(), strict=True)):
        fits = not status and size_bytes <= MAX_IN_MEMORY_BYTES
        if first < position and (not fits or payload_bytes + size_bytes > MAX_IN_MEMORY_BYTES):
            yield FrameSpan(first, position, payload_bytes)
            first, payload_bytes = position, 0
        if fits:
            payload_bytes += size_bytes
        else:
            first = position + 1
    if first < batch.n:
        yield FrameSpan(first, batch.n, payload_bytes)


def _read_span(batch: StoreBatch, span: FrameSpan, found: list[Input | LoaderError | None]) -> None:
    frame = batch.read(span)
    at = 0
    columns = zip(frame.size.tolist(), frame.checksum.tolist(), frame.status.tolist(), strict=True)
    for position, (size_bytes, checksum, status) in enumerate(columns, span.first):
        if not status:
            data = frame.payload[at : at + size_bytes]
            found[position] = Input(batch.version(position), Content(size_bytes, checksum, data))
        at += size_bytes


def _local_input(store: Store, spool: Spool, bucket: str, name: str) -> Input | LoaderError:
    try:
        reader = open_object(store, bucket, name, verify=True)
        version, size_bytes, checksum = str(reader.record.version), reader.length, reader.record.checksum
        content = whole_content(reader, size_bytes, checksum, spool)
        content.path = reader.drive.own_file(reader.record)
        return Input(version, content)
    except LoaderError as error:
        return error


def whole_content(chunks: Iterator[bytes], size_bytes: int, checksum: int, spool: Spool) -> Content:
    """Collect all chunks, which the producer verifies. Raises what the producer raises, and DriveFull."""
    if size_bytes <= MAX_IN_MEMORY_BYTES:
        return Content(size_bytes, checksum, memoryview(b"".join(chunks)))
    with spool.filling("an input", size_bytes) as content:
        for chunk in chunks:
            content.append(memoryview(chunk))
        content.checksum = checksum
        return content


def stage_content(store: Store, bucket: str, name: str, metadata: dict[str, str], content: Content) -> Upload:
    """Stage an object from a content. May wait for drives. Raises LoaderError."""
    chunks = (content.data,) if content.data is not None else content.chunks(_PIECE_BYTES)
    try:
        return store.stage(bucket, name, chunks, metadata, size_bytes=content.size_bytes, checksum=content.checksum)
    except OSError as error:  # of the spool; errors of the store's own drives are LoaderErrors
        raise _cannot_be_read(error) from error


def _cannot_be_read(error: OSError) -> LoaderError:
    return LoaderError(f"a result cannot be read back: {error.strerror or error}")


async def put_messages(
    content: Content, work: OffLoop, *, with_data: bool = True
) -> AsyncGenerator[pb.PutRequest, None]:
    """Yield the messages that follow the header of a put; without data if the receiver has it already. Raises
    LoaderError."""
    for offset in range(0, content.size_bytes if with_data else 0, _PIECE_BYTES):
        try:
            piece = await work(content.read, offset, _PIECE_BYTES)
        except OSError as error:
            raise _cannot_be_read(error) from error
        yield pb.PutRequest(data=bytes(piece))
    yield pb.PutRequest(end=pb.PutEnd(size_bytes=content.size_bytes, checksum=content.checksum))


def is_gone(found: Stored | LoaderError) -> bool:
    """Whether there is no such object, in a bucket that the node which was asked knows."""
    return isinstance(found, NotFound) and not isinstance(found, BucketNotFound)


def is_superseded(error: LoaderError) -> bool:
    """Whether a deletion in one version failed because there is another version, or none."""
    return isinstance(error, (VersionConflict, NotFound))
