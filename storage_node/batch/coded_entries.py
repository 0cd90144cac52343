"""Coded entries of batches: their places, which an owner tells, and their bytes, which the node that gathers the batch
reads from fragments.

A batch with coded entries is gathered, even if one node owns all of them. Owners answer a coded entry with its place
(`coded_places`): the catalog entry, without what only its owner needs. The gathering node reads small entries and
ranges together, up to a window of bytes, with one request to each node that has some of their fragments, and the next
window while one is sent. A larger entry is read a window at a time. Archives are stored again, by their owners, for
their members.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from io import FileIO
from typing import NamedTuple

import numpy as np

from ais_loader.errors import CorruptObject, LoaderError
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import WIRE_U32, EntryFault, Frame, Piece
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.memory_file import memory_file
from ais_loader.wire.object_info import has_version
from storage_node.cluster.coding.coded_objects import WINDOW_BYTES, CodedObjects
from storage_node.context.node import Node
from storage_node.limits.tasks import results_of, retrieve
from storage_node.store.checksum import crc32c
from storage_node.store.format import CatalogEntry
from storage_node.store.read.batch import StoreBatch

_NOTHING = memoryview(b"")
_FEW, _TOGETHER = 256, 1024
"""Number of entries for which a switch to a thread costs more, and number that does not delay other sessions."""


async def enter_places(objects: CodedObjects, node: Node, request: pb.BatchRequest, batch: StoreBatch) -> None:
    """Enter the places of coded entries into a batch as their bytes. Members are entered with their own, once the
    archives are stored again."""
    members: dict[int, tuple[bytes, str, CatalogEntry]] = {}
    for position in batch.coded if request.member else ():
        if request.member[position] and (entry := batch.record(position)) is not None:
            bucket = request.bucket[request.bucket_index[position] if request.bucket_index else 0]
            members[position] = node.store.bucket(bucket).uuid_bytes, request.name[position], entry
    if members:
        files = dict.fromkeys(members.values())
        stored = await results_of(objects.recall(*file) for file in files)
        problems = dict(zip(files, stored, strict=True))
        await node.open_archives(request.tenant, batch.look_up_again, list(members))
        for position in members.keys() & set(batch.coded):
            if isinstance(problem := problems[members[position]], LoaderError):
                batch.fail(position, problem)
    positions = [position for position in batch.coded if position not in members]
    memory = FileIO(memory_file("ais-loader-places"), "w+")
    if len(positions) <= _FEW:
        batch.enter_places(memory, positions)
    else:
        await node.read(batch.enter_places, memory, positions)


class _Wanted(NamedTuple):
    position: int
    bucket_uuid: bytes
    name: str
    entry: CatalogEntry
    start: int
    size_bytes: int
    begin: int | None
    """Where the range is resumed; 0 if it begins again, because its first part was of an older version."""

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self.entry.size_bytes

    @property
    def in_pieces(self) -> bool:
        return self.size_bytes > WINDOW_BYTES or self.begin is not None


async def coded_frames(
    objects: CodedObjects, view: ClusterView, part: pb.BatchRequest, entries: Sequence[CatalogEntry]
) -> AsyncGenerator[Frame, None]:
    """Yield the frames of a request for coded objects that their owners have looked up. Must be closed."""
    windows: list[list[_Wanted]] = []
    room_bytes = 0
    for position, entry in enumerate(entries):
        bucket = view.to_read(part.bucket[part.bucket_index[position] if part.bucket_index else 0])
        start, length = (part.start[position], part.length[position]) if part.start else (0, -1)
        size_bytes = entry.size_bytes - start if length < 0 else length
        uuid, begin = b"" if bucket is None else bucket.uuid, None if position else part.resume_offset or None
        if begin and part.resume_version and not has_version(entry, part.resume_version):
            begin = 0
        one = _Wanted(position, uuid, part.name[position], entry, start, size_bytes, begin)
        if not windows or size_bytes > room_bytes or len(windows[-1]) == _TOGETHER or one.in_pieces:
            windows.append([])
            room_bytes = WINDOW_BYTES
        windows[-1].append(one)
        room_bytes = -1 if one.in_pieces else room_bytes - size_bytes
    ahead: asyncio.Task[Frame] | None = None
    try:
        for window, after in zip(windows, [*windows[1:], []], strict=True):
            if window[0].in_pieces:
                async with aclosing(_pieces(objects, part, window[0])) as pieces:
                    async for piece in pieces:
                        yield piece
                continue
            reading = ahead or asyncio.create_task(_read(objects, part, window))
            is_read = bool(after) and not after[0].in_pieces
            ahead = asyncio.create_task(_read(objects, part, after)) if is_read else None
            yield await reading
    finally:
        if ahead is not None:
            ahead.cancel()
            ahead.add_done_callback(retrieve)


async def _read(objects: CodedObjects, part: pb.BatchRequest, window: Sequence[_Wanted]) -> Frame:
    """Read entries together, each range once."""
    ranges: dict[bytes, dict[tuple[CatalogEntry, int, int], memoryview | LoaderError]] = {}
    for one in window:
        ranges.setdefault(one.bucket_uuid, {})[one.entry, one.start, one.size_bytes] = _NOTHING
    for bucket_uuid, wanted in ranges.items():
        try:
            read = await objects.read(bucket_uuid, list(wanted), verify=part.verify_ranges)
        except LoaderError as error:
            read = [error] * len(wanted)
        wanted.update(zip(wanted, read, strict=True))
    return _frame(window, [ranges[one.bucket_uuid][one.entry, one.start, one.size_bytes] for one in window])


async def _pieces(objects: CodedObjects, part: pb.BatchRequest, one: _Wanted) -> AsyncGenerator[Frame, None]:
    """Yield an entry in pieces. What cannot be read ends it as a failure."""
    at, checksum = one.begin or 0, part.resume_checksum if one.begin else 0
    version = part.resume_version if one.begin else str(one.entry.version)
    rest = one.start + at, one.size_bytes - at
    verify = part.verify_ranges or one.is_whole
    try:
        async with aclosing(objects.chunks(one.bucket_uuid, one.entry, *rest, verify=verify)) as chunks:
            async for data in chunks:
                piece, checksum = Piece(at, one.size_bytes, version), crc32c(data, checksum)
                at += len(data)
                if one.is_whole and at == one.size_bytes and checksum != one.entry.checksum:
                    raise CorruptObject(f"{one.name!r}: its group has other bytes than what was put")
                yield _frame([one], [data], piece, checksum)
    except LoaderError as error:
        yield _frame([one], [error])


def _frame(
    window: Sequence[_Wanted], found: Sequence[memoryview | LoaderError], piece: Piece | None = None, checksum: int = 0
) -> Frame:
    content = [data if isinstance(data, memoryview) else _NOTHING for data in found]
    stored = [one.is_whole and piece is None for one in window]
    checksums = [
        checksum if piece is not None else one.entry.checksum if is_stored else crc32c(data)
        for one, is_stored, data in zip(window, stored, content, strict=True)
    ]
    errors = {
        one.position: EntryFault(str(data), data.kind)
        for one, data in zip(window, found, strict=True)
        if isinstance(data, LoaderError)
    }
    return Frame(
        index=np.array([one.position for one in window], WIRE_U32),
        size=np.array([len(data) for data in content], WIRE_U32),
        checksum=np.array(checksums, WIRE_U32),
        status=np.array([pb.UNAVAILABLE if one.position in errors else pb.OK for one in window], np.uint8),
        checksum_kind=np.where(stored, np.uint8(pb.STORED), np.uint8(pb.COMPUTED)),
        content=content,
        piece=piece,
        errors=errors,
    )
