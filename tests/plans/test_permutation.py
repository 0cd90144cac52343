"""permuted: a bijection of 0 to n - 1 for every key, the same everywhere and for ever."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.errors import InvalidRequest
from ais_loader.plans import permuted
from tests.table import table


def image(number: int, n: int, seed: int, epoch: int) -> int:
    """The same permutation in Python's own integers."""
    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)
    rounds = 24 if n <= 4096 else 8
    text = hashlib.shake_256(f"{seed} {epoch}".encode()).digest(8 * rounds)
    keys = [int.from_bytes(text[8 * at : 8 * at + 8], "little") for at in range(rounds)]

    def mixed(value: int, key: int, size: int) -> int:
        value = (value ^ key) * 0x9E3779B97F4A7C15 % 2**64
        value ^= value >> 32
        value = value * 0xD6E8FEB86659FD93 % 2**64
        return (value >> 32) * size >> 32

    while True:
        row, column = divmod(number, columns)
        for at in range(0, rounds, 2):
            row = (row + mixed(column, keys[at], rows)) % rows
            column = (column + mixed(row, keys[at + 1], columns)) % columns
        number = row * columns + column
        if number < n:
            return number


@pytest.mark.slow
@table("first", range(0, 2001, 100))
def test_every_small_n_is_permuted(first: int) -> None:
    for n in range(first, min(first + 100, 2001)):
        assert np.array_equal(np.sort(permuted(np.arange(n), n, seed=n, epoch=3)), np.arange(n))


@given(n=st.integers(1, 2**62 - 1), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**63), data=st.data())
def test_the_order_is_that_of_plain_integers(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    expected = [image(number, n, seed, epoch) for number in numbers]
    assert permuted(np.array(numbers, np.int64), n, seed=seed, epoch=epoch).tolist() == expected


@given(n=st.integers(2001, 2**62 - 1), seed=st.integers(0, 5), data=st.data())
def test_large_n_never_gives_a_number_twice(n: int, seed: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n - 2000))
    found = permuted(np.arange(first, first + 2000), n, seed=seed, epoch=0)
    assert len(set(found.tolist())) == 2000
    assert 0 <= found.min() <= found.max() < n


@table("n", [100_003, 2**17, 2**17 + 1])
def test_a_whole_large_order(n: int) -> None:
    assert np.array_equal(np.sort(permuted(np.arange(n), n, seed=1, epoch=1)), np.arange(n))


@pytest.mark.slow
def test_every_order_of_four_is_as_likely_as_another() -> None:
    counts: dict[bytes, int] = {}
    for epoch in range(2400):
        order = permuted(np.arange(4), 4, seed=5, epoch=epoch).tobytes()
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 60  # 23 degrees of freedom: 1 in 30,000


def test_shapes_and_empty_inputs() -> None:
    assert permuted(np.arange(6).reshape(2, 3), 6, seed=0, epoch=0).shape == (2, 3)
    assert permuted(3, 6, seed=0, epoch=0).shape == ()
    assert permuted([], 0, seed=0, epoch=0).tolist() == []


@table("numbers, n", [([5], 5), ([-1], 5), ([0.5], 5), ([0], 0), ([0], -1), ([0], 2**62), ([True], 2)])
def test_bad_input_is_refused(numbers: list[float], n: int) -> None:
    with pytest.raises(InvalidRequest, match="permuted"):
        permuted(numbers, n, seed=0, epoch=0)
