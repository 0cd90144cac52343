"""Batch reader: reads pieces of many files in one call, verified, in order, after a prefix or as a list.

Columns describe n entries; entry i is `lengths[i]` bytes from `offsets[i]` of the file `paths[i]`:

    dirfds    int32 (n,)    folder that paths[i] is relative to
    paths     n bytes       without NUL; b"" means that dirfds[i] is itself the file, open for reading; or StoredFile
    offsets   int64 (n,)    bytes, >= 0
    lengths   int64 (n,)    bytes, >= 0; a file that ends earlier fails, nothing is ever shorter
    expected  uint32 (n,)   CRC-32C of the piece, compared where verify is set
    verify    uint8 (n,)    0 or 1

Columns are one-dimensional contiguous buffers of native items: numpy arrays, array.array, bytes.

An entry that cannot be delivered is a result, not an exception: the call then returns a `Failure` and no bytes.
Exceptions mean wrong arguments (TypeError, ValueError) or no memory. Symbolic links are not followed. Consecutive
entries of the same file share one descriptor. A call holds at most 32 descriptors, fewer if they are scarce, and has
closed all of them when it returns. A `StoredFile` may keep one until it is mapped: together a quarter of what a process
may have, and 512 at most.

`_native.c` releases the GIL once per call, keeps a drive's queue filled when data is not cached, and copies objects of
a `StoredFile` (drive/locations.py) out of a mapping when it is. `_native.pyi` says what each call does.

Threads: any number of calls may run at once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

Failure: TypeAlias = tuple[int, int, int]
"""(position of the first entry that failed, FailureCode, errno or 0)"""

CachedFile: TypeAlias = tuple[int, bytes, int, int, int]
"""(folder that the path is relative to, path, offset in bytes, size in bytes, CRC-32C)"""


class FailureCode(IntEnum):
    OPEN = 1
    """The file could not be opened; errno says why."""
    READ = 2
    """The file could not be read; errno says why."""
    SHORT = 3
    """The file ends before the entry does."""
    CHECKSUM = 4
    """The bytes are not those that were expected."""
