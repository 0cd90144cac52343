"""Number batches: the samples that a batch of a plan over numbers needs, and the pieces that a pack takes of them."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.objects.range_table import RangeTable
from ais_loader.training.plan import entries_digest
from ais_loader.training.sample_parts import mapped
from ais_loader.values.entry import Entry, EntryLike, ObjectInfo, to_entry


def sample_numbers(batch: Iterable[Any]) -> list[int]:
    """Return the numbers of the samples to fetch, of a batch of numbers or of packs."""
    if is_packed(batch):
        return [number for pack in batch for number, *_ in pack]
    return list(as_integers(batch))


def are_entries(batch: Any) -> bool:
    """Whether a batch has entries instead of numbers or packs: an entry, name or tuple or dict of them comes first."""
    first = next(iter(batch[:1]), None) if isinstance(batch, (list, tuple)) else None
    return isinstance(first, (str, Entry, ObjectInfo, tuple, dict))


def sends_ahead(dataset: Any) -> bool:
    """Whether `dataset.begin(numbers)` requests samples ahead."""
    # A subclass that has its own way to get samples has not its parent's way to begin.
    order = [vars(kind) for kind in type(dataset).__mro__]
    first: Any = next((own for own in order if {"begin", "__getitems__", "__getitem__"} & own.keys()), {})
    return "begin" in first


def entry_of(dataset: Any, number: int) -> Any:
    """Return the entry or entries of a sample, or None for a dataset of other things."""
    return _of_part(dataset, number, "_entry")


def sample_name(dataset: Any, number: int) -> str:
    """Return the name of a sample, for errors: its number, and where it is stored."""
    place = _of_part(dataset, number, "_place")
    return f"sample {number}" + ("" if place is None else f", {place}")


def _of_part(dataset: Any, number: int, method: str) -> Any:
    """Call a method of the dataset, or the part of it, that has a sample; None if it has no such method."""
    if ends := getattr(dataset, "cumulative_sizes", None):
        part = bisect.bisect_right(ends, number)
        dataset, number = dataset.datasets[part], number - (ends[part - 1] if part else 0)
    find = getattr(dataset, method, None)
    return None if find is None else find(number)


def samples_of(entries: Sequence[Any], numbers: Sequence[int], batch: Any, bucket: str | None) -> Sequence[Any]:
    """Return the elements of `entries` with these numbers or, if a batch of packs has ranges, entries of the ranges."""
    if isinstance(entries, RangeTable):
        entries.load(numbers)
    samples = [entries[at] for at in numbers]
    if not has_ranges(batch):
        return samples
    size_bytes = batch.item_bytes
    pieces = (piece for pack in batch for piece in pack)
    return [
        mapped(sample, partial(_narrowed, bucket, start * size_bytes, length * size_bytes))
        for sample, (_, start, length) in zip(samples, pieces, strict=True)
    ]


def _narrowed(bucket: str | None, start: int, length: int, entry: EntryLike) -> Entry:
    whole = to_entry(entry, bucket)
    if whole.etl is not None or whole.ranges is not None:
        raise InvalidRequest(f"{whole}: item_bytes takes ranges of objects, not of results of a transform or of ranges")
    if whole.length is not None and start + length > whole.length:
        raise InvalidRequest(f"{whole}: its {whole.length:,} bytes end before byte {start + length:,} of the plan")
    return replace(whole, start=whole.start + start, length=length)


def has_ranges(batch: Iterable[Any]) -> bool:
    """Whether the pieces of a batch of packs are byte ranges of samples, which are otherwise fetched whole."""
    return getattr(batch, "item_bytes", None) is not None


def in_packs(samples: list[Any], batch: Iterable[Any], *, are_pieces: bool = False) -> list[Any]:
    """Return the samples or, for a batch of packs, the list of each pack's pieces: `sample[start : start + length]`.

    `are_pieces`: the samples are the pieces already. Raises InvalidRequest for a sample of another length than planned.
    """
    if not is_packed(batch):
        return samples
    coming = iter(samples)
    if are_pieces:
        return [[next(coming) for _ in pack] for pack in batch]
    counts: Mapping[int, int] = getattr(batch, "counts", {})

    def piece(number: int, start: int, length: int) -> Any:
        sample = next(coming)
        if len(sample) != (count := counts.get(number, len(sample))):
            raise InvalidRequest(
                f"sample {number} has {len(sample):,} tokens, and the plan's count of it is {count:,}: make the counts "
                "of what the dataset's decode returns"
            )
        return sample[start : start + length]

    return [[piece(*one) for one in pack] for pack in batch]


def part_digests(parts: Iterable[Any]) -> list[tuple[int, str]]:
    """Return the first number of each part of a dataset, and a digest of its entries; their number if it has none."""
    found, first = [], 0
    for part in parts:
        entries = getattr(part, "_entries", None)
        count = len(part if entries is None else entries)
        found.append((first, f"{count}" if entries is None else entries_digest(entries, part._bucket)))
        first += count
    return found


def is_packed(batch: Iterable[Any]) -> bool:
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


def fetches_entries(dataset: Any) -> bool:
    """Whether a dataset's samples are its entries after its decoder, so that others can fetch them with theirs."""
    return bool(getattr(type(dataset), "_fetches_entries", False))  # not of a dataset that wraps one
