"""BucketPlan: batches of samples of similar length, within hard bounds, from a permuted order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.plans.groups import BALANCES, Balance, Tail, balanced, whole_number
from ais_loader.plans.number_plan import NumberPlan, digest_of
from ais_loader.plans.permutation import BlockOrder, Numbers


class BucketPlan(NumberPlan):
    """A plan whose batches have samples of similar length, in one or two dimensions.

    A bin has an upper bound of the length, and a number of samples per batch. Every sample belongs to the first bin
    that it fits in. The members of a block are sorted by bin, and within a bin by (seed, epoch). Groups of G batches
    are cut from them, from the longest on. A group may extend into bins of shorter samples. It has as many samples as
    the bin of its longest member allows for each of its batches, so that no batch exceeds a bound. The order of blocks,
    and of the groups in a block, depends on (seed, epoch).

    Every sample is in one batch of an epoch. Less than G samples may be left in a block: they form batches of their
    own at the end of the epoch, where `tail` applies.

    Attributes:
        left_out: The numbers of the samples that fit nowhere, int64, in ascending order. No batch has them.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        bins: Sequence[float] | Sequence[Sequence[float]],
        batch_sizes: Sequence[int] | None = None,
        *,
        max_total: float | None = None,
        balance: Balance = "linear",
        group: int | None = None,
        block: int = 10_000,
        seed: int = 0,
        tail: Tail = "repeat",
        epoch_steps: int | None = None,
    ) -> None:
        """
        Args:
            lengths: The length of each sample, shape (n,), or (n, 2) for two dimensions, such as seconds of audio and
                tokens of text. Numbers >= 0.
            bins: The upper bounds in ascending order, or pairs of them, as NeMo's OOMptimizer prints them for
                `bucket_duration_bins`. A sample fits if none of its lengths exceeds its bound.
            batch_sizes: The number of samples per batch for each bin, as for `bucket_batch_size`.
            max_total: Instead of batch sizes: the largest product of a batch's number of samples and its bin's bound,
                in the first dimension. Bins with a larger bound are left out.
            balance: Whether the total lengths of a group's batches are brought within 2 % of each other, or the totals
                of squared lengths too, as attention needs it. In two dimensions, the first one counts.
            block: The number of samples in a block, about. A position forms one block.
            group, seed, tail, epoch_steps: See NumberPlan.

        Raises InvalidRequest, TypeError.
        """
        super().__init__(seed=seed, group=group, tail=tail, epoch_steps=epoch_steps)
        table = _checked_lengths(lengths)
        self.n, self.block = len(table), whole_number("BucketPlan", "block", block, 1)
        if balance not in BALANCES:
            raise InvalidRequest(f"BucketPlan: balance={balance!r}: need 'linear' or 'quadratic'")
        self.balance = balance
        self.bins = _checked_bins(bins, table.shape[1])
        if (batch_sizes is None) == (max_total is None):
            raise InvalidRequest("BucketPlan: give either batch_sizes or max_total")
        if batch_sizes is not None:
            sizes = [whole_number("BucketPlan", "a batch size", size, 1) for size in batch_sizes]
        else:
            if not max_total > 0:  # type: ignore[operator]  # not None, see above; this refuses NaN as well
                raise InvalidRequest(f"BucketPlan: max_total={max_total}: need a number above 0")
            sizes = [int(min(max_total // bound, self.n + 1)) for bound in self.bins[:, 0]]
        if len(sizes) != len(self.bins):
            raise InvalidRequest(f"BucketPlan: {len(sizes)} batch sizes for {len(self.bins)} bins")
        self._cut_by = repr((self.bins.tolist(), sizes))
        usable = [at for at, size in enumerate(sizes) if size]
        self.bins, self.batch_sizes = self.bins[usable], [sizes[at] for at in usable]
        self._lengths = table
        self._digest: str | None = None
        self._bin_of = _bins_of(table, self.bins)
        self.left_out: Numbers = np.flatnonzero(self._bin_of < 0)
        self._blocks = BlockOrder(self.n, self.block, self.seed)
        self._sizes = np.array([self._histogram(block) for block in range(self._blocks.count)])
        self._regrouped()

    def __repr__(self) -> str:
        return (
            f"BucketPlan({self.n:,} lengths, {len(self.bins)} bins, seed={self.seed}, block={self.block}, "
            f"balance={self.balance!r}, {self._shown})"
        )

    @property
    def left_out_counts(self) -> dict[str, int]:
        return {"that fit in no bin (are lengths and bins in the same unit?)": n} if (n := len(self.left_out)) else {}

    def _arguments(self, own_step: int | None) -> dict[str, Any]:
        if self._digest is None:
            self._digest = digest_of(self._lengths, self._cut_by)
        return {name: getattr(self, name) for name in ("n", "seed", "block", "balance")} | {"digest": self._digest}

    def _histogram(self, block: int) -> Numbers:
        found = self._bin_of[self._blocks.members(block)]
        return np.bincount(found[found >= 0], minlength=len(self.bins))

    def _regrouped(self) -> None:
        self._blocks = BlockOrder(self.n, self.block, self.seed)
        self._joined: dict[tuple[int, int], int] = {}
        cuts = [self._cut(sizes) for sizes in self._sizes.tolist()]
        self._blocks.counts = np.array([len(groups) for groups, _ in cuts], np.int64)
        self._rest_ends = np.cumsum([len(rest) for _, rest in cuts], dtype=np.int64)
        self._formed: tuple[tuple[int, int], Numbers, list[tuple[int, int]], list[tuple[int, int]]] | None = None
        self._last: tuple[tuple[int, int], list[Numbers]] | None = None

    def _cut(self, sizes: list[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Cut a block that is sorted from the longest bin on.

        Args:
            sizes: The number of members of each bin.

        Returns (first, stop) of each group, and of each batch of members that are too few for a group.
        """
        group, left = self.group or 1, list(sizes)
        groups: list[tuple[int, int]] = []
        rest: list[tuple[int, int]] = []
        at, current = 0, len(left) - 1
        while current >= 0:
            whole = group * self.batch_sizes[current]
            for _ in range(left[current] // whole):
                groups.append((at, at + whole))
                at += whole
            left[current] %= whole
            holder, size, shorter = current, left[current], current - 1
            while size and shorter >= 0:
                joined = self._join(holder, shorter) if left[shorter] else holder
                room = 0 if joined < 0 else group * self.batch_sizes[joined] - size
                if room <= 0:
                    break
                if left[shorter]:
                    taken = min(room, left[shorter])
                    holder, size = joined, size + taken
                    left[shorter] -= taken
                    if left[shorter]:
                        break
                shorter -= 1
            if size >= group:
                groups.append((at, at + size))
            else:
                batch = self.batch_sizes[holder]
                rest += [(at + first, at + min(first + batch, size)) for first in range(0, size, batch)]
            at, current = at + size, shorter if size else current - 1
        return groups, rest

    def _join(self, one: int, other: int) -> int:
        """Return the first bin that holds the members of two bins, or -1."""
        if (one, other) not in self._joined:
            bound = np.maximum(self.bins[one], self.bins[other])
            holding = (self.bins >= bound).all(axis=1)
            self._joined[one, other] = int(holding.argmax()) if holding.any() else -1
        return self._joined[one, other]

    def _steps(self) -> int:
        if not self._blocks.count:
            return 0
        return int(self._blocks.counts.sum()) * (self.group or 1) + int(self._rest_ends[-1])

    def _batch(self, epoch: int, step: int) -> Numbers:
        group, groups = self.group or 1, int(self._blocks.counts.sum())
        at, turn = divmod(step, group)
        if at >= groups:
            number = step - groups * group
            block = int(np.searchsorted(self._rest_ends, number, side="right"))
            members, _, rest = self._form(epoch, block)
            first, stop = rest[number - int(self._rest_ends[block])]  # counted from the end
            return members[first:stop]
        if (last := self._last) is None or last[0] != (epoch, at):  # which another thread may replace
            block, place = self._blocks.locate(epoch, at)
            members, cuts, _ = self._form(epoch, block)
            first, stop = cuts[place]
            within = members[first:stop]
            costs = self._lengths[within, 0].astype(np.float64)[None]
            if self.balance == "quadratic":
                costs = np.concatenate([costs, costs**2])
            self._last = last = ((epoch, at), [within[places] for places in balanced(costs, group)])
        return last[1][turn]

    def _form(self, epoch: int, block: int) -> tuple[Numbers, list[tuple[int, int]], list[tuple[int, int]]]:
        """Return the members of a block from the longest bin on, its groups in order, and its batches of the rest."""
        if (formed := self._formed) is None or formed[0] != (epoch, block):
            members = self._blocks.shuffled(block, epoch)
            members = members[self._bin_of[members] >= 0]
            members = members[np.argsort(-self._bin_of[members], kind="stable")]
            groups, rest = self._cut(self._sizes[block].tolist())
            order = self._blocks.order(len(groups), f"{epoch} groups of {block}").tolist()
            self._formed = formed = ((epoch, block), members, [groups[at] for at in order], rest)
        return formed[1:]


def _checked_lengths(lengths: npt.ArrayLike) -> npt.NDArray[Any]:
    table = np.asarray(lengths)
    if table.dtype.kind not in "iuf" and table.size:
        raise TypeError(f"BucketPlan: lengths of type {table.dtype}; need numbers")
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or not 1 <= table.shape[1] <= 2:
        raise InvalidRequest(f"BucketPlan: lengths of shape {table.shape}; need (n,) or (n, 2)")
    wrong = ~(np.isfinite(table) & (table >= 0)).all(axis=1)
    if wrong.any():
        at = int(wrong.argmax())
        raise InvalidRequest(f"BucketPlan: the length of sample {at} is {table[at].tolist()}; need numbers, 0 or more")
    return table


def _checked_bins(bins: Sequence[float] | Sequence[Sequence[float]], dimensions: int) -> npt.NDArray[np.float64]:
    table = np.array(bins, np.float64)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.shape[1] != dimensions or not len(table):
        raise InvalidRequest(f"BucketPlan: bins of shape {np.shape(bins)} for lengths of {dimensions} dimensions")
    rows = [tuple(row) for row in table.tolist()]
    if not (np.isfinite(table) & (table > 0)).all() or rows != sorted(set(rows)):
        raise InvalidRequest("BucketPlan: bins: need bounds above 0 in ascending order")
    return table


def _bins_of(table: npt.NDArray[Any], bins: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """Return the first bin that each sample fits in, or -1. Shapes: (n, d), (b, d) to (n,)."""
    found = np.searchsorted(bins[:, 0], table[:, 0], side="left").astype(np.int32)
    found[found == len(bins)] = -1
    if bins.shape[1] == 1:
        return found
    open_ = np.flatnonzero(found >= 0)
    while len(open_):  # the bins that begin with a bound that fits in the first dimension
        open_ = open_[table[open_, 1] > bins[found[open_], 1]]
        found[open_] += 1
        found[open_[found[open_] == len(bins)]] = -1
        open_ = open_[found[open_] >= 0]
    return found
