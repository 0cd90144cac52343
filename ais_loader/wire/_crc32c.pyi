"""Contracts of ais_loader/wire/_crc32c.c."""

from typing_extensions import Buffer

def crc32c(data: Buffer, /, crc: int = 0) -> int:
    """Return the CRC-32C of any contiguous bytes-like object, continued from `crc`.

    Raises:
        TypeError: `data` is not bytes-like.
        BufferError: `data` is not contiguous.
        ValueError: `crc` is not a 32-bit number.
    """

def crc32c_lanes(data: Buffer, /, crc: int = 0) -> int: ...
def crc32c_table(data: Buffer, /, crc: int = 0) -> int: ...
