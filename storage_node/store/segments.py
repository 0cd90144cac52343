"""The segments of one drive: what their slots say of themselves, and how the bytes of single objects are given back.

A segment is removed with its last object. Until then what is gone from it is punched out, so that a segment with few
objects left takes no more room than these.

Threads: any. States are written in place, eight bytes at a time; that of one slot only by who has its object to end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

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
    hole_around,
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
        """Raises OSError."""
        self._set_state(path, LIVE if ended is None else ended)

    def disown(self, path: bytes) -> None:
        """The object is dead, and must not come back when the catalog is rebuilt. Raises OSError."""
        self._set_state(path, DEAD)

    def own(self, path: bytes, identity: bytes) -> bool:
        """The object is alive; False where the segment says otherwise than `identity` what it is. Raises OSError."""
        with self._opened(path) as (_, index):
            if index is None or (slot := slot_of(path)) >= len(index) or index.identities[slot] != identity:
                return False
        self._set_state(path, LIVE)
        return True

    def free(self, path: bytes) -> None:
        """Give the bytes of a dead object back, and remove the segment with the last of them. Raises OSError."""
        file, slot = file_of(path), slot_of(path)
        with self._opened(path, os.O_RDWR) as (fd, index):
            if index is None or slot >= len(index):
                return  # nothing is certain: the doctor removes the whole of it when no catalog entry names it
            try:
                _write_state(fd, slot, FREED)
            except OSError as error:
                if not is_full(error):
                    raise
                # A file system that writes nothing in its place needs room for it.
                _punch_around(fd, index, [at == slot for at in range(len(index))], slot)
                _write_state(fd, slot, FREED)
            freed = decode_states(os.pread(fd, state_offset(len(index)), 0), len(index)) == np.uint64(FREED)
            if freed.all():
                with self._lock:
                    self._known.pop(file, None)
                os.unlink(file, dir_fd=self.objects_fd)
            else:
                _punch_around(fd, index, freed.tolist(), slot)

    def paths(self, file: bytes) -> Iterator[bytes]:
        """Of the objects in a segment whose bytes are there; of the segment itself when none can be told."""
        try:
            with self._opened(file) as (fd, index):
                states = [] if index is None else decode_states(os.pread(fd, index.index_bytes, 0), len(index)).tolist()
                generations = [] if index is None else [_generation(identity) for identity in index.identities]
        except FileNotFoundError:
            return
        left = [slot for slot, state in enumerate(states) if state != FREED]
        yield from (slot_path(file, slot, generations[slot]) for slot in left)
        if not left:
            yield file

    def _state(self, fd: int, slot: int) -> int:
        return int.from_bytes(os.pread(fd, 8, state_offset(slot)), "little")

    def _set_state(self, path: bytes, state: int) -> None:
        with self._opened(path, os.O_RDWR) as (fd, index):
            if index is not None and slot_of(path) < len(index):
                _write_state(fd, slot_of(path), state)

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


def _write_state(fd: int, slot: int, state: int) -> None:
    os.pwrite(fd, state.to_bytes(8, "little"), state_offset(slot))


def _punch_around(fd: int, index: SegmentIndex, freed: Sequence[bool], slot: int) -> None:
    """Where the file system cannot, the room comes back with the whole segment."""
    hole = hole_around(index, freed, slot, os.fstat(fd).st_size)
    if hole is not None and _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, hole[0], hole[1] - hole[0]):
        number = ctypes.get_errno()
        if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise OSError(number, os.strerror(number))


def _generation(identity: bytes) -> int:
    return fmt.decode_identity(identity).generation
