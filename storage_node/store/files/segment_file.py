"""Open segment: reads its index from whichever copy is intact, and writes slot states to both copies.

The problem. A segment packs many small objects into one file. Its index tells which objects these are and whether each
is alive, retained for snapshots, dead or freed. One bad sector in a single index could lose hundreds of objects, so the
index exists twice: at the beginning of the file, and again after the objects. The head, which tells where the copies
are, is stored at the start of each copy and once more at the very end.

The rule. Every part of an index has a checksum of its own: the head, the state of each slot, its place (offset, size,
location of the identity), and its identity. A part that is damaged in one copy is read from the other. This works for
each part separately, so a segment with damage in both copies loses only the slots that are damaged in both. If neither
copy has a valid part, the answer is None or UNKNOWN, never a guess.

The states. Only states change, and the identity of a slot that is freed, which becomes zeros. A state is 16 bytes,
aligned so that it never spans two sectors, and is written in place, first in the first copy and then in the second.
While an object ages, its state only increases: LIVE, the counter at which it ended, DEAD, FREED. When the copies
differ, the greater valid state is therefore the newer one. Two operations decrease a state: taking back that an object
has ended, and the doctor's `own`.

Crashes. A process that dies before the first write has changed nothing. Between the two writes it leaves copies that
differ in the states of some slots; readers take the greater one, and repair makes the copies equal. If an operation
decreased the state, readers still see the old state then. State writes are not synced, so a power loss may also undo
them, in one copy or in both.

Repair. `mend` first merges in memory what the two copies know. Then it writes each copy, writes the head at the end,
and syncs. Valid parts are rewritten with the same bytes, and identities of freed slots with zeros, so a crash at any
step loses nothing, and `mend` can be run again. A file truncated before the end of a living object is left alone:
extending it would give it the right size again and hide the damage.

Threads: a SegmentFile belongs to one. The caller ensures that no other thread writes the same segment meanwhile.
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
    PAGE_BYTES,
    ROW_BYTES,
    STATE_BYTES,
    UNALIGNED_BYTES,
    UNKNOWN,
    Head,
    SegmentUse,
    SlotPlace,
    decode_head,
    decode_place,
    decode_state,
    decode_states,
    encode_head,
    encode_state,
    fresh_bytes,
    merge_states,
    row_offset,
    with_states,
)
from storage_node.store.files.staged_file import is_full

Note: TypeAlias = Callable[[OSError], None]
"""Called with errors of the drive while the other copy may still be readable."""
_BLOCK_BYTES = 512
"""Unit of `st_blocks`."""
_FEW = 4
_NEAR_SLOTS = 32
_MANY = 8
"""Minimum number of slots, each within _NEAR_SLOTS of the next, for which one write that includes the rows between them
is cheaper than separate writes."""


class SegmentFile:
    def __init__(self, fd: int, head: Head, note: Note) -> None:
        self.slots = head.slots
        self.first_byte, self.end = head.index_bytes, head.copy_at
        """Range of the file in which the objects are."""
        self._fd = fd
        self._head = head
        self._note = note
        self._copies_at = (0, head.copy_at)
        self._tables: list[bytes] = []
        """All rows of each copy, once they have been read. The places in them never change."""

    def _copies(self, at: int, size: int) -> Iterator[bytes]:
        """Iterate over the same part of each copy, possibly cut short. Raises OSError if neither can be read."""
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
        """Return the identity of a slot, or None if no copy has a valid one. Raises OSError."""
        if (place := self._place(slot)) is None:
            return None
        for data in self._copies(place.identity_at, place.identity_bytes):
            if _is_identity(data, place):
                return data
        return None

    def identities(self) -> list[bytes | None]:
        """Return the identities of all slots, None where no copy has a valid one. Raises OSError."""
        found: list[bytes | None] = [None] * self.slots
        for data in self._copies(0, self._head.index_bytes):
            for slot, known in enumerate(found):
                if known is None and (place := _place_in(data, slot)) is not None:
                    identity = _identity_in(data, place)
                    found[slot] = identity if _is_identity(identity, place) else None
            if None not in found:
                return found
        # A slot may have a valid place in one copy, and a valid identity in the other.
        return [self.identity(slot) if known is None else known for slot, known in enumerate(found)]

    def place(self, slot: int) -> tuple[int, int] | None:
        """Return offset and size of an object, or None if no copy has a valid row. Raises OSError."""
        place = self._place(slot)
        return None if place is None else place[:2]

    def _place(self, slot: int) -> SlotPlace | None:
        for table in self._tables:
            if (place := decode_place(table[ROW_BYTES * slot : ROW_BYTES * (slot + 1)], slot)) is not None:
                return place
        for row in self._copies(row_offset(slot), ROW_BYTES):
            if (place := decode_place(row, slot)) is not None:
                return place
        return None

    def state(self, slot: int) -> int:
        """Return the state of a slot, UNKNOWN if no copy has a valid one. Raises OSError."""
        found = [decode_state(data) for data in self._copies(row_offset(slot), STATE_BYTES)]
        return max((state for state in found if state != UNKNOWN), default=UNKNOWN)

    def states(self, first: int = 0, stop: int | None = None) -> npt.NDArray[np.uint64]:
        """Return the states of these slots, or of all, as `state` does. Shape (stop - first,). Raises OSError."""
        count = (self.slots if stop is None else stop) - first
        copies = list(self._copies(row_offset(first), ROW_BYTES * count))
        if count == self.slots:
            self._tables = copies
        if len(copies) == 2 and copies[0] == copies[1]:  # nearly always
            return decode_states(copies[0], count)
        return reduce(merge_states, [decode_states(data, count) for data in copies])

    def use(self, freed: npt.NDArray[np.bool_]) -> SegmentUse | None:
        """Return the space that it takes, given which slots are freed, shape (slots,); None if no copy of its rows can
        be read completely. Raises OSError."""
        if not self._tables:
            self.states()
        table = next((rows for rows in self._tables if len(rows) == ROW_BYTES * self.slots), None)
        if table is None:
            return None
        fresh = fresh_bytes(table, self.slots)
        return SegmentUse(int(fresh[~freed].sum()), int(fresh.sum()), os.fstat(self._fd).st_blocks * _BLOCK_BYTES)

    def set_states(self, slots: Iterable[int], state: int) -> None:
        """Write a state of these slots to both copies, as far as the file reaches.

        Raises OSError: for a full drive at once, otherwise after both copies were tried.
        """
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
        """Write the state of these rows, relative to `at`, the last one at the end. One write if they can be read
        first."""
        count = which[-1] + 1
        with contextlib.suppress(OSError):  # sectors that cannot be read may be writable
            rows = os.pread(self._fd, ROW_BYTES * count, at)
            if len(rows) == ROW_BYTES * count:
                os.pwrite(self._fd, with_states(rows, which, state), at)
                return
        for row in which:
            os.pwrite(self._fd, encode_state(state), at + ROW_BYTES * row)

    def wipe(self, slots: Iterable[int], *, whole: bool) -> None:
        """Overwrite the identities of these slots with zeros in both copies, because a denial finds only the last
        version of a name; and of their objects the bytes that punching holes leaves, or `whole` ones. Raises OSError.
        """
        size_bytes = os.fstat(self._fd).st_size  # a truncated file must not get its size back
        for place in filter(None, map(self._place, slots)):
            punched = 0 if whole or place.size < UNALIGNED_BYTES else place.size // PAGE_BYTES * PAGE_BYTES
            spans = [(copy_at + place.identity_at, place.identity_bytes) for copy_at in self._copies_at]
            for at, size in ((place.offset + punched, place.size - punched), *spans):
                os.pwrite(self._fd, bytes(max(0, min(size, size_bytes - at))), at)

    # -- both copies

    def is_damaged(self, *, in_motion: bool) -> bool:
        """Whether one of the copies or the head at the end is damaged, or the copies differ.

        `in_motion`: a writer may be between writing the states of one copy and those of the other.
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
            if state != FREED:  # its identity is no longer needed
                place = _place_in(index, slot)
                if state == UNKNOWN or place is None or not _is_identity(_identity_in(index, place), place):
                    return False
        return True

    def mend(self) -> bool:
        """Restore both copies of the index from what either of them has, durably. Returns whether everything was
        restored.

        Does nothing if the file was truncated before the end of a living object: it would get the right size again and
        look intact. Raises OSError.
        """
        states = self.states().tolist()
        if self._is_cut(states):
            return False
        before = []
        for copy_at in self._copies_at:
            data = b""
            with contextlib.suppress(OSError):  # sectors that cannot be read may be writable
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
        """Restore one slot. Returns whether everything that is needed of it is known."""
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
            if state == FREED and row is not None and place is not None:
                identity = bytes(place.identity_bytes)  # one copy may still have it
            if row is not None and place is not None and identity is not None:
                copy[place.identity_at : place.identity_at + place.identity_bytes] = identity
        return state == FREED or (state != UNKNOWN and identity is not None)


def open_segment(fd: int, note: Note) -> SegmentFile | None:
    """Open a segment. Returns None if its head is damaged everywhere. Raises OSError."""
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
    """Return the states of these slots, at least one. Raises OSError."""
    if len(slots) <= _FEW:
        return [segment.state(slot) for slot in slots]
    first = min(slots)
    found = segment.states(first, max(slots) + 1)
    return [int(found[slot - first]) for slot in slots]


def _place_in(index: bytes | bytearray, slot: int) -> SlotPlace | None:
    return decode_place(memoryview(index)[row_offset(slot) : row_offset(slot + 1)], slot)


def _identity_in(index: bytes | bytearray, place: SlotPlace) -> bytes:
    return bytes(index[place.identity_at : place.identity_at + place.identity_bytes])


def _is_identity(data: bytes, place: SlotPlace) -> bool:
    return len(data) == place.identity_bytes and crc32c(data) == place.identity_checksum


def _runs(slots: Iterable[int]) -> list[list[int]]:
    """Group slots that are near each other if there are enough of them, and leave the others alone; ascending."""
    runs: list[list[int]] = []
    for slot in sorted(set(slots)):
        if runs and slot - runs[-1][-1] <= _NEAR_SLOTS:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return [part for run in runs for part in ([run] if len(run) >= _MANY else ([slot] for slot in run))]
