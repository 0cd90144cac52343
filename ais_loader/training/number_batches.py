"""Number batches: the samples that a batch of a plan over numbers needs, and the pieces that a pack takes of them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from ais_loader.training.plan import entries_digest


def sample_numbers(batch: Iterable[Any]) -> list[int]:
    """Return the numbers of the samples to fetch, of a batch of numbers or of packs."""
    if _is_packed(batch):
        return [number for pack in batch for number, *_ in pack]
    return list(as_integers(batch))


def in_packs(samples: list[Any], batch: Iterable[Any]) -> list[Any]:
    """Return the samples or, for a batch of packs, the list of each pack's pieces: `sample[start : start + length]`."""
    if not _is_packed(batch):
        return samples
    coming = iter(samples)
    return [[next(coming)[start : start + length] for _, start, length in pack] for pack in batch]


def part_digests(parts: Iterable[Any]) -> list[tuple[int, str]]:
    """Return the first number of each part of a dataset, and a digest of its entries; their number if it has none."""
    found, first = [], 0
    for part in parts:
        entries = getattr(part, "_entries", None)
        count = len(part if entries is None else entries)
        found.append((first, f"{count}" if entries is None else entries_digest(entries, part._bucket)))
        first += count
    return found


def _is_packed(batch: Iterable[Any]) -> bool:
    return isinstance(batch, list) and bool(batch) and isinstance(batch[0], list)


def as_integers(indices: Iterable[int]) -> Iterable[int]:
    # A numpy array or a tensor gives Python integers all at once; a list may hold any kind of integer.
    tolist = getattr(indices, "tolist", None)
    return indices if tolist is None else tolist()


def checked_index(index: Any, count: int) -> int:
    try:
        at = operator.index(index)
    except TypeError:
        raise TypeError(f"a dataset's index is an int or a slice, not {index!r}; get_batch fetches by name") from None
    if not -count <= at < count:
        raise IndexError(f"index {at} of a dataset of {count:,} entries")
    return at + count if at < 0 else at
