"""Cold entries of one batch: all fetches begin at once, and each entry is awaited in its place.

Entries that are stored before a cold one do not wait for it, and the fetches of all cold entries run side by side. A
fetch that fails ends in its entry's status, like any other failure. A range of a large cold object, and a member of a
large cold archive, are read from the remote storage alone. A large object is read while it arrives; other entries have
their objects stored first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ais_loader.errors import LoaderError, ObjectDeleted, ObjectNotFound, ObjectReplaced
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.remote.archives.cold_index import KINDS
from storage_node.remote.arriving.arriving_part import ArrivingPart, begun
from storage_node.remote.drivers.driver import RemoteChanged
from storage_node.remote.tier import RemoteTier
from storage_node.store.archives.kinds import kind_of_name
from storage_node.store.buckets import ReplicaStale
from storage_node.store.chunked_put import Spooled
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.frame_plan import FrameSpan

Part: TypeAlias = "tuple[Spooled, str] | ArrivingPart | None"
"""Bytes of a range, and the version of their object; bytes that are arriving; None if the object was stored."""
F = TypeVar("F", "asyncio.Future[Part]", "Future[Part]")


class ColdEntry(NamedTuple):
    """Need of an entry before it can be read: a fetch, a validation, or a range. Equal ones share it."""

    bucket: RemoteBucket
    name: str
    version: str
    """Version of the stored copy that needs validation; "" if there is none."""
    start: int = 0
    length: int = -1
    """Range of a cold object; -1: to its end."""
    etag: str = ""
    """ETag that the bytes have to have, unless they are stored; "" for any."""
    member: str = ""
    """Member of a cold archive, of which `start` and `length` are a range."""
    streams: bool = False
    """Whether the whole object is the entry, so that it can be read while it arrives."""

    @property
    def is_range(self) -> bool:
        return self.start > 0 or self.length >= 0

    async def fetch(self, tier: RemoteTier) -> Part:
        """Have the object stored, or return its bytes. Raises what `Fetches.fetch` raises, RangeError."""
        if self.member:
            return await tier.reads.member(self.bucket, self.name, self.member, self.start, self.length, self.etag)
        if self.is_range:
            return await tier.reads.range(self.bucket, self.name, self.start, self.length, self.etag)
        if self.streams:
            return await tier.reads.stream(self.bucket, self.name, etag=self.etag)
        await tier.fetches.fetch(self.bucket, self.name, self.version)
        return None

    async def begun(self, tier: RemoteTier, part: ArrivingPart) -> Part:
        """Wait for the first bytes of a part. If the object was replaced meanwhile, return those of the new version.

        Closes the part if it is not returned. Raises what `fetch` raises.
        """
        bucket, name, etag, start, length = self.bucket, self.name, self.etag, self.start, self.length
        return await begun(part, lambda: tier.reads.stream(bucket, name, etag=etag, start=start, length=length))


def cold_entries(
    tier: RemoteTier, request: pb.BatchRequest, batch: StoreBatch, buckets: Sequence[RemoteBucket | None]
) -> dict[int, ColdEntry]:
    """Return the entries of a looked-up batch that need a fetch or a validation, by position.

    `buckets`: the remote ones among the buckets of the request.
    """
    found: dict[int, ColdEntry] = {}
    for position in range(batch.n):
        bucket = buckets[request.bucket_index[position] if request.bucket_index else 0]
        if bucket is None:
            continue
        name, entry = request.name[position], batch.record(position)
        if entry is None:
            if batch.status[position] == pb.NOT_FOUND or _is_stale(batch, position):
                found[position] = _cold(request, position, bucket, name)
        elif not tier.copies.is_current(bucket, name, entry):
            found[position] = ColdEntry(bucket, name, str(entry.version))
        else:
            tier.space.note_read(bucket.uuid, name)
    return found


def _is_stale(batch: StoreBatch, position: int) -> bool:
    """Return whether the copy here may be outdated; see `StoredCopies.stored`."""
    fault = batch.fault(position) if batch.status[position] == pb.UNAVAILABLE else None
    return fault is not None and fault.kind == ReplicaStale.kind


def _is_missing(batch: StoreBatch, position: int) -> bool:
    """Return whether there is no object of this name, unlike one without the requested member or version."""
    fault = batch.fault(position)
    return batch.status[position] == pb.NOT_FOUND and (fault is None or fault.kind in ("", ObjectDeleted.kind))


def _cold(request: pb.BatchRequest, position: int, bucket: RemoteBucket, name: str) -> ColdEntry:
    member = request.member[position] if request.member else ""
    pinned = request.version[position] if request.version else ""
    is_resumed = position == 0 and bool(request.resume_version or request.resume_offset)
    if is_resumed:
        pinned = request.resume_version
    cannot_read = member and kind_of_name(name) not in KINDS
    if cannot_read or ((pinned or is_resumed) and not pinned.startswith(ETAG_VERSION)):
        return ColdEntry(bucket, name, "")
    start, length = (request.start[position], request.length[position]) if request.start else (0, -1)
    etag = pinned.removeprefix(ETAG_VERSION)
    if start == 0 and length == -1 and not member:
        return ColdEntry(bucket, name, "", etag=etag, streams=True)
    if is_resumed:
        return ColdEntry(bucket, name, "")
    return ColdEntry(bucket, name, "", start, length, etag, member)


class ColdEntries(Generic[F]):
    """Entries of one batch that are not stored yet. Belongs to whoever the batch belongs to.

    Args:
        begin: Begins a fetch on the tier's event loop.
    """

    def __init__(
        self,
        batch: StoreBatch,
        entries: Mapping[int, ColdEntry],
        tier: RemoteTier,
        begin: Callable[[Coroutine[Any, Any, Part]], F],
    ) -> None:
        self._batch = batch
        self._tier = tier
        self._begin: Callable[[Coroutine[Any, Any, Part]], F] = begin
        self._order: deque[int] = deque(sorted(entries))
        self._entries: dict[int, ColdEntry] = dict(entries)
        self._ended: deque[ColdEntry] = deque()
        self._positions: dict[ColdEntry, list[int]] = {}
        for position, entry in entries.items():
            self._positions.setdefault(entry, []).append(position)
        self._arriving: dict[int, ArrivingPart] = {}
        self._throttled = tier.backends.throttled
        self._is_behind = tier.backends.are_backing_off
        """Whether a host throttled before this batch began: objects are fetched ahead."""
        self._fetches: dict[ColdEntry, F] = {}
        for entry in self._positions:
            fetch = self._fetches[entry] = begin(entry.fetch(tier))
            fetch.add_done_callback(partial(self._note_end, entry))

    def _note_end(self, entry: ColdEntry, _: object) -> None:
        self._ended.append(entry)

    @contextlib.contextmanager
    def waiting(self, waits: NodeWaits) -> Iterator[None]:
        """Count the time of this context, in which a reader waits for remote storage."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            is_throttled = self._is_behind or self._tier.backends.throttled > self._throttled
            waits.spent_s["throttle" if is_throttled else "cloud"] += time.perf_counter() - began_s

    def next_cold(self) -> int:
        """Return the first position that is still to be awaited; the number of entries if none is."""
        while self._order and self._order[0] not in self._entries:
            self._order.popleft()
        return self._order[0] if self._order else self._batch.n

    def fetch_of(self, position: int) -> F:
        return self._fetches[self._entries[position]]

    def begun(self, position: int) -> F | None:
        """Return the future of the first bytes of an entry whose fetch has ended and that is due; None if it is not
        arriving."""
        entry = self._entries[position]
        fetch = self._fetches[entry]
        if fetch.cancelled() or fetch.exception() is not None or not isinstance(part := fetch.result(), ArrivingPart):
            return None
        first_bytes = self._fetches[entry] = self._begin(entry.begun(self._tier, part))
        return first_bytes

    def take(self, position: int) -> None:
        """Look up the entry, whose fetch has ended, and others whose fetches have. May wait for a drive."""
        unknown: dict[int, bool] = self._take(self._entries[position], is_due=True)
        while self._ended:
            unknown |= self._take(self._ended.popleft())
        if unknown:
            self._batch.look_up_again([*unknown])
        for at, is_fetched in unknown.items():
            if is_fetched and _is_missing(self._batch, at):
                # It exists in the remote storage. Another try reads it, here or from another node.
                self._batch.fail(at, ReplicaStale("it was fetched, and its copy is gone"))

    def _take(self, entry: ColdEntry, *, is_due: bool = False) -> dict[int, bool]:
        """Take the outcome of a fetch that has ended. Returns the positions to look up, and whether it was stored."""
        fetch = self._fetches.get(entry)
        if fetch is None or not fetch.done() or fetch.cancelled():
            return {}
        error = fetch.exception()
        if error is not None and not isinstance(error, LoaderError):
            raise error
        part = fetch.result() if error is None else None
        if isinstance(part, ArrivingPart) and not is_due:
            return {}  # the object may be replaced before it is due
        del self._fetches[entry]
        positions = self._positions.pop(entry)
        for position in positions:
            del self._entries[position]
            if isinstance(part, ArrivingPart):
                self._batch.place_arriving(position, part.fd, part.start, part.size_bytes, part.version)
                self._arriving[position] = part
            elif part is not None:
                self._batch.place(position, *part)
            elif error is not None and type(error) is not ObjectNotFound:
                self._batch.fail(position, error)
        if part is not None:
            self._batch.keep(part if isinstance(part, ArrivingPart) else part[0])
        elif error is None or type(error) is ObjectNotFound:
            return dict.fromkeys(positions, error is None)
        return {}

    # -- entries that are arriving

    def missing(self, span: FrameSpan) -> Iterator[tuple[int, ArrivingPart, int, int]]:
        """Iterate over the bytes of a frame that have not arrived: position, part, and which of its bytes."""
        if not self._arriving:
            return
        for position in range(span.first, span.stop):
            part = self._arriving.get(position)
            if part is None or self._batch.status[position]:
                continue
            begin, end = (span.offset, span.offset + span.payload_bytes) if span.is_piece else (0, part.size_bytes)
            if not part.has(begin, end):
                yield position, part, begin, end

    def fail(self, position: int, error: LoaderError) -> None:
        """Fail an entry whose other bytes do not arrive."""
        if isinstance(error, RemoteChanged):
            error = ObjectReplaced(str(error))
        self._batch.fail_begun(position, error)

    def release(self, span: FrameSpan) -> None:
        """Free the memory of a frame's entries, which have been read."""
        for position in range(span.first, span.stop) if self._arriving else ():
            if (part := self._arriving.get(position)) is not None:
                part.release()

    def close(self) -> None:
        """Stop waiting. Fetches go on if others wait for them."""
        for fetch in self._fetches.values():
            fetch.cancel()
            fetch.add_done_callback(_close_part)


def _close_part(fetch: asyncio.Future[Part] | Future[Part]) -> None:
    if fetch.cancelled() or fetch.exception() is not None or (part := fetch.result()) is None:
        return
    (part if isinstance(part, ArrivingPart) else part[0]).close()
