"""Joined ranges: entries of several ranges are requested range by range, and their answers are joined again.

All ranges of an entry are of one version: it is looked up first, with one request for each bucket, and then requested
explicitly. If the object is replaced in between, the entry is not found; versions are never mixed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ais_loader.errors import InvalidRequest, NotFound
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.wire.frame import U8, U32, EntryFault, Frame

HeadMany = Callable[[str, list[str]], list[ObjectInfo | None]]


def of_one_version(entries: list[Entry], head_many: HeadMany) -> list[Entry]:
    """Pin entries of several ranges that name no version to the current one; return all entries.

    `head_many` returns the objects of a bucket, None for missing ones. Its errors are raised, except NotFound: an entry
    of a missing object stays unpinned, and fails in its place.
    """
    unpinned: dict[str, dict[str, str | None]] = {}
    for entry in entries:
        if entry.ranges is not None and len(entry.ranges) > 1 and entry.version is None:
            unpinned.setdefault(entry.bucket, {})[entry.name] = None
    if not unpinned:
        return entries
    for bucket, names in unpinned.items():
        with contextlib.suppress(NotFound):  # the batch reports the error, in the entry's place
            for info in head_many(bucket, list(names)):
                if info is not None:
                    names[info.name] = info.version
    return [
        replace(entry, version=unpinned[entry.bucket][entry.name])
        if entry.ranges is not None and len(entry.ranges) > 1 and entry.version is None
        else entry
        for entry in entries
    ]


class JoinedRanges:
    """Division of n entries into m >= n single ranges (`requested`), and the way back from their frames."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Raises InvalidRequest for an entry with both a range and ranges, or with empty ranges."""
        counts = []
        self.requested: list[Entry] = []
        for entry in entries:
            ranges = entry.ranges
            if ranges is None:
                self.requested.append(entry)
                counts.append(1)
                continue
            if not ranges or entry.start or entry.length is not None:
                raise InvalidRequest(f"{entry!r}: need one range, by start and length, or several, by ranges")
            # A single range is expressed by start and length.
            self.requested += [replace(entry, start=start, length=length, ranges=None) for start, length in ranges]
            counts.append(len(ranges))
        self._counts = np.array(counts, np.uint32)
        self._of: U32 = np.repeat(np.arange(len(counts), dtype=np.uint32), self._counts)
        self._firsts = np.zeros(len(counts) + 1, np.uint32)
        np.cumsum(self._counts, out=self._firsts[1:])

    def joined(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Convert frames of whole single ranges, in any order, to frames of whole entries."""
        waiting: dict[int, dict[int, Frame]] = {}
        failed: dict[int, int] = {}  # value: the number of ranges still to come
        for frame in frames:
            owners = self._of[frame.index]
            if len(frame.index) and not waiting and not failed and self._is_whole(frame, owners):
                yield self._merged(frame, owners)
                continue
            start = 0
            for at, (index, size) in enumerate(zip(frame.index.tolist(), frame.size.tolist(), strict=True)):
                owner, part = int(owners[at]), _row(frame, at, start, size)
                start += size
                if owner in failed:
                    failed[owner] -= 1
                    if not failed[owner]:
                        del failed[owner]
                    continue
                parts = waiting.setdefault(owner, {})
                parts[index] = part
                left = int(self._counts[owner]) - len(parts)
                if part.status[0]:  # reported at once: a fail-fast batch ends here
                    del waiting[owner]
                    if left:
                        failed[owner] = left
                    yield _failed(owner, part)
                elif not left:
                    del waiting[owner]
                    yield _together(owner, [parts[key] for key in sorted(parts)])

    def _is_whole(self, frame: Frame, owners: U32) -> bool:
        """Whether a frame has only complete entries, each in order and contiguous, and none that failed."""
        first, last = int(owners[0]), int(owners[-1])
        stop = self._firsts[last + 1]
        return (
            not frame.status.any()
            and int(frame.index[0]) == self._firsts[first]
            and int(frame.index[-1]) + 1 == stop
            and len(frame.index) == stop - self._firsts[first]
            and bool((np.diff(frame.index.astype(np.int64)) == 1).all())
        )

    def _merged(self, frame: Frame, owners: U32) -> Frame:
        """Merge ranges that lie end to end already: only the columns change."""
        first, last = int(owners[0]), int(owners[-1])
        starts = self._firsts[first : last + 1] - self._firsts[first]
        size = np.add.reduceat(frame.size, starts).astype(np.uint32)
        count = last - first + 1
        index = np.arange(first, last + 1, dtype=np.uint32)
        no_checksum, no_kind = np.zeros(count, np.uint32), np.zeros(count, np.uint8)
        return Frame(index, size, no_checksum, np.zeros(count, np.uint8), no_kind, frame.payload)

    def joined_values(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Join the values of all single ranges at once, in order."""
        bounds = self._firsts.tolist()
        return [
            values[first] if stop == first + 1 else b"".join(part for part in values[first:stop] if part is not None)
            for first, stop in itertools.pairwise(bounds)
        ]


def _row(frame: Frame, at: int, start: int, size: int) -> Frame:
    row = slice(at, at + 1)
    payload = frame.payload[start : start + size]
    columns = (frame.index[row], frame.size[row], frame.checksum[row], frame.status[row], frame.checksum_kind[row])
    return Frame(*columns, payload, None, frame.errors)


def _failed(owner: int, part: Frame) -> Frame:
    fault = part.errors.get(int(part.index[0]))
    errors = {} if fault is None else {owner: fault}
    return _one(owner, part.status, memoryview(b""), errors)


def _together(owner: int, parts: list[Frame]) -> Frame:
    payload = parts[0].payload if len(parts) == 1 else memoryview(b"".join(part.payload for part in parts))
    return _one(owner, np.zeros(1, np.uint8), payload, {})


def _one(owner: int, status: U8, payload: memoryview, errors: dict[int, EntryFault]) -> Frame:
    """Build a frame of one whole entry."""
    index, size = np.array([owner], np.uint32), np.array([len(payload)], np.uint32)
    return Frame(index, size, np.zeros(1, np.uint32), status, np.zeros(1, np.uint8), payload, None, errors)
