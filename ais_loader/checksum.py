"""CRC-32C where data arrives; google_crc32c wants `bytes` and nothing else."""

from __future__ import annotations

import google_crc32c

_AT_ONCE_BYTES = 1 << 20


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """Continue the checksum `crc` over `data`."""
    if isinstance(data, bytes):
        return int(google_crc32c.extend(crc, data))
    for at in range(0, len(data), _AT_ONCE_BYTES):
        crc = google_crc32c.extend(crc, bytes(data[at : at + _AT_ONCE_BYTES]))
    return crc
