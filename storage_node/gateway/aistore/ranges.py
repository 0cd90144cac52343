"""Ranges of bytes. Unlike S3, AIStore refuses a range that is not valid."""

from __future__ import annotations

import re

from storage_node.gateway.aistore.errors import range_error

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})\Z", re.ASCII)


def read_range(header: str, size_bytes: int) -> tuple[int, int]:
    """Return start and length of a range, cut at the end of the object. Raises AISError with 416."""
    match = _RANGE.match(header.strip())
    if match is None or match[1] == match[2] == "":
        raise range_error(f"invalid range {header[:80]!r}: need one, bytes=FIRST-LAST", size_bytes)
    if not match[1]:
        length = min(int(match[2]), size_bytes)
        start = size_bytes - length
    else:
        start = int(match[1])
        length = min(int(match[2]) if match[2] else size_bytes - 1, size_bytes - 1) - start + 1
    if length <= 0:
        raise range_error(f"range {header[:80]!r} of {size_bytes} bytes is not satisfiable", size_bytes)
    return start, length
