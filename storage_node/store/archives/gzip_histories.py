"""Sparse windows of gzip restart points: of the 32 KiB before one only what is needed to read on, which packs well.

Deflate may refer to any of those bytes, but only the next 32 KiB of output can reach them, and sound, images and text
that has changed its subject refer to few. Which ones, an inflater tells when it is given two histories whose bytes at
every place differ from each other, and together spell the place: where its two answers differ, the byte came from the
history, and the two octets say from where. The rest of the history becomes zeros; those in front are left out, since a
shorter history lies at the end of the window.

Source: RFC 1951; Knespel and Brunst, "Rapidgzip", 2023, for histories of needed bytes alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

HISTORY_BYTES = 32 << 10
_LEVEL = 1
_PLACES = np.arange(HISTORY_BYTES)
_LOW = (_PLACES & 0xFF).astype(np.uint8)
# One more than the upper bits, so that it is never the same octet.
_BOTH = (_LOW + 1 + (_PLACES >> 8)).astype(np.uint8)
_SPELLED = _LOW.tobytes(), _BOTH.tobytes()


def packed_history(history: bytes, read_on: Callable[[bytes], bytes]) -> bytes:
    """What is kept of a history of HISTORY_BYTES; nothing when none of it is needed.

    `read_on`: the first HISTORY_BYTES (or all there are) of what the data after the point unpacks to with a history.
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
    """Raises zlib.error when it is none, or more than one window."""
    if not packed:
        return b""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    history = inflater.decompress(packed, HISTORY_BYTES + 1)
    if not inflater.eof or inflater.unused_data or len(history) > HISTORY_BYTES:
        raise zlib.error("no history of a restart point")
    return history
