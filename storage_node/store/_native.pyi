"""What storage_node/store/_native.c offers; the contracts are in checksum.py and batch_read.py."""

from typing import Any, TypeAlias

import numpy.typing as npt
from typing_extensions import Buffer

# numpy's arrays declare the buffer protocol from Python 3.12 on.
Column: TypeAlias = Buffer | npt.NDArray[Any]

OPEN: int
READ: int
SHORT: int
CHECKSUM: int

def crc32c(data: Buffer, /, crc: int = 0) -> int: ...
def crc32c_table(data: Buffer, /, crc: int = 0) -> int: ...
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
