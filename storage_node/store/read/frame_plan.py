"""Frame planning: assigns the entries of a batch to frames. Pure functions over arrays, no I/O.

Entries stay in request order. Small ones share a frame until its payload is full; an entry larger than MAX_WHOLE_BYTES
is sent alone, in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.wire.batch_columns import ENTRY_COLUMNS
from ais_loader.wire.frame import MAX_PAYLOAD_BYTES
from ais_loader.wire.generated import ais_batch_pb2 as pb

MAX_WHOLE_BYTES = 4 << 20
"""An entry of at most this size is one buffer in one frame, which the receiver need not assemble."""
MAX_ENTRIES_PER_FRAME = 4096
"""Limits the header of a frame of empty or failed entries."""
MAX_ENTRIES = 10_000
"""Maximum number of entries in one request."""
FILE_FRAME_BYTES = MAX_PAYLOAD_BYTES
"""Maximum payload of a frame that is sent from files. The sender's cost hardly depends on its size, and it takes no
memory."""
MIN_FILE_ENTRY_BYTES = 32 << 10
"""Minimum average size of entries for which sending from files is faster than reading, comparing and sending."""
MAX_FILES = 64
"""Maximum number of descriptors that a frame holds."""


@dataclass(frozen=True, slots=True)
class FrameSpan:
    """Entries first .. stop-1 of a batch; or, with `piece_bytes`, that many bytes of entry `first` from `offset`."""

    first: int
    stop: int
    payload_bytes: int
    offset: int = 0
    piece_bytes: int | None = None

    @property
    def is_piece(self) -> bool:
        return self.piece_bytes is not None

    def shifted(self, entries: int) -> FrameSpan:
        """Return the same span of entries that come this many positions later."""
        return replace(self, first=self.first + entries, stop=self.stop + entries)


def plan_frames(
    sizes: npt.NDArray[np.int64],
    *,
    target_bytes: int,
    resume_offset: int | None = None,
    in_files: npt.NDArray[np.bool_] | None = None,
    file_frame_bytes: int = 0,
) -> Iterator[FrameSpan]:
    """Divide entries of these sizes (shape (n,), bytes; 0 for those known to fail) into frames of about `target_bytes`.

    With `resume_offset`, also of 0, the first entry continues there, and is sent in pieces whatever its size. Frames of
    entries that may stay `in_files` (shape (n,)) until they are sent have up to `file_frame_bytes`, if that is more.
    """
    n = len(sizes)
    total = int(sizes.sum())
    in_one = 0 < n <= MAX_ENTRIES_PER_FRAME and total <= target_bytes + target_bytes // 2
    if in_one and in_files is None and resume_offset is None and sizes.max() <= min(target_bytes, MAX_WHOLE_BYTES):
        yield FrameSpan(0, n, total)  # as below, with less work
        return
    sizes = sizes.copy()  # entries read meanwhile may turn out to have other sizes
    ends = np.cumsum(sizes)
    first = 0
    while first < n:
        size = int(sizes[first])
        resumed = resume_offset if first == 0 else None
        if size > MAX_WHOLE_BYTES or resumed is not None:
            begin = resumed or 0
            for offset in range(begin, max(size, begin + 1), target_bytes):
                piece = min(target_bytes, size - offset)
                yield FrameSpan(first, first + 1, piece, offset, piece)
            first += 1
            continue
        before = int(ends[first]) - size
        # The frame ends with the entry that fills it, or before one that fills a frame by itself.
        stop = int(np.searchsorted(ends, before + target_bytes, side="left")) + 1
        stop = max(first + 1, min(stop, n, first + MAX_ENTRIES_PER_FRAME))
        if n - first <= MAX_ENTRIES_PER_FRAME and int(ends[-1] - ends[stop - 1]) <= target_bytes // 2:
            stop = n  # a last frame that is small costs as much as one that is not
        large = np.flatnonzero(sizes[first + 1 : stop] > target_bytes)
        if len(large):
            stop = first + 1 + int(large[0])
        if in_files is not None:
            stop = _stop_in_files(sizes, in_files, first, stop, file_frame_bytes)
        yield FrameSpan(first, stop, int(ends[stop - 1]) - before)
        first = stop


def goes_from_files(entries: int, payload_bytes: int) -> bool:
    """Whether a frame of this many entries, all in files, is sent from there."""
    return entries <= MAX_FILES and payload_bytes >= entries * MIN_FILE_ENTRY_BYTES


def _stop_in_files(
    sizes: npt.NDArray[np.int64], in_files: npt.NDArray[np.bool_], first: int, stop: int, most_bytes: int
) -> int:
    """Return the end of a frame that would end before `stop`, extended if it and the following entries are sent from
    files."""
    ends = np.cumsum(sizes[first : first + MAX_FILES])
    elsewhere = np.flatnonzero(~in_files[first : first + MAX_FILES])
    count = int(np.searchsorted(ends, most_bytes, side="right"))
    if len(elsewhere):
        count = min(count, int(elsewhere[0]))
    here = stop - first
    if (
        count <= here
        or not goes_from_files(here, int(ends[here - 1]))
        or not goes_from_files(count, int(ends[count - 1]))
    ):
        return stop
    return first + count


def check_range(start: int, length: int, size_bytes: int) -> str | None:
    """Return what is wrong with reading `length` bytes (-1: to the end) from `start`; None if nothing is."""
    if start < 0 or length < -1:
        return "negative start" if start < 0 else "negative length"
    if start > size_bytes:
        return f"start={start:,} lies past the end of {size_bytes:,} bytes"
    if length >= 0 and start + length > size_bytes:
        return f"start={start:,}, length={length:,} reaches past the end of {size_bytes:,} bytes"
    return None


def check_columns(request: pb.BatchRequest, n: int) -> None:
    """Raise InvalidRequest if the columns of a request for n entries do not fit together."""
    if n > MAX_ENTRIES:
        raise InvalidRequest(f"{n:,} entries in one request, at most {MAX_ENTRIES:,}: send it in parts")
    for column in ENTRY_COLUMNS:
        length = len(getattr(request, column))
        if length not in (0, n):
            raise InvalidRequest(f"column {column!r} has {length:,} values for {n:,} entries")
    if n and (not request.bucket or max(request.bucket_index, default=0) >= len(request.bucket)):
        raise InvalidRequest("an entry refers to a bucket that the request does not name")
    if max(request.transform_index, default=0) > len(request.transform):
        raise InvalidRequest("an entry refers to a transform that the request does not name")
    if request.HasField("whole_up_to") and (n != 1 or request.start or request.transform or request.resume_offset):
        raise InvalidRequest("whole_up_to: need a single entry, a whole object or member as it is stored")
    if bool(request.start) != bool(request.length):
        raise InvalidRequest("columns 'start' and 'length' come together")
