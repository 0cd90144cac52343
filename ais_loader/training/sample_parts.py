"""Parts of samples: several entries that form one sample, as a tuple or a dict, and that a batch fetches together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ais_loader.errors import InvalidRequest
from ais_loader.values.batch import Batch
from ais_loader.values.entry import Entry, EntryLike, Item, ObjectInfo, to_entry

SampleLike: TypeAlias = EntryLike | tuple[EntryLike, ...] | Mapping[str, EntryLike]
"""An entry, or a tuple or dict of entries that form one sample."""


class Within(NamedTuple):
    """The `opaque` value of an entry that is a part of what it fetches, such as a row of a group of rows.

    Samples of a batch that are parts of the same range fetch it once.
    """

    part: int | None
    """None: all of it."""
    of: Any = None
    """Tells the decoder how to unpack it."""


class SharedItem(Item):
    """The item of an entry that is a part of what it fetches."""

    __slots__ = ("_unpacked",)

    def __init__(self, whole: Item, entry: Entry, unpacked: list[Any]) -> None:
        super().__init__(whole.index, entry, whole.status, whole.data, whole.error)
        self._unpacked = unpacked

    def unpacked(self, unpack: Callable[[Item], Any]) -> Any:
        """Return what `unpack` makes of the item. It is called once for all parts of a range in a batch."""
        if not self._unpacked:
            self._unpacked.append(unpack(self))
        return self._unpacked[0]


class SampleParts:
    """The samples of one request, of which at least one has several entries, or a part of one. `entries` are those of
    all samples, once each."""

    def __init__(self, samples: Sequence[Any], numbers: Sequence[int] | None = None) -> None:
        """`numbers` are those of the samples in their dataset. Raises InvalidRequest, TypeError."""
        self._samples = samples
        self._numbers = numbers
        self._flat = flat_entries(samples)
        numbers_of: dict[Entry, int] = {}
        self._places = [numbers_of.setdefault(one, at) if is_part(one) else at for at, one in enumerate(self._flat)]
        """Position of the first equal entry, for each entry."""
        self.entries = [one for at, one in enumerate(self._flat) if self._places[at] == at]

    @classmethod
    def of(cls, samples: Sequence[Any], numbers: Sequence[int] | None = None) -> SampleParts | None:
        """Return the parts of these samples, or None if each is one entry, and all of it."""
        kinds = set(map(type, samples))
        several = any(issubclass(kind, (tuple, dict)) for kind in kinds)
        return cls(samples, numbers) if several or (Entry in kinds and any(map(is_part, samples))) else None

    def items(self, batch: Batch) -> Iterator[Any]:
        """Yield the items of each sample, in the form of the sample."""
        items = self._items(batch)
        for sample in self._samples:
            yield in_form(sample, [next(items) for _ in range(len(sample) if has_parts(sample) else 1)])

    def _items(self, batch: Batch) -> Iterator[Item]:
        found = iter(batch)
        shared: dict[int, tuple[Item, list[Any]]] = {}
        for at, (entry, place) in enumerate(zip(self._flat, self._places, strict=True)):
            item = next(found) if place == at else shared[place][0]
            if not is_part(entry):
                yield item
                continue
            item, unpacked = shared.setdefault(place, (item, []))
            yield SharedItem(item, entry, unpacked)

    def name(self, at: int) -> str:
        """Return the name of a sample, by its position, for errors."""
        return f"{self._name(at)}, {places_of(self._samples[at])}"

    def name_of_entry(self, index: int) -> str:
        """Return a text that names an entry and its sample."""
        index = [at for at, place in enumerate(self._places) if place == at][index]
        first = 0
        for at, sample in enumerate(self._samples):
            parts = parts_of(sample)
            if index < first + len(parts):
                keys = list(sample) if isinstance(sample, dict) else range(len(parts))
                return f"{self._name(at)}, entry {keys[index - first]!r}: {place_of(parts[index - first])}"
            first += len(parts)
        return f"entry {index} of the batch"

    def _name(self, at: int) -> str:
        return f"sample {at} of its batch" if self._numbers is None else f"sample {self._numbers[at]} of its dataset"


def has_parts(sample: Any) -> bool:
    """Whether an element of a dataset's entries is several entries. An Entry is never a tuple."""
    return isinstance(sample, (tuple, dict))


def is_part(entry: Any) -> bool:
    """Whether an element of a dataset's entries is a part of what it fetches."""
    return type(entry) is Entry and type(entry.opaque) is Within


def parts_of(sample: Any) -> Sequence[Any]:
    """Return the entries of a sample, in order."""
    if isinstance(sample, dict):
        return list(sample.values())
    return sample if isinstance(sample, tuple) else (sample,)


def flat_entries(samples: Sequence[Any]) -> Sequence[Any]:
    """Return the entries of all samples, in order. Raises InvalidRequest, TypeError."""
    if not any(map(has_parts, samples)):
        return samples
    entries: list[Any] = []
    for sample in samples:
        parts = parts_of(sample)
        if not parts:
            raise InvalidRequest("a sample has no entries: a tuple or dict of entries has at least one")
        if any(map(has_parts, parts)):
            raise TypeError(f"the parts of a sample are entries, not tuples or dicts of them: {sample!r}")
        entries += parts
    return entries


def in_form(sample: Any, values: Sequence[Any]) -> Any:
    """Return the values, one for each entry of a sample, in the form of the sample."""
    if isinstance(sample, dict):
        return dict(zip(sample, values, strict=True))
    if not isinstance(sample, tuple):
        return values[0]
    return type(sample)(*values) if hasattr(sample, "_fields") else tuple(values)


def mapped(sample: Any, function: Callable[[Any], Any]) -> Any:
    """Return a sample with the function applied to each of its entries."""
    return in_form(sample, [function(part) for part in parts_of(sample)])


def is_complete(items: Any) -> bool:
    """Whether all entries of a sample were delivered."""
    return all(item.ok for item in parts_of(items))


def raw(items: Any) -> Any:
    """Return the bytes of a sample in its form. None if one of its entries failed."""
    return mapped(items, Item.tobytes) if is_complete(items) else None


def places_of(sample: Any) -> str:
    return ", ".join(map(place_of, parts_of(sample)))


def place_of(part: Any) -> str:
    """Return the URL of an entry, with its range."""
    entry = part if isinstance(part, Entry) else None
    if entry is None:
        try:
            entry = to_entry(part)
        except InvalidRequest:
            return str(part)  # a plain name
    url = f"ais://{entry.bucket}/{entry.name}" + (f"/{entry.member}" if entry.member else "")
    if entry.length is None:
        return f"{url}, from byte {entry.start}" if entry.start else url
    return f"{url}, bytes {entry.start} to {entry.start + entry.length}"


def pinned_sample(sample: Any) -> Any:
    """Return a sample whose listed objects are pinned to their versions."""
    return mapped(sample, lambda part: part.entry(pinned=True) if isinstance(part, ObjectInfo) else part)
