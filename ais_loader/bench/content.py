"""Bytes of the objects that a measurement reads and writes: they follow from an object's number and size alone.

All are cut out of one pool of random bytes, each at a place of its own: making and comparing them costs next to
nothing beside storing them, and one object's bytes are never taken for another's.
"""

from __future__ import annotations

import functools
import random

_POOL_BYTES = 1 << 22
_STEP = 4099
"""Odd: 4 Mi objects in a row begin at different places."""


@functools.cache
def _pool() -> memoryview:
    drawn = random.Random("ais-loader bench").randbytes(_POOL_BYTES)
    return memoryview(drawn + drawn)


def content(number: int, size_bytes: int) -> memoryview | bytes:
    """A view of the pool, or a copy of it over and over where it is too short."""
    start = number * _STEP % _POOL_BYTES
    if size_bytes <= _POOL_BYTES:
        return _pool()[start : start + size_bytes]
    whole = bytes(_pool()[start : start + _POOL_BYTES])
    return (whole * (size_bytes // _POOL_BYTES + 1))[:size_bytes]


def equal(data: bytes | memoryview, number: int, size_bytes: int, start: int = 0) -> bool:
    """Whether `data` is what that object has from `start` on; whether it is long enough is for the caller to say."""
    if start + len(data) > size_bytes:
        return False
    view = memoryview(data)
    for at in range(0, len(view), _POOL_BYTES):
        piece = view[at : at + _POOL_BYTES]
        if piece != content_at(number, start + at, len(piece)):
            return False
    return True


def content_at(number: int, start: int, length: int) -> memoryview:
    """At most 4 MiB of an object, from its byte `start`."""
    first = (number * _STEP + start) % _POOL_BYTES
    return _pool()[first : first + length]
