"""UUIDs of buckets, of version 7: they begin with the time of their creation (RFC 9562, section 5.7).

The time is part of what every drive and every map has of a bucket, so that no format has a field for it. Earlier
releases drew UUIDs of version 4, which have no time.
"""

from __future__ import annotations

import os
import time
from uuid import UUID

_TIME_BITS, _RANDOM_BYTES = 48, 10
_VERSION, _VERSION_MASK = 7 << 76, 0xF << 76
_VARIANT, _VARIANT_MASK = 2 << 62, 3 << 62


def draw_bucket_uuid() -> bytes:
    """Return a new UUID, of 16 bytes."""
    number = (time.time_ns() // 1_000_000) << (128 - _TIME_BITS) | int.from_bytes(os.urandom(_RANDOM_BYTES))
    return (number & ~_VERSION_MASK & ~_VARIANT_MASK | _VERSION | _VARIANT).to_bytes(16)


def created_ns(bucket_uuid: str) -> int:
    """Return when the bucket with this UUID was created, to the millisecond; 0 if the UUID does not tell.

    Args:
        bucket_uuid: In hexadecimal digits.
    """
    found = UUID(hex=bucket_uuid)
    return (found.int >> (128 - _TIME_BITS)) * 1_000_000 if found.version == 7 else 0
