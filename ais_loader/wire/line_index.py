"""Line index of a text object: where its lines begin, so that they can be read by number. Also of files of records.

It is stored as a hidden object of the same bucket, under `/.lines/` and the object's name. It is placed, copied and
repaired like all objects, and applies to one version of the object. It may be missing, out of date or without its
object at any time. All numbers are little-endian:

    magic b"AISLINES" (of a TFRecord file b"AISTFREC"), uint32 format, uint32 width of a length in bytes (4 or 8),
    uint64 size of the object, uint64 beginning of the first line, uint64 lines, uint32 length of the version,
    the version in UTF-8, and the length of each line, up to the beginning of the next one
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

PREFIX = "/.lines/"
FORMAT = 1
LINES, TF_RECORDS = b"AISLINES", b"AISTFREC"
_HEAD = struct.Struct("<8sIIQQQI")


def index_name(name: str) -> str:
    return f"{PREFIX}{name}"


def encode_index(version: str, bounds: npt.NDArray[np.int64], magic: bytes = LINES) -> bytes:
    """Encode an index. `bounds`: where each line begins and, last, the object's size, shape (lines + 1,)."""
    lengths = np.diff(bounds)
    width = 4 if not len(lengths) or lengths.max() < 2**32 else 8
    text = version.encode()
    head = _HEAD.pack(magic, FORMAT, width, bounds[-1], bounds[0], len(lengths), len(text))
    return head + text + lengths.astype(f"<u{width}").tobytes()


def decode_index(
    data: bytes | memoryview, version: str, size_bytes: int, magic: bytes = LINES
) -> npt.NDArray[np.int64] | None:
    """Return the bounds of an index; None if it is another one, or of another version or size of the object."""
    if len(data) < _HEAD.size:
        return None
    found, form, width, size, first, lines, text_bytes = _HEAD.unpack_from(data)
    body = _HEAD.size + text_bytes
    if (found, form, size) != (magic, FORMAT, size_bytes) or width not in (4, 8):
        return None
    if len(data) != body + lines * width or bytes(data[_HEAD.size : body]) != version.encode():
        return None
    bounds = np.empty(lines + 1, np.int64)
    bounds[0] = first
    np.cumsum(np.frombuffer(data, f"<u{width}", lines, body), out=bounds[1:])
    bounds[1:] += first
    return bounds if bounds[-1] == size_bytes else None
