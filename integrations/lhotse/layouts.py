"""Layouts of uncompressed files, in which a window is a range of bytes: PCM in WAV, and .npy.

A layout is read from a file's first HEADER_BYTES. If those are not sufficient, the file is fetched whole. A window
becomes a file of its own, with a header of the same kind.

Sources: https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html,
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass

import numpy as np

HEADER_BYTES = 4096
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


@dataclass(frozen=True, slots=True)
class WavLayout:
    """Frames of `frame_bytes` each, from byte `data_start` on. A frame has all channels at one point in time."""

    version: str
    data_start: int
    frames: int
    frame_bytes: int
    sampling_rate: int
    format_chunk: bytes

    def file(self, data: bytes) -> bytes:
        """Return a WAV file of these frames."""
        chunk = self.format_chunk
        after = b"WAVEfmt " + struct.pack("<I", len(chunk)) + chunk + b"data" + struct.pack("<I", len(data)) + data
        return b"RIFF" + struct.pack("<I", len(after)) + after


@dataclass(frozen=True, slots=True)
class NpyLayout:
    """Rows of `row_bytes` each, from byte `data_start` on."""

    version: str
    data_start: int
    shape: tuple[int, ...]
    dtype: str
    row_bytes: int

    def file(self, data: bytes) -> bytes:
        """Return a .npy file of these rows."""
        out = io.BytesIO()
        shape = (len(data) // self.row_bytes, *self.shape[1:])
        np.lib.format.write_array_header_1_0(out, {"descr": self.dtype, "fortran_order": False, "shape": shape})
        return out.getvalue() + data


Layout = WavLayout | NpyLayout


def layout_of(header: bytes, version: str) -> Layout | None:
    """Return the layout from the first bytes of a file, or None for other or compressed formats and longer headers."""
    if header[:4] == b"RIFF" and header[8:12] == b"WAVE":
        return _wav_layout(header, version)
    if header[:6] == np.lib.format.MAGIC_PREFIX:
        return _npy_layout(header, version)
    return None


def _wav_layout(header: bytes, version: str) -> WavLayout | None:
    at, format_chunk = 12, b""
    while at + 8 <= len(header):
        name, size = header[at : at + 4], struct.unpack_from("<I", header, at + 4)[0]
        at += 8
        if name == b"fmt ":
            format_chunk = header[at : at + size]
            if len(format_chunk) < min(size, 16) or size > 64:
                return None
        elif name == b"data":
            return _pcm_layout(format_chunk, at, size, version)
        at += size + size % 2
    return None


def _pcm_layout(format_chunk: bytes, data_start: int, data_bytes: int, version: str) -> WavLayout | None:
    if len(format_chunk) < 16:
        return None
    kind, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", format_chunk)
    if kind == _EXTENSIBLE and len(format_chunk) >= 26:
        kind = struct.unpack_from("<H", format_chunk, 24)[0]
    plain = kind in (_PCM, _FLOAT) and channels and rate and bits % 8 == 0 and frame_bytes == channels * bits // 8
    if not plain or not frame_bytes or data_bytes == 0xFFFFFFFF:  # a stream of unknown length
        return None
    return WavLayout(version, data_start, data_bytes // frame_bytes, frame_bytes, rate, format_chunk)


def _npy_layout(header: bytes, version: str) -> NpyLayout | None:
    file = io.BytesIO(header)
    try:
        major, _ = np.lib.format.read_magic(file)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[major]
        shape, fortran_order, dtype = read(file)
    except (ValueError, KeyError):  # newer, truncated, or no header: reading the whole file reports it
        return None
    if dtype.hasobject or dtype.fields or fortran_order or not shape:
        return None
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    return NpyLayout(version, file.tell(), shape, dtype.str, row_bytes) if row_bytes else None
