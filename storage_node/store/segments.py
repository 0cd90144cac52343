"""The segments of one drive: what their slots say of themselves, and how the bytes of single objects are given back.

A segment is removed with its last object. Until then what is gone from it is punched out, so that a segment with few
objects left takes no more room than these.

Threads: any. States are written in place, eight bytes at a time, and only ever towards the end of an object: a mark
that comes late must not bring back what has been given back meanwhile. Only the doctor has one own its bytes again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from storage_node.store import format as fmt
from storage_node.store.errors import FormatError
from storage_node.store.faults import Faults
from storage_node.store.segment_format import (
    DEAD,
    FREED,
    HEAD_BYTES,
    LIVE,
    SegmentIndex,
    decode_index,
    decode_states,
    file_of,
    holes_around,
    index_size,
    slot_of,
    slot_path,
    state_offset,
)
from storage_node.store.staged_file import is_full

_KNOWN_INDEXES = 16
_MAX_INDEX_BYTES = 64 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""fallocate(2)."""
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Segments:
    """Below the folder `objects_fd`, -1 once that has been closed."""

    def __init__(self, objects_fd: int, faults: Faults) -> None:
        self.objects_fd = objects_fd
        self._faults = faults
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, SegmentIndex] = OrderedDict()  # guarded by _lock
        self._states = threading.Lock()  # held from looking at a state to writing another one

    def identity(self, path: bytes) -> bytes | None:
        """What the object of this path is; None when it is dead, or nothing can be told. Raises OSError."""
        with self._opened(path) as (fd, index):
            if index is None or (slot := slot_of(path)) >= len(index) or self._state(fd, slot) in (DEAD, FREED):
                return None
            return index.identities[slot]

    def offset(self, path: bytes) -> int:
        """Where its bytes begin in the segment. Raises OSError, FormatError."""
        with self._opened(path) as (_, index):
            if index is None or (slot := slot_of(path)) >= len(index):
                raise FormatError(f"{path!r}: the segment does not say where it is")
            return index.offsets[slot]

    def is_freed(self, path: bytes) -> bool:
        """Whether its bytes have been given back. Raises OSError."""
        with self._opened(path) as (fd, index):
            return index is not None and (slot_of(path) >= len(index) or self._state(fd, slot_of(path)) == FREED)

    def ended(self, path: bytes) -> int | None:
        """At which counter the object was replaced or deleted, of one retained for snapshots. Raises OSError."""
        with self._opened(path) as (fd, index):
            if index is None or (slot := slot_of(path)) >= len(index):
                return None
            state = self._state(fd, slot)
            return None if state in (LIVE, DEAD, FREED) else state

    def set_ended(self, path: bytes, ended: int | None) -> None:
        """Harmless where it is dead. Raises OSError."""
        self._set_state(file_of(path), [slot_of(path)], LIVE if ended is None else ended, unless=(DEAD, FREED))

    def disown(self, file: bytes, slots: Sequence[int]) -> None:
        """The objects in these slots are dead, and must not come back when the catalog is rebuilt. Raises OSError."""
        self._set_state(file, slots, DEAD, unless=(FREED,))

    def own(self, path: bytes, identity: bytes) -> bool:
        """The object is alive; False where the segment says otherwise than `identity` what it is. Raises OSError."""
        with self._opened(path) as (_, index):
            if index is None or (slot := slot_of(path)) >= len(index) or index.identities[slot] != identity:
                return False
        return bool(self._set_state(file_of(path), [slot], LIVE, unless=(FREED,)))

    def free(self, file: bytes, slots: Sequence[int]) -> None:
        """Give the bytes of dead objects back, and remove the segment with the last of them. Raises OSError."""
        with self._opened(file, os.O_RDWR) as (fd, index):
            if index is None:
                return  # nothing is certain; the doctor tells of it when no catalog entry names it any more
            slots = [slot for slot in slots if slot < len(index)]
            with self._states:
                try:
                    _write_states(fd, slots, FREED)
                except OSError as error:
                    if not is_full(error):
                        raise
                    # A file system that writes nothing in its place needs room for it.
                    going = set(slots)
                    _punch_around(fd, index, [slot in going for slot in range(len(index))], slots)
                    _write_states(fd, slots, FREED)
                states = self._all_states(fd, index)
            freed = [state == FREED for state in states]
            if states and all(freed):
                with self._lock:
                    self._known.pop(file, None)
                os.unlink(file, dir_fd=self.objects_fd)
            elif states:
                _punch_around(fd, index, freed, slots)

    def paths(self, file: bytes) -> Iterator[bytes]:
        """Of the objects in a segment whose bytes are there; of the segment itself when none can be told."""
        left: list[bytes] = []
        try:
            with self._opened(file) as (fd, index):
                for slot, state in enumerate(() if index is None else self._all_states(fd, index)):
                    if state != FREED:
                        assert index is not None
                        left.append(slot_path(file, slot, _generation(index.identities[slot])))
        except FileNotFoundError:
            return
        except (OSError, FormatError):
            left = []  # one bad sector must not stand between the rest of the drive and who looks for it
        yield from left or [file]

    def is_spent(self, file: bytes) -> bool:
        """Whether it is certain that no object is left in a segment. Raises OSError."""
        with self._opened(file) as (fd, index):
            states = [] if index is None else self._all_states(fd, index)
            return bool(states) and all(state == FREED for state in states)

    def _state(self, fd: int, slot: int) -> int:
        return int.from_bytes(os.pread(fd, 8, state_offset(slot)), "little")

    def _all_states(self, fd: int, index: SegmentIndex) -> list[int]:
        """Of each slot; none where the file has been cut before their end."""
        try:
            states: list[int] = decode_states(os.pread(fd, state_offset(len(index)), 0), len(index)).tolist()
        except FormatError:
            return []
        return states

    def _set_state(self, file: bytes, slots: Iterable[int], state: int, *, unless: Sequence[int]) -> int:
        """Of how many it is that now: it stays one of `unless`, and where the index is damaged. Raises OSError."""
        changed = 0
        with self._opened(file, os.O_RDWR) as (fd, index), self._states:
            for slot in slots:
                if index is not None and slot < len(index) and self._state(fd, slot) not in unless:
                    _write_states(fd, [slot], state)
                    changed += 1
        return changed

    @contextlib.contextmanager
    def _opened(self, path: bytes, flags: int = os.O_RDONLY) -> Iterator[tuple[int, SegmentIndex | None]]:
        """The segment's file, and its index unless that is damaged. Raises OSError."""
        file = file_of(path)
        fd = -1
        try:
            fd = os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.objects_fd)
            yield fd, self._index(file, fd)
        except OSError as error:
            self._faults.note(error, "looking after an object")
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    def _index(self, file: bytes, fd: int) -> SegmentIndex | None:
        with self._lock:
            if (known := self._known.get(file)) is not None:
                self._known.move_to_end(file)
                return known
        try:
            size_bytes = index_size(os.pread(fd, HEAD_BYTES, 0))
            index = decode_index(os.pread(fd, size_bytes, 0)) if size_bytes <= _MAX_INDEX_BYTES else None
        except FormatError:
            return None
        if index is not None:
            with self._lock:
                self._known[file] = index
                while len(self._known) > _KNOWN_INDEXES:
                    self._known.popitem(last=False)
        return index


def _write_states(fd: int, slots: Iterable[int], state: int) -> None:
    for slot in slots:
        os.pwrite(fd, state.to_bytes(8, "little"), state_offset(slot))


def _punch_around(fd: int, index: SegmentIndex, freed: Sequence[bool], slots: Iterable[int]) -> None:
    punch(fd, holes_around(index, freed, slots, os.fstat(fd).st_size))


def punch(fd: int, holes: Iterable[tuple[int, int]]) -> None:
    """Give these parts of a file back; where the file system cannot, the room comes with the whole. Raises OSError."""
    for start, end in holes:
        if _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, end - start):
            number = ctypes.get_errno()
            if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(number, os.strerror(number))


def _generation(identity: bytes) -> int:
    return fmt.decode_identity(identity).generation
