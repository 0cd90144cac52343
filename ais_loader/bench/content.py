"""Content of the objects that a measurement reads and writes, determined by an object's number and size alone.

All objects are cut from one pool of random bytes, at different positions. Generating and comparing them costs next to
nothing compared with storing them, and one object's bytes are never mistaken for another's.
"""

from __future__ import annotations

import functools
import random

_POOL_BYTES = 1 << 22
_STEP = 4099
"""Odd, so that 4 Mi consecutive objects begin at different positions."""


@functools.cache
def _pool() -> memoryview:
    drawn = random.Random("ais-loader bench").randbytes(_POOL_BYTES)
    return memoryview(drawn + drawn)


def content(number: int, size_bytes: int) -> memoryview | bytes:
    """Return a view of the pool, or repetitions of it if it is too short."""
    start = number * _STEP % _POOL_BYTES
    if size_bytes <= _POOL_BYTES:
        return _pool()[start : start + size_bytes]
    whole = bytes(_pool()[start : start + _POOL_BYTES])
    return (whole * (size_bytes // _POOL_BYTES + 1))[:size_bytes]


def equal(data: bytes | memoryview, number: int, size_bytes: int, start: int = 0) -> bool:
    """Whether `data` equals the object's bytes from `start` on. The caller checks the length."""
    if start + len(data) > size_bytes:
        return False
    view = memoryview(data)
    for at in range(0, len(view), _POOL_BYTES):
        piece = view[at : at + _POOL_BYTES]
        if piece != content_at(number, start + at, len(piece)):
            return False
    return True


def content_at(number: int, start: int, length: int) -> memoryview:
    """Return at most 4 MiB of an object, from byte `start` on."""
    first = (number * _STEP + start) % _POOL_BYTES
    return _pool()[first : first + length]
