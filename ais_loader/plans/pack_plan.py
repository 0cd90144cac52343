"""PackPlan: documents packed into sequences of a fixed number of tokens."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.plans.groups import BALANCES, Balance, Tail, balanced, whole_number
from ais_loader.plans.number_plan import NumberPlan, digest_of
from ais_loader.plans.permutation import BlockOrder, Numbers

Pack: TypeAlias = list[tuple[int, int, int]]
"""Pieces of documents: (number, first token, number of tokens)."""


class Packs(list[Pack]):
    """The packs of one batch."""

    item_bytes: int | None = None
    """The size of a token in a document, in bytes, if pieces can be read as ranges of it."""
    counts: Mapping[int, int] = MappingProxyType({})
    """The number of tokens of each document, by its number. A sample with another number of them is refused."""


class PackPlan(NumberPlan):
    """A plan whose batches are packs: sequences of at most `tokens` tokens, made of documents.

    The documents of a block come in an order that depends on (seed, epoch). They are cut at the border of a pack, and
    go on in the next one. With `whole`, no document is cut: each goes into the pack with the least room that it fits
    in, the largest documents first. The last pack of a block has what is left. Every token is in one pack of an epoch,
    apart from the `overlap` of cut documents.

    Attributes:
        left_out: The numbers of the documents without tokens and, with `whole`, of those longer than a pack; int64.
    """

    def __init__(
        self,
        counts: npt.ArrayLike,
        tokens: int,
        batch_size: int,
        *,
        whole: bool = False,
        item_bytes: int | None = None,
        overlap: int = 0,
        balance: Balance = "linear",
        group: int | None = None,
        block: int = 10_000,
        seed: int = 0,
        tail: Tail = "repeat",
        epoch_steps: int | None = None,
    ) -> None:
        """
        Args:
            counts: The number of tokens of each document, shape (n,), integers >= 0.
            tokens: The number of tokens of a pack.
            batch_size: The number of packs per batch.
            whole: Whether documents are never cut.
            item_bytes: The size of a token in bytes, if the documents are objects of tokens alone. A MapDataset then
                requests only the bytes of each piece, and `decode` gets these. Otherwise it fetches whole documents,
                takes the piece from what `decode` returns, and refuses one whose `len` is not its count.
            overlap: The number of tokens that a piece has beyond the border of its pack, if its document is cut there:
                1 for the target of the pack's last token, as `collate_packed` makes it.
            balance: Whether the numbers of tokens of a group's batches are brought within 2 % of each other, or the
                totals of squared pieces too, as attention within documents needs it.
            block: The number of documents in a block, about. A position forms one block or two.
            group, seed, tail, epoch_steps: See NumberPlan.

        Raises InvalidRequest, TypeError.
        """
        super().__init__(seed=seed, group=group, tail=tail, epoch_steps=epoch_steps)
        self._counts = _checked_counts(counts)
        self.n = len(self._counts)
        self.tokens = whole_number("PackPlan", "tokens", tokens, 1)
        self.batch_size = whole_number("PackPlan", "batch_size", batch_size, 1)
        self.block = whole_number("PackPlan", "block", block, 1)
        self.overlap = whole_number("PackPlan", "overlap", overlap, 0)
        if balance not in BALANCES:
            raise InvalidRequest(f"PackPlan: balance={balance!r}: need 'linear' or 'quadratic'")
        self.whole, self.balance = bool(whole), balance
        self.item_bytes = None if item_bytes is None else whole_number("PackPlan", "item_bytes", item_bytes, 1)
        self._is_packed = (self._counts > 0) & ((self._counts <= self.tokens) | (not self.whole))
        self.left_out: Numbers = np.flatnonzero(~self._is_packed)
        self._blocks = BlockOrder(self.n, self.block, self.seed)
        self._blocks.counts = np.array([self._packs_of(block) for block in range(self._blocks.count)], np.int64)
        self._packs = int(self._blocks.counts.sum())
        self._digest: str | None = None
        self._regrouped()

    def __repr__(self) -> str:
        return (
            f"PackPlan({self.n:,} documents, tokens={self.tokens}, batch_size={self.batch_size}, whole={self.whole}, "
            f"overlap={self.overlap}, "
            f"seed={self.seed}, block={self.block}, balance={self.balance!r}, {self._shown})"
        )

    @property
    def left_out_counts(self) -> dict[str, int]:
        empty = int((self._counts == 0).sum())
        counts = {"without tokens": empty, "longer than a pack": len(self.left_out) - empty}
        return {reason: count for reason, count in counts.items() if count}

    def _arguments(self, own_step: int | None) -> dict[str, Any]:
        if self._digest is None:
            self._digest = digest_of(self._counts, "")
        names = ("n", "tokens", "batch_size", "whole", "seed", "block", "balance")
        own: dict[str, Any] = {name: getattr(self, name) for name in names} | {"digest": self._digest}
        return own | {"overlap": self.overlap} if self.overlap else own

    def _regrouped(self) -> None:
        self._formed: dict[tuple[int, int], tuple[Numbers, Numbers, list[list[int]]]] = {}
        self._last: tuple[tuple[int, int], list[list[Pack]]] | None = None

    def _packs_of(self, block: int) -> int:
        members = self._blocks.members(block)
        counts = self._counts[members[self._is_packed[members]]]
        return len(_best_fit(counts, self.tokens)) if self.whole else -(-int(counts.sum()) // self.tokens)

    def _steps(self) -> int:
        group = self.group or 1
        whole, rest = divmod(self._packs, group * self.batch_size)
        return whole * group + min(rest, group)

    def _batch(self, epoch: int, step: int) -> Packs:
        at, turn = divmod(step, self.group or 1)
        if (last := self._last) is None or last[0] != (epoch, at):  # which another thread may replace
            size = (self.group or 1) * self.batch_size
            packs = [self._pack(epoch, number) for number in range(at * size, min((at + 1) * size, self._packs))]
            costs = np.array([[float(sum(length for *_, length in pack)) for pack in packs]])
            if self.balance == "quadratic":
                squares = [[float(sum(length**2 for *_, length in pack)) for pack in packs]]
                costs = np.concatenate([costs, squares])
            parts = balanced(costs, min(self.group or 1, len(packs)))
            self._last = last = ((epoch, at), [[packs[place] for place in sorted(part.tolist())] for part in parts])
        batch = Packs(last[1][turn])
        batch.item_bytes = self.item_bytes
        batch.counts = {number: int(self._counts[number]) for pack in batch for number, *_ in pack}
        return batch

    def _pack(self, epoch: int, number: int) -> Pack:
        block, place = self._blocks.locate(epoch, number)
        documents, ends, packs = self._form(epoch, block)
        if self.whole:
            return [(int(documents[at]), 0, int(self._counts[documents[at]])) for at in packs[place]]
        first, stop = place * self.tokens, min((place + 1) * self.tokens, int(ends[-1]))
        pieces: Pack = []
        at = int(np.searchsorted(ends, first, side="right"))
        while first < stop:
            end, document = int(ends[at]), int(documents[at])
            begin = end - int(self._counts[document])
            pieces.append((document, first - begin, min(end, stop + self.overlap) - first))
            first, at = end, at + 1
        return pieces

    def _form(self, epoch: int, block: int) -> tuple[Numbers, Numbers, list[list[int]]]:
        """Return the documents of a block in order, the ends of their tokens, and the packs of whole documents."""
        before = self._formed
        if (found := before.get((epoch, block))) is None:
            documents = self._blocks.shuffled(block, epoch)
            documents = documents[self._is_packed[documents]]
            counts = self._counts[documents]
            packs: list[list[int]] = []
            if self.whole:
                packs = _best_fit(counts, self.tokens)
                packs = [packs[at] for at in self._blocks.order(len(packs), f"{epoch} packs of {block}").tolist()]
            found = (documents, np.cumsum(counts), packs)
            self._formed = dict([*before.items()][-1:]) | {(epoch, block): found}  # a group may extend over two blocks
        return found


def _best_fit(counts: Numbers, tokens: int) -> list[list[int]]:
    """Return packs of places of `counts`: each goes where the least room is left. The largest counts come first."""
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    order = np.argsort(-counts, kind="stable")
    for place, count in zip(order.tolist(), counts[order].tolist(), strict=True):
        at = bisect.bisect_left(rooms, (count, -1))
        if at < len(rooms):
            room, pack = rooms.pop(at)
            packs[pack].append(place)
        else:
            room, pack = tokens, len(packs)
            packs.append([place])
        if room > count:
            bisect.insort(rooms, (room - count, pack))
    return packs


def _checked_counts(counts: npt.ArrayLike) -> Numbers:
    table = np.asarray(counts)
    if table.size and table.dtype.kind not in "iu":
        raise TypeError(f"PackPlan: counts of type {table.dtype}; need integers")
    if table.ndim != 1:
        raise InvalidRequest(f"PackPlan: counts of shape {table.shape}; need (n,)")
    if table.size and int(table.min()) < 0:
        raise InvalidRequest(f"PackPlan: the count of document {int(table.argmin())} is {table.min()}; need 0 or more")
    return table.astype(np.int64)
