"""BlockOrder: a division of n numbers into blocks that have the same members in every epoch.

What is counted of a block, such as its number of batches, is therefore counted once. A position needs one block.
"""

from __future__ import annotations

import numpy as np

from ais_loader.plans.permutation import Numbers, permuted


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
