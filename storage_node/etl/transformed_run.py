"""Transformed run: the entries of a batch passed through their transforms, and framed in request order.

What the catalog says of each entry is looked up for all of them at the start, as for any batch; then inputs are read
one after another, a few ahead of what is due, as far as there is memory for them, and pass through their transforms
side by side. A result is framed when it is whole: its size is known then, and what goes out is what any batch has.
Entries without a transform are among them as they are stored.

No credit, no tenants and no network here: whoever takes the frames sees to that.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest, LoaderError, TransformGone
from ais_loader.wire.answer_check import digest
from ais_loader.wire.batch_columns import entry_values
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES, U8, WIRE_U32, EntryFault, Frame, Piece
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.etl.result_cache import ResultCache, Shared, args_of, result_key
from storage_node.etl.spool import Spool
from storage_node.etl.stages import Admitted, NodeTransforms
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content, Origin
from storage_node.memory_budget import MemoryBudget
from storage_node.store.checksum import crc32c
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.batch_table import MAX_ITEM_BYTES
from storage_node.store.read.frame_plan import MAX_WHOLE_BYTES, FrameSpan, check_columns
from storage_node.tasks import retrieve

MAX_STAGES, MAX_ARGS_BYTES, MAX_CALLS = 16, 64 << 10, 256


class RunSettings:
    """What the runs of one process share. Belongs to the event loop that stages run on."""

    def __init__(
        self,
        transforms: NodeTransforms,
        cache: ResultCache,
        memory: MemoryBudget,
        spooled: MemoryBudget,
        spool: Spool,
        on_thread: Callable[..., Awaitable[Any]],
        ahead: int,
    ) -> None:
        """`memory`, `spooled`: of inputs and outputs, those that are files apart."""
        self.transforms, self.cache, self.memory, self.spooled = transforms, cache, memory, spooled
        self.spool = spool
        self.on_thread, self.ahead = on_thread, ahead


class _MadeBy:
    """What makes the results of a call now, and how many that are kept have been delivered."""

    __slots__ = ("args", "kept", "kept_bytes", "versions")

    def __init__(self, versions: tuple[bytes, ...], args: tuple[str, ...]) -> None:
        self.versions, self.args = versions, args
        self.kept = self.kept_bytes = 0


class _Failed:
    def __init__(self, status: int, fault: EntryFault) -> None:
        self.status, self.fault = status, fault


class _Work:
    """What a result is made of and by what: others may wait for it when the entry that has begun it is given up."""

    def __init__(self, admitted: Admitted) -> None:
        self.admitted = admitted
        self.source = Content(0, 0)
        self.asked = False
        """Whoever was asked closes it."""

    def close_unless_asked(self, _: object) -> None:
        if not self.asked:
            self.close()

    def close(self) -> None:
        self.source.close()
        self.admitted.release()


class _Room:
    """What an entry that is under way has of memory and of the spool: for its input, then for what is made of it."""

    def __init__(self, settings: RunSettings) -> None:
        self._memory, self._spooled = settings.memory, settings.spooled
        self._memory_bytes = self._spooled_bytes = 0

    def take(self, size_bytes: int, *, anyway: bool) -> bool:
        """For an input; whether there was room. `anyway`: nothing could go on without it."""
        memory_bytes = min(size_bytes, MAX_IN_MEMORY_BYTES)
        spooled_bytes = size_bytes if size_bytes > MAX_IN_MEMORY_BYTES else 0
        if anyway:
            self._memory.acquire_anyway(memory_bytes)
            self._spooled.acquire_anyway(spooled_bytes)
        elif not self._memory.acquire_now(memory_bytes):
            return False
        elif not self._spooled.acquire_now(spooled_bytes):
            self._memory.release(memory_bytes)
            return False
        self._memory_bytes, self._spooled_bytes = memory_bytes, spooled_bytes
        return True

    def becomes(self, made: Content | None) -> None:
        """It holds this in place of the input: it has happened already."""
        in_memory = made is not None and made.data is not None
        size_bytes = made.size_bytes if made is not None else 0
        before = self._memory_bytes, self._spooled_bytes
        self._memory_bytes, self._spooled_bytes = (size_bytes, 0) if in_memory else (0, size_bytes)
        self._memory.acquire_anyway(self._memory_bytes)
        self._spooled.acquire_anyway(self._spooled_bytes)
        self._memory.release(before[0])
        self._spooled.release(before[1])

    def release(self) -> None:
        """May be called again."""
        self.becomes(None)


class _Due:
    """An entry that is under way."""

    def __init__(self, position: int, room: _Room, task: asyncio.Future[Shared | _Failed], kind: int) -> None:
        self.position, self.room, self.task, self.kind = position, room, task, kind
        self._released = False
        task.add_done_callback(self._made)

    def _made(self, task: asyncio.Future[Shared | _Failed]) -> None:
        if self._released or task.cancelled() or task.exception() is not None:
            return
        result = task.result()
        self.room.becomes(result.content if isinstance(result, Shared) else None)

    def release(self) -> None:
        """Of its room."""
        self._released = True
        self.room.release()


def check_calls(request: pb.BatchRequest) -> None:
    """Raises InvalidRequest when what is said of transforms makes no sense."""
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
    """The request for what is to be transformed: as it is stored."""
    plain = pb.BatchRequest()
    plain.CopyFrom(request)
    del plain.transform[:], plain.transform_index[:]
    plain.ClearField("resume_offset")
    plain.ClearField("resume_checksum")
    if request.resume_offset and request.resume_version and not (request.version and request.version[0]):
        # Of the version that its beginning was made of.
        if not plain.version:
            plain.version.extend([""] * len(plain.name))
        plain.version[0] = request.resume_version
    plain.ClearField("resume_version")
    return plain


class TransformedRun:
    """One batch. Belongs to the event loop; close it.

    Args:
        batch: of `inputs_of(request)`, looked up.
    """

    def __init__(self, settings: RunSettings, request: pb.BatchRequest, batch: StoreBatch) -> None:
        self._settings, self._request, self._batch = settings, request, batch
        self._n = batch.n
        self._due: deque[_Due] = deque()
        self._next = 0
        self._delivering: _Due | None = None
        """Under way no more; it holds its memory until its bytes have been given."""
        self._pieces: tuple[int, Shared, int] | None = None
        """The entry that is being delivered in pieces, its result, and how far it has come."""
        self._status = np.zeros(self._n, np.uint8)
        self._checksum = np.zeros(self._n, np.uint32)
        self._sizes = np.zeros(self._n, np.int64)
        self._payload_bytes = 0
        self._delivered = 0
        self._entries = entry_values(inputs_of(request))
        self._made_by: dict[int, _MadeBy] = {}
        """By the numbers of calls in the request, while nothing is waited for."""

    # -- what is taken

    async def next(self) -> Frame | None:
        """The next frame, in request order; None when there is none."""
        if self._pieces is not None:
            return await self._piece()
        parts: list[tuple[int, int, memoryview, int, int, EntryFault | None]] = []
        payload_bytes = 0
        while payload_bytes < TARGET_PAYLOAD_BYTES:
            if not self._due and (kept := self._kept_whole(self._next)) is not None:
                position, self._next = self._next, self._next + 1
                data = kept.content.data
                assert data is not None
                self._checksum[position] = kept.content.checksum
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
                break  # what is there need not wait for it
            result = await due.task
            self._delivering = self._due.popleft()
            at = due.position
            if isinstance(result, Shared) and (wrong := await self._unlike(at, result)) is not None:
                result.release()
                result = wrong
            if isinstance(result, _Failed):
                self._delivered_one()
                parts.append((at, result.status, memoryview(b""), 0, pb.NONE, result.fault))
                self._status[at] = result.status
                if self._request.fail_fast:
                    break
                continue
            content = result.content
            if content.size_bytes > MAX_WHOLE_BYTES or (at == 0 and self._request.resume_offset):
                self._pieces = at, result, self._request.resume_offset if at == 0 else 0
                if parts:
                    break
                return await self._piece()
            data = await self._bytes(content, 0, content.size_bytes)
            result.release()
            self._delivered_one()
            self._checksum[at] = content.checksum
            parts.append((at, pb.OK, data, content.checksum, due.kind, None))
            payload_bytes += len(data)
        self._count_kept()
        return self._frame(parts) if parts else None

    @property
    def exhausted(self) -> bool:
        """All of it has been taken."""
        return self._next >= self._n and not self._due and self._pieces is None

    @property
    def status(self) -> U8:
        """Of each entry, as far as delivered."""
        return self._status

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """In bytes, of what was delivered of each entry; 0 of one that failed."""
        return self._sizes

    def end(self) -> pb.End:
        """Of what has been delivered."""
        n = self._delivered
        status, checksum = self._status[:n], self._checksum[:n]
        return pb.End(
            outcome=pb.End.COMPLETE if n == self._n else pb.End.STOPPED,
            first_index=self._request.first_index,
            entries=n,
            failed_entries=int(np.count_nonzero(status)),
            payload_bytes=self._payload_bytes,
            digest=digest(status, checksum),
        )

    async def close(self) -> None:
        """What only this run wants is ended. May be called again."""
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
        self._delivered = parts[-1][0] + 1
        for part in parts:
            self._sizes[part[0]] = len(part[2])
        self._payload_bytes += sum(len(part[2]) for part in parts)
        payload = parts[0][2] if len(parts) == 1 else memoryview(b"".join(part[2] for part in parts))
        return Frame(
            index=np.array([first + part[0] for part in parts], WIRE_U32),
            size=np.array([len(part[2]) for part in parts], WIRE_U32),
            checksum=np.array([part[3] for part in parts], WIRE_U32),
            status=np.array([part[1] for part in parts], np.uint8),
            checksum_kind=np.array([part[4] for part in parts], np.uint8),
            payload=payload,
            errors={first + part[0]: part[5] for part in parts if part[5] is not None},
        )

    async def _piece(self) -> Frame:
        assert self._pieces is not None
        at, result, offset = self._pieces
        content = result.content
        data = await self._bytes(content, offset, TARGET_PAYLOAD_BYTES)
        seed = self._piece_checksum if offset else 0
        if offset and at == 0 and offset == self._request.resume_offset:
            seed = self._request.resume_checksum
        self._piece_checksum = crc32c(data, seed)
        stop = offset + len(data)
        self._pieces = at, result, stop
        index = self._request.first_index + at
        frame = Frame(
            index=np.array([index], WIRE_U32),
            size=np.array([len(data)], WIRE_U32),
            checksum=np.array([self._piece_checksum], WIRE_U32),
            status=np.zeros(1, np.uint8),
            checksum_kind=np.array([self._kind(at)], np.uint8),
            payload=data,
            piece=Piece(offset, content.size_bytes, self._version(at)),
        )
        self._payload_bytes += len(data)
        self._sizes[at] += len(data)
        if stop >= content.size_bytes:
            self._checksum[at] = content.checksum
            self._delivered = at + 1
            self._pieces = None
            result.release()
            self._delivered_one()
        return frame

    _piece_checksum = 0

    async def _bytes(self, content: Content, offset: int, length: int) -> memoryview:
        if content.data is not None:
            return content.data[offset : offset + length]
        found: memoryview = await self._settings.on_thread(content.read, offset, length)
        return found

    async def _unlike(self, at: int, result: Shared) -> _Failed | None:
        """Why a result cannot be delivered: too large, or not what the client has had the beginning of."""
        content, offset = result.content, self._request.resume_offset if at == 0 else 0
        if content.size_bytes > MAX_ITEM_BYTES:
            return _Failed(
                pb.FAILED,
                EntryFault(
                    f"{self._name(at)!r}: its transform made {content.size_bytes:,} bytes, a batch carries at most "
                    f"{MAX_ITEM_BYTES:,} per entry",
                    "item-too-large",
                ),
            )
        if not offset:
            return None
        checksum, done = 0, 0
        while done < min(offset, content.size_bytes):
            part = await self._bytes(content, done, min(TARGET_PAYLOAD_BYTES, offset - done))
            checksum, done = crc32c(part, checksum), done + len(part)
        if done == offset and checksum == self._request.resume_checksum:
            return None
        text = f"{self._name(at)!r}: its transform made other bytes than those of which the beginning came: ask again"
        return _Failed(pb.FAILED, EntryFault(text, TransformGone.kind))

    # -- what is under way

    def _kept_whole(self, position: int) -> Shared | None:
        """A result that is kept, and delivered in one go: the short way, without anything under way."""
        if position >= self._n or self._batch.status[position] or (position == 0 and self._request.resume_offset):
            return None
        which = self._request.transform_index[position] if self._request.transform_index else 0
        if not which:
            return None
        made_by = self._made_by.get(which)
        if made_by is None:
            call = self._request.transform[which - 1]
            try:
                made_by = self._made_by[which] = _MadeBy(self._settings.transforms.versions(call), args_of(call))
            except LoaderError:
                return None  # the ordinary way says why
        kept = self._settings.cache.find(self._key(position, made_by.versions, made_by.args))
        if kept is None:
            return None
        if kept.content.data is None or kept.content.size_bytes > MAX_WHOLE_BYTES:
            kept.release()
            return None
        made_by.kept += 1
        made_by.kept_bytes += kept.content.size_bytes
        return kept

    def _count_kept(self) -> None:
        """Before anything is waited for: transforms may be other ones afterwards."""
        for which, made_by in self._made_by.items():
            if made_by.kept:
                self._settings.transforms.kept_result(
                    self._request.transform[which - 1], made_by.kept_bytes, made_by.kept
                )
        self._made_by.clear()

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
        """Begin as many entries as there is room for; the one that is due in any case."""
        settings = self._settings
        while self._next < self._n and len(self._due) < settings.ahead:
            room = _Room(settings)
            if not room.take(int(self._batch.sizes[self._next]), anyway=not self._due):
                return
            position, self._next = self._next, self._next + 1
            try:
                started = await self._started(position)
            except BaseException:
                room.release()
                raise
            self._due.append(_Due(position, room, started, self._kind(position)))

    async def _started(self, position: int) -> asyncio.Future[Shared | _Failed]:
        if self._batch.status[position]:
            return _done(self._failed(position))
        which = self._request.transform_index[position] if self._request.transform_index else 0
        if not which:
            content = await self._input(position)
            return _done(content if isinstance(content, _Failed) else Shared(content))
        call = self._request.transform[which - 1]
        try:
            versions = self._settings.transforms.versions(call)
        except LoaderError as error:
            return _done(_failed_by(error))
        if (kept := self._settings.cache.find(self._key(position, versions, args_of(call)))) is not None:
            self._settings.transforms.kept_result(call, kept.content.size_bytes)
            return _done(kept)
        try:  # in the same moment: replaced from now on, it is still these that make it
            admitted = self._settings.transforms.admit(call)
        except LoaderError as error:
            return _done(_failed_by(error))
        work = _Work(admitted)
        try:
            source = await self._input(position)
        except BaseException:
            work.close()
            raise
        if isinstance(source, _Failed):
            work.close()
            return _done(source)
        work.source = source
        # Of what was read, which is newer than what was looked up where the object has been replaced in between.
        key = self._key(position, versions, args_of(call))
        made = asyncio.ensure_future(self._transformed(key, call, position, work))
        made.add_done_callback(work.close_unless_asked)
        return made

    async def _transformed(self, key: Hashable, call: pb.TransformCall, position: int, work: _Work) -> Shared | _Failed:
        settings, made_here = self._settings, False

        async def make() -> Content:
            nonlocal made_here
            made_here = True
            settings.transforms.missing_result(call)
            return await settings.transforms.run_admitted(work.admitted, call, self._origin(position), work.source)

        work.asked = True
        try:
            made = await settings.cache.get(key, make, work.close)
        except LoaderError as error:
            return _failed_by(error)
        if not made_here:
            settings.transforms.kept_result(call, made.content.size_bytes)
        return made

    async def _input(self, position: int) -> Content | _Failed:
        """Whole and verified."""
        size_bytes = int(self._batch.sizes[position])
        if size_bytes <= MAX_IN_MEMORY_BYTES:
            span = FrameSpan(position, position + 1, size_bytes)
            frame: Frame = await self._settings.on_thread(self._batch.read, span)
            if frame.status[0]:
                return self._failed(position)
            return Content(len(frame.payload), int(frame.checksum[0]), frame.payload)
        return await self._settings.on_thread(self._spooled, position, size_bytes)  # type: ignore[no-any-return]

    def _spooled(self, position: int, size_bytes: int) -> Content | _Failed:
        """On a thread."""
        content = Content(size_bytes, 0, fd=self._settings.spool.new_file())
        try:
            for offset in range(0, size_bytes, TARGET_PAYLOAD_BYTES):
                piece_bytes = min(TARGET_PAYLOAD_BYTES, size_bytes - offset)
                frame = self._batch.read(FrameSpan(position, position + 1, piece_bytes, offset, piece_bytes))
                if frame.status[0]:
                    content.close()
                    return self._failed(position)
                content.append(frame.payload)
                content.checksum = crc32c(frame.payload, content.checksum)
        except BaseException:
            content.close()
            raise
        return content

    def _failed(self, position: int) -> _Failed:
        fault = self._batch.fault(position)
        return _Failed(int(self._batch.status[position]), fault or EntryFault(""))

    # -- entries

    def _value(self, column: str, position: int, default: Any) -> Any:
        values = self._entries.get(column)
        return values[position] if values else default

    def _name(self, position: int) -> str:
        return str(self._value("name", position, ""))

    def _version(self, position: int) -> str:
        return self._batch.version(position)

    def _kind(self, position: int) -> int:
        which = self._request.transform_index[position] if self._request.transform_index else 0
        return int(pb.TRANSFORMED) if which else int(self._batch.kind(position))

    def _origin(self, position: int) -> Origin:
        return Origin(
            self._request.bucket[self._value("bucket_index", position, 0)],
            self._name(position),
            self._version(position),
            self._value("member", position, ""),
            self._value("start", position, 0),
            self._value("length", position, -1),
        )


def _failed_by(error: LoaderError) -> _Failed:
    return _Failed(pb.FAILED, EntryFault(str(error).encode("utf-8", "backslashreplace").decode(), error.kind))


def _done(result: Shared | _Failed) -> asyncio.Future[Shared | _Failed]:
    """Known already: not a task, which would be done only when the loop has come round to it."""
    known: asyncio.Future[Shared | _Failed] = asyncio.get_running_loop().create_future()
    known.set_result(result)
    return known
