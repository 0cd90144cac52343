"""Open segment: what its index says of its slots, from whichever copy is whole, and states written in both.

Threads: a SegmentFile belongs to one. Who writes sees to it that nobody else writes the same segment meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.errors import StoreFormatError
from storage_node.store.checksum import crc32c
from storage_node.store.files.segment_format import (
    DEAD,
    FREED,
    HEAD_BYTES,
    ROW_BYTES,
    STATE_BYTES,
    UNKNOWN,
    Head,
    Place,
    decode_head,
    decode_place,
    decode_state,
    decode_states,
    encode_head,
    encode_state,
    merge_states,
    row_offset,
    with_states,
)
from storage_node.store.files.staged_file import is_full

Note: TypeAlias = Callable[[OSError], None]
"""Told of what the drive refused although the other copy may do."""
_FEW = 4
_NEAR_SLOTS = 32
_MANY = 8
"""So many slots, none further than that from the next, cost less in one write with what is between them than alone."""


class SegmentFile:
    def __init__(self, fd: int, head: Head, note: Note) -> None:
        self.slots = head.slots
        self.first_byte, self.end = head.index_bytes, head.copy_at
        """The objects lie between these."""
        self._fd = fd
        self._head = head
        self._note = note
        self._copies_at = (0, head.copy_at)
        self._tables: list[bytes] = []
        """All rows of each copy, once they have been read: the places in them never change."""

    def _copies(self, at: int, size: int) -> Iterator[bytes]:
        """The same part of each copy, as much as is there. Raises OSError when it can be read of none."""
        problem, some = None, False
        for copy_at in self._copies_at:
            try:
                data = os.pread(self._fd, size, copy_at + at)
            except OSError as error:
                self._note(error)
                problem = error
                continue
            some = True
            yield data
        if problem is not None and not some:
            raise problem

    def identity(self, slot: int) -> bytes | None:
        """None when no copy can tell. Raises OSError."""
        if (place := self._place(slot)) is None:
            return None
        for data in self._copies(place.identity_at, place.identity_bytes):
            if _is_identity(data, place):
                return data
        return None

    def identities(self) -> list[bytes | None]:
        """Of all slots, None where no copy can tell. Raises OSError."""
        found: list[bytes | None] = [None] * self.slots
        for data in self._copies(0, self._head.index_bytes):
            for slot, known in enumerate(found):
                if known is None and (place := _place_in(data, slot)) is not None:
                    identity = _identity_in(data, place)
                    found[slot] = identity if _is_identity(identity, place) else None
            if None not in found:
                return found
        # Of some the place may be whole in one copy, and the identity in the other one.
        return [self.identity(slot) if known is None else known for slot, known in enumerate(found)]

    def place(self, slot: int) -> tuple[int, int] | None:
        """Offset and size of an object, None when no copy can tell. Raises OSError."""
        place = self._place(slot)
        return None if place is None else place[:2]

    def _place(self, slot: int) -> Place | None:
        for table in self._tables:
            if (place := decode_place(table[ROW_BYTES * slot : ROW_BYTES * (slot + 1)], slot)) is not None:
                return place
        for row in self._copies(row_offset(slot), ROW_BYTES):
            if (place := decode_place(row, slot)) is not None:
                return place
        return None

    def state(self, slot: int) -> int:
        """UNKNOWN when no copy can tell. Raises OSError."""
        found = [decode_state(data) for data in self._copies(row_offset(slot), STATE_BYTES)]
        return max((state for state in found if state != UNKNOWN), default=UNKNOWN)

    def states(self, first: int = 0, stop: int | None = None) -> npt.NDArray[np.uint64]:
        """Of these slots, or all; UNKNOWN as in `state`. Shape (stop - first,). Raises OSError."""
        count = (self.slots if stop is None else stop) - first
        copies = list(self._copies(row_offset(first), ROW_BYTES * count))
        if count == self.slots:
            self._tables = copies
        if len(copies) == 2 and copies[0] == copies[1]:  # nearly always
            return decode_states(copies[0], count)
        return reduce(merge_states, [decode_states(data, count) for data in copies])

    def set_states(self, slots: Iterable[int], state: int) -> None:
        """In both copies, as far as the file reaches. Raises OSError, of one copy after it has been set in the other,
        but when there is no room for it."""
        size_bytes = os.fstat(self._fd).st_size
        problem, alone = None, encode_state(state)
        runs = _runs(slots)
        for copy_at in self._copies_at:
            for run in runs:
                at = copy_at + row_offset(run[0])
                if at + ROW_BYTES * (run[-1] + 1 - run[0]) > size_bytes:
                    continue
                try:
                    if len(run) == 1:
                        os.pwrite(self._fd, alone, at)
                    else:
                        self._set_run(at, [slot - run[0] for slot in run], state)
                except OSError as error:
                    if is_full(error):
                        raise
                    problem = error
        if problem is not None:
            raise problem

    def _set_run(self, at: int, which: Sequence[int], state: int) -> None:
        """Of the rows that begin there, these, the last one at the end: with one write, if they can be read."""
        count = which[-1] + 1
        with contextlib.suppress(OSError):  # what cannot be read may be written
            rows = os.pread(self._fd, ROW_BYTES * count, at)
            if len(rows) == ROW_BYTES * count:
                os.pwrite(self._fd, with_states(rows, which, state), at)
                return
        for row in which:
            os.pwrite(self._fd, encode_state(state), at + ROW_BYTES * row)

    # -- both copies

    def is_damaged(self, *, in_motion: bool) -> bool:
        """Whether one of the copies, or what they are found by, is not whole, or says something else than the other.

        `in_motion`: a writer may be between the states of the one and of the other.
        """
        try:
            one, other = (os.pread(self._fd, self._head.index_bytes, at) for at in self._copies_at)
            end = os.pread(self._fd, HEAD_BYTES, self._head.file_bytes - HEAD_BYTES)
        except OSError as error:
            self._note(error)
            return True
        if end != encode_head(self._head) or not self._is_whole(one):
            return True
        return one != other and not (in_motion and self._is_whole(other))

    def _is_whole(self, index: bytes) -> bool:
        if len(index) != self._head.index_bytes or index[:HEAD_BYTES] != encode_head(self._head):
            return False
        for slot, state in enumerate(decode_states(index[HEAD_BYTES:], self.slots).tolist()):
            if state != FREED:  # of which nobody asks what it was
                place = _place_in(index, slot)
                if state == UNKNOWN or place is None or not _is_identity(_identity_in(index, place), place):
                    return False
        return True

    def mend(self) -> bool:
        """Write in both copies what either of them knows, lasting on return; whether that is everything.

        Nothing is done to a file that has been cut before the end of an object that is alive: it would be taken for
        one of the right size. Raises OSError.
        """
        states = self.states().tolist()
        if self._is_cut(states):
            return False
        before = []
        for copy_at in self._copies_at:
            data = b""
            with contextlib.suppress(OSError):  # what cannot be read may be written
                data = os.pread(self._fd, self._head.index_bytes, copy_at)
            before.append(data)
        copies = [bytearray(data.ljust(self._head.index_bytes, b"\0")) for data in before]
        for copy in copies:
            copy[:HEAD_BYTES] = encode_head(self._head)
        known = [self._mend_slot(copies, slot, state) for slot, state in enumerate(states)]
        for copy_at, copy, was in zip(self._copies_at, copies, before, strict=True):
            if copy != was:
                os.pwrite(self._fd, copy, copy_at)
        os.pwrite(self._fd, encode_head(self._head), self._head.file_bytes - HEAD_BYTES)
        os.fsync(self._fd)
        return all(known)

    def _is_cut(self, states: Sequence[int]) -> bool:
        size_bytes = os.fstat(self._fd).st_size
        alive = [slot for slot, state in enumerate(states) if state not in (DEAD, FREED)]
        return size_bytes < self.end and any(sum(self.place(slot) or (self.end,)) > size_bytes for slot in alive)

    def _mend_slot(self, copies: Sequence[bytearray], slot: int, state: int) -> bool:
        """Whether everything is known of it that anybody may ask."""
        at = row_offset(slot)
        row = next((copy[at : at + ROW_BYTES] for copy in copies if _place_in(copy, slot) is not None), None)
        identity = None
        if row is not None and (place := decode_place(bytes(row), slot)) is not None:
            found = (_identity_in(copy, place) for copy in copies)
            identity = next((data for data in found if _is_identity(data, place)), None)
        for copy in copies:
            if state != UNKNOWN:
                copy[at : at + STATE_BYTES] = encode_state(state)
            if row is not None:
                copy[at + STATE_BYTES : at + ROW_BYTES] = row[STATE_BYTES:]
            if row is not None and place is not None and identity is not None:
                copy[place.identity_at : place.identity_at + place.identity_bytes] = identity
        return state == FREED or (state != UNKNOWN and identity is not None)


def open_segment(fd: int, note: Note) -> SegmentFile | None:
    """None when it is damaged so that nothing can be told. Raises OSError."""
    problem = None
    try:
        begin = os.pread(fd, HEAD_BYTES, 0)
    except OSError as error:
        note(error)
        begin, problem = b"", error
    with contextlib.suppress(StoreFormatError):
        return SegmentFile(fd, decode_head(begin), note)
    size_bytes = os.fstat(fd).st_size
    with contextlib.suppress(StoreFormatError):
        head = decode_head(os.pread(fd, HEAD_BYTES, max(0, size_bytes - HEAD_BYTES)))
        if head.file_bytes == size_bytes:
            return SegmentFile(fd, head, note)
    if problem is not None:
        raise problem
    return None


def states_of(segment: SegmentFile, slots: Sequence[int]) -> list[int]:
    """Of these slots, at least one. Raises OSError."""
    if len(slots) <= _FEW:
        return [segment.state(slot) for slot in slots]
    first = min(slots)
    found = segment.states(first, max(slots) + 1)
    return [int(found[slot - first]) for slot in slots]


def _place_in(index: bytes | bytearray, slot: int) -> Place | None:
    return decode_place(memoryview(index)[row_offset(slot) : row_offset(slot + 1)], slot)


def _identity_in(index: bytes | bytearray, place: Place) -> bytes:
    return bytes(index[place.identity_at : place.identity_at + place.identity_bytes])


def _is_identity(data: bytes, place: Place) -> bool:
    return len(data) == place.identity_bytes and crc32c(data) == place.identity_checksum


def _runs(slots: Iterable[int]) -> list[list[int]]:
    """Many that are near each other together, and the others alone; ascending."""
    runs: list[list[int]] = []
    for slot in sorted(set(slots)):
        if runs and slot - runs[-1][-1] <= _NEAR_SLOTS:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return [part for run in runs for part in ([run] if len(run) >= _MANY else ([slot] for slot in run))]
