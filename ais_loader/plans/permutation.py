"""Keyed permutation: the number at any place of a shuffled order, without the rest of the order.

It is a Feistel network on a grid of a x b >= n cells, with a and b near the square root of n. A round adds a keyed hash
of one coordinate to the other one, modulo its size, and is therefore a bijection. A result of n or more is permuted
again until it is less ("cycle walking"). That is rare, because the grid has less than a spare cells.

All arithmetic is on unsigned 64-bit integers. The order is therefore the same on every platform and with every numpy.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.

A BlockOrder divides n numbers into blocks that have the same members in every epoch. Counts of a block, such as its
number of batches, are therefore made once. A position needs one block.
"""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest

ORDER = "feistel-1"
"""Name of the order. It is part of each fingerprint, so that a saved position cannot resume in another order."""
_ROUNDS, _SMALL_ROUNDS = 8, 24
"""Numbers of rounds. A small grid has few cells to hash, and needs more of them for all orders to be equally likely."""
_SMALL = 1 << 12
_CHUNK = 1 << 14
"""Numbers that are permuted at once: their arrays fit into a core's cache."""
_HALF = np.uint64(32)
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)
Numbers = npt.NDArray[np.int64]


def permuted(numbers: npt.ArrayLike, n: int, *, seed: int | str, epoch: int | str) -> Numbers:
    """Return the image of each number under the permutation of 0 to n - 1 that (seed, epoch) selects.

    Shapes: any shape of integers in, the same shape of int64 out. It takes some 0.1 ms for 128 numbers, whatever n is.

    Raises InvalidRequest for numbers that are not 0 to n - 1, or n of 2**62 or more.
    """
    given = np.asarray(numbers)
    if not 0 <= n < 2**62:
        raise InvalidRequest(f"permuted: n={n}: need 0 to 2**62 - 1")
    if given.size and (given.dtype.kind not in "iu" or int(given.min()) < 0 or int(given.max()) >= n):
        raise InvalidRequest(f"permuted: numbers are integers from 0 to n - 1 = {n - 1}")
    flat = given.astype(np.uint64).ravel()
    rows = math.isqrt(max(n, 1) - 1) + 1
    grid = (
        np.uint64(rows),
        np.uint64(-(-n // rows) or 1),
        _keys(f"{seed} {epoch}", _SMALL_ROUNDS if n <= _SMALL else _ROUNDS),
    )
    for first in range(0, len(flat), _CHUNK):
        part = _pass(flat[first : first + _CHUNK], *grid)
        while (outside := part >= n).any():
            part[outside] = _pass(part[outside], *grid)
        flat[first : first + _CHUNK] = part
    return flat.astype(np.int64).reshape(given.shape)


@functools.lru_cache(4096)
def _keys(text: str, rounds: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * rounds), "<u8").astype(np.uint64)


def _pass(
    cells: npt.NDArray[np.uint64], rows: np.uint64, columns: np.uint64, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    row = cells // columns
    column = cells - row * columns
    for key in range(0, len(keys), 2):
        row = _added(row, column, keys[key], rows)
        column = _added(column, row, keys[key + 1], columns)
    return row * columns + column


def _added(
    value: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64], key: np.uint64, size: np.uint64
) -> npt.NDArray[np.uint64]:
    """Return (value + hash of other) modulo size, for value < size <= 2**32."""
    mixed = other ^ key
    mixed *= _FACTORS[0]
    mixed ^= mixed >> _HALF
    mixed *= _FACTORS[1]
    mixed >>= _HALF
    mixed *= size
    mixed >>= _HALF
    mixed += value
    np.minimum(mixed, mixed - size, out=mixed)  # below zero, an unsigned number is large
    return mixed


class BlockOrder:
    """Blocks of nearly equal size. Their members depend on the seed, their order and that of members on the epoch too.

    Args:
        n: The number of samples.
        block: The size of a block, in samples; blocks may be somewhat larger or smaller.
        seed: Selects the members of each block.
    """

    def __init__(self, n: int, block: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self.count = max(1, round(n / block)) if n else 0
        self.ends: Numbers = np.arange(1, self.count + 1) * n // max(self.count, 1)
        self.counts: Numbers = np.zeros(self.count, np.int64)
        """Number of units, such as groups, of each block. Its owner sets it."""
        self._turns: tuple[int, Numbers, Numbers] | None = None

    def members(self, block: int) -> Numbers:
        """Return the members of a block, in an order of no meaning. Shape (members,), int64."""
        first = 0 if block == 0 else int(self.ends[block - 1])
        return permuted(np.arange(first, int(self.ends[block])), self.n, seed=self.seed, epoch="members")

    def shuffled(self, block: int, epoch: int) -> Numbers:
        """Return the members of a block in the order of an epoch. Shape (members,), int64."""
        members = self.members(block)
        return members[self.order(len(members), f"{epoch} in {block}")]

    def order(self, count: int, key: str) -> Numbers:
        """Return the numbers 0 to count - 1 in an order that a key selects."""
        return permuted(np.arange(count), count, seed=self.seed, epoch=key)

    def locate(self, epoch: int, at: int) -> tuple[int, int]:
        """Return (block, place in it) of the unit at a place of an epoch. `counts` has the units of each block."""
        turns = self._turns
        if turns is None or turns[0] != epoch:
            order = self.order(self.count, f"{epoch}")
            self._turns = turns = (epoch, order, np.cumsum(self.counts[order]))
        turn = int(np.searchsorted(turns[2], at, side="right"))
        block = int(turns[1][turn])
        return block, at - int(turns[2][turn]) + int(self.counts[block])
