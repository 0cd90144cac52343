"""Concatenated map-style datasets that fetch a whole batch with one request per store."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.training.number_batches import checked_index, fetches_entries, in_packs, sample_numbers, sends_ahead
from ais_loader.training.sample_parts import SampleParts, raw
from ais_loader.training.sample_seeds import read_samples
from ais_loader.training.take_samples import take_samples
from ais_loader.values.batch import Batch

with needs("torch", "concat"):
    import torch.utils.data


def concat(datasets: Iterable[Any] | Mapping[str, Any]) -> ConcatDataset:
    """Return one map-style dataset of all samples of several, one dataset after another, like torch's ConcatDataset.

    A batch is one request for each store that it has samples of, not one for each sample. `first + second` does the
    same for a MapDataset. Samples come in the order of the indices. Each dataset keeps its own `decode`, `transform`
    and options. Datasets with different options, such as another `on_error`, have requests of their own. Datasets of
    other libraries may be among them.

    Args:
        datasets: n >= 1 datasets with `__len__` and `__getitem__`. Those that are concatenated themselves are replaced
            by their parts. Or datasets by name: those of a MixPlan, which compares the names.

    Raises InvalidRequest if there are none, TypeError for something without indices.
    """
    return ConcatDataset(datasets)


class ConcatDataset(torch.utils.data.ConcatDataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """The dataset that `concat` returns. Indices work like those of a MapDataset.

    Attributes:
        source_sizes: The number of samples of each dataset by name, in order. None if they have no names.
    """

    def __init__(self, datasets: Iterable[Any] | Mapping[str, Any]) -> None:
        self.source_sizes: dict[str, int] | None = None
        if isinstance(datasets, Mapping):
            self.source_sizes = {str(name): len(dataset) for name, dataset in datasets.items()}
            datasets = list(datasets.values())
        if hasattr(datasets, "__getitems__"):
            raise TypeError(f"concat: {type(datasets).__name__} is one dataset; pass a list of datasets")
        sources = [source for dataset in datasets for source in _sources(dataset)]
        if not sources:
            raise InvalidRequest("concat: no datasets; need one or more")
        super().__init__(sources)
        self._leads = [_lead(at, sources) for at in range(len(sources))]

    def __repr__(self) -> str:
        return f"<{len(self.datasets)} datasets of {len(self):,} entries: {', '.join(map(repr, self.datasets))}>"

    def __add__(self, other: Any) -> ConcatDataset:
        return ConcatDataset([self, other])

    def __getitem__(self, index: int | slice) -> Any:
        """Return the sample at an index, or the list of samples in a slice, with one request per store."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        return self.__getitems__((index,))[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Return the samples at these indices, in order, with one request per store."""
        return self.begin(indices).finish()

    def begin(self, indices: Iterable[int]) -> _PendingParts:
        """Request these samples, and return while they are still arriving: `finish()` returns them.

        Embedded stores, and datasets without a `begin` of their own, are read in `finish`.
        """
        count = len(self)
        requests: dict[int, list[tuple[int, Any, int]]] = {}
        for at, index in enumerate(sample_numbers(indices)):
            position = checked_index(index, count)
            number = bisect.bisect_right(self.cumulative_sizes, position)
            within = position - (self.cumulative_sizes[number - 1] if number else 0)
            requests.setdefault(self._leads[number], []).append((at, self.datasets[number], within))
        return _PendingParts(indices, [(self.datasets[lead], parts) for lead, parts in requests.items()])


class _PendingParts:
    """Samples of a batch that are requested ahead, with a request for each store. Use it in one thread at a time."""

    def __init__(self, indices: Iterable[int], requests: list[tuple[Any, list[tuple[int, Any, int]]]]) -> None:
        """`requests`: the first source of each, and its (position in the batch, source, index in the source)."""
        self._indices = indices
        self._places = [[at for at, _, _ in parts] for _, parts in requests]
        self._pending: list[Any] = []
        with self._closing():
            self._pending.extend(_begun(lead, parts) for lead, parts in requests)

    def finish(self) -> list[Any]:
        """Return the samples, in order. Call this once. Raises the errors of the sources."""
        samples: list[Any] = [None] * sum(map(len, self._places))
        with self._closing():
            for places, pending in zip(self._places, self._pending, strict=True):
                for at, sample in zip(places, pending.finish(), strict=True):
                    samples[at] = sample
        return in_packs(samples, self._indices)

    def close(self) -> None:
        """Abandon data that has not arrived."""
        for pending in self._pending:
            pending.close()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


class _PendingSources:
    """Samples of several sources that share one request."""

    def __init__(self, lead: Any, parts: list[tuple[int, Any, int]]) -> None:
        self._lead, self._parts = lead, parts
        self._batch = self._request() if lead._client.is_remote else None

    def _request(self) -> tuple[Batch, SampleParts | None]:
        for source in {id(source): source for _, source, _ in self._parts}.values():
            source._load([within for _, other, within in self._parts if other is source])
        wanted = [source._entry(within) for _, source, within in self._parts]
        several = SampleParts.of(wanted, [within for _, _, within in self._parts])
        return self._lead._request(wanted if several is None else several.entries), several

    def finish(self) -> list[Any]:
        batch, several = self._batch or self._request()
        sources = [source for _, source, _ in self._parts]
        decoders = [source._decode for source in sources]
        is_decoded = any(decoder is not None for decoder in decoders)  # one may be false, such as an empty Sequential
        coming = iter(decoders)

        def decode(items: Any) -> Any:
            own = next(coming)
            return raw(items) if own is None else own(items)

        def name(at: int) -> str:
            _, source, within = self._parts[at]
            return str(source._name([within], 0))

        samples = take_samples(batch, decode if is_decoded else None, None, several, name)
        called: list[Any] = []
        for source in {id(source): source for source in sources}.values():
            if source._on_batch is not None and source._on_batch not in called:
                called.append(source._on_batch)
                source._on_batch(batch.timing)
        return samples

    def close(self) -> None:
        if self._batch is not None:
            self._batch[0].close()


class _NotBegun:
    """Samples of a source that sends nothing ahead."""

    def __init__(self, source: Any, indices: list[int]) -> None:
        self._source, self._indices = source, indices

    def finish(self) -> list[Any]:
        return read_samples(self._source, self._indices)

    def close(self) -> None:
        pass


def _begun(lead: Any, parts: list[tuple[int, Any, int]]) -> Any:
    """Return the pending samples of (position in the batch, source, index in the source): one request of the lead."""
    source = parts[0][1]
    if any(other is not source for _, other, _ in parts):
        return _PendingSources(lead, parts)
    indices = [within for _, _, within in parts]
    return source.begin(indices) if sends_ahead(source) else _NotBegun(source, indices)


def _sources(dataset: Any) -> list[Any]:
    # A subclass of torch's may index in its own way.
    if type(dataset) in (ConcatDataset, torch.utils.data.ConcatDataset):
        return [source for one in dataset.datasets for source in _sources(one)]
    if not isinstance(dataset, torch.utils.data.Dataset) or isinstance(dataset, torch.utils.data.IterableDataset):
        raise TypeError(f"concat: {type(dataset).__name__} has no indices; need map-style datasets")
    return [dataset]


def _lead(at: int, sources: list[Any]) -> int:
    """Return the number of the first source that shares its requests with number `at`."""
    if not fetches_entries(sources[at]):
        return at
    return next(
        number
        for number, other in enumerate(sources)
        if fetches_entries(other) and other._request_key == sources[at]._request_key
    )
