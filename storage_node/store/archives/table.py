"""Entry table of an archive during indexing: columns instead of objects, so that a million entries take about 60 MB.

Rows are added in the order of the archive and not looked up before `finish`. `finish` sorts them by name once: the last
entry of a name wins, and a hard link gets the bytes of the file that it referred to when it was written.

Threads: a table belongs to one thread.
"""

from __future__ import annotations

import os
from array import array
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from ais_loader.errors import ArchiveTooLarge
from storage_node.store.archives.member import STORED, ArchiveLimits, text_of

_FILE, _LINK, _OTHER = 0, 1, 2
_SLICED_AT_ONCE = 1 << 16

Longs = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]


class MemberColumns(NamedTuple):
    """Columns of n members, rows sorted by `hashes`; FORMAT.md describes how each column is stored."""

    seed: int
    hidden: int
    """Number of regular files that a later entry of the same name hides."""
    hashes: Longs
    offsets: Longs
    sizes: Longs
    checksums: npt.NDArray[np.uint32]
    packed: Longs
    methods: npt.NDArray[np.uint8]
    listing: npt.NDArray[np.uint32]
    """Row numbers in the order of the archive."""
    name_at: Longs
    """Shape (n + 1,): offset of each name in `names`, and the end of the last one."""
    names: bytes


class MemberTable:
    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._kinds = bytearray()
        self._offsets = array("Q")
        self._sizes = array("Q")
        self._checksums = array("I")
        self._packed = array("Q")
        self._methods = bytearray()
        self._names = bytearray()
        self._name_ends = array("Q")
        self._links: list[tuple[int, bytes]] = []
        self._links_bytes = 0

    def __len__(self) -> int:
        return len(self._kinds)

    def add_file(
        self, name: bytes, offset: int, size: int, checksum: int, packed: int | None = None, method: int = STORED
    ) -> None:
        self._add(_FILE if name else _OTHER, name, offset, size, checksum)
        self._packed.append(size if packed is None else packed)
        self._methods.append(method)

    def add_link(self, name: bytes, target: bytes) -> None:
        """Add a hard link to the latest earlier entry named `target`."""
        self._links.append((len(self._kinds), _utf8(self._check_name(target))))
        self._links_bytes += len(target) + 128  # memory of each list element
        self._add(_LINK if name else _OTHER, name, 0, 0, 0)
        self._packed.append(0)
        self._methods.append(STORED)

    def add_other(self, name: bytes) -> None:
        """Add a directory, symbolic link or device. It hides an earlier file of its name."""
        self._add(_OTHER, name, 0, 0, 0)
        self._packed.append(0)
        self._methods.append(STORED)

    def _add(self, kind: int, name: bytes, offset: int, size: int, checksum: int) -> None:
        if len(self._kinds) >= self._limits.members:
            raise ArchiveTooLarge(f"the archive has more than {self._limits.members} entries")
        self._names += _utf8(self._check_name(name))
        self._kinds.append(kind)
        self._name_ends.append(len(self._names))
        self._offsets.append(offset)
        self._sizes.append(size)
        self._checksums.append(checksum)

    def _check_name(self, name: bytes) -> bytes:
        if len(name) > self._limits.name_bytes:
            raise ArchiveTooLarge(f"a name of {len(name)} bytes; at most {self._limits.name_bytes} are served")
        if len(self._names) + self._links_bytes + len(name) > self._limits.names_bytes:
            raise ArchiveTooLarge(f"the names take more than {self._limits.names_bytes} bytes")
        return name

    def finish(self) -> MemberColumns:
        """Resolve duplicates and links, and return the members sorted by the hash of their names."""
        seed = int.from_bytes(os.urandom(8), "little")  # random, so that colliding names cannot be prepared
        count = len(self._kinds)
        ends = np.frombuffer(self._name_ends, np.uint64) if count else np.zeros(0, np.uint64)
        names = bytes(self._names)
        hashes = np.empty(count, np.uint64)
        start = 0
        for row, end in enumerate(self._name_ends):
            hashes[row] = xxhash.xxh3_64_intdigest(names[start:end], seed)
            start = end
        by_hash = np.lexsort((np.arange(count), hashes))
        finder = _Finder(names, ends, hashes, by_hash, seed)
        kinds = np.frombuffer(self._kinds, np.uint8).copy() if count else np.zeros(0, np.uint8)
        columns = [_column(array_, np.uint64) for array_ in (self._offsets, self._sizes, self._packed)]
        checksums, methods = _column(self._checksums, np.uint32), _column(self._methods, np.uint8)
        for row, target in self._links:  # in the order of the archive: a link to a link is resolved already
            found = finder.latest(target, row)
            if kinds[row] == _LINK and found is not None and kinds[found] == _FILE:
                kinds[row] = _FILE
                for column in (*columns, checksums, methods):
                    column[row] = column[found]
        last = finder.last_of_each_name()
        kept = last[kinds[last] == _FILE]
        listing = np.empty(len(kept), np.uint32)
        listing[:] = np.argsort(kept, kind="stable")
        offsets, sizes, packed = (column[kept] for column in columns)
        hidden = int(np.count_nonzero(kinds == _FILE)) - len(kept)
        lengths = np.diff(ends, prepend=np.uint64(0))[kept].astype(np.int64)
        name_at = np.zeros(len(kept) + 1, np.uint64)
        np.cumsum(lengths, out=name_at[1:], dtype=np.uint64)
        starts = ends[kept].astype(np.int64) - lengths
        blob = _sliced(names, starts, lengths)
        return MemberColumns(
            seed, hidden, hashes[kept], offsets, sizes, checksums[kept], packed, methods[kept], listing, name_at, blob
        )


class _Finder:
    """Finds rows by name, over rows sorted by hash. The bytes decide whether names of equal hash are equal."""

    def __init__(self, names: bytes, ends: Longs, hashes: Longs, by_hash: Rows, seed: int) -> None:
        self._names, self._ends, self._seed = names, ends, seed
        self._by_hash = by_hash
        self._sorted = hashes[by_hash]

    def _name(self, row: int) -> bytes:
        return self._names[int(self._ends[row - 1]) if row else 0 : int(self._ends[row])]

    def latest(self, name: bytes, before: int) -> int | None:
        """Return the greatest row of this name below `before`."""
        digest = np.uint64(xxhash.xxh3_64_intdigest(name, self._seed))
        first, stop = (int(np.searchsorted(self._sorted, digest, side)) for side in ("left", "right"))
        run = self._by_hash[first:stop]
        # Searched one by one from the end: a file may be written a million times, and linked to as often.
        for at in range(int(np.searchsorted(run, before)) - 1, -1, -1):
            row = run.item(at)
            if self._name(row) == name:
                return row
        return None

    def last_of_each_name(self) -> Rows:
        """Return the last row of each name, sorted by hash."""
        if not len(self._sorted):
            return self._by_hash
        ends_run = np.append(self._sorted[1:] != self._sorted[:-1], True)
        keep = ends_run.copy()
        # Rows ascend inside a run of equal hashes. A row is kept if no later row of the run has its name.
        runs = np.flatnonzero(~ends_run)
        seen: set[bytes] = set()
        stop = -1
        for at in runs[::-1].tolist():
            if at + 1 != stop:
                seen = {self._name(int(self._by_hash[at + 1]))}
            stop = at
            name = self._name(int(self._by_hash[at]))
            keep[at] = name not in seen
            seen.add(name)
        rows: Rows = self._by_hash[keep]
        return rows


def _sliced(names: bytes, starts: Rows, lengths: Rows) -> bytes:
    """Slice in portions: Python integers and slices for all names at once would take more memory than the columns."""
    parts = []
    for at in range(0, len(starts), _SLICED_AT_ONCE):
        some = slice(at, at + _SLICED_AT_ONCE)
        places = zip(starts[some].tolist(), lengths[some].tolist(), strict=True)
        parts.append(b"".join([names[start : start + length] for start, length in places]))
    return b"".join(parts)


def _column(values: array[int] | bytearray, dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.frombuffer(values, dtype).copy() if len(values) else np.zeros(0, dtype)


def _utf8(name: bytes) -> bytes:
    return text_of(name).encode()
