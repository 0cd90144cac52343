"""What storage_node/store/_native.c offers; the contracts are in checksum.py and batch_read.py."""

from typing_extensions import Buffer

OPEN: int
READ: int
SHORT: int
CHECKSUM: int

def crc32c(data: Buffer, /, crc: int = 0) -> int: ...
def crc32c_table(data: Buffer, /, crc: int = 0) -> int: ...
def read_cached(prefix: bytes, dirfd: int, path: bytes, length: int, expected: int, /) -> bytes | None: ...
def read_frame(
    prefix: Buffer,
    checksum_at: int,
    dirfds: Buffer,
    paths: list[bytes] | tuple[bytes, ...],
    offsets: Buffer,
    lengths: Buffer,
    expected: Buffer,
    verify: Buffer,
    /,
) -> bytes | tuple[int, int, int]: ...
def read_list(
    dirfds: Buffer,
    paths: list[bytes] | tuple[bytes, ...],
    offsets: Buffer,
    lengths: Buffer,
    expected: Buffer,
    verify: Buffer,
    /,
) -> list[bytes] | tuple[int, int, int]: ...
