"""ShufflePlan: batches of equal size in an order that depends on (seed, epoch)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ais_loader.errors import InvalidRequest
from ais_loader.plans.groups import Tail, whole_number
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.plans.permutation import Numbers, permuted


class ShufflePlan(NumberPlan):
    """A plan with `batch_size` numbers per batch. A batch takes the same time at any position, of any n."""

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        block: int = 1,
        group: int | None = None,
        tail: Tail = "repeat",
        epoch_steps: int | None = None,
    ) -> None:
        """
        Args:
            n: The number of samples, n >= 0.
            batch_size: The number of samples per batch. The last one may have fewer, unless `drop_last`.
            seed: A number from 0 to 2**64 - 1.
            block: The number of neighbours that stay together, in their order, such as the members of a shard. Blocks
                begin at multiples of it, and the order of blocks depends on (seed, epoch).
            group, tail, epoch_steps: See NumberPlan.

        Raises InvalidRequest, TypeError.
        """
        super().__init__(seed=seed, group=group, tail=tail, epoch_steps=epoch_steps)
        if hasattr(n, "__iter__") or hasattr(n, "__len__"):
            raise InvalidRequest(
                f"ShufflePlan: n is a {type(n).__name__}; need the number of samples: with dataset = MapDataset(store, "
                "entries), write BatchLoader(dataset, ShufflePlan(len(dataset), batch_size))"
            )
        self.n = whole_number("ShufflePlan", "n", n, 0)
        self.batch_size = whole_number("ShufflePlan", "batch_size", batch_size, 1)
        self.block = whole_number("ShufflePlan", "block", block, 1)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)

    def __repr__(self) -> str:
        return (
            f"ShufflePlan({self.n:,}, batch_size={self.batch_size}, seed={self.seed}, shuffle={self.shuffle}, "
            f"drop_last={self.drop_last}, block={self.block}, {self._shown})"
        )

    def _arguments(self, own_step: int | None) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("n", "batch_size", "seed", "shuffle", "drop_last", "block")}

    def _steps(self) -> int:
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    def _batch(self, epoch: int, step: int) -> Numbers:
        first = step * self.batch_size
        return self.numbers_at(epoch, np.arange(first, min(first + self.batch_size, self.n)))

    def numbers_at(self, epoch: int, places: Numbers) -> Numbers:
        """Return the numbers at places of the epoch's order. Shapes: (k,) to (k,), int64."""
        if not self.shuffle:
            return places
        if self.block == 1:
            return permuted(places, self.n, seed=self.seed, epoch=epoch)
        whole, rest = divmod(self.n, self.block)
        # The last block may be short. It comes after `before` whole ones; these are permuted among themselves.
        before = int(permuted(0, whole + 1, seed=self.seed, epoch=f"{epoch} short"))
        behind = places - before * self.block  # from the beginning of the short block on
        is_short = (behind >= 0) & (behind < rest)
        places = np.where(behind >= rest, places - rest, places)
        places[is_short] = 0
        block = permuted(places // self.block, max(whole, 1), seed=self.seed, epoch=epoch)
        return np.where(is_short, whole * self.block + behind, block * self.block + places % self.block)
