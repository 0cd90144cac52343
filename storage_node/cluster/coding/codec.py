"""Reed-Solomon codec: computes parity of data fragments, and lost fragments from as many others as there is data.

Codes are bytewise: byte i of a fragment depends on byte i of the others alone. A range of a lost fragment is therefore
decoded from the same range of others, and any window of fragments is coded by itself. The matrix is the Cauchy matrix
of ISA-L, which pyeclib's `isa_l_rs_cauchy` uses as well. The library is called through ctypes, without the GIL, on the
caller's buffers: buffers that are touched for the first time cost more than the code.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from itertools import chain
from typing import TypeAlias

import numpy as np

from ais_loader.errors import InvalidRequest, Unsupported
from ais_loader.extras import needs

WINDOW_BYTES = 128 << 10
"""Bytes of each fragment that are coded at a time, so that all of them stay in the processor's cache."""
MAX_FRAGMENTS = 255
Buffer: TypeAlias = bytes | bytearray | memoryview


@functools.cache
def _library() -> ctypes.CDLL:
    """Load ISA-L from pyeclib's wheel. Raises Unsupported."""
    with needs("pyeclib", "buckets with redundancy=rs:", Unsupported):
        try:
            found = [file for file in files("pyeclib") or () if file.name.startswith("libisal")]
            return ctypes.CDLL(str(found[0].locate()))
        except (PackageNotFoundError, IndexError, OSError) as error:
            raise ImportError(str(error) or "its wheel has no libisal") from error


class Codec:
    """Code of `data` + `parity` fragments. Thread-safe."""

    def __init__(self, data: int, parity: int) -> None:
        """Raises Unsupported if the library is missing, InvalidRequest for a code that there is not."""
        if data < 1 or parity < 1 or data + parity > MAX_FRAGMENTS:
            raise InvalidRequest(
                f"rs:{data}+{parity}: at least 1 data and 1 parity fragment, at most {MAX_FRAGMENTS} together"
            )
        self.data, self.parity = data, parity
        self._library = _library()
        matrix = ctypes.create_string_buffer((data + parity) * data)
        self._library.gf_gen_cauchy1_matrix(matrix, data + parity, data)
        self._matrix = matrix.raw
        self._parity_tables = self._tables(self._matrix[data * data :])
        self._decoding = functools.lru_cache(maxsize=256)(self._decoding_tables)

    def encode(self, data: Sequence[Buffer], parity: Sequence[bytearray | memoryview]) -> None:
        """Compute the parity of data fragments, all of one size, into writable buffers of that size."""
        self._multiply(self._parity_tables, data, parity)

    def decode(self, have: Mapping[int, Buffer], wanted: Sequence[int]) -> list[bytearray]:
        """Return fragments of these indexes, or the same range of each, from others by index, of which the first
        `data` are used. Raises InvalidRequest if there are fewer."""
        if len(have) < self.data:
            raise InvalidRequest(f"{len(have)} fragments: decoding takes {self.data} of {self.data + self.parity}")
        used = tuple(sorted(have)[: self.data])
        decoded = [bytearray(len(have[used[0]])) for _ in wanted]
        if decoded:
            self._multiply(self._decoding(used, tuple(wanted)), [have[index] for index in used], decoded)
        return decoded

    def _decoding_tables(self, used: tuple[int, ...], wanted: tuple[int, ...]) -> ctypes.Array[ctypes.c_char]:
        """Return the tables that compute some fragments from others: rows of the code times the inverse of theirs."""
        n = self.data
        rows = b"".join(self._row(index) for index in used)
        inverse = ctypes.create_string_buffer(n * n)
        if self._library.gf_invert_matrix(ctypes.create_string_buffer(rows, n * n), inverse, n):
            raise AssertionError("rows of a Cauchy matrix are independent")
        columns = [inverse.raw[at::n] for at in range(n)]
        products = chain.from_iterable((self._dot(self._row(index), column) for column in columns) for index in wanted)
        return self._tables(bytes(products))

    def _row(self, index: int) -> bytes:
        return self._matrix[index * self.data : (index + 1) * self.data]

    def _dot(self, row: bytes, column: bytes) -> int:
        total = 0
        for one, other in zip(row, column, strict=True):
            total ^= self._library.gf_mul(ctypes.c_ubyte(one), ctypes.c_ubyte(other)) & 0xFF
        return total

    def _tables(self, rows: bytes) -> ctypes.Array[ctypes.c_char]:
        """Return the tables that multiply data by these rows."""
        tables = ctypes.create_string_buffer(32 * len(rows))
        self._library.ec_init_tables(self.data, len(rows) // self.data, rows, tables)
        return tables

    def _multiply(
        self, tables: ctypes.Array[ctypes.c_char], sources: Sequence[Buffer], targets: Sequence[bytearray | memoryview]
    ) -> None:
        size_bytes = len(sources[0])
        if any(len(one) != size_bytes for one in (*sources, *targets)):
            raise ValueError(f"fragments differ in size: {[len(one) for one in (*sources, *targets)]}")
        arrays = [np.frombuffer(one, np.uint8) for one in (*sources, *targets)]  # hold the buffers where they are
        addresses = [array.ctypes.data for array in arrays]
        n = len(sources)
        read_type, write_type = ctypes.c_void_p * n, ctypes.c_void_p * len(targets)
        for at in range(0, size_bytes, WINDOW_BYTES):
            read, write = (address + at for address in addresses[:n]), (address + at for address in addresses[n:])
            length = min(WINDOW_BYTES, size_bytes - at)
            self._library.ec_encode_data(length, n, len(targets), tables, read_type(*read), write_type(*write))


@functools.cache
def codec_of(data: int, parity: int) -> Codec:
    """Return the codec of this code. Raises as `Codec` does."""
    return Codec(data, parity)
