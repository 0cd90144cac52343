"""Counted write: appends bytes to a file and updates an object's size and checksums, in one pass over them.

Two implementations share one contract. `_native.c` releases the GIL once per call and computes each block's checksum
right after its write, while it is in the cache. The function below is the reference. AIS_LOADER_READER selects one, as
for the batch reader.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from storage_node.store.checksum import combine, crc32c
from storage_node.store.format import BLOCK_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["write_counted", "write_counted_python"]

Counted: TypeAlias = tuple[int, int, int, bytes, int]
WriteCounted: TypeAlias = "Callable[[int, int, int, int, Buffer], Counted]"


def write_counted_python(fd: int, size_bytes: int, checksum: int, open_block: int, data: Buffer, /) -> Counted:
    """Append `data`, any contiguous bytes, to the file. With a negative `fd` they are only counted.

    `size_bytes`, `checksum` and `open_block` describe the object before the call; `open_block` is the CRC-32C of its
    last, incomplete block of at most BLOCK_BYTES. Returns the number of bytes that were written and counted, the new
    `checksum` and `open_block`, the CRC-32C of every block that these bytes completed (native uint32), and the errno of
    the write that failed, or 0. Bytes written before the failure are counted.

    Raises TypeError, BufferError, ValueError.
    """
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("data must be C-contiguous")
    if size_bytes < 0 or not 0 <= checksum < 1 << 32 or not 0 <= open_block < 1 << 32:
        raise ValueError("need 0 <= size_bytes, and checksums from 0 to 2**32 - 1")
    view = view.cast("B") if view.nbytes else memoryview(b"")
    closed, written, number = bytearray(), 0, 0
    while written < len(view) and not number:
        piece = view[written : written + BLOCK_BYTES - size_bytes % BLOCK_BYTES]
        if fd >= 0:
            count, number = _write(fd, piece)
            piece = piece[:count]
        if piece:
            of_piece = crc32c(piece)
            checksum = combine(checksum, of_piece, len(piece))
            open_block = combine(open_block, of_piece, len(piece)) if size_bytes % BLOCK_BYTES else of_piece
            size_bytes += len(piece)
            written += len(piece)
            if size_bytes % BLOCK_BYTES == 0:
                closed += open_block.to_bytes(4, sys.byteorder)
    return written, checksum, open_block, bytes(closed), number


def _write(fd: int, data: memoryview) -> tuple[int, int]:
    """Write the bytes. Returns how many were written, and the errno if not all were."""
    done = 0
    try:
        while done < len(data):
            count = os.write(fd, data[done:])
            if not count:
                return done, errno.EIO
            done += count
    except OSError as error:
        return done, error.errno or errno.EIO
    return done, 0


def _choose(choice: str) -> WriteCounted:
    if choice != "python":
        try:
            from storage_node.store._native import write_counted
        except ImportError:
            """The batch reader says so where that matters."""
        else:
            return write_counted
    return write_counted_python


write_counted = _choose(os.environ.get("AIS_LOADER_READER", "auto"))
