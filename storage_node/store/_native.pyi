"""Contracts of storage_node/store/_native.c. Columns are described in read/batch_reader.py, files that hold objects in
drive/locations.py."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy.typing as npt
from typing_extensions import Buffer

# numpy's arrays declare the buffer protocol from Python 3.12 on.
Column: TypeAlias = Buffer | npt.NDArray[Any]

Paths: TypeAlias = Sequence[bytes] | Sequence[StoredFile]

OPEN: int
READ: int
SHORT: int
CHECKSUM: int
MAX_LOCATED_BYTES: int
"""Size of the largest objects that `Locations` has."""
NODE_BITS: int
"""Of an origin, as `find` returns it, those of the node."""

def announce(dirfds: Column, paths: Paths, offsets: Column, lengths: Column, /) -> int:
    """Make the kernel prefetch what is not in the page cache. Returns the number of bytes requested.

    Waits for folders and for space in a drive's queue, not for the bytes. Each entry is judged by its first and last
    byte. Entries that cannot be opened are skipped. Nothing is requested if the file system cannot tell what is in the
    page cache.
    """

def copy_into(
    target: Buffer,
    first_byte: int,
    dirfds: Column,
    paths: Paths,
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    /,
) -> bool:
    """Do what `read_into` does, but only with pieces that are mapped, so that hardly ever a drive is waited for.

    Returns whether all of them were copied, and are what was expected. Otherwise the content of the target is
    undefined, and the caller reads them in a thread. The arguments are not checked here if nothing is mapped.
    """

def pread_cached(fd: int, target: Buffer, offset: int, /) -> int:
    """Read into `target` what the page cache has of an open file from `offset` on. Returns how many bytes; 0 if the
    file system cannot tell. `os.preadv` has no flags in interpreters that were built for an older C library."""

def read_cached(prefix: bytes, files: tuple[tuple[int, bytes, int, int, int], ...], /) -> bytes | None:
    """Return `prefix` and these small objects, verified, but only if no drive has to be waited for.

    Returns None in every other case. A caller on an event loop then reads in a thread, which also finds out what is
    wrong. Needs RWF_NOWAIT.
    """

def read_frame(
    prefix: Buffer,
    checksum_at: int,
    dirfds: Column,
    paths: Paths,
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    waited: bytearray = ...,
    /,
) -> bytes | tuple[int, int, int]:
    """Return `prefix` followed by every piece, as one bytes object of len(prefix) + sum(lengths) bytes.

    With `checksum_at` >= 0 the pieces' CRC-32C, computed from the bytes just read, replace the 4 * n bytes of the
    prefix from there on, as little-endian uint32. The first byte of `waited` becomes 1 if a drive had to be waited for
    because bytes were not in the page cache, as far as the file system can tell; otherwise it is unchanged.
    """

def read_into(
    target: Buffer,
    first_byte: int,
    dirfds: Column,
    paths: Paths,
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    waited: bytearray,
    /,
) -> tuple[int, int, int] | None:
    """Read every piece into `target`, which they fill from `first_byte` to its end, and return None.

    After a failure the content of the target is undefined. `waited` is as in `read_frame`.
    """

def read_list(
    dirfds: Column, paths: Paths, offsets: Column, lengths: Column, expected: Column, verify: Column, /
) -> list[bytes] | tuple[int, int, int]:
    """Return every piece as a bytes object of its own."""

def write_counted(
    fd: int, size_bytes: int, checksum: int, open_block: int, data: Buffer, /
) -> tuple[int, int, int, bytes, int]:
    """Append `data`, any contiguous bytes, to the file. With a negative `fd` they are only counted.

    `size_bytes`, `checksum` and `open_block` describe the object before the call; `open_block` is the CRC-32C of its
    last, incomplete block of at most BLOCK_BYTES. Returns the number of bytes that were written and counted, the new
    `checksum` and `open_block`, the CRC-32C of every block that these bytes completed (native uint32), and the errno of
    the write that failed, or 0. Bytes written before the failure are counted.

    Raises TypeError, BufferError, ValueError.
    """

class StoredFile:
    def __init__(self, path: bytes, is_segment: bool) -> None: ...
    path: bytes
    """Path relative to the drive's folder of objects."""
    is_dropped: bool
    """Whether locations in this file are void."""
    is_mapped: bool

class Locations:
    def __init__(self, dirfd: int, limit_bytes: int) -> None:
        """`dirfd`: descriptor of the folder that paths are relative to. `limit_bytes`: of all tables together."""

    def add(
        self, keys: list[bytes], values: list[bytes] | list[bytes | None], replace: bool, may_forget: bool, /
    ) -> bool:
        """Add the locations that these catalog values name; None, tombstones and large objects have none.

        Without `replace`, a key whose location is known keeps it. Returns False if the memory is full; with
        `may_forget`, everything is forgotten instead.
        """

    def remove(self, keys: Iterable[bytes], /) -> None:
        """Remove the locations of these keys, if there are any."""

    def drop(self, path: bytes, /) -> None:
        """Void all locations in a segment, which is being removed or whose objects have moved."""

    def clear(self) -> None:
        """Remove everything, but not from a file."""

    is_shared: bool
    """Whether the table is in a file. It leaves the file when it is full, or when bytes of the file are missing."""
    room: int
    """Number of locations for which there is room; 0 for a table that has forgotten everything."""

    def share(self, fd: int, /) -> bool:
        """Move the table to this empty file. Returns False if it has no room for it."""

    def map(self, fd: int, /) -> bool:
        """Take the table in this file instead, to read it while another process changes it. Returns False for a file
        that has not the form of a table."""

    def __len__(self) -> int:
        """Return the number of locations."""

def find(
    tables: tuple[Locations, ...],
    key_prefix: bytes,
    names: list[str],
    dirfds: npt.NDArray[Any],
    offsets: npt.NDArray[Any],
    sizes: npt.NDArray[Any],
    checksums: npt.NDArray[Any],
    /,
    *versions: npt.NDArray[Any],
) -> list[StoredFile | None]:
    """Find the objects whose keys are `key_prefix` and the UTF-8 form of a name, in the first table that has each.

    Returns their n files and fills the columns, shape (n,). A file is None if the location is not known, or the name
    has no UTF-8 form. The columns are not changed there. `versions`: none, or columns of the counters of versions,
    uint64, and of their origins, uint32: the epoch above the 20 bits of the node, or 0 if it has no room for them.
    """
