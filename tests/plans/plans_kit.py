"""The plans again, slowly: whole epochs as lists, in the most obvious way, and a dataset whose samples are numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ais_loader import BatchLoader, BatchSampler
from ais_loader.plans import permuted


def order(n: int, seed: int, epoch: int | str) -> list[int]:
    numbers: list[int] = permuted(range(n), n, seed=seed, epoch=epoch).tolist()
    return numbers


def finished(batches: list[Any], group: int, tail: str) -> list[Any]:
    """The batches of an epoch whose number `tail` makes a multiple of the group."""
    if tail == "repeat":
        at = 0
        batches = list(batches)
        own = len(batches)
        while own and len(batches) % group:
            batches.append(batches[at % own])
            at += 1
    elif tail == "drop":
        batches = batches[: len(batches) - len(batches) % group]
    return batches


def shuffled_batches(n: int, batch_size: int, seed: int, epoch: int, block: int = 1) -> list[list[int]]:
    if block == 1:
        numbers = order(n, seed, epoch)
    else:
        blocks = [list(range(first, min(first + block, n))) for first in range(0, n, block)]
        short = [blocks.pop()] if n % block else []
        numbers_of_blocks = order(len(blocks), seed, epoch) if blocks else []
        before = int(permuted(0, len(blocks) + 1, seed=seed, epoch=f"{epoch} short"))
        in_order = [blocks[at] for at in numbers_of_blocks]
        numbers = [one for part in in_order[:before] + short + in_order[before:] for one in part]
    return [numbers[first : first + batch_size] for first in range(0, n, batch_size)]


def blocks_of(n: int, block: int, seed: int) -> list[list[int]]:
    count = max(1, round(n / block)) if n else 0
    members = order(n, seed, "members")
    return [members[at * n // count : (at + 1) * n // count] for at in range(count)]


def bucket_groups(
    lengths: Sequence[float], bins: Sequence[float], sizes: Sequence[int], group: int, block: int, seed: int, epoch: int
) -> tuple[list[list[int]], list[list[int]]]:
    """The members of each group of an epoch in order, and the batches of what is left."""

    def bin_of(length: float) -> int | None:
        return next((at for at, bound in enumerate(bins) if length <= bound), None)

    blocks, rest = blocks_of(len(lengths), block, seed), []
    groups_of_blocks = []
    for number, members in enumerate(blocks):
        shuffled = [members[at] for at in order(len(members), seed, f"{epoch} in {number}")]
        fitting = [one for one in shuffled if bin_of(lengths[one]) is not None]
        left = sorted(fitting, key=lambda one: -bin_of(lengths[one]))  # type: ignore[operator]
        groups = []
        while left:
            size = sizes[bin_of(lengths[left[0]])]  # type: ignore[index]
            taken, left = left[: group * size], left[group * size :]
            if len(taken) >= group:
                groups.append(taken)
            else:
                rest += [taken[first : first + size] for first in range(0, len(taken), size)]
        turns = order(len(groups), seed, f"{epoch} groups of {number}") if groups else []
        groups_of_blocks.append([groups[at] for at in turns])
    turns = order(len(blocks), seed, epoch) if blocks else []
    return [group for at in turns for group in groups_of_blocks[at]], rest


def cut_packs(counts: Sequence[int], tokens: int, block: int, seed: int, epoch: int) -> list[list[tuple[int, int]]]:
    """Packs as lists of (document, token in it), one for each token, of an epoch in order."""
    blocks = blocks_of(len(counts), block, seed)
    packs = []
    for number in order(len(blocks), seed, epoch) if blocks else []:
        members = blocks[number]
        documents = [members[at] for at in order(len(members), seed, f"{epoch} in {number}")]
        stream = [(document, token) for document in documents for token in range(counts[document])]
        packs += [stream[first : first + tokens] for first in range(0, len(stream), tokens)]
    return packs


def tokens_of(pack: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(number, token) for number, start, length in pack for token in range(start, start + length)]


class Numbers:
    """A map-style dataset: sample k is k, or a list of n tokens."""

    def __init__(self, n: int, counts: Sequence[int] | None = None) -> None:
        self.n, self.counts = n, counts

    def __len__(self) -> int:
        return self.n

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        if self.counts is None:
            return list(indices)
        return [[(int(at), token) for token in range(self.counts[at])] for at in indices]


def loaders(plan: Any, world_size: int, state: dict[str, Any] | None = None) -> list[BatchLoader]:
    found = []
    for rank in range(world_size):
        samples = Numbers(plan.n, getattr(plan, "_counts", None))
        found.append(BatchLoader(samples, plan, rank=rank, world_size=world_size))
        if state is not None:
            found[-1].load_state_dict(state)
    return found


class Sampled(BatchSampler):
    """A batch sampler that yields what a DataLoader makes of its batches, with Numbers as the dataset."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            is_packed = bool(batch) and isinstance(batch[0], list)
            yield [[tokens_of([piece]) for piece in pack] for pack in batch] if is_packed else batch


def samplers(plan: Any, world_size: int, state: dict[str, Any] | None = None) -> list[Sampled]:
    found = [Sampled(plan, rank, world_size) for rank in range(world_size)]
    if state is not None:
        for sampler in found:
            sampler.load_state_dict(state)
    return found


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if math.gcd(size, number) == size]
