"""Group: objects that are coded together, where each of them is, and its manifest. Pure.

A group of `data` + `parity` fragments of F bytes each holds `data` × F bytes: fragment j has those from j × F on, the
others are parity. Small objects do not cross the border between two fragments, so that one range of one fragment has
all of such an object. The rest of a fragment is zeros. A very large object has a group of its own.

The manifest says which objects a group holds and the names of its fragments, which are objects of the companion bucket.
A group is never changed, but fragments are written again under other names when they are lost, and with zeros in the
place of denied objects, which the manifest does not have then. The manifest is JSON, compressed with zlib; it is an
object, so its checksum is in the catalog. Its fields are those of `Manifest`, slots by columns.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ais_loader.errors import StoreFormatError
from storage_node.store.format import Version

_FORMAT = 1
SMALL_BYTES = 256 << 10
"""An object up to this size is in one fragment."""
ALIGNED_BYTES, _STEP_BYTES = 4 << 10, 64 << 10
"""Fragments are multiples of the first, and grow by the second until all objects fit."""


class Slot(NamedTuple):
    """An object in a group."""

    name: str
    version: Version
    offset: int
    size_bytes: int
    checksum: int


class Piece(NamedTuple):
    """Range of a fragment."""

    fragment: int
    """Index of the fragment in its group."""
    start: int
    size_bytes: int


class Manifest(NamedTuple):
    """Contents of a group, and where its fragments are."""

    group: bytes
    """UUID of version 7."""
    data: int
    parity: int
    fragment_bytes: int
    bucket_uuid: bytes
    fragments: tuple[str, ...]
    """Name of each fragment in the companion bucket, by index."""
    slots: tuple[Slot, ...]

    def pieces(self, offset: int, size_bytes: int) -> list[Piece]:
        """Return the ranges of data fragments that a range of the group consists of, in order. Raises StoreFormatError
        if it is not in the group."""
        end = offset + size_bytes
        if offset < 0 or size_bytes < 0 or end > self.data * self.fragment_bytes:
            raise StoreFormatError(f"bytes {offset:,} to {end:,} are not in group {self.group.hex()}")
        found: list[Piece] = []
        while offset < end:
            index, start = divmod(offset, self.fragment_bytes)
            found.append(Piece(index, start, min(self.fragment_bytes - start, end - offset)))
            offset += found[-1].size_bytes
        return found

    def joined(self) -> Manifest:
        """Return the manifest with one slot, without a name, for objects that follow each other."""
        found: list[list[int]] = []
        for offset, size_bytes in sorted((slot.offset, slot.size_bytes) for slot in self.slots):
            if found and sum(found[-1]) == offset:
                found[-1][1] += size_bytes
            else:
                found.append([offset, size_bytes])
        return self._replace(slots=tuple(Slot("", Version(0, 0), offset, size, 0) for offset, size in found))

    def encode(self) -> bytes:
        names, versions, *columns = zip(*self.slots, strict=True) if self.slots else ([],) * 5
        fields = (
            *(self.group.hex(), self.data, self.parity, self.fragment_bytes, self.bucket_uuid.hex(), self.fragments),
            *(names, [list(version) for version in versions], *columns),
        )
        return zlib.compress(json.dumps([_FORMAT, *fields], ensure_ascii=False, separators=(",", ":")).encode(), 1)

    @classmethod
    def decode(cls, encoded: bytes) -> Manifest:
        """Decode a manifest. Raises StoreFormatError for anything that `encode` did not write."""
        try:
            number, group, data, parity, fragment_bytes, bucket_uuid, fragments, *columns = json.loads(
                zlib.decompress(encoded)
            )
            if number != _FORMAT or len(fragments) != data + parity:
                raise StoreFormatError(f"manifest of format {number}; this version reads {_FORMAT}")
            slots = tuple(Slot(name, Version(*version), *where) for name, version, *where in zip(*columns, strict=True))
            group, bucket_uuid = bytes.fromhex(group), bytes.fromhex(bucket_uuid)
            return cls(group, data, parity, fragment_bytes, bucket_uuid, tuple(fragments), slots)
        except (zlib.error, ValueError, TypeError) as error:
            raise StoreFormatError(f"damaged manifest of {len(encoded)} bytes: {error}") from error


def lay_out(sizes: Sequence[int], data: int, most_fragment_bytes: int) -> tuple[list[int], int]:
    """Return the offset of each object in its group, and the size of the group's fragments.

    Objects are laid one after another, small ones each in one fragment. Objects that do not fit are left out at the
    end. The first one always fits: if it is larger than a group with the largest fragments, it is alone in larger ones.
    """
    if sizes and sizes[0] > data * most_fragment_bytes:
        return [0], _aligned(-(-sizes[0] // data))
    small_bytes = min(SMALL_BYTES, most_fragment_bytes)
    most_small = max((size for size in sizes if size <= small_bytes), default=0)
    fragment_bytes = min(_aligned(max(most_small, -(-sum(sizes) // data), 1)), most_fragment_bytes)
    while len(offsets := _offsets(sizes, data, fragment_bytes, small_bytes)) < len(sizes):
        if fragment_bytes == most_fragment_bytes:
            break
        fragment_bytes = min(fragment_bytes + _STEP_BYTES, most_fragment_bytes)
    return offsets, fragment_bytes


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES


def _offsets(sizes: Sequence[int], data: int, fragment_bytes: int, small_bytes: int) -> list[int]:
    offsets: list[int] = []
    at = 0
    for size_bytes in sizes:
        if size_bytes <= small_bytes and at % fragment_bytes + size_bytes > fragment_bytes:
            at = -(-at // fragment_bytes) * fragment_bytes
        if at + size_bytes > data * fragment_bytes:
            break
        offsets.append(at)
        at += size_bytes
    return offsets
