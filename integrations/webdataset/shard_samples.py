"""Map-style samples of WebDataset shards: any sample by number, a batch of them by one GetBatch.

For samplers: a shuffle over all shards, a sampler by length, a rank's share are lists of numbers here, where a pipeline
that reads shards from beginning to end has a shuffle buffer.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ais_loader import Batch, Client, Entry, WithOpaque, errors
from ais_loader.extras import needs

from ..shared_store import StoreReference, named_url
from .sample_table import Rename, SampleTable, Select, expanded

with needs("webdataset", "samples of shards"):
    from webdataset.compat import FluidInterface
    from webdataset.handlers import reraise_exception

Handler = Callable[[Exception], bool]


class _Wanted(NamedTuple):
    """A batch of samples, by number, with the members of each and what fetches all of them."""

    samples: Sequence[int]
    members: Sequence[Sequence[str]]
    entries: Sequence[Entry]


class ShardSamples(FluidInterface):  # type: ignore[misc]  # WebDataset has no annotations
    """n samples of shards, for a DataLoader with any sampler. `__getitems__` fetches a whole batch with one request.

    A sample is what WebDataset yields: a dict of `__key__`, `__url__` and the bytes of each field, in the order of its
    shard. Samples are numbered in the order of the shards and of the samples in them. The versions of the shards are
    those that were there when the list was made; a shard that is replaced later makes reading it an error.

    What WebDataset does to samples one by one is done here by the same calls, where the batch was fetched: `decode`,
    `map`, `map_dict`, `to_tuple`, `map_tuple`, `rename`, `rename_keys`, `extract_keys`, `xdecode`, `compose`; each
    returns another dataset over the same list. What makes other samples of them, or another order, is for the sampler
    and the DataLoader: those calls raise TypeError.

    Pickles, with the address of the store, if what is mapped does. Forked workers share the list.

    Source: webdataset 1.0.2, compat.py, tariterators.py.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        store: Client | str | os.PathLike[str] | None = None,
        handler: Handler = reraise_exception,
        select_files: Select | None = None,
        rename_files: Rename | None = None,
        require_end: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """
        Args:
            urls: `ais://bucket/shard-{000..012}.tar`, several joined by `::`, or an iterable of URLs without braces.
            store: a Client, or where to connect to, in each process at its first read; None: AIS_LOADER_URL.
            handler: called with the error of a sample that could not be fetched, as WebDataset's handlers are: if it
                returns true the batch goes on without that sample, if false without this and those behind it.
            select_files, rename_files: as for `WebDataset`. The latter must pickle if workers are spawned.
            require_end: of a plain tar, that it has its end of archive: one that has not was cut off, or comes from a
                writer that leaves it out.
            timeout_s: longest silence of the store.

        Raises:
            InvalidRequest: no shards, or what is no URL of the store.
            ArchiveDamaged, NotAnArchive: a shard that is cut off, or none.
            ArchiveError: a shard in which a name stands twice.
            ValueError: a sample in which a field stands twice.
            ObjectNotFound, BucketNotFound, NodeUnavailable, SilenceTimeout.
        """
        self._store = store if isinstance(store, Client) else StoreReference(named_url(store))
        self._handler = handler
        self._timeout_s = timeout_s
        self._table = SampleTable.listed(
            self._client(),
            expanded(urls),
            select=select_files,
            rename=rename_files,
            require_end=require_end,
            timeout_s=timeout_s,
        )
        self._stages: tuple[Callable[[Iterator[Any]], Iterable[Any]], ...] = ()

    def __repr__(self) -> str:
        return f"<ShardSamples of {len(self):,} samples in {len(self._table.shards):,} shards, {self._store!r}>"

    def __len__(self) -> int:
        return len(self._table)

    def keys(self) -> list[str]:
        """`__key__` of each sample. Shards may have some in common."""
        return self._table.keys()

    def sizes_bytes(self, field: str | None = None) -> npt.NDArray[np.int64]:
        """Of each sample, or of its member of this field (-1: it has none), shape (n,). For samplers by length."""
        return self._table.sizes() if field is None else self._table.field_sizes(field)

    def versions(self) -> dict[str, str]:
        """Of the shards, by URL: those that are read."""
        return {shard.url: shard.version for shard in self._table.shards}

    def entries(self, index: int) -> list[Entry]:
        """What fetches a sample's members, in their order."""
        return self._table.entries(self._number(index))

    def __getitem__(self, index: int) -> Any:
        """Raises IndexError, and LookupError for a sample that a handler passed over."""
        found = self.__getitems__((index,))
        if not found:
            raise LookupError(f"sample {index} was passed over by a handler")
        return found[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """The samples of these numbers, in their order, by one request; the DataLoader calls it for each batch.

        Raises IndexError, and what `Client.get_batch` raises. ObjectNotFound for a shard that was replaced or deleted
        since the list was made.
        """
        wanted = self._wanted(indices)
        return self._staged(self._taken(wanted, self._client().get_batch(wanted.entries, **self._options())))

    def batches(
        self, batch_sampler: Iterable[Iterable[int]], *, in_flight: int = 3
    ) -> Generator[list[Any], None, None]:
        """What `__getitems__` makes of each list of numbers that a batch sampler draws, the next ones being under way.

        A DataLoader names the numbers of a batch when it wants the batch; here `in_flight` of them are drawn and asked
        for before their turn, over one session and without worker processes. An epoch of the sampler; closing the
        generator gives up what is under way. Raises what `__getitems__` does; IndexError when the number is drawn.
        """
        if in_flight < 1:
            raise errors.InvalidRequest(f"in_flight={in_flight}: need at least 1")
        return self._batches(batch_sampler, in_flight)

    def _batches(self, batch_sampler: Iterable[Iterable[int]], in_flight: int) -> Generator[list[Any], None, None]:
        drawn = map(self._wanted, batch_sampler)
        requests = (WithOpaque(wanted.entries, wanted) for wanted in drawn)
        with closing(self._client().get_batches(requests, in_flight=in_flight, **self._options())) as batches:
            for batch in batches:
                yield self._staged(self._taken(batch.opaque, batch))

    def _staged(self, samples: Iterable[Any]) -> list[Any]:
        for stage in self._stages:
            samples = stage(iter(samples))
        return list(samples)

    def _client(self) -> Client:
        return self._store if isinstance(self._store, Client) else self._store.reader()

    def _number(self, index: int) -> int:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {index} of {len(self):,}")
        return number % len(self)

    def _options(self) -> dict[str, Any]:
        tolerant = self._handler is not reraise_exception
        return {"on_error": "placeholder" if tolerant else "raise", "timeout_s": self._timeout_s}

    def _wanted(self, indices: Iterable[int]) -> _Wanted:
        table = self._table
        samples = [self._number(index) for index in indices]
        members = [table.members(sample) for sample in samples]
        entries = [
            Entry(shard.bucket, shard.name, member, version=shard.version)
            for sample, names in zip(samples, members, strict=True)
            for shard in (table.shard(sample),)
            for member in names
        ]
        return _Wanted(samples, members, entries)

    def _taken(self, wanted: _Wanted, batch: Batch) -> Iterable[dict[str, Any]]:
        if self._handler is reraise_exception:
            return self._samples(wanted.samples, wanted.members, self._contents(wanted.samples, batch))
        return self._surviving(wanted.samples, wanted.members, batch)

    def _contents(self, wanted: Sequence[int], batch: Batch) -> Iterator[Any]:
        try:
            with batch:
                return iter(batch.tobytes())
        except errors.ObjectNotFound as error:
            raise self._changed(wanted, error) from error

    def _samples(
        self, wanted: Sequence[int], members: Sequence[Sequence[str]], contents: Iterator[Any]
    ) -> Iterator[dict[str, Any]]:
        for sample, names in zip(wanted, members, strict=True):
            key, fields = self._table.fields(names)
            found: dict[str, Any] = {"__key__": key, "__url__": self._table.shard(sample).url}
            found.update(zip(fields, islice(contents, len(fields)), strict=True))
            yield found

    def _surviving(
        self, wanted: Sequence[int], members: Sequence[Sequence[str]], batch: Batch
    ) -> Iterator[dict[str, Any]]:
        with batch:
            for sample, names in zip(wanted, members, strict=True):
                items = list(islice(batch, len(names)))
                failed = next((item.error for item in items if item.error is not None), None)
                if failed is None:
                    yield from self._samples([sample], [names], iter([item.tobytes() for item in items]))
                    continue
                if isinstance(failed, errors.ObjectNotFound):
                    failed = self._changed([sample], failed)
                if not self._handler(failed):
                    return

    def _changed(self, wanted: Sequence[int], error: errors.ObjectNotFound) -> errors.LoaderError:
        """Which of the shards is not the one that was listed; the error itself if all of them are."""
        client = self._client()
        for shard in dict.fromkeys(self._table.shard(sample) for sample in wanted):
            try:
                there = client.bucket(shard.bucket).head(shard.name).version
            except errors.NotFound:
                there = ""
            if there != shard.version:
                what = f"replaced by version {there}" if there else "deleted"
                return errors.ObjectNotFound(
                    f"{shard.url} was {what} after its samples were listed in version {shard.version}: make a new "
                    "ShardSamples, or list the shards of a snapshot (ais://bucket@snapshot/...), which nobody replaces"
                )
        return error

    # -- as pipelines have it

    def compose(self, *stages: Callable[[Iterator[Any]], Iterable[Any]]) -> ShardSamples:
        """These samples, sent through further stages: each is given a batch's samples and yields what becomes of them.

        A stage that yields fewer makes the batch smaller.
        """
        another = copy.copy(self)
        another._stages = (*self._stages, *stages)
        return another

    def _belongs_elsewhere(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "samples by number stay as many as they are, in the order that they are asked for: shuffling, batching, "
            "selecting and repeating are for the sampler and the DataLoader"
        )

    batched = unbatched = listed = unlisted = _belongs_elsewhere
    shuffle = select = slice = rsample = _belongs_elsewhere
    mcached = lmdb_cached = log_keys = _belongs_elsewhere
