"""Sparse windows of gzip restart points: the part of the preceding 32 KiB that reading on requires, compressed.

Deflate may refer to any of those bytes, but only from the next 32 KiB of output. Sound, images and text that has
changed its subject refer to few of them. To find which ones, the data is inflated twice, with two histories whose bytes
differ at every position and together encode the position. Wherever the two outputs differ, the byte was copied from the
history, and the two octets give the position it was copied from. All other bytes of the history are replaced by zeros.
Leading zeros are omitted, because a shorter history is aligned to the end of the window.

Source: RFC 1951; Knespel and Brunst, "Rapidgzip", 2023, for windows reduced to the bytes that are needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

HISTORY_BYTES = 32 << 10
_LEVEL = 1
_PLACES = np.arange(HISTORY_BYTES)
_LOW = (_PLACES & 0xFF).astype(np.uint8)
# The upper bits plus one are added, so that it never equals the octet in `_LOW`.
_BOTH = (_LOW + 1 + (_PLACES >> 8)).astype(np.uint8)
_SPELLED = _LOW.tobytes(), _BOTH.tobytes()


def packed_history(history: bytes, read_on: Callable[[bytes], bytes]) -> bytes:
    """Compress the necessary part of a history of HISTORY_BYTES; empty if none of it is needed.

    `read_on` takes a history and returns the first HISTORY_BYTES (or fewer, at the end) of the data decompressed after
    the point with it.
    """
    low, both = (np.frombuffer(read_on(spelled), np.uint8) for spelled in _SPELLED)
    from_history = low != both
    if not from_history.any():
        return b""
    low, both = low[from_history], both[from_history]
    places = low.astype(np.int64) | (both - low - np.uint8(1)).astype(np.int64) << 8
    needed = np.zeros(HISTORY_BYTES, np.uint8)
    needed[places] = np.frombuffer(history, np.uint8)[places]
    packer = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
    return packer.compress(needed[places.min() :].tobytes()) + packer.flush()


def unpacked_history(packed: bytes | memoryview) -> bytes:
    """Decompress a history. Raises zlib.error if it is invalid or larger than one window."""
    if not packed:
        return b""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    history = inflater.decompress(packed, HISTORY_BYTES + 1)
    if not inflater.eof or inflater.unused_data or len(history) > HISTORY_BYTES:
        raise zlib.error("no history of a restart point")
    return history
