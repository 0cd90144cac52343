"""Page-cache read-ahead: a few threads announce to the kernel what batches will read next.

A batch reads one frame after another, and pauses while its client has no room. Without announcements, a drive would
have work for one frame at a time; with them, it has a queue. A frame of many entries is such a queue already and is
left to the reader, which announces part of it ahead itself (`store/_batch_read.h`). A large entry, which comes in
pieces, is left to the kernel, which reads ahead within one file by itself. Announcing more in either case was measured
to cost more than it gains.

Only data that is not in the page cache is announced, and checking that costs a few microseconds per file. Therefore
read-ahead starts when a frame had to wait for a drive, and stops when two frames in a row are cached. A node that
serves from memory pays for one flag per frame.

The bytes that are announced but not yet read are bounded, for all batches together and for each. What exceeds the bound
is read without an announcement.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from storage_node.limits.memory_budget import MemoryBudget
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.frame_plan import FrameSpan

AHEAD_BYTES = 16 << 20
"""Limit for one batch: enough for a drive's queue, and small enough that the page cache keeps it until it is read."""
MOST_ENTRIES = 32
"""A frame with more entries is a sufficient queue by itself."""
_CACHED_IN_A_ROW = 2


class Readahead:
    """Read-ahead state that all batches of a node share. Belongs to the node's event loop; its threads start on demand.

    Args:
        limit_bytes: Limit of page cache that is announced and not yet read; 0 disables announcements.
    """

    def __init__(self, limit_bytes: int, threads: int) -> None:
        self.memory = MemoryBudget(limit_bytes)
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="ais-loader-ahead")
        self._lock = threading.Lock()
        self.expecting = False  # guarded by _lock for changes, as the next two
        """Whether the next reads are likely to need a drive."""
        self._cached_in_a_row = 0
        self.announced_bytes = 0
        """Bytes that were not in the page cache and were requested from the drives, since the node started."""

    def of(self, batch: StoreBatch) -> BatchAhead:
        return BatchAhead(self, batch)

    def expect(self) -> None:
        """Note that a frame had to wait for a drive."""
        if self.memory.limit_bytes:
            with self._lock:
                self.expecting, self._cached_in_a_row = True, 0

    def submit(self, batch: StoreBatch, span: FrameSpan) -> Future[None] | None:
        """Have a frame announced; None if the node is stopping."""
        with contextlib.suppress(RuntimeError):
            return self._workers.submit(self._announce, batch, span)
        return None

    def _announce(self, batch: StoreBatch, span: FrameSpan) -> None:
        """Announce a frame. Runs on a thread of the pool."""
        self.found(batch.announce(span))

    def found(self, found_bytes: int) -> None:
        """Record how many bytes of a frame were not in the page cache."""
        with self._lock:
            self.announced_bytes += found_bytes
            self._cached_in_a_row = 0 if found_bytes else self._cached_in_a_row + 1
            if self._cached_in_a_row >= _CACHED_IN_A_ROW:
                self.expecting = False

    def close(self) -> None:
        """Stop announcing. Does not wait: an announcement in progress takes milliseconds."""
        self._workers.shutdown(wait=False, cancel_futures=True)


class BatchAhead:
    """Announcements of one batch. `close` it at the end."""

    def __init__(self, readahead: Readahead, batch: StoreBatch) -> None:
        self._readahead = readahead
        self._batch = batch
        self._reading: FrameSpan | None = None
        self._spans: Iterator[FrameSpan] | None = None
        self._next: FrameSpan | None = None
        """The next planned frame, for which there was no room."""
        self._announced: deque[tuple[FrameSpan, Future[None]]] = deque()
        self._held_bytes = 0
        self._overtaken = False
        """Whether the frame being read was queued for an announcement that no thread had started."""

    def reading(self, span: FrameSpan) -> None:
        """Note that this frame is read next; announce what comes after it, if that is useful."""
        self._note_waiting()
        self._reading = span
        while self._announced and _place(self._announced[0][0]) <= _place(span):
            self._overtaken = self._release()
        if self._readahead.expecting:
            self._advance(span)

    def _note_waiting(self) -> None:
        if self._batch.waited() and self._reading is not None:
            if _is_worth_it(self._reading):
                self._readahead.expect()
        elif self._overtaken:
            self._readahead.found(0)  # otherwise it would have had to wait
        self._overtaken = False

    def _advance(self, reading: FrameSpan) -> None:
        memory = self._readahead.memory
        if self._spans is None:
            self._spans = self._batch.planned()
        while True:
            span = self._next or next(self._spans, None)
            self._next = None
            if span is None:
                return
            if _place(span) <= _place(reading) or not _is_worth_it(span):
                continue
            size_bytes = span.payload_bytes
            if self._held_bytes + size_bytes > AHEAD_BYTES or not memory.acquire_now(size_bytes):
                self._next = span
                return
            work = self._readahead.submit(self._batch, span)
            if work is None:
                memory.release(size_bytes)
                return
            self._held_bytes += size_bytes
            self._announced.append((span, work))

    def _release(self) -> bool:
        """Release the oldest announcement. Returns whether it had not started, and so came too late."""
        span, work = self._announced.popleft()
        self._held_bytes -= span.payload_bytes
        self._readahead.memory.release(span.payload_bytes)
        return work.cancel()

    def close(self) -> None:
        self._note_waiting()
        while self._announced:
            self._release()


def _is_worth_it(span: FrameSpan) -> bool:
    return span.stop - span.first <= MOST_ENTRIES and not span.is_piece


def _place(span: FrameSpan) -> tuple[int, int]:
    return span.first, span.offset
