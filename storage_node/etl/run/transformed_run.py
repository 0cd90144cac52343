"""Transformed run: the entries of a batch, passed through their transforms and framed in request order.

All entries are looked up in the catalog at the start, as for any batch. Inputs are then read one group after another,
ahead of the entry that is due as far as memory permits, and pass through their transforms concurrently. A result is
framed once it is complete, because its size is known only then. The frames look like those of any other batch. Entries
without a transform are delivered as they are stored.

Credit, tenants and networking are not handled here but by the caller that takes the frames.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ais_loader.errors import DriveFull, InvalidRequest, ItemTooLarge, LoaderError
from ais_loader.wire.batch_columns import entry_values
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES, WIRE_U32, EntryFault, Frame, Piece
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.etl.run.result_cache import CacheHits, Shared, args_of, result_key
from storage_node.etl.run.run_state import (
    EntryInProgress,
    FailedEntry,
    Reservation,
    RunInput,
    RunSettings,
    completed,
    failed_entry,
)
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content, Origin
from storage_node.limits.tasks import retrieve
from storage_node.store.checksum import crc32c
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.batch_table import MAX_ITEM_BYTES
from storage_node.store.read.frame_plan import MAX_WHOLE_BYTES, FrameSpan, check_columns

MAX_STAGES, MAX_ARGS_BYTES, MAX_CALLS = 16, 64 << 10, 256


def check_calls(request: pb.BatchRequest) -> None:
    """Check the transforms of a request. Raises InvalidRequest."""
    if len(request.transform) > MAX_CALLS:
        raise InvalidRequest(f"{len(request.transform)} transforms in one request, at most {MAX_CALLS}")
    check_columns(request, len(request.name))
    for call in request.transform:
        if not 0 < len(call.stage) <= MAX_STAGES:
            raise InvalidRequest(f"a pipeline of {len(call.stage)} stages: need 1 to {MAX_STAGES}")
        for stage in call.stage:
            if len(stage.args) > MAX_ARGS_BYTES:
                raise InvalidRequest(
                    f"{stage.name}: {len(stage.args):,} characters of args, at most {MAX_ARGS_BYTES:,}"
                )
            try:
                if stage.args:
                    json.loads(stage.args)
            except ValueError as error:
                raise InvalidRequest(f"{stage.name}: args are no JSON: {error}") from error


def inputs_of(request: pb.BatchRequest) -> pb.BatchRequest:
    """Return the request for the inputs, as they are stored."""
    plain = pb.BatchRequest()
    plain.CopyFrom(request)
    del plain.transform[:], plain.transform_index[:]
    plain.ClearField("resume_offset")
    plain.ClearField("resume_checksum")
    if request.transform_index and request.transform_index[0]:
        # An entry without transform is resumed in the version of its first part; a result starts over if the object has
        # changed.
        plain.ClearField("resume_version")
    return plain


_TOGETHER_BYTES = 256 << 10
"""Maximum size of inputs that are read together, except for one that is larger: each cached input keeps all of them in
memory."""


class _StartedRun(NamedTuple):
    """An entry that passes through its transforms as soon as its input has been read."""

    call: pb.TransformCall
    versions: tuple[bytes, ...]
    work: RunInput


class TransformedRun:
    """Run of one batch. Belongs to the event loop. Must be closed.

    Args:
        batch: Batch of `inputs_of(request)`, looked up.
    """

    def __init__(self, settings: RunSettings, request: pb.BatchRequest, batch: StoreBatch) -> None:
        self._settings, self._request, self._batch = settings, request, batch
        self._n = batch.n
        self._due: deque[EntryInProgress] = deque()
        self._next = 0
        self._delivering: EntryInProgress | None = None
        """The entry whose bytes are being framed; it holds its memory until they have been."""
        self._pieces: tuple[int, Shared, int] | None = None
        """The entry that is delivered in pieces, its result, and the offset of the next piece."""
        self._piece_checksum = 0
        """CRC-32C of the bytes before that offset."""
        self._entries = entry_values(inputs_of(request))
        self._hits: dict[int, CacheHits] = {}
        """Keyed by the index of the call in the request; valid until the next await."""

    # -- frames taken by the caller

    async def next(self) -> Frame | None:
        """Return the next frame, in request order; None if there is none."""
        if self._pieces is not None:
            return await self._piece()
        parts: list[tuple[int, int, memoryview, int, int, EntryFault | None]] = []
        payload_bytes = 0
        while payload_bytes < TARGET_PAYLOAD_BYTES:
            if not self._due and (kept := self._kept_whole(self._next)) is not None:
                position, self._next = self._next, self._next + 1
                data = kept.content.data
                assert data is not None
                parts.append((position, pb.OK, data, kept.content.checksum, pb.TRANSFORMED, None))
                payload_bytes += len(data)
                kept.release()
                continue
            self._count_kept()
            await self._look_ahead()
            if not self._due:
                break
            due = self._due[0]
            if parts and not due.task.done():
                break  # the finished entries need not wait for it
            result = await due.task
            self._delivering = self._due.popleft()
            at = due.position
            if isinstance(result, Shared):
                self._pieces = at, result, 0  # `close` releases it, if this is cancelled
                found = await self._begins_at(at, result.content)
                if isinstance(found, FailedEntry):
                    self._pieces = None
                    result.release()
                    result = found
                else:
                    self._pieces = at, result, found
            if isinstance(result, FailedEntry):
                self._delivered_one()
                parts.append((at, result.status, memoryview(b""), 0, pb.NONE, self._batch.told(result.fault)))
                if self._request.fail_fast:
                    break
                continue
            content = result.content
            if content.size_bytes > MAX_WHOLE_BYTES or (at == 0 and self._request.resume_offset):
                if parts:
                    break
                return await self._piece()
            data = await self._bytes(content, 0, content.size_bytes)
            self._pieces = None
            result.release()
            self._delivered_one()
            parts.append((at, pb.OK, data, content.checksum, due.kind, None))
            payload_bytes += len(data)
        self._count_kept()
        return self._frame(parts) if parts else None

    @property
    def exhausted(self) -> bool:
        """Whether all frames have been taken."""
        return self._next >= self._n and not self._due and self._pieces is None

    async def close(self) -> None:
        """Cancel what only this run waits for. May be called again."""
        due, self._due = list(self._due), deque()
        for one in due:
            one.task.cancel()
        if due:
            await asyncio.wait([one.task for one in due])
        for one in due:
            one.release()
            if not one.task.cancelled() and one.task.exception() is None and isinstance(one.task.result(), Shared):
                one.task.result().release()  # type: ignore[union-attr]
            retrieve(one.task)
        if self._pieces is not None:
            self._pieces[1].release()
            self._pieces = None
        self._delivered_one()
        self._batch.close()

    def _delivered_one(self) -> None:
        due, self._delivering = self._delivering, None
        if due is not None:
            due.release()

    # -- frames

    def _frame(self, parts: list[tuple[int, int, memoryview, int, int, EntryFault | None]]) -> Frame:
        first = self._request.first_index
        payload = parts[0][2] if len(parts) == 1 else memoryview(b"".join(part[2] for part in parts))
        return Frame(
            index=np.array([first + part[0] for part in parts], WIRE_U32),
            size=np.array([len(part[2]) for part in parts], WIRE_U32),
            checksum=np.array([part[3] for part in parts], WIRE_U32),
            status=np.array([part[1] for part in parts], np.uint8),
            checksum_kind=np.array([part[4] for part in parts], np.uint8),
            content=payload,
            errors={first + part[0]: part[5] for part in parts if part[5] is not None},
        )

    async def _piece(self) -> Frame:
        assert self._pieces is not None
        at, result, offset = self._pieces
        content = result.content
        data = await self._bytes(content, offset, TARGET_PAYLOAD_BYTES)
        self._piece_checksum = crc32c(data, self._piece_checksum)
        stop = offset + len(data)
        self._pieces = at, result, stop
        index = self._request.first_index + at
        frame = Frame(
            index=np.array([index], WIRE_U32),
            size=np.array([len(data)], WIRE_U32),
            checksum=np.array([self._piece_checksum], WIRE_U32),
            status=np.zeros(1, np.uint8),
            checksum_kind=np.array([self._kind(at)], np.uint8),
            content=data,
            piece=Piece(offset, content.size_bytes, self._piece_version(at, content)),
        )
        if stop >= content.size_bytes:
            self._pieces = None
            result.release()
            self._delivered_one()
        return frame

    async def _bytes(self, content: Content, offset: int, length: int) -> memoryview:
        if content.data is not None:
            return content.data[offset : offset + length]
        found: memoryview = await self._settings.on_thread(content.read, offset, length)
        return found

    async def _begins_at(self, at: int, content: Content) -> int | FailedEntry:
        """Return the first byte that the client lacks. An object that was replaced starts at 0, and so does a result
        that was computed again and has other bytes."""
        self._piece_checksum = 0
        if content.size_bytes > MAX_ITEM_BYTES:
            error = ItemTooLarge(
                f"{self._name(at)!r}: its transform made {content.size_bytes:,} bytes, a batch carries at most "
                f"{MAX_ITEM_BYTES:,} per entry"
            )
            return failed_entry(error)
        offset = self._request.resume_offset if at == 0 else 0
        if not offset or self._request.resume_version != self._piece_version(at, content):
            return 0
        checksum, done = 0, 0
        while done < min(offset, content.size_bytes):
            part = await self._bytes(content, done, min(TARGET_PAYLOAD_BYTES, offset - done))
            checksum, done = crc32c(part, checksum), done + len(part)
        if done == offset and checksum == self._request.resume_checksum:
            self._piece_checksum = checksum
            return offset
        return 0

    # -- entries in progress

    def _kept_whole(self, position: int) -> Shared | None:
        """Return a cached result that fits into one frame: the fast path, without any task."""
        if position >= self._n or self._batch.status[position] or (position == 0 and self._request.resume_offset):
            return None
        which = self._call_of(position)
        if not which:
            return None
        hits = self._hits.get(which)
        if hits is None:
            call = self._request.transform[which - 1]
            try:
                hits = self._hits[which] = CacheHits(self._settings.transforms.versions(call), args_of(call))
            except LoaderError:
                return None  # the ordinary path reports the error
        kept = self._settings.cache.find(self._key(position, hits.versions, hits.args))
        if kept is None:
            return None
        if kept.content.data is None or kept.content.size_bytes > MAX_WHOLE_BYTES:
            kept.release()
            return None
        hits.kept += 1
        hits.kept_bytes += kept.content.size_bytes
        return kept

    def _count_kept(self) -> None:
        """Report the cache hits. Called before every await, because transforms may change during it."""
        for which, hits in self._hits.items():
            if hits.kept:
                self._settings.transforms.kept_result(self._request.transform[which - 1], hits.kept_bytes, hits.kept)
        self._hits.clear()

    def _key(self, position: int, versions: tuple[bytes, ...], args: tuple[str, ...]) -> Hashable:
        request, entries = self._request, self._entries
        return result_key(
            request.bucket[entries["bucket_index"][position] if "bucket_index" in entries else 0],
            entries["name"][position],
            self._batch.version(position),
            entries["member"][position] if "member" in entries else "",
            (entries["start"][position], entries["length"][position]) if "start" in entries else None,
            versions,
            args,
        )

    async def _look_ahead(self) -> None:
        """Start as many entries as there is room for, and always the one that is due."""
        burst = self._burst()
        ahead = burst * self._settings.ahead
        if burst > 1 and len(self._due) > ahead // 2:
            return  # wait until more of them can be read together
        while group := self._group(ahead):
            await self._begin(group)

    def _burst(self) -> int:
        """Return how many of the next entries should pass through together."""
        if self._next >= self._n or not (which := self._call_of(self._next)):
            return 1
        return self._settings.transforms.burst(self._request.transform[which - 1])

    def _group(self, ahead: int) -> list[tuple[int, Reservation]]:
        """Return the next entries, whose inputs are read together, each with its reserved room."""
        group: list[tuple[int, Reservation]] = []
        size_bytes = 0
        while self._next < self._n and len(self._due) + len(group) < ahead:
            entry_bytes = int(self._batch.sizes[self._next])
            size_bytes += entry_bytes
            if group and size_bytes > _TOGETHER_BYTES:
                break
            room = Reservation(self._settings)
            if not room.take(entry_bytes, anyway=not self._due and not group):
                break
            group.append((self._next, room))
            self._next += 1
        return group

    async def _begin(self, group: Sequence[tuple[int, Reservation]]) -> None:
        started: list[_StartedRun | Shared | FailedEntry | None] = []
        try:
            for position, _ in group:
                started.append(self._start_run(position))
            wanted = [
                position
                for (position, _), one in zip(group, started, strict=True)
                if one is None or isinstance(one, _StartedRun)
            ]
            inputs = await self._inputs(wanted)
        except BaseException:
            for one in started:
                if isinstance(one, _StartedRun):
                    one.work.close()
                elif isinstance(one, Shared):
                    one.release()
            for _, room in group:
                room.release()
            raise
        for (position, room), one in zip(group, started, strict=True):
            if isinstance(one, _StartedRun):
                result = self._run(position, one, inputs[position])
            else:
                result = completed(one if one is not None else _as_stored(inputs[position]))
            self._due.append(EntryInProgress(position, room, result, self._kind(position)))

    def _start_run(self, position: int) -> _StartedRun | Shared | FailedEntry | None:
        """Return what is known without reading, or a run that needs an input; None for an entry that is delivered as
        stored."""
        if self._batch.status[position]:
            return self._failed(position)
        which = self._call_of(position)
        if not which:
            return None
        call = self._request.transform[which - 1]
        try:
            versions = self._settings.transforms.versions(call)
            if (kept := self._settings.cache.find(self._key(position, versions, args_of(call)))) is not None:
                self._settings.transforms.kept_result(call, kept.content.size_bytes)
                return kept
            # No await since the version was read: even if the transform is replaced from now on, these stages make the
            # result.
            return _StartedRun(call, versions, RunInput(self._settings.transforms.admit(call)))
        except LoaderError as error:
            return failed_entry(error)

    def _run(
        self, position: int, started: _StartedRun, source: Content | FailedEntry
    ) -> asyncio.Future[Shared | FailedEntry]:
        call, versions, work = started
        if isinstance(source, FailedEntry):
            work.close()
            return completed(source)
        work.source = source
        # The version that was read, which is newer than the one looked up if the object was replaced in between.
        key = self._key(position, versions, args_of(call))
        task = asyncio.ensure_future(self._transformed(key, call, position, work))
        task.add_done_callback(work.close_unless_handed_over)
        return task

    async def _transformed(
        self, key: Hashable, call: pb.TransformCall, position: int, work: RunInput
    ) -> Shared | FailedEntry:
        settings, computed = self._settings, False

        async def make() -> Content:
            nonlocal computed
            computed = True
            settings.transforms.missing_result(call)
            return await settings.transforms.run_admitted(work.admitted, call, self._origin(position), work.source)

        work.handed_over = True
        try:
            result = await settings.cache.get(key, make, work.close)
        except LoaderError as error:
            return failed_entry(error)
        if not computed:
            settings.transforms.kept_result(call, result.content.size_bytes)
        return result

    async def _inputs(self, positions: Sequence[int]) -> dict[int, Content | FailedEntry]:
        """Return complete, verified inputs."""
        if not positions:
            return {}
        found: dict[int, Content | FailedEntry] = await self._settings.on_thread(self._read, positions)
        return found

    def _read(self, positions: Sequence[int]) -> dict[int, Content | FailedEntry]:
        """Read inputs. Runs on a thread."""
        found: dict[int, Content | FailedEntry] = {}
        for first, stop in _runs(positions):
            size_bytes = int(self._batch.sizes[first:stop].sum())
            if size_bytes > MAX_IN_MEMORY_BYTES:  # it is the only one in its group
                found[first] = self._spooled(first, size_bytes)
                continue
            frame = self._batch.read(FrameSpan(first, stop, size_bytes))
            start = 0
            for at, (entry_bytes, checksum, status) in enumerate(
                zip(frame.size.tolist(), frame.checksum.tolist(), frame.status.tolist(), strict=True), first
            ):
                data = frame.payload[start : start + entry_bytes]
                start += entry_bytes
                found[at] = self._failed(at) if status else Content(entry_bytes, checksum, data)
        return found

    def _spooled(self, position: int, size_bytes: int) -> Content | FailedEntry:
        """Copy a large input to the spool. Runs on a thread."""
        try:
            with self._settings.spool.filling(repr(self._name(position)), size_bytes) as content:
                for offset in range(0, size_bytes, TARGET_PAYLOAD_BYTES):
                    piece_bytes = min(TARGET_PAYLOAD_BYTES, size_bytes - offset)
                    frame = self._batch.read(FrameSpan(position, position + 1, piece_bytes, offset, piece_bytes))
                    if frame.status[0]:
                        return self._failed(position)
                    content.append(frame.payload)
                    content.checksum = crc32c(frame.payload, content.checksum)
                content.path = self._batch.own_file(position)
                return content
        except DriveFull as error:
            return failed_entry(error)

    def _failed(self, position: int) -> FailedEntry:
        fault = self._batch.fault(position)
        return FailedEntry(int(self._batch.status[position]), fault or EntryFault(""))

    # -- entries

    def _call_of(self, position: int) -> int:
        """Return the index of the entry's call in the request, counted from 1; 0 for an entry without one."""
        return self._request.transform_index[position] if self._request.transform_index else 0

    def _value(self, column: str, position: int, default: Any) -> Any:
        values = self._entries.get(column)
        return values[position] if values else default

    def _name(self, position: int) -> str:
        return str(self._value("name", position, ""))

    def _version(self, position: int) -> str:
        return self._batch.version(position)

    def _piece_version(self, position: int, content: Content) -> str:
        """Return the version in a piece. For a result it contains the source version, size and checksum, so that a
        client can resume with any node that computes the same bytes."""
        version = self._version(position)
        if self._kind(position) != pb.TRANSFORMED:
            return version
        return f"{version}/{content.size_bytes}/{content.checksum:08x}"

    def _kind(self, position: int) -> int:
        return int(pb.TRANSFORMED) if self._call_of(position) else int(self._batch.kind(position))

    def _origin(self, position: int) -> Origin:
        return Origin(
            self._request.bucket[self._value("bucket_index", position, 0)],
            self._name(position),
            self._version(position),
            self._value("member", position, ""),
            self._value("start", position, 0),
            self._value("length", position, -1),
        )


def _as_stored(source: Content | FailedEntry) -> Shared | FailedEntry:
    return source if isinstance(source, FailedEntry) else Shared(source)


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and stop of each run of consecutive positions; the positions are ascending."""
    first = stop = positions[0]
    for position in positions:
        if position != stop:
            yield first, stop
            first = position
        stop = position + 1
    yield first, stop
