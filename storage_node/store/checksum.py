"""CRC-32C, the one checksum of a storage node: on drives, in archive indexes and in frames.

A checksum is an int from 0 to 2**32 - 1; that of no bytes is 0. It can be continued
(`crc32c(b, crc32c(a)) == crc32c(a + b)`) and joined afterwards (`combine`), so that the checksum of
an object follows from those of its blocks without reading the bytes again.

`crc32c` is the native module's where that is built, else `crc32c_library`. Both answer the same.

Source: RFC 3720, section 12.1 and the test vectors of B.4. Joining: appending n bytes multiplies the
remainder by x**(8 n) modulo the polynomial, so two remainders add up after one multiplication.
"""

from __future__ import annotations

from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["combine", "crc32c", "crc32c_library"]

_POLYNOMIAL = 0x82F63B78  # bit 31 stands for x**0, here and in every checksum
_COPY_BYTES = 256 << 10


def crc32c_library(data: Buffer, /, crc: int = 0) -> int:
    """The CRC-32C of any contiguous bytes-like object, continued from `crc`.

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
    # The library takes nothing but bytes: pieces bound the copy, whatever the size of `data`.
    for start in range(0, octets.size, _COPY_BYTES):
        crc = int(google_crc32c.extend(crc, octets[start : start + _COPY_BYTES].tobytes()))
    return crc


try:
    from storage_node.store._native import crc32c
except ImportError:
    crc32c = crc32c_library


def combine(crc_a: int, crc_b: int, len_b: int) -> int:
    """The checksum of a + b, from those of a and b and the length of b in bytes."""
    if len_b < 0:
        raise ValueError(f"len_b must not be negative, got {len_b}")
    return _multiply(crc_a, _power_of_x8(len_b)) ^ crc_b


def _multiply(a: int, b: int) -> int:
    """a * b modulo the polynomial, over GF(2)."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@lru_cache(maxsize=1024)  # blocks and members come in few sizes, and a power costs up to 0.2 ms
def _power_of_x8(exponent: int) -> int:
    """x**(8 * exponent) modulo the polynomial."""
    power, square = 1 << 31, 1 << 23
    while exponent:
        if exponent & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        exponent >>= 1
    return power
