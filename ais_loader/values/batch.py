"""Batch in flight: a transport delivers frames, the batch delivers items, in the order of the entries or in any order.

Nothing is buffered here except the frame being delivered, and the pieces of one large entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from ais_loader.errors import Closed, InvalidRequest, LoaderError, NodeUnavailable
from ais_loader.tracebacks import iterated, short_traceback
from ais_loader.values.entry import Entry, Item, Status, entry_error
from ais_loader.values.html import html_of_entries
from ais_loader.values.joined_ranges import JoinedRanges
from ais_loader.values.packed import PackedBatch, pack
from ais_loader.values.requests import OnError, transformed_of
from ais_loader.values.timing import BatchTiming, Cause, TimingStopwatch
from ais_loader.wire import recycled
from ais_loader.wire.closing import Closing
from ais_loader.wire.frame import EntryFault, Frame
from ais_loader.wire.gather.frame_edit import without_untransformed
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits

if TYPE_CHECKING:
    from ais_loader.wire.frame import FrameStream

_PARTS_IN_FLIGHT = 2
_NO_DATA = memoryview(b"")
_NO_FAULT = EntryFault("")


class Batch(Closing):
    """The result of one request. Iterate over it, or take it whole with `tobytes()` or `packed()`. Each entry is
    delivered once.

    Items come in the order of the entries or, with ordered=False, as they arrive, each with its index. A batch taken
    whole is always in the order of the entries.

    With on_error="raise", the first entry that failed raises its error and ends the batch. Items before it stay valid,
    and other batches of the session are not affected. `close()`, leaving the `with` block, or dropping the batch
    abandons the rest of it. A batch may be used by one thread at a time.
    """

    def __init__(
        self,
        entries: Sequence[Entry | str],
        requests: Sequence[pb.BatchRequest],
        open_stream: Callable[[pb.BatchRequest], FrameStream],
        on_error: OnError,
        bucket: str | None = None,
        joined: JoinedRanges | None = None,
        opaque: Any = None,
    ) -> None:
        self.opaque = opaque
        """The value that you passed to `get_batch` or `get_batches` with the entries. It is never sent."""
        self.failures: dict[int, LoaderError] = {}
        """After `tobytes` or `packed`: the error of each entry that failed, by its index. With on_error="raise": the
        error of the entry that ended the batch."""
        self._joined = joined  # ranges of `entries`, which are then requested separately
        requested = len(entries) if joined is None else len(joined.requested)
        self._watch = TimingStopwatch()
        self.between_frames: Cause = "consumer"
        """Cause to which `timing` attributes the time between two frames; set by callers that consume frames for a
        purpose."""
        self._retries, self._paused_s, self._hedged = 0, 0.0, 0  # of finished streams
        self._waits = NodeWaits()  # of the same
        self.request_id = requests[0].request_id if requests else ""
        """Identifies the batch in the logs of nodes."""
        self._entries = entries
        self._bucket = bucket  # bucket of all entries, if they are mere names
        self._open_stream = open_stream
        self._waiting = deque(requests)
        self._streams: deque[FrameStream] = deque()
        self._raising = on_error == "raise"
        self._items: Iterator[Item] | None = None
        self._closed = False
        self._has_ended = False
        self._ordered = all(request.ordered for request in requests)
        self._expected = 0
        self._requested = requested
        self._arrived: npt.NDArray[np.bool_] = np.zeros(0 if self._ordered else requested, np.bool_)
        self._pieces: tuple[int, bytearray] | None = None
        self._keeps_pieces = False
        self._transformed = transformed_of(requests)
        self._advance()
        self._watch.enter("ahead")

    def __repr__(self) -> str:
        return f"<Batch of {len(self._entries):,} entries{', closed' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        return html_of_entries(repr(self).strip("<>"), self._entries, self._bucket)

    def __len__(self) -> int:
        """Return the number of entries in the batch."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        """Iterate from where the last loop stopped. Raises InvalidRequest if all items have been delivered."""
        if self._has_ended:
            raise InvalidRequest(
                "this batch has been read already: each item is delivered once; keep list(batch), or fetch the "
                "entries again"
            )
        return self._started()

    def __next__(self) -> Item:
        return next(self._started())

    def _started(self) -> Iterator[Item]:
        """Return the iterator over the rest of the items."""
        if self._items is None:
            if self._closed:
                raise Closed("this batch has been closed")
            self._items = iterated(self._deliver())
        return self._items

    def _deliver(self) -> Generator[Item, None, None]:
        entries, bucket = self._entries, self._bucket
        for frame in self._whole_frames():
            if np.count_nonzero(frame.status):
                yield from self._deliver_marked(frame)
                continue
            for index, data in zip(frame.index.tolist(), frame.entries(), strict=True):
                yield Item(index, entries[index], Status.OK, data, None, bucket)
        self._has_ended = True

    def _in_pieces(self) -> Generator[tuple[Item, int, int], None, None]:
        """Yield items as iterating does, but a large entry as several items in its order, which needs less memory.

        Each comes with its offset in the entry and the entry's size. Raises LoaderError, also if an entry fails or
        begins again after some of it was yielded: that part is void, and a new request gets all of it.
        """
        if self._closed:
            raise Closed("this batch has been closed")
        self._keeps_pieces = self._joined is None and self._transformed is None
        index, at = -1, 0  # the entry of which `at` bytes have been yielded
        for frame in self._whole_frames():
            piece = frame.piece
            if at and (piece is None or piece.offset != at or int(frame.index[0]) != index):
                raise NodeUnavailable(f"entry {index}: it was replaced after {at:,} bytes of it had come: try again")
            if at and frame.status[0]:
                raise self._fault(frame, index, int(frame.status[0]))
            if piece is None or frame.status[0]:
                for item in self._deliver_marked(frame):
                    yield item, 0, len(item.data)
                continue
            index, data = int(frame.index[0]), frame.payload
            yield Item(index, self._entries[index], Status.OK, data, None, self._bucket), at, piece.entry_size
            at = 0 if frame.completes_entry else at + len(data)
        self._has_ended = True

    def _deliver_marked(self, frame: Frame) -> Iterator[Item]:
        for index, status, data in zip(frame.index.tolist(), frame.status.tolist(), frame.entries(), strict=True):
            entry = self._entries[index]
            if status == Status.OK:
                yield Item(index, entry, Status.OK, data, None, self._bucket)
            else:
                error = self._fault(frame, index, status)
                yield Item(index, entry, _known(status), _NO_DATA, error, self._bucket)

    def _fault(self, frame: Frame, index: int, status: int) -> LoaderError:
        """Return the error of a failed entry. If the caller asked for it, raise the error and end the batch instead."""
        fault = frame.errors.get(index, _NO_FAULT)
        message = fault.message or _known(status).name.lower().replace("_", " ")
        if len(self._entries) > 1:
            message = f"entry {index}: {message}"
        error = entry_error(status, message, fault.kind)
        if self._raising:
            self.close()
            self.failures[index] = error
            raise error
        return error

    def _whole_frames(self) -> Iterator[Frame]:
        """Yield frames, in index order if requested; the pieces of a large entry arrive here as one frame."""
        frames = self._timed_frames()
        try:
            yield from frames if self._joined is None else self._joined.joined(frames)
        finally:
            self._watch.stop()

    def _timed_frames(self) -> Iterator[Frame]:
        watch = self._watch
        while self._streams:
            watch.enter("wire")
            for frame in self._streams[0]:
                if self._closed:
                    return
                if frame.piece is not None and not self._keeps_pieces:
                    whole = self._join(frame)
                    if whole is None:
                        continue
                    frame = whole
                if frame.completes_entry:
                    self._check_order(frame)
                if self._transformed is not None:
                    frame = without_untransformed(frame, self._transformed, self._streams[0].node_of)
                watch.took(frame)
                watch.enter(self.between_frames)
                yield frame
                if self._closed:
                    return
                watch.enter("wire")
            self._done_with(self._streams.popleft())
            self._advance()
        if not self._closed and self._expected != self._requested:
            raise LoaderError(f"the answer ended after {self._expected:,} of {self._requested:,} entries")

    def _done_with(self, stream: FrameStream) -> None:
        self._retries += stream.retries
        self._paused_s += stream.paused_s
        self._hedged += stream.hedged
        self._waits.add_all(stream.waits)

    @property
    def timing(self) -> BatchTiming:
        """Where this batch's time went: until now, or in all once the batch has been consumed or closed."""
        retries = self._retries + sum(stream.retries for stream in self._streams)
        paused_s = self._paused_s + sum(stream.paused_s for stream in self._streams)
        hedged = self._hedged + sum(stream.hedged for stream in self._streams)
        return self._watch.read(
            paused_s=paused_s, retries=retries, hedged=hedged, waits=self._waits, request_id=self.request_id
        )

    def _join(self, frame: Frame) -> Frame | None:
        piece = frame.piece
        assert piece is not None
        index = int(frame.index[0])
        if piece.offset == 0:
            self._pieces = index, bytearray(piece.entry_size)
        if self._pieces is None or (self._pieces[0], len(self._pieces[1])) != (index, piece.entry_size):
            raise LoaderError(f"a piece at {piece.offset:,} of an entry whose beginning never came")
        data = self._pieces[1]
        data[piece.offset : piece.offset + len(frame.payload)] = frame.payload
        if not frame.completes_entry:
            return None
        self._pieces = None
        size = frame.size.copy()
        size[0] = piece.entry_size
        whole = memoryview(data).toreadonly()
        return Frame(frame.index, size, frame.checksum, frame.status, frame.checksum_kind, whole, None, frame.errors)

    def _check_order(self, frame: Frame) -> None:
        count = len(frame.index)
        if count and not self._ordered:
            if int(frame.index.max()) >= len(self._arrived) or self._arrived[frame.index].any():
                raise LoaderError(f"entry {int(frame.index[0])} or one that came with it was not due")
            self._arrived[frame.index] = True
            self._expected += count
        elif count:
            first, last = int(frame.index[0]), int(frame.index[-1])
            if first != self._expected or last != first + count - 1:
                raise LoaderError(f"got entries {first} to {last} where {self._expected} was due")
            self._expected += count

    def _advance(self) -> None:
        """Keep the next part in flight while this one is being consumed."""
        while self._waiting and len(self._streams) < _PARTS_IN_FLIGHT:
            self._streams.append(self._open_stream(self._waiting.popleft()))

    @short_traceback
    def tobytes(self) -> list[bytes | None]:
        """Return all items as separate bytes objects, in order.

        With on_error="placeholder", a failed item is None, and `failures` has its error.
        """
        recycled.keep_freed()
        frames = self._take_frames()
        self._watch.enter("wire")
        if self._is_one_request and (read := self._streams[0].read_all()) is not None:
            self._watch.took_whole(read)
            self.close()
            values = cast(list[bytes | None], read)
            return values if self._joined is None else self._joined.joined_values(values)
        result: list[bytes | None] = [None] * len(self._entries)
        for frame in frames:
            for index, status, data in zip(frame.index.tolist(), frame.status.tolist(), frame.entries(), strict=True):
                if status:
                    self.failures[index] = self._fault(frame, index, status)
                else:
                    result[index] = bytes(data)
        return result

    @short_traceback
    def packed(self) -> PackedBatch:
        """Return all items end to end in one array; see PackedBatch."""
        frames = self._take_frames()
        self._watch.enter("wire")
        if self._joined is None and self._is_one_request and (whole := self._streams[0].read_whole()) is not None:
            self._watch.took(whole)
            self.close()
            self._watch.resume("decode")
            frames = iter((whole,))
        packed = pack(self._noting_failures(frames), len(self._entries), ordered=self._ordered)
        self._watch.stop()
        return packed

    def _noting_failures(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            for at in frame.status.nonzero()[0].tolist():
                index = int(frame.index[at])
                self.failures[index] = self._fault(frame, index, int(frame.status[at]))
            yield frame
            del frame  # its buffer may be free before the next frame comes
        self._watch.resume("decode")

    @property
    def _is_one_request(self) -> bool:
        return len(self._streams) == 1 and not self._waiting

    def _take_frames(self) -> Iterator[Frame]:
        if self._has_ended:
            raise InvalidRequest(
                "this batch has been read already: each item is delivered once; keep the result, or fetch the "
                "entries again"
            )
        if self._items is not None:
            raise InvalidRequest("this batch is being iterated already: take it whole, or item by item, not both")
        if self._closed:
            raise Closed("this batch has been closed")
        self._items = iter(())
        self._has_ended = True
        self.between_frames = "decode"
        return self._whole_frames()

    def close(self) -> None:
        """Abandon what has not been delivered yet. Items that were delivered stay valid."""
        self._closed = True
        self._waiting.clear()
        for stream in self._streams:
            stream.close()
            self._done_with(stream)
        self._streams.clear()
        self._watch.stop()

    def _drop(self) -> None:
        """Close, and free what was received. Its iteration refers to this batch, and holds the last frame until the
        cycle collector runs, which may be long after. Not to be called from within an iteration."""
        self.close()
        self._items = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Batch is a response that this process is receiving, and cannot be pickled or copied: send list(batch), "
            "whose items have their bytes, or batch.tobytes() or batch.packed(); or send the entries, and fetch them "
            "in the other process"
        )

    def __del__(self) -> None:
        if getattr(self, "_streams", None):
            self.close()


def _known(status: int) -> Status:
    try:
        return Status(status)
    except ValueError:  # a status that a newer node added
        return Status.FAILED
