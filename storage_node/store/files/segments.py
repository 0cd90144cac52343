"""Segments of one drive: states and identities of their slots, and freeing the bytes of single objects.

A segment is removed with its last object. Until then, holes are punched where objects were removed, so that a segment
with few objects left takes no more space than they need.

Threads: any. States are written in place and only advance towards the end of an object, because a late mark must not
revive an object whose bytes were freed meanwhile. The exceptions are `set_ended`, which may undo its own mark, and
`own`, which the doctor uses.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ais_loader.errors import StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.files.error_counters import ErrorCounters
from storage_node.store.files.segment_file import SegmentFile, open_segment, states_of
from storage_node.store.files.segment_format import (
    DEAD,
    FREED,
    LIVE,
    PAGE_BYTES,
    REMOVED,
    UNKNOWN,
    Head,
    SegmentUse,
    encode_head,
    encode_index,
    file_of,
    holes_around,
    lay_out,
    round_up,
    segment_path,
    slot_of,
    slot_path,
)
from storage_node.store.files.staged_file import Buffer, StagedFile, is_full

_GONE = (DEAD, FREED)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Flags of fallocate(2)."""
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Segments:
    """Segments below the folder `objects_fd`, which is -1 after it has been closed."""

    def __init__(self, objects_fd: int, faults: ErrorCounters) -> None:
        self.objects_fd = objects_fd
        self.removed: Callable[[bytes], None] | None = None
        """Called with the path of each segment that has been removed."""
        self._faults = faults
        self._states = threading.Lock()  # held from reading a state until the new one is written

    def identity(self, path: bytes) -> bytes | None:
        """Return the identity of the object at this path; None if it is dead or unidentifiable. Raises OSError."""
        with self._opened(path) as (_, segment):
            if segment is None or (slot := slot_of(path)) >= segment.slots:
                return None
            return None if segment.state(slot) in (*_GONE, UNKNOWN) else segment.identity(slot)

    def offset(self, path: bytes) -> int:
        """Return the offset of its bytes in the segment. Raises OSError, StoreFormatError."""
        with self._opened(path) as (_, segment):
            place = segment.place(slot) if segment and (slot := slot_of(path)) < segment.slots else None
            if place is None:
                raise StoreFormatError(f"{path!r}: the segment does not say where it is")
            return place[0]

    def is_freed(self, path: bytes) -> bool:
        """Whether its bytes have been freed. Raises OSError."""
        with self._opened(path) as (_, segment):
            return segment is not None and ((slot := slot_of(path)) >= segment.slots or segment.state(slot) == FREED)

    def ended(self, path: bytes) -> int | None:
        """Return the counter at which an object that is retained for snapshots ended. Raises OSError."""
        with self._opened(path) as (_, segment):
            if segment is None or (slot := slot_of(path)) >= segment.slots:
                return None
            state = segment.state(slot)
            return None if state in (LIVE, UNKNOWN, *_GONE) else state

    def set_ended(self, path: bytes, ended: int | None) -> None:
        """Set or remove that counter. Harmless if the object is dead. Raises OSError."""
        self._set_state(file_of(path), [slot_of(path)], LIVE if ended is None else ended, unless=_GONE)

    def disown(self, file: bytes, slots: Sequence[int]) -> None:
        """Mark the objects in these slots dead, so that rebuilding the catalog does not bring them back. Raises
        OSError."""
        self._set_state(file, slots, DEAD, unless=(FREED,))

    def own(self, path: bytes, identity: bytes) -> bool:
        """Mark the object alive. Returns False if the segment has another identity for it. Raises OSError."""
        with self._opened(path) as (_, segment):
            if segment is None or (slot := slot_of(path)) >= segment.slots or segment.identity(slot) != identity:
                return False
        return bool(self._set_state(file_of(path), [slot], LIVE, unless=(FREED,)))

    def free(self, file: bytes, slots: Sequence[int], *, durably: bool = False) -> SegmentUse | None:
        """Free the bytes of dead objects, and remove the segment with the last of them. Returns the space that it takes
        then; None if its index cannot be read or, with `durably`, does not tell where they all are. Raises OSError."""
        with self._opened(file, os.O_RDWR) as (fd, segment):
            if segment is None:
                return None  # the doctor reports it when no entry names it
            return self._free(file, fd, segment, [slot for slot in slots if slot < segment.slots], durably=durably)

    def _free(
        self, file: bytes, fd: int, segment: SegmentFile, slots: Sequence[int], *, durably: bool = False
    ) -> SegmentUse | None:
        with self._states:
            try:
                segment.set_states(slots, FREED)
            except OSError as error:
                if not is_full(error):
                    raise
                # A copy-on-write file system needs free space even to overwrite, so the bytes are freed first.
                mask = np.zeros(segment.slots, bool)
                mask[list(slots)] = True
                punch(fd, holes_around(mask, slots, segment.place, segment.first_byte, segment.end))
                segment.set_states(slots, FREED)
            freed = segment.states() == FREED
        if freed.all():
            # A reader in another process may have the segment open, or mapped: its bytes are freed nevertheless.
            with contextlib.suppress(OSError):
                punch(fd, [(round_up(segment.first_byte, PAGE_BYTES), segment.end)])
            self._unlink(file)
            return REMOVED
        # If a state could not be written, because the file is truncated, its bytes are not freed.
        gone = [slot for slot in slots if freed[slot]]
        _erase(fd, segment, freed, gone, whole=durably)
        if durably:
            os.fsync(fd)
            if len(gone) < len(slots) or any(segment.place(slot) is None for slot in gone):
                return None
        return segment.use(freed)

    def use(self, file: bytes) -> SegmentUse | None:
        """Return the space that a segment takes; None if its index cannot be read. Raises OSError."""
        with self._opened(file) as (_, segment):
            return None if segment is None else segment.use(segment.states() == FREED)

    def living(self, file: bytes) -> list[tuple[int, bytes]]:
        """Return slot and identity of the objects that are alive and identifiable. Raises OSError."""
        with self._opened(file) as (_, segment):
            if segment is None:
                return []
            found = zip(segment.states().tolist(), segment.identities(), strict=True)
            return [(slot, identity) for slot, (state, identity) in enumerate(found) if state == LIVE and identity]

    def drop_unknown(self, file: bytes) -> None:
        """Free all slots that cannot be identified; remove the file if that is all of them. Raises OSError."""
        try:
            with self._opened(file, os.O_RDWR) as (fd, segment):
                if segment is not None:
                    left = np.flatnonzero(segment.states() != FREED).tolist()
                    unknown = [slot for slot in left if _is_untold(segment, slot)]
                    if len(unknown) < len(left):
                        self._free(file, fd, segment, unknown)
                        return
        except FileNotFoundError:
            return
        except OSError:
            pass  # an unreadable segment is removed as a whole
        self._unlink(file)

    def _unlink(self, file: bytes) -> None:
        os.unlink(file, dir_fd=self.objects_fd)
        if self.removed is not None:
            self.removed(file)

    def paths(self, file: bytes) -> Iterator[bytes]:
        """Iterate over the paths of objects whose bytes exist, and the segment's own path if it has unidentifiable
        objects."""
        left: list[bytes] = []
        untold = False
        try:
            with self._opened(file) as (_, segment):
                states: list[int] = [] if segment is None else segment.states().tolist()
                identities = [] if segment is None else segment.identities()
            for slot, (state, identity) in enumerate(zip(states, identities, strict=True)):
                if state != FREED and identity is not None:
                    left.append(slot_path(file, slot, _generation(identity)))
                untold |= state != FREED and identity is None
        except FileNotFoundError:
            return
        except (OSError, StoreFormatError):
            left = []  # one bad sector must not end a walk over the whole drive
        yield from left
        if untold or not left:
            yield file

    def is_spent(self, file: bytes) -> bool:
        """Whether a segment certainly contains no objects any more. Raises OSError."""
        with self._opened(file) as (_, segment):
            return segment is not None and bool((segment.states() == FREED).all())

    def is_untold(self, path: bytes) -> bool:
        """Whether it is unknown if there is an object in this slot, or which one. Raises OSError."""
        with self._opened(path) as (_, segment):
            if segment is None:
                return True
            return (slot := slot_of(path)) < segment.slots and _is_untold(segment, slot)

    def is_damaged(self, file: bytes, *, in_motion: bool) -> bool:
        """Whether one copy of the segment's index is damaged and the other one readable; see `SegmentFile`.

        Raises OSError.
        """
        with self._opened(file) as (_, segment):
            return segment is not None and segment.is_damaged(in_motion=in_motion)

    def mend(self, file: bytes) -> bool:
        """Restore both copies of the segment's index. Returns whether they are complete. Raises OSError."""
        with self._opened(file, os.O_RDWR) as (_, segment), self._states:
            return segment is not None and segment.mend()

    def _set_state(self, file: bytes, slots: Sequence[int], state: int, *, unless: Sequence[int]) -> int:
        """Set a state unless the current one is in `unless` or the index is damaged. Returns the number of changed
        slots. Raises OSError."""
        with self._opened(file, os.O_RDWR) as (_, segment), self._states:
            slots = [slot for slot in slots if segment is not None and slot < segment.slots]
            if segment is None or not slots:
                return 0
            before = states_of(segment, slots)
            changed = [slot for slot, was in zip(slots, before, strict=True) if was not in unless]
            segment.set_states(changed, state)
        return len(changed)

    @contextlib.contextmanager
    def _opened(self, path: bytes, flags: int = os.O_RDONLY) -> Iterator[tuple[int, SegmentFile | None]]:
        """Open the segment's file and its index; the latter is None if it is damaged. Raises OSError."""
        file = file_of(path)
        fd = -1
        try:
            fd = os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.objects_fd)
            yield fd, open_segment(fd, self._note)
        except OSError as error:
            self._note(error)
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    def _note(self, error: OSError) -> None:
        self._faults.note(error, "looking after an object")


def _is_untold(segment: SegmentFile, slot: int) -> bool:
    state = segment.state(slot)
    return state == UNKNOWN or (state not in _GONE and segment.identity(slot) is None)


def _erase(fd: int, segment: SegmentFile, freed: npt.NDArray[np.bool_], slots: Sequence[int], *, whole: bool) -> None:
    """Leave nothing of these slots, and free their pages. Raises OSError."""
    segment.wipe(slots, whole=whole)  # first: it would fill the holes
    if not punch(fd, holes_around(freed, slots, segment.place, segment.first_byte, segment.end)):
        segment.wipe(slots, whole=True)


def punch(fd: int, holes: Iterable[tuple[int, int]]) -> bool:
    """Punch holes into a file. Returns False if the file system cannot: the space is freed with the whole file. Raises
    OSError."""
    for start, end in holes:
        if _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, end - start):
            number = ctypes.get_errno()
            if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(number, os.strerror(number))
            return False
    return True


def _generation(identity: bytes) -> int:
    return fmt.decode_identity(identity).generation


class SegmentDraft:
    """Segment in preparation: every object is described first, then the segment is written. Belongs to one thread."""

    def __init__(self, file: StagedFile, generation: int, objects: Sequence[StagedFile]) -> None:
        """`file` is empty. `objects` are held in memory until the segment has been written."""
        self.file = file
        self.path = segment_path(generation)
        self._objects = objects
        self._slots = {id(held): slot for slot, held in enumerate(objects)}
        self._sizes = [held.size_bytes for held in objects]
        self._identities: list[bytes] = [b""] * len(objects)
        self._offsets: Sequence[int] = ()
        self._head = Head(0, 0, 0)
        self._stale = False

    def __contains__(self, file: StagedFile) -> bool:
        return id(file) in self._slots

    def describe(self, file: StagedFile, identity: bytes, generation: int) -> tuple[bytes, int] | None:
        """Set the identity of one of the objects. Returns its path and its offset, which is 0 until the segment is
        written.

        After that it may be described again, in the same number of bytes. Returns None for a file that is not in this
        segment.
        """
        slot = self._slots.get(id(file))
        if slot is None:
            return None
        assert not self._offsets or len(identity) == len(self._identities[slot])
        self._stale = bool(self._offsets)
        self._identities[slot] = identity
        return slot_path(self.path, slot, generation), self._offsets[slot] if self._offsets else 0

    def offset(self, file: StagedFile) -> int | None:
        """Return the offset of an object after `write`; None for a file that is not in this segment."""
        slot = self._slots.get(id(file))
        return None if slot is None else self._offsets[slot]

    def write(self) -> None:
        """Write the segment. Raises OSError."""
        self._head, self._offsets = lay_out(self._sizes, [len(identity) for identity in self._identities])
        index = self._index([LIVE] * len(self._slots))
        content: list[Buffer] = [index]
        at = len(index)
        for held, offset in zip(self._objects, self._offsets, strict=True):
            assert held.held is not None
            if offset > at:
                content.append(bytes(offset - at))
            content += held.held
            at = offset + held.size_bytes
        self.file.append_all([*content, bytes(self._head.copy_at - at), index, encode_head(self._head)])

    def keep_only(self, files: Iterable[StagedFile]) -> bool:
        """Free all other objects, which are not committed. Returns whether the written file had to be changed. Raises
        OSError."""
        kept = {self._slots[id(file)] for file in files}
        freed = np.array([slot not in kept for slot in range(len(self._slots))])
        if not self._stale and not freed.any():
            return False
        self._stale = False
        index = self._index([FREED if is_freed else LIVE for is_freed in freed])
        for at in (0, self._head.copy_at):
            os.pwrite(self.file.fd, index, at)
        segment = SegmentFile(self.file.fd, self._head, lambda _: None)
        _erase(self.file.fd, segment, freed, np.flatnonzero(freed).tolist(), whole=False)
        return True

    def _index(self, states: Sequence[int]) -> bytes:
        return encode_index(self._head, self._offsets, self._sizes, self._identities, states)
