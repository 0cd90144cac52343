"""Coded entries of one batch, read from fragments a window at a time, the next window while one is sent.

Small objects and ranges are read together, up to a window of bytes, with one request to each node that has some of
their fragments. They are placed in memory as a file, from which frames are read like from any other. A larger entry is
read a window at a time, and archives are stored again for their members.

A node that gathers a batch asks the owners only where coded entries are (`coded_places`), and reads all of them itself,
because one request to each holder of fragments costs less than one from each owner.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from io import FileIO
from itertools import compress, zip_longest
from typing import NamedTuple

import numpy as np

from ais_loader.errors import CorruptObject, LoaderError
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES, WIRE_U32, EntryFault, Frame, Piece
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.fast_path import MAX_BYTES_TOGETHER
from storage_node.cluster.coding.coded_objects import WINDOW_BYTES, CodedObjects
from storage_node.context.node import Node
from storage_node.limits.tasks import results_of, retrieve
from storage_node.store.checksum import crc32c
from storage_node.store.format import CatalogEntry, encode_place
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.batch_table import MAX_ITEM_BYTES
from storage_node.store.read.frame_plan import FrameSpan


class _Wanted(NamedTuple):
    position: int
    bucket_uuid: bytes
    name: str
    entry: CatalogEntry
    start: int
    size_bytes: int
    needs_file: bool
    is_place: bool
    """Whether its place is wanted, and not its bytes."""

    @property
    def range(self) -> tuple[CatalogEntry, int, int]:
        return self.entry, self.start, self.size_bytes

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self.entry.size_bytes

    @property
    def is_large(self) -> bool:
        return self.size_bytes > WINDOW_BYTES and not self.is_place


def _windows(wanted: Iterable[_Wanted]) -> list[list[_Wanted]]:
    """Divide entries into those that are read together. A large one is alone."""
    windows: list[list[_Wanted]] = []
    room_bytes = 0
    for one in wanted:
        needed_bytes = 0 if one.is_place else one.size_bytes
        if not windows or needed_bytes > room_bytes:
            windows.append([])
            room_bytes = WINDOW_BYTES
        windows[-1].append(one)
        room_bytes -= needed_bytes
    return windows


async def _read(objects: CodedObjects, window: Sequence[_Wanted], *, verify: bool) -> list[memoryview | LoaderError]:
    """Read small entries, each range once. Returns the bytes or the error of each, in order."""
    ranges: dict[bytes, dict[tuple[CatalogEntry, int, int], memoryview | LoaderError]] = {}
    for one in window:
        ranges.setdefault(one.bucket_uuid, {})[one.range] = memoryview(b"")
    for bucket_uuid, wanted in ranges.items():
        try:
            read = await objects.read(bucket_uuid, list(wanted), verify=verify)
        except LoaderError as error:
            read = [error] * len(wanted)
        wanted.update(zip(wanted, read, strict=True))
    return [ranges[one.bucket_uuid][one.range] for one in window]


def _memory() -> FileIO:
    return FileIO(os.memfd_create("ais-loader-coded", os.MFD_CLOEXEC), "w+")


class _LargeEntry:
    """Entry that is read a window at a time, into a file in memory, at its place in the entry."""

    def __init__(self, objects: CodedObjects, wanted: _Wanted, *, verify: bool) -> None:
        self._objects, self._wanted, self._verify = objects, wanted, verify
        self.file = _memory()
        self._chunks: AsyncGenerator[memoryview, None] | None = None
        self._end = 0

    async def ready(self, begin: int, end: int) -> None:
        """Wait until these bytes of the entry can be read from the file; earlier ones are freed. Raises LoaderError."""
        one, fd = self._wanted, self.file.fileno()
        if self._chunks is None:
            rest = one.start + begin, one.size_bytes - begin
            self._chunks = self._objects.chunks(one.bucket_uuid, one.entry, *rest, verify=self._verify)
            self._end = begin
        while self._end < end:
            data = await anext(self._chunks)
            kept = os.pread(fd, self._end - begin, begin)
            os.ftruncate(fd, 0)
            os.pwrite(fd, kept, begin)
            os.pwrite(fd, data, self._end)
            self._end += len(data)

    async def stop(self) -> None:
        if self._chunks is not None:
            await self._chunks.aclose()


class CodedEntries:
    """Coded entries of one looked-up batch. Belongs to whoever the batch belongs to, on the event loop."""

    def __init__(self, objects: CodedObjects, node: Node, request: pb.BatchRequest, batch: StoreBatch) -> None:
        self._objects, self._node, self._request, self._batch = objects, node, request, batch
        self._windows = deque(_windows(map(self._wanted, batch.coded)))
        self._large: dict[int, _LargeEntry] = {}
        self._in_memory: set[int] = set()
        self._ahead: asyncio.Task[list[memoryview | LoaderError]] | None = None

    def _wanted(self, position: int) -> _Wanted:
        request, entry = self._request, self._batch.record(position)
        assert entry is not None
        bucket = request.bucket[request.bucket_index[position] if request.bucket_index else 0]
        start, length = self._batch.range_of(position)
        is_member = bool(request.member and request.member[position])
        size_bytes = 0 if is_member else entry.size_bytes - start if length < 0 else length
        uuid = self._node.store.bucket(bucket).uuid_bytes
        is_place = request.coded_places and not is_member and size_bytes <= MAX_ITEM_BYTES
        return _Wanted(position, uuid, request.name[position], entry, start, size_bytes, is_member, is_place)

    async def spans(self, target_bytes: int = TARGET_PAYLOAD_BYTES) -> AsyncGenerator[FrameSpan, None]:
        """Yield all frames of the batch in order, each when the bytes of its coded entries are there."""
        first = 0
        while first < self._batch.n:
            stop = await self.place()
            for span in self._batch.spans(target_bytes, first, stop):
                if span.is_piece:
                    await self.ready(span)
                yield span
            first = stop

    async def place(self) -> int:
        """Place the next window of entries. Returns the position of the first entry that is not placed yet, the number
        of entries after the last window."""
        if self._windows:
            window = self._windows.popleft()
            reading = self._ahead or asyncio.create_task(self._load(window))
            self._ahead = asyncio.create_task(self._load(self._windows[0])) if self._windows else None
            try:
                found = await reading
            finally:
                reading.cancel()
            read = partial(self._node.open_archives, self._request.tenant) if self._request.member else self._node.read
            is_read = not self._request.member and all(isinstance(data, memoryview) for data in found)
            if is_read and sum(len(data) for data in found if isinstance(data, memoryview)) <= MAX_BYTES_TOGETHER:
                self._enter(window, found)  # costs less than a switch to a thread and back
            else:
                await read(self._enter, window, found)
        return self._windows[0][0].position if self._windows else self._batch.n

    def is_at_hand(self, span: FrameSpan) -> bool:
        """Return whether all bytes of a frame are in memory, and few."""
        return span.payload_bytes <= MAX_BYTES_TOGETHER and self._in_memory.issuperset(range(span.first, span.stop))

    async def _load(self, window: Sequence[_Wanted]) -> list[memoryview | LoaderError]:
        """Read the entries of a window, and store those again that need files. Returns the bytes of small ones, and
        errors."""
        objects, verify = self._objects, self._request.verify_ranges
        files = {(one.bucket_uuid, one.name): one.entry for one in window if one.needs_file}
        stored = await results_of(objects.recall(uuid, name, entry) for (uuid, name), entry in files.items())
        problems = dict(zip(files, stored, strict=True))
        is_small = [not (one.needs_file or one.is_large or one.is_place) for one in window]
        small = iter(await _read(objects, list(compress(window, is_small)), verify=verify))
        nothing = memoryview(b"")
        return [
            next(small)
            if in_window
            else memoryview(encode_place(one.entry))
            if one.is_place
            else problems.get((one.bucket_uuid, one.name)) or nothing
            for one, in_window in zip(window, is_small, strict=True)
        ]

    def _enter(self, window: Sequence[_Wanted], found: Sequence[memoryview | LoaderError]) -> None:
        """Enter what was read into the batch's table. Runs on a reader thread, unless it is little."""
        batch, memory, at = self._batch, _memory(), 0
        batch.keep(memory)
        for one, data in zip(window, found, strict=True):
            version = str(one.entry.version)
            if one.needs_file or isinstance(data, LoaderError):
                batch.look_up_again([one.position])  # it may have a file by now
                if one.position in batch.coded and isinstance(data, LoaderError):
                    batch.fail(one.position, data)
            elif one.is_large:
                large = self._large[one.position] = _LargeEntry(
                    self._objects, one, verify=one.is_whole or self._request.verify_ranges
                )
                batch.keep(large.file)
                batch.place_arriving(one.position, large.file.fileno(), 0, one.size_bytes, version)
            else:
                os.pwrite(memory.fileno(), data, at)
                checksum = crc32c(data) if one.is_place else one.entry.checksum if one.is_whole else None
                kind = pb.CODED if one.is_place else pb.STORED
                batch.place_arriving(one.position, memory.fileno(), at, len(data), version, checksum, kind)
                at += len(data)
                self._in_memory.add(one.position)

    async def ready(self, span: FrameSpan) -> None:
        """Wait until the bytes of a piece are there. If they cannot be read, its entry is failed."""
        if (large := self._large.get(span.first)) is not None:
            try:
                await large.ready(span.offset, span.offset + span.payload_bytes)
            except LoaderError as error:
                self._batch.fail_begun(span.first, error)

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead.add_done_callback(retrieve)
        for large in self._large.values():
            await large.stop()


async def coded_frames(
    objects: CodedObjects, view: ClusterView, part: pb.BatchRequest, entries: Sequence[CatalogEntry]
) -> AsyncGenerator[Frame, None]:
    """Yield the frames of a request for coded objects that their owners have looked up, with the next one being read.
    Must be closed."""
    wanted: list[_Wanted] = []
    for position, entry in enumerate(entries):
        bucket = view.to_read(part.bucket[part.bucket_index[position] if part.bucket_index else 0])
        start, length = (part.start[position], part.length[position]) if part.start else (0, -1)
        size_bytes = entry.size_bytes - start if length < 0 else length
        uuid = b"" if bucket is None else bucket.uuid
        wanted.append(_Wanted(position, uuid, part.name[position], entry, start, size_bytes, False, False))
    windows, ahead = _windows(wanted), None
    try:
        for window, after in zip_longest(windows, windows[1:]):
            if window[0].is_large:
                async with aclosing(_pieces(objects, window[0], verify=part.verify_ranges)) as pieces:
                    async for piece in pieces:
                        yield piece
                continue
            reading = ahead or asyncio.create_task(_read(objects, window, verify=part.verify_ranges))
            ahead = None
            if after is not None and not after[0].is_large:
                ahead = asyncio.create_task(_read(objects, after, verify=part.verify_ranges))
            yield _frame(window, await reading)
    finally:
        if ahead is not None:
            ahead.cancel()
            ahead.add_done_callback(retrieve)


async def _pieces(objects: CodedObjects, one: _Wanted, *, verify: bool) -> AsyncGenerator[Frame, None]:
    """Yield a large entry, with a failure in the place of the first piece that cannot be read."""
    at = checksum = 0
    chunks = objects.chunks(one.bucket_uuid, one.entry, one.start, one.size_bytes, verify=verify or one.is_whole)
    try:
        async with aclosing(chunks):
            async for data in chunks:
                piece, checksum = Piece(at, one.size_bytes, str(one.entry.version)), crc32c(data, checksum)
                at += len(data)
                if at == one.entry.size_bytes and checksum != one.entry.checksum:
                    raise CorruptObject(f"{one.name!r}: its group has other bytes than what was put")
                yield _frame([one], [data], piece, checksum)
    except LoaderError as error:
        yield _frame([one], [error])


def _frame(
    window: Sequence[_Wanted],
    found: Sequence[memoryview | LoaderError],
    piece: Piece | None = None,
    checksum: int | None = None,
) -> Frame:
    nothing = memoryview(b"")
    content = [data if isinstance(data, memoryview) else nothing for data in found]
    is_whole = [one.is_whole and piece is None for one in window]
    checksums = [
        one.entry.checksum if whole else crc32c(data)
        for one, whole, data in zip(window, is_whole, content, strict=True)
    ]
    failed = [isinstance(data, LoaderError) for data in found]
    return Frame(
        index=np.array([one.position for one in window], WIRE_U32),
        size=np.array([len(data) for data in content], WIRE_U32),
        checksum=np.array(checksums if checksum is None else [checksum], WIRE_U32),
        status=np.where(failed, np.uint8(pb.UNAVAILABLE), np.uint8(pb.OK)),
        checksum_kind=np.where(is_whole, np.uint8(pb.STORED), np.uint8(pb.COMPUTED)),
        content=content,
        piece=piece,
        errors={
            one.position: EntryFault(str(data), data.kind)
            for one, data in zip(window, found, strict=True)
            if isinstance(data, LoaderError)
        },
    )
