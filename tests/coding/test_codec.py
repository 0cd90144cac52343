"""Reed-Solomon codec: the fragments that pyeclib makes, and every loss that a code survives."""

from __future__ import annotations

import itertools
import random

import pytest

from ais_loader.errors import InvalidRequest, Unsupported
from storage_node.cluster.coding import codec as codecs
from storage_node.cluster.coding.codec import WINDOW_BYTES, Codec
from tests.table import table

pyeclib = pytest.importorskip("pyeclib.ec_iface")
CODES = table("data, parity", [(2, 1), (4, 2), (8, 3)])


def fragments_of(codec: Codec, size_bytes: int) -> list[bytes]:
    draw = random.Random(size_bytes)
    data = [draw.randbytes(size_bytes) for _ in range(codec.data)]
    parity = [bytearray(size_bytes) for _ in range(codec.parity)]
    codec.encode(data, parity)
    return [*data, *map(bytes, parity)]


@CODES
def test_fragments_are_those_of_pyeclib(data: int, parity: int) -> None:
    size_bytes = WINDOW_BYTES + 16  # a multiple of 16, to which pyeclib pads
    ours = fragments_of(Codec(data, parity), size_bytes)
    driver = pyeclib.ECDriver(k=data, m=parity, ec_type="isa_l_rs_cauchy")
    theirs = driver.encode(b"".join(ours[:data]))
    assert [fragment[-size_bytes:] for fragment in theirs] == ours


@CODES
def test_every_loss_of_as_many_fragments_as_there_is_parity_is_decoded(data: int, parity: int) -> None:
    codec = Codec(data, parity)
    fragments = fragments_of(codec, 1001)
    for lost in itertools.combinations(range(data + parity), parity):
        have = {index: one for index, one in enumerate(fragments) if index not in lost}
        assert codec.decode(have, lost) == [fragments[index] for index in lost], lost


def test_a_range_is_decoded_from_the_same_range_of_others() -> None:
    codec = Codec(4, 2)
    fragments = fragments_of(codec, 5000)
    have = {index: memoryview(fragments[index])[1234:1300] for index in (5, 4, 2, 0)}
    assert codec.decode(have, [3]) == [fragments[3][1234:1300]]
    assert codec.decode(have, []) == []


def test_views_of_one_buffer_are_coded_in_place() -> None:
    codec = Codec(2, 1)
    room = bytearray(random.Random(1).randbytes(2000)) + bytearray(1000)
    view = memoryview(room)
    codec.encode([view[:1000], view[1000:2000]], [view[2000:]])
    assert codec.decode({0: view[:1000], 2: view[2000:]}, [1]) == [room[1000:2000]]


@table("data, parity", [(0, 2), (4, 0), (250, 6)])
def test_a_code_that_there_is_not_is_refused(data: int, parity: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"rs:{data}\+{parity}"):
        Codec(data, parity)


def test_too_few_fragments_and_unequal_ones_are_refused() -> None:
    codec = Codec(4, 2)
    with pytest.raises(InvalidRequest, match="3 fragments: decoding takes 4 of 6"):
        codec.decode({0: b"a", 1: b"b", 2: b"c"}, [3])
    with pytest.raises(ValueError, match="differ in size"):
        codec.encode([b"a", b"b", b"c", b"dd"], [bytearray(1), bytearray(1)])


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "files", lambda name: [])
    codecs._library.cache_clear()
    try:
        with pytest.raises(Unsupported, match=r"pip install .*\[store,coding\]"):
            Codec(4, 2)
    finally:
        codecs._library.cache_clear()
