"""Contents of the soak's objects: bytes that say in every block which write they are of, and where in it they belong.

Pure; nothing of the product is imported. A value is a text such as `w3.1-17:8192`: the client that wrote it, the number
of its operation, and the size in bytes. No two writes have the same value.
"""

from __future__ import annotations

import functools
import re
import zlib

BLOCK_BYTES = 128
LEAST_BYTES = 1024
"""Every object is at least so large, so that a range below this is one within it."""
_MARK = re.compile(rb"<([^<>@]+)@(\d+)>")


def value_of(client: str, number: int, size_bytes: int) -> str:
    return f"{client}-{number}:{size_bytes}"


def size_of(value: str) -> int:
    return int(value.rpartition(":")[2])


def content(value: str) -> bytes:
    """All bytes of a value."""
    size_bytes, mark = size_of(value), value.encode()
    filler = b"%08x" % zlib.crc32(mark) * (BLOCK_BYTES // 8)
    blocks = (
        (b"<%b@%d>" % (mark, at)).ljust(BLOCK_BYTES - 64, b".") + filler[:64]
        for at in range(0, size_bytes, BLOCK_BYTES)
    )
    return b"".join(blocks)[:size_bytes]


def value_in(data: bytes) -> str | None:
    """Return the value whose mark is the first complete one in these bytes; None without one."""
    found = _MARK.search(data)
    return None if found is None else found[1].decode(errors="replace")


@functools.lru_cache(maxsize=16)
def _whole(value: str) -> bytes:
    return content(value)


@functools.lru_cache(maxsize=1 << 14)
def sum_of(value: str, start: int = 0, length: int | None = None) -> tuple[int, int]:
    """Size and CRC-32 of a range of a value."""
    whole = _whole(value) if size_of(value) > 1 << 16 else content(value)
    part = whole[start:] if length is None else whole[start : start + length]
    return len(part), zlib.crc32(part)
