"""Segments: files that hold many small objects each. Pure functions over bytes; FORMAT.md has the prose.

What says which object is where stands in front and never changes. Only the states do, one number for each slot, written
in place: whether its object is alive, retained for snapshots, or gone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_node.store.checksum import crc32c
from storage_node.store.errors import FormatError

SEGMENT_FORMAT = 1
MAX_OBJECT_BYTES = 128 << 10
"""A larger object has a file of its own: making one costs little beside its bytes."""
PAGE_BYTES = 4096
_UNALIGNED_BYTES = 2048
"""Objects smaller than this share pages; others begin with one, so that their bytes can be given back."""

LIVE = 0
DEAD = 2**64 - 2
"""Replaced or deleted; readers that looked it up before may still come."""
FREED = 2**64 - 1
"""The bytes have been given back. Any other number: where it ended, of an object retained for snapshots."""

_MAGIC = b"AISS"
_HEAD = struct.Struct("<4sIIII")  # magic, format, slots, bytes of all entries, CRC-32C of these four and of the entries
_ENTRY = struct.Struct("<QIH")  # offset, size, bytes of the identity, which follows
_STATES_AT = 24
HEAD_BYTES = _HEAD.size

_FOLDER = b"segments/"


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """What never changes of a segment; lists have one value for each slot."""

    offsets: Sequence[int]
    """Of the objects' bytes, in the file; ascending."""
    sizes: Sequence[int]
    identities: Sequence[bytes]
    index_bytes: int
    """Of everything in front of the objects."""

    def __len__(self) -> int:
        return len(self.offsets)


# -- names


def segment_path(generation: int) -> bytes:
    return b"%b%02x/segment.%x" % (_FOLDER, generation & 63, generation)


def slot_path(segment: bytes, slot: int, generation: int) -> bytes:
    """What catalogs call the file of an object in a segment: as if the segment was a folder of such."""
    return b"%b/%x.%x" % (segment, slot, generation)


def is_segment(path: bytes) -> bool:
    """Of a segment itself."""
    return path.startswith(_FOLDER) and path.count(b"/") == 2


def is_slot(path: bytes) -> bool:
    return path.startswith(_FOLDER) and path.count(b"/") == 3


def file_of(path: bytes) -> bytes:
    """The file in which an object of this path lies."""
    return path[: path.rindex(b"/")] if is_slot(path) else path


def slot_of(path: bytes) -> int:
    """Raises FormatError."""
    try:
        return int(path[path.rindex(b"/") + 1 :].partition(b".")[0], 16)
    except ValueError:
        raise FormatError(f"{path!r} is not the path of an object in a segment") from None


def by_segment(paths: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, list[int]]]:
    """The paths of files that hold one object each; and of the others, by segment, the slots."""
    alone: list[bytes] = []
    slots: dict[bytes, list[int]] = {}
    for path in paths:
        if is_slot(path):
            slots.setdefault(file_of(path), []).append(slot_of(path))
        else:
            alone.append(path)
    return alone, slots


# -- layout


def lay_out(sizes: Sequence[int], identity_bytes: Sequence[int]) -> tuple[int, list[int]]:
    """Bytes of the index, and the offset of each object, of a segment with such objects and identities."""
    index_bytes = _STATES_AT + 8 * len(sizes) + sum(_ENTRY.size + size for size in identity_bytes)
    offsets: list[int] = []
    at = index_bytes
    for size in sizes:
        at = _round_up(at, PAGE_BYTES if size >= _UNALIGNED_BYTES else 8)
        offsets.append(at)
        at += size
    return index_bytes, offsets


def encode_index(index: SegmentIndex, states: Sequence[int]) -> bytes:
    entries = b"".join(
        _ENTRY.pack(offset, size, len(identity)) + identity
        for offset, size, identity in zip(index.offsets, index.sizes, index.identities, strict=True)
    )
    head = _HEAD.pack(_MAGIC, SEGMENT_FORMAT, len(index), len(entries), 0)[:-4]
    head += crc32c(entries, crc32c(head)).to_bytes(4, "little")
    return head.ljust(_STATES_AT, b"\0") + struct.pack(f"<{len(states)}Q", *states) + entries


def index_size(head: bytes) -> int:
    """Bytes of the whole index, from its first HEAD_BYTES. Raises FormatError."""
    _, slots, entries_bytes, _ = _head(head)
    return _STATES_AT + 8 * slots + entries_bytes


def decode_index(data: bytes) -> SegmentIndex:
    """Raises FormatError on anything that encode_index did not write."""
    _, slots, entries_bytes, checksum = _head(data)
    at = _STATES_AT + 8 * slots
    entries = data[at : at + entries_bytes]
    if len(entries) != entries_bytes or crc32c(entries, crc32c(data[: HEAD_BYTES - 4])) != checksum:
        raise FormatError("damaged index of a segment: its checksum differs")
    offsets, sizes, identities = [], [], []
    at = 0
    for _ in range(slots):
        offset, size, identity_bytes = _ENTRY.unpack_from(entries, at)
        at += _ENTRY.size
        offsets.append(offset)
        sizes.append(size)
        identities.append(entries[at : at + identity_bytes])
        at += identity_bytes
    return SegmentIndex(offsets, sizes, identities, _STATES_AT + 8 * slots + entries_bytes)


def _head(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < HEAD_BYTES:
        raise FormatError(f"damaged segment: {len(data)} bytes")
    magic, version, slots, entries_bytes, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != SEGMENT_FORMAT:
        raise FormatError(f"segment of format {version} ({magic!r}); this version reads format {SEGMENT_FORMAT}")
    return version, slots, entries_bytes, checksum


# -- states


def state_offset(slot: int) -> int:
    """Where in the file the state of a slot stands, in 8 bytes."""
    return _STATES_AT + 8 * slot


def decode_states(data: bytes, slots: int) -> npt.NDArray[np.uint64]:
    """Of all slots, from the first bytes of the file; shape (slots,). Raises FormatError when these are too few."""
    if len(data) < state_offset(slots):
        raise FormatError(f"damaged segment: {len(data)} bytes, too few for the states of {slots:,} objects")
    return np.frombuffer(data, "<u8", slots, _STATES_AT)


def holes_around(
    index: SegmentIndex, freed: Sequence[bool], slots: Iterable[int], file_bytes: int
) -> list[tuple[int, int]]:
    """The whole pages around these freed slots that hold nothing but freed objects: first byte and end of each run."""
    holes: list[tuple[int, int]] = []
    seen = -1  # the last slot of the run before
    for slot in sorted(slots):
        if slot <= seen:
            continue
        first = seen = slot
        while first > 0 and freed[first - 1]:
            first -= 1
        while seen + 1 < len(index) and freed[seen + 1]:
            seen += 1
        before = index.offsets[first - 1] + index.sizes[first - 1] if first else index.index_bytes
        behind = index.offsets[seen + 1] if seen + 1 < len(index) else _round_up(file_bytes, PAGE_BYTES)
        start, end = _round_up(before, PAGE_BYTES), behind // PAGE_BYTES * PAGE_BYTES
        if start < end:
            holes.append((start, end))
    return holes


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
