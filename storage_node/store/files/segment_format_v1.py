"""Segments of format 1: one index, whole or not, and states of eight bytes. They are read, and emptied; none is made.

Pure functions over bytes; FORMAT.md has the prose.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ais_loader.errors import StoreFormatError
from storage_node.store.checksum import crc32c
from storage_node.store.files.segment_format import MAGIC, UNKNOWN

HEAD_BYTES = 20
_HEAD = struct.Struct("<4sIIII")  # magic, format, slots, bytes of all entries, CRC-32C of these four and of the entries
_ENTRY = struct.Struct("<QIH")  # offset, size, bytes of the identity, which follows
_STATES_AT = 24


@dataclass(frozen=True, slots=True)
class FirstIndex:
    """What never changes of a segment; lists have one value for each slot."""

    offsets: Sequence[int]
    """Of the objects' bytes, in the file; ascending."""
    sizes: Sequence[int]
    identities: Sequence[bytes]
    index_bytes: int
    """Of everything in front of the objects."""

    def __len__(self) -> int:
        return len(self.offsets)


def is_first_format(head: bytes) -> bool:
    return len(head) >= HEAD_BYTES and _HEAD.unpack_from(head)[:2] == (MAGIC, 1)


def index_size(head: bytes) -> int:
    """Bytes of the whole index, from its first HEAD_BYTES, which say that it is of this format."""
    slots, entries_bytes = struct.unpack_from("<II", head, 8)
    return _STATES_AT + 8 * int(slots) + int(entries_bytes)


def decode_index(data: bytes) -> FirstIndex:
    """Raises StoreFormatError on what is damaged."""
    _, _, slots, entries_bytes, checksum = _HEAD.unpack_from(data)
    at = _STATES_AT + 8 * slots
    entries = data[at : at + entries_bytes]
    if len(entries) != entries_bytes or crc32c(entries, crc32c(data[: HEAD_BYTES - 4])) != checksum:
        raise StoreFormatError("damaged index of a segment: its checksum differs")
    offsets, sizes, identities = [], [], []
    at = 0
    for _ in range(slots):
        offset, size, identity_bytes = _ENTRY.unpack_from(entries, at)
        at += _ENTRY.size
        offsets.append(offset)
        sizes.append(size)
        identities.append(entries[at : at + identity_bytes])
        at += identity_bytes
    return FirstIndex(offsets, sizes, identities, _STATES_AT + 8 * slots + entries_bytes)


def state_offset(slot: int) -> int:
    """Where in the file the state of a slot stands, in 8 bytes."""
    return _STATES_AT + 8 * slot


def decode_states(data: bytes, slots: int) -> npt.NDArray[np.uint64]:
    """Of so many slots, UNKNOWN where the file has been cut before; shape (slots,)."""
    found = np.full(slots, UNKNOWN, np.uint64)
    there = np.frombuffer(data[: min(slots, len(data) // 8) * 8], "<u8")
    found[: len(there)] = there
    return found
