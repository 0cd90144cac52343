"""Checksums, CRC-32C unless said otherwise: those of objects, combined from those of their blocks, and those of small
JSON files.

An object's checksum follows from those of its blocks, without reading the bytes. Source: appending n bytes multiplies
the remainder by x**(8 n) modulo the polynomial, so two remainders can be added after one multiplication.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ais_loader.errors import StoreFormatError
from ais_loader.wire.checksum import crc32c

__all__ = ["CRC32", "CRC32C", "CRC64NVME", "combine", "combine_blocks", "crc32c", "decode_checked", "encode_checked"]


class Polynomial(NamedTuple):
    """Polynomial of a checksum. The highest bit stands for x**0, here and in every checksum."""

    terms: int
    highest: int
    """The highest bit."""


CRC32C = Polynomial(0x82F63B78, 1 << 31)
CRC32 = Polynomial(0xEDB88320, 1 << 31)
CRC64NVME = Polynomial(0x9A6C9329AC4BC9B5, 1 << 63)


def combine(crc_a: int, crc_b: int, len_b: int, polynomial: Polynomial = CRC32C) -> int:
    """Return the checksum of a + b, from those of a and b and the length of b in bytes."""
    if len_b < 0:
        raise ValueError(f"len_b must not be negative, got {len_b}")
    return _multiply(crc_a, _power_of_x8(len_b, polynomial), polynomial) ^ crc_b


def combine_blocks(checksums: Sequence[int], block_bytes: int, last_bytes: int) -> int:
    """Return the checksum of consecutive blocks of one size, the last one of `last_bytes`. Needs at least one."""
    first, second, third, fourth = _shifted(block_bytes)
    crc = 0
    for checksum in checksums[:-1]:
        shifted = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]
        crc = shifted ^ checksum
    return combine(crc, checksums[-1], last_bytes)


@lru_cache(maxsize=4)
def _shifted(len_b: int) -> list[list[int]]:
    """Return tables that map each byte of a checksum to its contribution after `len_b` more bytes. Using them takes a
    tenth of the time of a multiplication."""
    factor = _power_of_x8(len_b)
    tables = []
    for byte in range(4):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            rest = value ^ lowest
            table[value] = table[rest] ^ table[lowest] if rest else _multiply(value << 8 * byte, factor)
        tables.append(table)
    return tables


def _multiply(a: int, b: int, polynomial: Polynomial = CRC32C) -> int:
    """Return a * b modulo the polynomial, over GF(2)."""
    product, (terms, highest) = 0, polynomial
    mask = 2 * highest - 1
    while a:
        if a & highest:
            product ^= b
        a = a << 1 & mask
        b = b >> 1 ^ (terms if b & 1 else 0)
    return product


@lru_cache(maxsize=1024)  # blocks and members have few sizes, and a power takes up to 0.2 ms
def _power_of_x8(exponent: int, polynomial: Polynomial = CRC32C) -> int:
    """Return x**(8 * exponent) modulo the polynomial."""
    power, square = polynomial.highest, polynomial.highest >> 8
    while exponent:
        if exponent & 1:
            power = _multiply(power, square, polynomial)
        square = _multiply(square, square, polynomial)
        exponent >>= 1
    return power


def encode_checked(kind: str, version: int, fields: dict[str, Any]) -> bytes:
    """Encode the fields of a small file under the key `kind`: a JSON text with its checksum and a format version.

    Fields may be dataclasses.
    """
    body = json.dumps(fields, sort_keys=True, default=_fields_of)
    return json.dumps({"format": version, "checksum": crc32c(body.encode()), kind: body}).encode()


def _fields_of(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


def decode_checked(kind: str, version: int, data: bytes, source: Path) -> dict[str, Any]:
    """Decode fields. Raises StoreFormatError for another version or a damaged file; ValueError, KeyError, TypeError,
    AttributeError for anything that `encode_checked` never writes."""
    outer = json.loads(data)
    if outer["format"] != version:
        raise StoreFormatError(f"{source}: format {outer['format']}; this version reads format {version}")
    if crc32c(outer[kind].encode()) != outer["checksum"]:
        raise StoreFormatError(f"{source}: the checksum does not match, the file is damaged")
    fields: dict[str, Any] = json.loads(outer[kind])
    return fields
