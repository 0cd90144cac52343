"""Locations of objects: what reading a batch needs to know of each, without a Python object for every object.

`Locations` is a table from catalog keys to the file, offset, size and checksum of an object. `find` looks up a whole
batch in one call and fills the caller's columns. The tables of a process are bounded together; when they are full, the
one that grows forgets everything, unless it has less than an even share. A table is never asked whether an object
exists: what it does not know is read from the catalog.

A `StoredFile` is a file that holds objects. It takes the place of the file's path in the batch reader's `paths`. The
native batch reader maps a segment that was read several times without waiting for a drive, and from then on copies its
objects out of the mapping. Locations in a file become void when the file is dropped; so does its mapping, which would
otherwise keep the bytes of a removed file on the drive.

Two implementations share this contract: `_native.c`, and the classes below, which are the reference.
AIS_LOADER_READER selects one, as for the batch reader. Threads: all calls are atomic.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, cast

from storage_node.store.machine_memory import machine_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

Row: TypeAlias = tuple[bytes, bytes, int, int, int]
"""(catalog key, path, offset in the file, size in bytes, CRC-32C of the object)"""
_MIN_BYTES, _MAX_BYTES = 32 << 20, 768 << 20
_SHARE_OF_MEMORY = 32
MAX_LOCATED_BYTES = 4 << 20
"""Larger objects are not kept here, because they are read in pieces, each of which is looked up by version."""
MAX_KEY_BYTES = 0xFFFF
"""Longer keys are not kept. Names are far shorter."""
_ROW_BYTES = 400


def limit_bytes() -> int:
    """Return the memory that all locations of this process may take: a share of what it may use. An object takes 40 to
    45 bytes and its key, so that the maximum is enough for ten million objects with short names."""
    return min(max(machine_memory_bytes() // _SHARE_OF_MEMORY, _MIN_BYTES), _MAX_BYTES)


class StoredFile(Protocol):
    @property
    def path(self) -> bytes:
        """Path relative to the drive's folder of objects."""

    @property
    def is_dropped(self) -> bool:
        """Whether locations in this file are void."""


class Locations(Protocol):
    def __init__(self, dirfd: int, limit_bytes: int) -> None:
        """`dirfd`: descriptor of the folder that paths are relative to. `limit_bytes`: of all tables together."""

    def add(self, rows: list[Row], /) -> None:
        """Add or replace locations. An offset above 0 is that of an object in a segment."""

    def remove(self, keys: Iterable[bytes], /) -> None:
        """Remove the locations of these keys, if there are any."""

    def drop(self, path: bytes, /) -> None:
        """Void all locations in a segment, which is being removed or whose objects have moved."""

    def clear(self) -> None:
        """Remove everything."""

    def __len__(self) -> int:
        """Return the number of locations."""


class StoredFilePython:
    """File that is opened for every read."""

    __slots__ = ("is_dropped", "path")

    def __init__(self, path: bytes, is_segment: bool) -> None:
        self.path = path
        self.is_dropped = False


class LocationsPython:
    _tables: ClassVar[weakref.WeakSet[LocationsPython]] = weakref.WeakSet()

    def __init__(self, dirfd: int, limit_bytes: int) -> None:
        self.dirfd = dirfd
        self._limit = max(1, limit_bytes // _ROW_BYTES)
        self._rows: dict[bytes, tuple[StoredFilePython, int, int, int]] = {}
        self._segments: dict[bytes, StoredFilePython] = {}
        self._tables.add(self)

    def add(self, rows: list[Row], /) -> None:
        others = [table for table in list(self._tables) if table is not self]
        other_rows, share = sum(len(table._rows) for table in others), self._limit // (len(others) + 1)
        for key, path, offset, size, checksum in rows:
            if offset < 0 or not 0 <= size < 1 << 32:
                raise ValueError(f"offset {offset} and size {size} are not a range of a file")
            if len(key) > MAX_KEY_BYTES:
                continue
            if other_rows + len(self._rows) >= self._limit and len(self._rows) >= share:
                self.clear()
            self._rows[key] = self._file(path, offset), offset, size, checksum

    def _file(self, path: bytes, offset: int) -> StoredFilePython:
        if not offset:
            return StoredFilePython(path, False)
        segment = path[: path.rindex(b"/")]
        return self._segments.setdefault(segment, StoredFilePython(segment, True))

    def remove(self, keys: Iterable[bytes], /) -> None:
        for key in keys:
            self._rows.pop(key, None)

    def drop(self, path: bytes, /) -> None:
        if (file := self._segments.pop(path, None)) is not None:
            file.is_dropped = True

    def clear(self) -> None:
        self._rows, self._segments = {}, {}

    def __len__(self) -> int:
        return sum(not file.is_dropped for file, *_ in self._rows.values())

    def find(self, key: bytes) -> tuple[StoredFilePython, int, int, int] | None:
        found = self._rows.get(key)
        return None if found is None or found[0].is_dropped else found


def find_python(
    tables: tuple[Locations, ...],
    key_prefix: bytes,
    names: list[str],
    dirfds: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    checksums: npt.NDArray[np.uint32],
    /,
) -> list[StoredFile | None]:
    """Find the objects whose keys are `key_prefix` and the UTF-8 form of a name, in the first table that has each.

    Returns their n files and fills the columns, shape (n,). A file is None if the location is not known, or the name
    has no UTF-8 form. The columns are not changed there.
    """
    files: list[StoredFile | None] = []
    for at, name in enumerate(names):
        try:
            key = key_prefix + name.encode()
        except UnicodeEncodeError:
            files.append(None)
            continue
        for table in cast("Sequence[LocationsPython]", tables):
            if (found := table.find(key)) is not None:
                file, offsets[at], sizes[at], checksums[at] = found
                dirfds[at] = table.dirfd
                files.append(file)
                break
        else:
            files.append(None)
    return files


Find: TypeAlias = Callable[
    [
        tuple[Locations, ...],
        bytes,
        list[str],
        "npt.NDArray[np.int32]",
        "npt.NDArray[np.int64]",
        "npt.NDArray[np.int64]",
        "npt.NDArray[np.uint32]",
    ],
    "list[StoredFile | None]",
]


def _choose(choice: str) -> tuple[Callable[[int, int], Locations], Find]:
    if choice != "python":
        try:
            from storage_node.store._native import Locations as NativeLocations
            from storage_node.store._native import find as find_native
        except ImportError:
            """The batch reader says so where that matters."""
        else:
            return NativeLocations, find_native
    return LocationsPython, find_python


make_locations, find = _choose(os.environ.get("AIS_LOADER_READER", "auto"))
