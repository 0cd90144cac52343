"""What storage_node/store/_native.c offers; the contracts are in read/batch_reader.py, drive/locations.py and
files/counted_write.py."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy.typing as npt
from typing_extensions import Buffer

# numpy's arrays declare the buffer protocol from Python 3.12 on.
Column: TypeAlias = Buffer | npt.NDArray[Any]

Paths: TypeAlias = Sequence[bytes] | Sequence[Any]

OPEN: int
READ: int
SHORT: int
CHECKSUM: int

def announce(dirfds: Column, paths: Paths, offsets: Column, lengths: Column, /) -> int: ...
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
) -> bool: ...
def read_cached(prefix: bytes, files: tuple[tuple[int, bytes, int, int, int], ...], /) -> bytes | None: ...
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
) -> bytes | tuple[int, int, int]: ...
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
) -> tuple[int, int, int] | None: ...
def read_list(
    dirfds: Column,
    paths: Paths,
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    /,
) -> list[bytes] | tuple[int, int, int]: ...
def write_counted(
    fd: int, size_bytes: int, checksum: int, open_block: int, data: Buffer, /
) -> tuple[int, int, int, bytes, int]: ...

class StoredFile:
    def __init__(self, path: bytes, is_segment: bool) -> None: ...
    path: bytes
    is_dropped: bool
    is_mapped: bool

class Locations:
    def __init__(self, dirfd: int, limit_bytes: int) -> None: ...
    def add(self, rows: list[tuple[bytes, bytes, int, int, int]], /) -> None: ...
    def remove(self, keys: Iterable[bytes], /) -> None: ...
    def drop(self, path: bytes, /) -> None: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...

def find(
    tables: tuple[Any, ...],
    key_prefix: bytes,
    names: list[str],
    dirfds: npt.NDArray[Any],
    offsets: npt.NDArray[Any],
    sizes: npt.NDArray[Any],
    checksums: npt.NDArray[Any],
    /,
) -> list[Any]: ...
