"""Writers of files of other programs, by their specifications: TFRecord, array_record, and Megatron's indexed files.

They are independent of the readers. tests/front/frameworks compares the reader of array_record with its own library.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard

BLOCK_BYTES = 65_536
_SIGNATURE = bytes.fromhex(
    "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a90000000000000000e19f13c0e9b1c372"
) + b"s".ljust(16, b"\0")


def tf_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc: int = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def stored(data: bytes) -> bytes:
    return data


def zstd(data: bytes) -> bytes:
    return varint(len(data)) + zstandard.ZstdCompressor().compress(data)


def riegeli_chunk(
    records: Sequence[bytes], kind: bytes = b"\0", pack: Callable[[bytes], bytes] = stored, chunk_type: bytes = b"r"
) -> bytes:
    """A chunk without block headers. Its hashes are zero."""
    sizes = pack(b"".join(varint(len(record)) for record in records))
    data = kind + varint(len(sizes)) + sizes + pack(b"".join(records))
    header = struct.pack("<QQQ", 0, len(data), 0) + chunk_type + len(records).to_bytes(7, "little")
    return header + struct.pack("<Q", sum(map(len, records))) + data


def _append(file: bytearray, chunk: bytes) -> int:
    """Append a chunk, with block headers of zeros; return where it begins."""
    if 0 < len(file) % BLOCK_BYTES <= 24:  # a chunk does not begin within a block header, or right behind it
        file += bytes(24 - len(file) % BLOCK_BYTES + 1)
    start = len(file)
    for byte in chunk:
        if len(file) % BLOCK_BYTES == 0:
            file += bytes(24)
        file.append(byte)
    return start


def array_record(
    records: Sequence[bytes],
    group_size: int = 1,
    kind: bytes = b"\0",
    pack: Callable[[bytes], bytes] = stored,
    chunk_type: bytes = b"r",
    footer_of: Callable[[int, int], tuple[int, int]] = lambda start, count: (start, count),
) -> bytes:
    """`footer_of`: what the footer says of a chunk that begins here and has this many records."""
    file = bytearray(_SIGNATURE)
    listed = []
    total_records = 0
    for first in range(0, len(records), group_size):
        group = records[first : first + group_size]
        start, count = footer_of(_append(file, riegeli_chunk(group, kind, pack, chunk_type)), len(group))
        listed.append(b"\x08" + varint(start) + b"\x10" + varint(sum(map(len, group))) + b"\x18" + varint(count))
        total_records += count
    total = b"\x08\x01\x10" + varint(len(listed)) + b"\x18" + varint(total_records % 2**64)
    footer = _append(file, riegeli_chunk([b"\x0a" + varint(len(total)) + total, *listed], kind, pack))
    file += bytes(-len(file) % BLOCK_BYTES)
    _append(file, riegeli_chunk([b"\x08" + varint(footer) + b"\x10" + varint(0x71930E704FDAE05E)] * 3))
    return bytes(file + bytes(-len(file) % BLOCK_BYTES))


CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def megatron(
    documents: Sequence[Sequence[npt.NDArray[Any]]], dtype: str = "uint16", modes: Sequence[int] | None = None
) -> tuple[bytes, bytes]:
    """The bytes of a .bin and of its .idx."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(one) for one in sequences], "<i4")
    pointers = np.cumsum([0, *(len(one) * np.dtype(dtype).itemsize for one in sequences)])[:-1].astype("<i8")
    bounds = np.cumsum([0, *map(len, documents)]).astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(sequences), len(bounds))
    index = head + lengths.tobytes() + pointers.tobytes() + bounds.tobytes()
    tokens = b"".join(one.astype(np.dtype(dtype).newbyteorder("<")).tobytes() for one in sequences)
    return tokens, index + (b"" if modes is None else np.array(modes, "i1").tobytes())
