"""Segment format: files that hold many small objects each. Pure functions over bytes; FORMAT.md describes the format.

The index lists the objects. It is at the beginning and once more at the end, in rows of equal length, each with a
checksum: parts that are damaged in one copy are read from the other. Only the states change, one for each slot, written
in place in both copies: whether the object is alive, retained for snapshots, or gone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ais_loader.errors import StoreFormatError
from storage_node.store.checksum import crc32c

SEGMENT_FORMAT = 2
MAX_OBJECT_BYTES = 128 << 10
"""Larger objects have files of their own: the cost of a file is small beside their bytes."""
PAGE_BYTES = 4096
UNALIGNED_BYTES = 2048
"""Objects smaller than this share pages. Others are aligned to a page, so that their bytes can be freed."""

LIVE = 0
UNKNOWN = 2**64 - 3
"""No copy of the index has a valid state. Never written."""
DEAD = 2**64 - 2
"""Replaced or deleted. Readers that looked it up earlier may still read it."""
FREED = 2**64 - 1
"""The bytes have been freed. Any other number is the counter at which an object retained for snapshots ended."""

MAGIC = b"AISS"
_HEAD = struct.Struct("<4sIIIQI4x")  # magic, format, slots, bytes of the index, offset of the copy, CRC-32C of these
HEAD_BYTES = _HEAD.size
_STATE = struct.Struct("<QQ")  # the state, and a check value computed from it, so that damage is detected
_PLACE = struct.Struct(
    "<QIIIIII"
)  # offset, size, offset of the identity, its size, its CRC-32C, slot, CRC-32C of these
_CHECK_TIMES, _CHECK_XOR = 0x9E3779B97F4A7C15, 0xA1552653A1552653
_CHECK_TIMES_U64, _CHECK_XOR_U64, _UNKNOWN_U64 = np.uint64(_CHECK_TIMES), np.uint64(_CHECK_XOR), np.uint64(UNKNOWN)
ROW = np.dtype(
    [
        ("state", "<u8"),
        ("check", "<u8"),
        ("offset", "<u8"),
        ("size", "<u4"),
        ("identity_at", "<u4"),
        ("identity_bytes", "<u4"),
        ("identity_checksum", "<u4"),
        ("slot", "<u4"),
        ("checksum", "<u4"),
    ]
)
ROW_BYTES = ROW.itemsize
STATE_BYTES = _STATE.size

SEGMENTS = b"segments"
"""Folder of all segments."""
_FOLDER = SEGMENTS + b"/"


class Head(NamedTuple):
    """Head of a segment, stored at its beginning, before the second copy of the index and at its end."""

    slots: int
    index_bytes: int
    copy_at: int
    """Offset of the second copy of the index."""

    @property
    def file_bytes(self) -> int:
        return self.copy_at + self.index_bytes + HEAD_BYTES


class SlotPlace(NamedTuple):
    """Location of one slot's object in the file, and of its identity in the index."""

    offset: int
    size: int
    identity_at: int
    identity_bytes: int
    identity_checksum: int


class SegmentUse(NamedTuple):
    """Space of one segment, in bytes."""

    live_bytes: int
    """Space that the objects that still exist would take in a new segment, with their part of the index."""
    written_bytes: int
    """Space that all its objects took when it was written."""
    allocated_bytes: int
    """Space that the file takes now. All three are 0 if it has been removed."""

    @property
    def is_removed(self) -> bool:
        return not self.written_bytes

    @property
    def is_sparse(self) -> bool:
        """Whether less than half of it is live, by what was written and by what it takes now."""
        return 2 * self.live_bytes < min(self.written_bytes, self.allocated_bytes)


REMOVED = SegmentUse(0, 0, 0)

# -- names


def segment_path(generation: int) -> bytes:
    return b"%b%02x/segment.%x" % (_FOLDER, generation & 63, generation)


def slot_path(segment: bytes, slot: int, generation: int) -> bytes:
    """Return the path of an object in a segment, as catalogs name it: as if the segment was a folder."""
    return b"%b/%x.%x" % (segment, slot, generation)


def is_segment(path: bytes) -> bool:
    return path.startswith(_FOLDER) and path.count(b"/") == 2


def is_slot(path: bytes) -> bool:
    return path.startswith(_FOLDER) and path.count(b"/") == 3


def file_of(path: bytes) -> bytes:
    """Return the file that contains the object of this path."""
    return path[: path.rindex(b"/")] if is_slot(path) else path


def slot_of(path: bytes) -> int:
    """Return the slot of an object's path. Raises StoreFormatError."""
    try:
        return int(path[path.rindex(b"/") + 1 :].partition(b".")[0], 16)
    except ValueError:
        raise StoreFormatError(f"{path!r} is not the path of an object in a segment") from None


def by_segment(paths: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, list[int]]]:
    """Separate the paths of files with one object each from the others; return the latter as slots by segment."""
    alone: list[bytes] = []
    slots: dict[bytes, list[int]] = {}
    for path in paths:
        if is_slot(path):
            slots.setdefault(path[: path.rindex(b"/")], []).append(slot_of(path))
        else:
            alone.append(path)
    return alone, slots


# -- layout


def lay_out(sizes: Sequence[int], identity_bytes: Sequence[int]) -> tuple[Head, list[int]]:
    """Return the head of a segment with objects and identities of these sizes, and the offset of each object."""
    index_bytes = HEAD_BYTES + ROW_BYTES * len(sizes) + sum(identity_bytes)
    offsets: list[int] = []
    at = index_bytes
    for size in sizes:
        at = round_up(at, PAGE_BYTES if size >= UNALIGNED_BYTES else 8)
        offsets.append(at)
        at += size
    # The copy starts on a page of its own, so that losing the beginning of a small segment does not affect its end.
    return Head(len(sizes), index_bytes, round_up(at, PAGE_BYTES)), offsets


def fresh_bytes(rows: bytes, slots: int) -> npt.NDArray[np.int64]:
    """Return the space that each object takes in a new segment, with its rows and identities. Shape (slots,).

    A damaged row may give any number.
    """
    table = np.frombuffer(rows[: ROW_BYTES * slots], ROW)
    sizes = table["size"].astype(np.int64)
    steps = np.where(sizes >= UNALIGNED_BYTES, PAGE_BYTES, 8)
    return -(-sizes // steps) * steps + 2 * (ROW_BYTES + table["identity_bytes"].astype(np.int64))


def encode_index(
    head: Head, offsets: Sequence[int], sizes: Sequence[int], identities: Sequence[bytes], states: Sequence[int]
) -> bytes:
    rows: list[bytes] = []
    at = HEAD_BYTES + ROW_BYTES * head.slots
    for slot, (offset, size, identity, state) in enumerate(zip(offsets, sizes, identities, states, strict=True)):
        place = _PLACE.pack(offset, size, at, len(identity), crc32c(identity), slot, 0)[:-4]
        rows.append(encode_state(state) + place + crc32c(place).to_bytes(4, "little"))
        at += len(identity)
    return b"".join((encode_head(head), *rows, *identities))


def encode_head(head: Head) -> bytes:
    fields = (MAGIC, SEGMENT_FORMAT, *head)
    return _HEAD.pack(*fields, crc32c(_HEAD.pack(*fields, 0)[:-8]))


def decode_head(data: bytes) -> Head:
    """Decode a head. Raises StoreFormatError for anything that encode_head would not write."""
    if len(data) < HEAD_BYTES:
        raise StoreFormatError(f"damaged segment: {len(data)} bytes")
    magic, version, *fields, checksum = _HEAD.unpack_from(data)
    if magic != MAGIC or version != SEGMENT_FORMAT:
        raise StoreFormatError(f"segment of format {version} ({magic!r}); this version reads format {SEGMENT_FORMAT}")
    if crc32c(data[: HEAD_BYTES - 8]) != checksum or any(data[HEAD_BYTES - 4 : HEAD_BYTES]):
        raise StoreFormatError("damaged segment: the checksum of its head differs")
    return Head(*fields)


def row_offset(slot: int) -> int:
    """Return the offset of a slot's row in the index. A row is its state in 16 bytes, which no sector border divides,
    and its place."""
    return HEAD_BYTES + ROW_BYTES * slot


def decode_place(row: bytes | memoryview, slot: int) -> SlotPlace | None:
    """Decode a row, or return None if it is damaged."""
    if len(row) < ROW_BYTES:
        return None
    *fields, of_slot, checksum = _PLACE.unpack_from(row, STATE_BYTES)
    if of_slot != slot or crc32c(row[STATE_BYTES : ROW_BYTES - 4]) != checksum:
        return None
    return SlotPlace(*fields)


# -- states


def encode_state(state: int) -> bytes:
    return _STATE.pack(state, _check(state))


def _check(state: int) -> int:
    return state * _CHECK_TIMES % 2**64 ^ _CHECK_XOR


def decode_state(row: bytes) -> int:
    """Decode a state; UNKNOWN if it is damaged or missing."""
    if len(row) < STATE_BYTES:
        return UNKNOWN
    state, check = _STATE.unpack_from(row)
    return int(state) if check == _check(state) else UNKNOWN


def decode_states(rows: bytes, slots: int) -> npt.NDArray[np.uint64]:
    """Decode the states of `slots` rows, UNKNOWN where they are damaged or missing; shape (slots,)."""
    table = np.frombuffer(rows[: min(slots, len(rows) // ROW_BYTES) * ROW_BYTES], ROW)
    states = table["state"]
    found = np.where(states * _CHECK_TIMES_U64 ^ _CHECK_XOR_U64 == table["check"], states, _UNKNOWN_U64)
    if len(found) < slots:
        found = np.concatenate([found, np.full(slots - len(found), _UNKNOWN_U64)])
    return found


def merge_states(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Merge the states of two copies: the known one, or the later one if both are known. All have the same shape.

    They differ after a crash between the two writes of a state. States advance towards the end of an object, so the
    greater one is the later one.
    """
    later = np.maximum(one, other)
    return np.where(one == UNKNOWN, other, np.where(other == UNKNOWN, one, later))


def with_states(rows: bytes, which: Sequence[int], state: int) -> bytes:
    """Return the rows with the state of some of them replaced."""
    changed = np.frombuffer(rows, ROW).copy()
    at = list(which)
    changed["state"][at], changed["check"][at] = state, _check(state)
    return changed.tobytes()


def holes_around(
    freed: npt.NDArray[np.bool_],
    slots: Iterable[int],
    place: Callable[[int], tuple[int, int] | None],
    first_byte: int,
    end: int,
) -> list[tuple[int, int]]:
    """Return the runs of whole pages around these freed slots that contain only freed objects, as first byte and end.

    `freed` has shape (slots,). `place` returns offset and size of an object, or None if they are unknown; the pages
    next to such an object are kept. The objects lie between `first_byte` and `end`.
    """
    kept = np.flatnonzero(~freed)
    holes: list[tuple[int, int]] = []
    for at in sorted(set(np.searchsorted(kept, list(slots)).tolist())):
        before = place(int(kept[at - 1])) if at else (first_byte, 0)
        behind = place(int(kept[at])) if at < len(kept) else (end, 0)
        if before is None or behind is None:
            continue
        start, stop = round_up(sum(before), PAGE_BYTES), behind[0] // PAGE_BYTES * PAGE_BYTES
        if start < stop:
            holes.append((start, stop))
    return holes


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step
