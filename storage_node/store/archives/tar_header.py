"""Tar header parser: 512 bytes to a few fields. Pure functions, no state, no I/O.

Supports V7, ustar (POSIX.1-1988), GNU (long names, base-256 numbers) and PAX (POSIX.1-2001). A header that no tar
writer produces raises ArchiveDamaged. `at` is the header's offset in the tar, for the message.

Source: POSIX.1-2017, pax, "Extended Description"; GNU tar manual 1.34, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ais_loader.errors import ArchiveDamaged

BLOCK_BYTES = 512
ZERO_BLOCK = bytes(BLOCK_BYTES)
MAX_SIZE_BYTES = (1 << 63) - 1

REGULAR = b"0\x007"
HARD_LINK = ord("1")
DIRECTORY = ord("5")
NO_CONTENT = b"123456"
"""Types without content. Their size field is ignored."""
PAX_LOCAL = b"xX"
PAX_GLOBAL = ord("g")
GNU_LONG_NAME, GNU_LONG_LINK = ord("L"), ord("K")

SPARSE_FILE, CONTINUED_FILE = ord("S"), ord("M")
SPARSE_RECORDS = b"GNU.sparse."
"""Beginning of the names of PAX records that a sparse file has."""


class Header(NamedTuple):
    name: bytes
    size_bytes: int
    type: int
    link: bytes


def parse_header(block: bytes, at: int) -> Header:
    """Parse a header. `block` has 512 bytes, not all of them zero."""
    try:
        stored = _octal(block[148:156])
    except ValueError:
        raise ArchiveDamaged(f"byte {at}: no tar header here, its checksum field is {block[148:156]!r}") from None
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    if stored != unsigned:
        # Old writers summed the characters as signed values.
        signed = unsigned - 256 * sum(octet > 127 for octet in block[:148] + block[156:])
        if stored != signed:
            raise ArchiveDamaged(f"byte {at}: the tar header's checksum is {unsigned}, it says {stored}")
    kind = block[156]
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = _text(block[345:500]) + b"/" + name  # GNU and V7 use this field differently, or not at all
    if kind == 0 and name.endswith(b"/"):
        kind = DIRECTORY  # V7 has no type for directories
    size = 0 if kind in NO_CONTENT else _number(block[124:136], at)
    return Header(name, size, kind, _text(block[157:257]))


def parse_pax(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the records of one extended header, up to a million. `at` is the offset of the first."""
    position = 0
    while position < len(data) and data[position]:
        space = data.find(b" ", position, position + 20)
        digits = data[position:space]
        end = position + (int(digits) if space >= 0 and digits.isdigit() else 0)
        # Without a space, the search would start at the beginning and find the `=` of an earlier record, in an endless
        # loop.
        equals = data.find(b"=", space + 1, end) if space >= 0 else -1
        if equals < 0 or end > len(data) or data[end - 1] != 0x0A:
            raise ArchiveDamaged(f"byte {at + position}: not a record of an extended header")
        yield data[space + 1 : equals], data[equals + 1 : end - 1]
        position = end


def parse_pax_size(value: bytes, at: int) -> int:
    if not value.isdigit() or len(value) > 19 or int(value) > MAX_SIZE_BYTES:
        raise ArchiveDamaged(f"byte {at}: an extended header gives the size {value[:40]!r}")
    return int(value)


def padded(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _octal(field: bytes) -> int:
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits and not digits.isdigit():
        raise ValueError
    return int(digits or b"0", 8)


def _number(field: bytes, at: int) -> int:
    """Parse a size: octal digits, or GNU's base-256."""
    try:
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(field)
    except ValueError:
        size = -1
    if not 0 <= size <= MAX_SIZE_BYTES:
        raise ArchiveDamaged(f"byte {at}: the tar header's size field is {field!r}")
    return size
