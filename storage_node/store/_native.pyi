"""What storage_node/store/_native.c offers; the contracts are in read/batch_reader.py and files/counted_write.py."""

from typing import Any, TypeAlias

import numpy.typing as npt
from typing_extensions import Buffer

# numpy's arrays declare the buffer protocol from Python 3.12 on.
Column: TypeAlias = Buffer | npt.NDArray[Any]

OPEN: int
READ: int
SHORT: int
CHECKSUM: int

def announce(dirfds: Column, paths: list[bytes] | tuple[bytes, ...], offsets: Column, lengths: Column, /) -> int: ...
def read_cached(prefix: bytes, files: tuple[tuple[int, bytes, int, int, int], ...], /) -> bytes | None: ...
def read_frame(
    prefix: Buffer,
    checksum_at: int,
    dirfds: Column,
    paths: list[bytes] | tuple[bytes, ...],
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    waited: bytearray = ...,
    /,
) -> bytes | tuple[int, int, int]: ...
def read_list(
    dirfds: Column,
    paths: list[bytes] | tuple[bytes, ...],
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    /,
) -> list[bytes] | tuple[int, int, int]: ...
def write_counted(
    fd: int, size_bytes: int, checksum: int, open_block: int, data: Buffer, /
) -> tuple[int, int, int, bytes, int]: ...
