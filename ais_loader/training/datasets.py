"""MapDataset: a map-style dataset over a store, where a batch is one storage request.

It serves BatchLoader, and any sampler of torch's own DataLoader. It crosses into worker processes by fork or by
pickling. Only the store's address crosses: each process opens its own connection at its first read.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, cast

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.opened_batch import batch_of_names
from ais_loader.objects.range_table import RangeTable
from ais_loader.training.number_batches import (
    are_entries,
    checked_index,
    has_ranges,
    in_packs,
    is_packed,
    sample_numbers,
    samples_of,
)
from ais_loader.training.process_client import ClientOrUrl, ProcessClient
from ais_loader.training.sample_parts import SampleLike, SampleParts, flat_entries, mapped, pinned_sample, places_of
from ais_loader.training.take_samples import Decode, OnBatch, decoder, take_packed, take_samples
from ais_loader.values.batch import Batch
from ais_loader.values.entry import Entry, to_entry
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.packed import PackedBatch
from ais_loader.values.requests import OnError, batch_options

with needs("torch", "datasets"):
    from torch.utils.data import Dataset

_ELSEWHERE = dict.fromkeys(
    ("num_workers", "prefetch_factor", "sampler", "batch_sampler", "pin_memory", "worker_init_fn"),
    "the DataLoader takes it",
) | dict.fromkeys(
    ("batch_size", "shuffle", "drop_last"), "with MapDataset the DataLoader takes it, otherwise the plan, ShufflePlan"
)


class MapDataset(Dataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """A map-style dataset of n entries, for a BatchLoader, or for a DataLoader with any sampler.

    `__getitems__` fetches a whole batch with one request.

    Indices work like those of a list: -n to n - 1, of any integer type. Others raise IndexError, or TypeError if they
    are not integers.
    """

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[SampleLike] | Bucket | os.PathLike[str] = (),
        decode: Decode | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        bucket: str | None = None,
        pinned: bool = False,
        on_error: OnError = "raise",
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        on_batch: OnBatch | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url: A Client, or the address that each process connects to at its first read.
            entries: Entry values, ais:// URLs, or results of `Bucket.objects`. A list or tuple of whole objects of one
                bucket is stored as an `EntryTable`. Any other sequence is kept as it is, and indexed only for what is
                read. You can also pass a bucket, or the single str "ais://bucket/prefix": the objects whose names begin
                with the prefix are then listed immediately, in the order of names. The URL of a remote place, such as
                "s3://corpus/v3/en/", creates a remote bucket for the cloud bucket if there is none. The path of a
                saved `EntryTable` opens it, without a listing: all processes of a machine share its memory.
                An element may also be a tuple or a dict of entries, which form one sample and are fetched with the same
                request. `Bucket.samples` lists those of shards. None are needed for a plan of your own whose batches
                are entries.
            decode: A function from an Item to a sample, such as those of `ais_loader.decoders`. For a sample of several
                entries, it gets a tuple or a dict of Items, in the same form. It runs in the process that fetched the
                batch. `item.data` is a view, so copy what you want to keep. The function must be picklable if workers
                are spawned. Without `decode`, a sample is bytes.
            transform: A function from a sample to a sample. It runs after `decode`, in the same process. Samples of
                failed entries do not pass through it. If it or `decode` has an argument `rng`, it gets a
                numpy.random.Generator there, which a BatchLoader seeds by the sample's place in the plan.
            bucket: The bucket of those entries that are plain names.
            pinned: Whether to pin the listed objects to their current versions. If such an object is replaced later,
                reading it raises ObjectNotFound. A table is pinned if it was listed so.
            on_error: With "raise", the first failed entry raises its error out of the DataLoader, with its own type.
                With "placeholder", its sample is None, or what `decode` returns for an item that is not `ok`. One
                failed entry of several counts as a failure of the sample: the error's note names the sample and the
                entry, and `decode` gets all of its Items.
            timeout_s: The longest time to wait for the next data, in seconds.
            retry_s: With the URL of storage nodes: how long to keep trying to reach a node that does not answer, in
                seconds. The default is that of ClusterOptions. A Client has its own.
            on_batch: A function that is called with the `BatchTiming` of every fetched batch, in the process that
                fetched it: the worker. It must be picklable if workers are spawned.
            options: Further fields of BatchOptions.

        Raises InvalidRequest, TypeError, and the errors of listing. Reading raises the errors of `Client.get_batch`,
        and those of `decode` and `transform`.
        """
        self._client = ProcessClient(client_or_url, retry_s)
        self._decode = decoder(decode, transform)
        self._on_batch = on_batch
        self._bucket = bucket
        self._entries = entry_sequence(self._client, entries, bucket, pinned)
        self._options = _checked_options(MapDataset, options, on_error, timeout_s)

    def __repr__(self) -> str:
        return f"<MapDataset of {len(self._entries):,} entries, {self._client!r}>"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_raw(self) -> bool:
        """Whether samples are the bytes of their entries."""
        return self._decode is None

    def __getitem__(self, index: int | slice) -> Any:
        """Return the sample at an index, or the list of samples in a slice, with one request."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self._entries))))
        return self.__getitems__((checked_index(index, len(self._entries)),))[0]

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return the samples at these indices, in order, with one request. The DataLoader calls this per batch.

        For the packs of a PackPlan's batch, it returns the list of each pack's pieces. For entries, as a plan of your
        own may draw them, it returns their samples.
        """
        return self.begin(indices).finish()

    def begin(self, indices: Iterable[Any]) -> PendingSamples:
        """Request these samples, and return while they are still arriving: `finish()` returns them.

        An embedded store is read in `finish`, because reading there takes the caller's time.
        """
        return PendingSamples(self, indices)

    def _begin(self, indices: Iterable[Any]) -> tuple[Batch, SampleParts | None]:
        entries = self._entries
        are_whole = self._decode is None and not (has_ranges(indices) or are_entries(indices))
        if are_whole and isinstance(entries, EntryTable):
            numbers, options = self._numbers(indices), batch_options("MapDataset", self._options)
            transport, names = self._client.get()._transport, entries.names(numbers)
            return batch_of_names(transport, entries.bucket, names, options, entries.versions(numbers)), None
        samples = self._samples(indices)
        parts = SampleParts.of(samples, None if are_entries(indices) else self._numbers(indices))
        return self._request(samples if parts is None else parts.entries), parts

    def _numbers(self, indices: Iterable[Any]) -> list[int]:
        return [checked_index(index, len(self._entries)) for index in sample_numbers(indices)]

    def _samples(self, indices: Iterable[Any]) -> Sequence[Any]:
        """Return the entry or entries of each sample."""
        if are_entries(indices):
            return list(indices)
        return samples_of(self._entries, self._numbers(indices), indices, self._bucket)

    def _place(self, at: int) -> str:
        return places_of(self._entry(at))

    def _name(self, indices: Iterable[Any], at: int) -> str:
        """Return the name of a sample of a batch of these indices, by its position, for errors."""
        if are_entries(indices):
            return f"sample {at} of its batch, {places_of(self._samples(indices)[at])}"
        number = self._numbers(indices)[at]
        place = places_of(self._samples(indices)[at]) if has_ranges(indices) else self._place(number)
        return f"sample {number} of its dataset, {place}"

    @property
    def buckets(self) -> list[str] | None:
        """The buckets of the entries that numbers stand for. None if they are not known without looking at each."""
        return [self._entries.bucket] if isinstance(self._entries, EntryTable) else None

    def wanted(self, indices: Iterable[Any]) -> list[Entry]:
        """Return the entries that a batch of these indices fetches."""
        return [to_entry(entry, self._bucket) for entry in flat_entries(self._samples(indices))]

    def __add__(self, other: Any) -> Dataset[Any]:
        """Return `ais_loader.concat([self, other])`."""
        from ais_loader.training.concat import concat

        return concat([self, other])

    # -- for `concat`

    _fetches_entries = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = ("__getitem__", "__getitems__", "__len__")
        cls._fetches_entries = all(getattr(cls, name) is getattr(MapDataset, name) for name in own)

    @property
    def _request_key(self) -> Hashable:
        # Datasets with equal keys can fetch their entries with one request.
        return self._client.address, self._client.options, tuple(sorted(self._options.items()))

    def _load(self, numbers: Sequence[int]) -> None:
        if isinstance(self._entries, RangeTable):
            self._entries.load(numbers)

    def _entry(self, at: int) -> Any:
        return mapped(self._entries[at], lambda entry: to_entry(entry, self._bucket))

    def _request(self, entries: Sequence[Any]) -> Batch:
        batch: Batch = self._client.get().get_batch(entries, bucket=self._bucket, **self._options)
        return batch


class PendingSamples:
    """Samples of a batch that are requested ahead. Use it in one thread at a time."""

    def __init__(self, dataset: MapDataset, indices: Iterable[Any]) -> None:
        self._dataset, self._indices = dataset, indices
        self._batch: tuple[Batch, SampleParts | None] | None = None
        if dataset._client.is_remote:
            self._batch = dataset._begin(indices)

    def finish(self) -> list[Any]:
        """Return the samples, in order. Call this once. Raises the errors of reading."""
        dataset, indices = self._dataset, self._indices
        batch, parts = self._batch or dataset._begin(indices)
        name = partial(dataset._name, indices)
        samples = take_samples(batch, dataset._decode, dataset._on_batch, parts, name)
        return in_packs(samples, indices, are_pieces=has_ranges(indices))

    def packed(self) -> PackedBatch:
        """Return the entries as they are, end to end. Call this or `finish`, once. Raises the errors of reading."""
        dataset = self._dataset
        batch, parts = self._batch or dataset._begin(self._indices)
        if parts is not None or is_packed(self._indices):
            batch.close()
            raise InvalidRequest("output='packed': a sample of several entries, or a pack, has no place in one array")
        return take_packed(batch, dataset._on_batch, partial(dataset._name, self._indices))

    def close(self) -> None:
        """Abandon data that has not arrived."""
        if self._batch is not None:
            self._batch[0].close()


def hides_failures(dataset: Any) -> bool:
    """Whether entries that fail are placeholders instead of errors, in a dataset or a part of it."""
    parts = getattr(dataset, "datasets", [dataset])
    return any(isinstance(part, MapDataset) and part._options["on_error"] == "placeholder" for part in parts)


def _checked_options(kind: type[Any], options: dict[str, Any], on_error: OnError, timeout_s: float) -> dict[str, Any]:
    chosen = {"on_error": on_error, "timeout_s": timeout_s, **options}
    if not batch_options(
        kind.__name__,
        chosen,
        _ELSEWHERE,
        parameters=sorted(set(inspect.signature(kind).parameters) - {"self", "options"}),
    ).ordered:
        raise InvalidRequest("ordered=False: a dataset's samples come in the order of their indices")
    return chosen


def entry_sequence(
    client: ProcessClient, entries: Iterable[SampleLike] | Bucket | os.PathLike[str], bucket: str | None, pinned: bool
) -> Sequence[SampleLike]:
    """Return the entries, listed if necessary. Raises InvalidRequest, TypeError, and the errors of listing."""
    if isinstance(entries, os.PathLike) or (isinstance(entries, str) and _is_file(entries)):
        entries = EntryTable.open(entries)
    elif isinstance(entries, str):
        entries = client.listed(entries, pinned=pinned)
    elif isinstance(entries, Bucket):
        entries = entries.entries(pinned=pinned)
    indexable = hasattr(entries, "__getitem__") and hasattr(entries, "__len__")
    if isinstance(entries, (bytes, Mapping, Set)) or not (indexable or isinstance(entries, Iterable)):
        raise TypeError(
            "entries must be a sequence of Entry values or ais:// URLs, a bucket, or the URL of a prefix, got "
            f"{type(entries).__name__}"
        )
    if pinned and isinstance(entries, EntryTable) and not entries.is_pinned:
        raise InvalidRequest("pinned=True: the table has no versions; list it with Bucket.entries(pinned=True)")
    if not indexable:
        entries = list(entries)
    if not isinstance(entries, (list, tuple)):
        return cast(Sequence[SampleLike], entries)
    if pinned:
        entries = [pinned_sample(sample) for sample in entries]
    if flat_entries(entries) is not entries:
        return entries
    return EntryTable.of(entries, bucket) or entries


def _is_file(text: str) -> bool:
    return "://" not in text and os.path.isfile(os.path.expanduser(text))
