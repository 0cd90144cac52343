"""CRC-32C, the only checksum of clients and nodes: on drives, in archive indexes, in frames and at their receivers."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["crc32c", "crc32c_library"]

_COPY_BYTES = 256 << 10


def crc32c_library(data: Buffer, /, crc: int = 0) -> int:
    """Return the CRC-32C of any contiguous bytes-like object, continued from `crc`.

    Raises:
        TypeError: `data` is not bytes-like.
        BufferError: `data` is not contiguous.
        ValueError: `crc` is not a 32-bit number.
    """
    crc = index(crc)
    if not 0 <= crc < 1 << 32:
        raise ValueError(f"crc must be from 0 to 2**32 - 1, got {crc}")
    if type(data) is bytes:
        return int(google_crc32c.extend(crc, data))
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("crc32c needs a C-contiguous buffer")
    octets = np.frombuffer(view, dtype=np.uint8)
    # The library accepts only bytes: the piece size bounds the copy, whatever the size of `data`.
    for start in range(0, octets.size, _COPY_BYTES):
        crc = int(google_crc32c.extend(crc, octets[start : start + _COPY_BYTES].tobytes()))
    return crc


try:
    from ais_loader.wire._crc32c import crc32c
except ImportError:
    crc32c = crc32c_library
