"""File formats by their first bytes: what an object is, whatever its name says.

Source: RFC 1952, 2.3.1; RFC 8878, 3.1; LZ4 frame format 1.6.4; APPNOTE.TXT 6.3.10, 4.3; and the other formats' own
specifications.
"""

from __future__ import annotations

import codecs
import unicodedata

HEAD_BYTES = 512
"""Number of leading bytes that are enough; fewer if the file is smaller."""
_LEAST_TEXT_BYTES = 32
"""A few bytes of anything may look like text."""

ARRAY_RECORD = "array_record"
"""Riegeli, the format of chunks in array_record files."""

_MAGICS = {
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x02\x21\x4c\x18": "legacy lz4",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7-zip",
    b"Rar!\x1a\x07": "rar",
    b"\x93NUMPY": "numpy",
    b"PAR1": "Parquet",
    b"ARROW1\0\0": "Arrow",
    b"Obj\x01": "Avro",
    b"\x89HDF\r\n": "HDF5",
    b"SQLite format 3\0": "SQLite",
    b"MMIDIDX\0": "an index of Megatron",
    b"TNTIDX\0\0": "an index of Megatron",
    (20240520).to_bytes(4, "little"): "llm.c",
    (20240801).to_bytes(4, "little"): "llm.c",
    b"%PDF-": "PDF",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff\xe0": "JPEG",
    b"\xff\xd8\xff\xe1": "JPEG",
    b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f": ARRAY_RECORD,
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
}
_RIFF = {b"WAVE": "WAV", b"WEBP": "WebP", b"AVI ": "AVI"}
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def format_of(head: bytes) -> str | None:
    """Return the format that the first HEAD_BYTES indicate, or None if they indicate none. Text indicates none."""
    found = next((name for magic, name in _MAGICS.items() if head.startswith(magic)), None)
    if found is None and head[257:262] == b"ustar":
        return "tar"
    return _RIFF.get(head[8:12]) if found is None and head.startswith(b"RIFF") else found


def is_text(head: bytes) -> bool:
    """Whether the first HEAD_BYTES are UTF-8 without control characters, and enough of them to tell."""
    try:
        decoded = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return len(head) >= _LEAST_TEXT_BYTES and all(one.isspace() or unicodedata.category(one) != "Cc" for one in decoded)
