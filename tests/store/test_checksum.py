"""CRC-32C: the published vectors, agreement of every implementation, and the algebra of joining."""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Callable

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.wire import _crc32c
from ais_loader.wire.checksum import crc32c
from storage_node.store.checksum import combine, combine_blocks
from tests.table import table

Crc32c = Callable[..., int]

IMPLEMENTATIONS: dict[str, Crc32c] = {
    "chosen": crc32c,
    "lanes": _crc32c.crc32c_lanes,
    "table": _crc32c.crc32c_table,
}

each_implementation = table("checksum", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())

ISCSI_READ_10 = bytes.fromhex(
    "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
)
VECTORS = [  # RFC 3720, B.4, as numbers: the text prints the bytes in the order of the wire
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (ISCSI_READ_10, 0xD9963A56),
    (b"123456789", 0xE3069283),
    (b"", 0),
]

# Sizes on both sides of each border inside the implementations: words, lanes, copies, GIL.
sizes = st.one_of(
    st.integers(0, 300),
    st.integers(500, 800),  # from 512 on 256 bytes go together, where registers are wide
    st.sampled_from([192, 193, 767, 768, 3071, 3072, 3073, 10240, 64 << 10, (64 << 10) + 1, (512 << 10) + 5]),
)


def random_bytes(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@each_implementation
@table(("data", "expected"), VECTORS)
def test_published_vectors_give_the_published_checksums(checksum: Crc32c, data: bytes, expected: int) -> None:
    assert checksum(data) == expected


@pytest.mark.slow
@each_implementation
@given(size=sizes, seed=st.integers(0, 2**32 - 1), start=st.integers(0, 2**32 - 1), skip=st.integers(0, 9))
def test_every_implementation_agrees_with_the_library_at_any_size_alignment_and_start(
    checksum: Crc32c, size: int, seed: int, start: int, skip: int
) -> None:
    data = random_bytes(size + skip, seed)
    assert checksum(memoryview(data)[skip:], start) == google_crc32c.extend(start, data[skip:])


@each_implementation
@given(data=st.binary(max_size=2000), cut=st.integers(0, 2000))
def test_a_checksum_continues_where_an_earlier_one_ended(checksum: Crc32c, data: bytes, cut: int) -> None:
    assert checksum(data[cut:], crc=checksum(data[:cut])) == checksum(data)


@each_implementation
def test_any_contiguous_buffer_is_summed_as_its_bytes(checksum: Crc32c) -> None:
    data = random_bytes(9000, 1)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            results = [checksum(mapped)]
    floats = np.frombuffer(data, dtype=">f4").reshape(3, 750)
    results += [checksum(kind) for kind in (data, bytearray(data), memoryview(data), floats)]
    assert results == [google_crc32c.value(data)] * 5


@each_implementation
def test_an_empty_array_has_the_checksum_of_no_bytes(checksum: Crc32c) -> None:
    assert checksum(np.zeros((0, 7), dtype=np.int64)) == 0


@each_implementation
def test_a_buffer_with_gaps_is_refused(checksum: Crc32c) -> None:
    with pytest.raises(BufferError, match="contiguous"):
        checksum(memoryview(bytes(100))[::2])


@each_implementation
@table("data", ["text", 7, None, [1, 2]])
def test_what_is_not_bytes_like_is_refused(checksum: Crc32c, data: object) -> None:
    with pytest.raises(TypeError):
        checksum(data)


@each_implementation
@table("start", [-1, 2**32, -(2**70), 2**70])
def test_a_start_outside_32_bits_is_refused(checksum: Crc32c, start: int) -> None:
    with pytest.raises(ValueError, match=r"crc must be from 0 to 2\*\*32 - 1"):
        checksum(b"data", start)


@each_implementation
def test_a_start_may_be_a_numpy_integer_and_nothing_fractional(checksum: Crc32c) -> None:
    assert checksum(b"6789", np.uint32(checksum(b"12345"))) == 0xE3069283
    with pytest.raises(TypeError):
        checksum(b"data", 1.0)


@each_implementation
def test_a_misspelt_keyword_is_refused(checksum: Crc32c) -> None:
    with pytest.raises(TypeError):
        checksum(b"data", seed=1)


@each_implementation
def test_threads_summing_large_buffers_at_once_get_their_own_answers(checksum: Crc32c) -> None:
    buffers = [random_bytes(300_000 + i, i) for i in range(4)]
    results: dict[int, list[int]] = {i: [] for i in range(4)}
    threads = [
        threading.Thread(target=lambda i=i: results[i].extend(checksum(buffers[i]) for _ in range(20)))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=180)
    assert results == {i: [google_crc32c.value(buffers[i])] * 20 for i in range(4)}


@given(a=st.binary(max_size=600), b=st.binary(max_size=600))
def test_combining_two_checksums_gives_that_of_the_concatenation(a: bytes, b: bytes) -> None:
    assert combine(crc32c(a), crc32c(b), len(b)) == crc32c(a + b)


@given(pieces=st.lists(st.binary(max_size=100), max_size=8))
def test_an_object_checksum_follows_from_its_blocks(pieces: list[bytes]) -> None:
    whole = 0
    for piece in pieces:
        whole = combine(whole, crc32c(piece), len(piece))
    assert whole == crc32c(b"".join(pieces))


@given(crc=st.integers(0, 2**32 - 1), first=st.integers(0, 2**60), second=st.integers(0, 2**60))
def test_joining_two_lengths_in_turn_equals_joining_their_sum(crc: int, first: int, second: int) -> None:
    assert combine(combine(crc, 0, first), 0, second) == combine(crc, 0, first + second)


def test_combining_works_for_lengths_that_no_memory_holds() -> None:
    # The polynomial is (x + 1) times a primitive one of degree 31, so the powers of x repeat after 2**31 - 1.
    assert combine(0x12345678, 0, 2**31 - 1) == 0x12345678
    assert combine(0x12345678, 0, 2**40) != 0x12345678


def test_combining_with_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="len_b must not be negative"):
        combine(1, 2, -1)


@given(data=st.binary(min_size=1, max_size=2000), block_bytes=st.integers(1, 700))
def test_the_checksum_of_blocks_end_to_end_is_that_of_their_bytes(data: bytes, block_bytes: int) -> None:
    blocks = [data[at : at + block_bytes] for at in range(0, len(data), block_bytes)]
    assert combine_blocks([crc32c(block) for block in blocks], block_bytes, len(blocks[-1])) == crc32c(data)
