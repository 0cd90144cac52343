"""Streams of an embedded store: frames of one batch, read in the caller's thread."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, wait
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from ais_loader import errors
from ais_loader.values.entry import Entry, entry_error
from ais_loader.values.source import Buffer
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES, Frame, FramedStream
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.frame_plan import FrameSpan
from storage_node.store.read.object_reader import open_member
from storage_node.store.store import Store

if TYPE_CHECKING:
    from storage_node.remote.embedded import EmbeddedRemote

_LARGE_ENTRY_BYTES = 256 << 10
COLD = (
    "{!r} is not stored here, and this process opened the store for reading only, so it cannot store what it fetches: "
    "use connect('node:///FOLDER'), a storage node that all processes of this machine share"
)


class GeneratedStream(FramedStream):
    """Frames from an iterator, in the caller's thread: those of entries that pass through transforms."""

    retries, paused_s, hedged = 0, 0.0, 0

    def node_of(self, index: int) -> str:
        return "the store"

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames
        self.waits = NodeWaits()

    def __next__(self) -> Frame:
        return next(self._frames)

    def close(self) -> None:
        # A generator that is running in another thread refuses to close; it then ends with its consumer.
        with contextlib.suppress(ValueError):
            self._frames.close()  # type: ignore[attr-defined]


class EmbeddedStream(GeneratedStream):
    """Frames that are read on demand, in the caller's thread."""

    def __init__(self, store: Store, request: pb.BatchRequest, helpers: Executor | None, parts: int) -> None:
        """`helpers` share the reading of a batch, in up to `parts` parts."""
        self._store = store
        self._helpers, self._parts = helpers, parts
        self._request = request
        self._batch: StoreBatch | None = None
        super().__init__(self._read_frames())

    def read_all(self) -> list[bytes] | None:
        batch = self._store_batch()
        with self.waits.waiting("drive"):
            return batch.read_all(self._helpers, self._parts)

    def read_whole(self) -> Frame | None:
        batch = self._store_batch()
        with self.waits.waiting("drive"):
            return batch.read_whole()

    def _store_batch(self) -> StoreBatch:
        if self._batch is None:
            with self.waits.waiting("drive"):
                self._batch = StoreBatch(self._store, self._request)
            self._batch.waits = self.waits
        return self._batch

    def _read_frames(self) -> Generator[Frame, None, None]:
        with closing(self._store_batch()) as batch:
            for span in self._spans(batch):
                frame = batch.read(span)
                yield frame
                if self._request.fail_fast and np.count_nonzero(frame.status):
                    return

    def _spans(self, batch: StoreBatch) -> Iterator[FrameSpan]:
        # Whoever keeps a large entry keeps a few others at most, and each frame costs as much as reading 100 KiB. From
        # 4 MiB on frames would lie in huge pages, which take long to get where memory is fragmented.
        n, sizes = batch.n, batch.sizes
        is_large = n > 0 and sizes[0] >= _LARGE_ENTRY_BYTES and int(sizes.sum()) >= n * _LARGE_ENTRY_BYTES
        return batch.spans(2 * TARGET_PAYLOAD_BYTES if is_large else TARGET_PAYLOAD_BYTES)


class ColdStream(EmbeddedStream):
    """Frames of a batch from remote buckets: cold entries are fetched, and awaited in their places.

    `remote`: None in a process that may not store what it fetches; cold entries fail there.
    """

    def __init__(self, store: Store, request: pb.BatchRequest, remote: EmbeddedRemote | None) -> None:
        super().__init__(store, request, None, 1)
        self._remote = remote

    def read_all(self) -> list[bytes] | None:
        return None

    def read_whole(self) -> Frame | None:
        return None

    def _read_frames(self) -> Generator[Frame, None, None]:
        if self._remote is None:
            yield from super()._read_frames()
            return
        buckets = self._remote.tier.buckets.of(self._request.bucket)
        with self._remote.tier.space.reading_here(self._request, buckets):
            yield from super()._read_frames()

    def _spans(self, batch: StoreBatch) -> Iterator[FrameSpan]:
        from storage_node.remote.cold_entries import ColdEntries, cold_entries

        if self._remote is None:
            for position in range(batch.n):
                if batch.status[position] == pb.NOT_FOUND:
                    batch.fail(position, errors.StoreReadOnly(COLD.format(self._request.name[position])))
            yield from batch.spans()
            return
        remote = self._remote
        buckets = remote.tier.buckets.of(self._request.bucket)
        entries = cold_entries(remote.tier, self._request, batch, buckets)
        with closing(ColdEntries(batch, entries, remote.tier, remote.begin)) as cold:
            first = 0
            while first < batch.n:
                stop = cold.next_cold()
                for span in batch.spans(first=first, stop=stop):
                    for position, part, begin, end in cold.missing(span):
                        try:
                            with cold.waiting(self.waits):
                                remote.run(part.ready(begin, end))
                        except errors.LoaderError as error:
                            cold.fail(position, error)
                    yield span
                    cold.release(span)
                if stop < batch.n:
                    with cold.waiting(self.waits):
                        wait([cold.fetch_of(stop)])
                        if (begun := cold.begun(stop)) is not None:
                            wait([begun])
                    cold.take(stop)
                first = stop


def cold_part(store: Store, remote: EmbeddedRemote, part: Entry, *, verify: bool) -> Iterator[Buffer]:
    """Iterate over a range of an object of a remote bucket, or a member. Raises the errors of a batch."""
    request = pb.BatchRequest(
        bucket=[part.bucket],
        name=[part.name],
        start=[part.start],
        length=[-1 if part.length is None else part.length],
        member=[part.member] if part.member else [],
        verify_ranges=verify,
    )
    with contextlib.closing(ColdStream(store, request, remote)) as frames:
        for frame in frames:
            if not frame.status.any():
                yield frame.payload
                continue
            fault = frame.errors[0]
            if not part.member or fault.kind != errors.ItemTooLarge.kind:
                raise entry_error(int(frame.status[0]), fault.message, fault.kind)
            # It is too large for a batch, and its archive is stored by now.
            yield from open_member(store, part.bucket, part.name, part.member, start=part.start, length=part.length)
