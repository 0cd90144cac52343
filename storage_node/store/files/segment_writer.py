"""Segment writer: puts the small objects of one commit into one file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from storage_node.store.files.segment_format import (
    FREED,
    LIVE,
    Head,
    encode_head,
    encode_index,
    holes_around,
    lay_out,
    segment_path,
    slot_path,
)
from storage_node.store.files.segments import punch
from storage_node.store.files.staged_file import Buffer, StagedFile


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
        places = list(zip(self._offsets, self._sizes, strict=True))
        left_out = np.flatnonzero(freed).tolist()
        punch(
            self.file.fd,
            holes_around(freed, left_out, places.__getitem__, self._head.index_bytes, self._head.copy_at),
        )
        return True

    def _index(self, states: Sequence[int]) -> bytes:
        return encode_index(self._head, self._offsets, self._sizes, self._identities, states)
