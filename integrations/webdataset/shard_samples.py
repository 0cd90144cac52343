"""Map-style samples of WebDataset shards: any sample by number, and a batch of them with one GetBatch.

This is for samplers. A shuffle over all shards, a sampler by length or a rank's share are lists of numbers here. A
pipeline that reads shards from beginning to end needs a shuffle buffer instead.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ais_loader import Batch, Client, Entry, MemberInfo, WithOpaque, errors
from ais_loader.extras import needs
from ais_loader.objects.sample_table import LISTED_TOGETHER, Rename, SampleTable, Select, Shard
from ais_loader.values.urls import split_url

from ..shared_store import StoreReference, named_url
from .opener import installed_url
from .shard_stream import require_whole

with needs("webdataset", "samples of shards"):
    from webdataset.compat import FluidInterface
    from webdataset.handlers import reraise_exception

Handler = Callable[[Exception], bool]


class _Selection(NamedTuple):
    """A batch of samples, by number, with the members of each and the entries of all of them."""

    samples: Sequence[int]
    members: Sequence[Sequence[str]]
    entries: Sequence[Entry]


class ShardSamples(FluidInterface):  # type: ignore[misc]  # WebDataset has no annotations
    """A map-style dataset of n samples in shards, for a DataLoader with any sampler.

    `__getitems__` fetches a whole batch with one request. A sample is what WebDataset yields: a dict of `__key__`,
    `__url__` and the bytes of each field, in the order of its shard. Samples are numbered in the order of the shards
    and of the samples in them. The shards' versions are those at the time of listing. If a shard is replaced later,
    reading it raises an error.

    WebDataset's calls that process samples one by one work here as well, in the process that fetched the batch:
    `decode`, `map`, `map_dict`, `to_tuple`, `map_tuple`, `rename`, `rename_keys`, `extract_keys`, `xdecode`, `compose`.
    Each returns another dataset over the same list. Forming other samples or another order is up to the sampler and the
    DataLoader: those calls raise TypeError.

    The dataset can be pickled, with the address of the store, if the mapped functions can. Forked workers share the
    list.

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
            store: A Client, or the address that each process connects to at its first read. None means the store that
                was passed to `install`, or else AIS_LOADER_URL.
            handler: A function that is called with the error of a sample that could not be fetched, like WebDataset's
                handlers. If it returns true, the batch continues without that sample. If false, the batch ends before
                that sample.
            select_files, rename_files: As for `WebDataset`. The latter must be picklable if workers are spawned.
            require_end: Whether a plain tar must have an end of archive. One without it was truncated, or comes from a
                writer that leaves it out.
            timeout_s: The longest time to wait for the store's next data.

        Raises:
            InvalidRequest: There are no shards, a URL is not one of the store, or a field occurs twice in a sample.
            ArchiveDamaged, NotAnArchive: A shard is truncated, or is not an archive.
            ArchiveError: A name occurs twice in a shard.
            ObjectNotFound, BucketNotFound, NodeUnavailable, SilenceTimeout.
        """
        self._store = store if isinstance(store, Client) else StoreReference(named_url(store or installed_url()))
        self._handler = handler
        self._timeout_s = timeout_s
        self._table = listed(
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
        """Return the `__key__` of each sample. Different shards may contain the same key."""
        return self._table.keys()

    def sizes_bytes(self, field: str | None = None) -> npt.NDArray[np.int64]:
        """Return the size of each sample, shape (n,), or of its member of this field (-1 if there is none).

        This is for samplers by length.
        """
        return self._table.sizes_bytes(field)

    def versions(self) -> dict[str, str]:
        """Return the versions of the shards that are read, by URL."""
        return {shard.url: shard.version for shard in self._table.shards}

    def entries(self, index: int) -> list[Entry]:
        """Return the entries of a sample's members, in order."""
        return self._table.entries(self._number(index))

    def __getitem__(self, index: int) -> Any:
        """Return one sample. Raises IndexError, and LookupError for a sample that a handler skipped."""
        found = self.__getitems__((index,))
        if not found:
            raise LookupError(f"sample {index} was passed over by a handler")
        return found[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Return the samples of these numbers, in order, with one request. The DataLoader calls this per batch.

        Raises IndexError, and the errors of `Client.get_batch`. ObjectNotFound is also raised for a shard that was
        replaced or deleted after the listing.
        """
        selection = self._selection(indices)
        return self._staged(self._delivered(selection, self._client().get_batch(selection.entries, **self._options())))

    def batches(
        self, batch_sampler: Iterable[Iterable[int]], *, in_flight: int = 3
    ) -> Generator[list[Any], None, None]:
        """Yield the samples of each list of numbers that a batch sampler draws, with the next batches in flight.

        A DataLoader passes the numbers of a batch only when it needs the batch. Here, `in_flight` batches are drawn and
        requested before their turn, over one session and without worker processes. The generator covers one epoch of
        the sampler. Closing it abandons the batches in flight. Raises the errors of `__getitems__`, and IndexError when
        the number is drawn.
        """
        if in_flight < 1:
            raise errors.InvalidRequest(f"in_flight={in_flight}: need at least 1")
        return self._batches(batch_sampler, in_flight)

    def _batches(self, batch_sampler: Iterable[Iterable[int]], in_flight: int) -> Generator[list[Any], None, None]:
        drawn = map(self._selection, batch_sampler)
        requests = (WithOpaque(selection.entries, selection) for selection in drawn)
        with closing(self._client().get_batches(requests, in_flight=in_flight, **self._options())) as batches:
            for batch in batches:
                yield self._staged(self._delivered(batch.opaque, batch))

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

    def _selection(self, indices: Iterable[int]) -> _Selection:
        table = self._table
        samples = [self._number(index) for index in indices]
        members = [table.members(sample) for sample in samples]
        entries = [
            Entry(shard.bucket, shard.name, member, version=shard.version)
            for sample, names in zip(samples, members, strict=True)
            for shard in (table.shard(sample),)
            for member in names
        ]
        return _Selection(samples, members, entries)

    def _delivered(self, selection: _Selection, batch: Batch) -> Iterable[dict[str, Any]]:
        if self._handler is reraise_exception:
            return self._samples(selection.samples, selection.members, self._contents(selection.samples, batch))
        return self._surviving(selection.samples, selection.members, batch)

    def _contents(self, selection: Sequence[int], batch: Batch) -> Iterator[Any]:
        try:
            with batch:
                return iter(batch.tobytes())
        except errors.ObjectNotFound as error:
            raise self._changed(selection, error) from error

    def _samples(
        self, selection: Sequence[int], members: Sequence[Sequence[str]], contents: Iterator[Any]
    ) -> Iterator[dict[str, Any]]:
        for sample, names in zip(selection, members, strict=True):
            key, fields = self._table.fields(names)
            found: dict[str, Any] = {"__key__": key, "__url__": self._table.shard(sample).url}
            found.update(zip(fields, islice(contents, len(fields)), strict=True))
            yield found

    def _surviving(
        self, selection: Sequence[int], members: Sequence[Sequence[str]], batch: Batch
    ) -> Iterator[dict[str, Any]]:
        with batch:
            for sample, names in zip(selection, members, strict=True):
                items = list(islice(batch, len(names)))
                failed = next((item.error for item in items if item.error is not None), None)
                if failed is None:
                    yield from self._samples([sample], [names], iter([item.tobytes() for item in items]))
                    continue
                if isinstance(failed, errors.ObjectNotFound):
                    failed = self._changed([sample], failed)
                if not self._handler(failed):
                    return

    def _changed(self, selection: Sequence[int], error: errors.ObjectNotFound) -> errors.LoaderError:
        """Return an error that names the shard that has changed since the listing, or the error itself if none has."""
        client = self._client()
        for shard in dict.fromkeys(self._table.shard(sample) for sample in selection):
            try:
                version = client.bucket(shard.bucket).head(shard.name).version
            except errors.NotFound:
                version = ""
            if version != shard.version:
                what = f"replaced by version {version}" if version else "deleted"
                return errors.ObjectNotFound(
                    f"{shard.url} was {what} after its samples were listed in version {shard.version}: make a new "
                    "ShardSamples, or list the shards of a snapshot (ais://bucket@snapshot/...), which nobody replaces"
                )
        return error

    # -- as pipelines have it

    def compose(self, *stages: Callable[[Iterator[Any]], Iterable[Any]]) -> ShardSamples:
        """Return these samples, sent through further stages. Each receives a batch's samples and yields the results.

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


with needs("webdataset", "samples of shards"):
    from webdataset import shardlists


def listed(
    client: Client,
    urls: Sequence[str],
    *,
    select: Select | None,
    rename: Rename | None,
    require_end: bool,
    timeout_s: float,
) -> SampleTable:
    """List the samples of these shards, in order. Reads only their indexes, a few at a time.

    Raises:
        InvalidRequest: A URL is not one of the store, or a sample has two members of the same field. The message names
            the shard.
        ObjectNotFound, BucketNotFound, ArchiveError, NodeUnavailable.
    """

    def members_of(url: str) -> tuple[Shard, list[MemberInfo]]:
        bucket_name, name = split_url(url)
        bucket = client.bucket(bucket_name)
        info = bucket.head(name)
        require_whole(client, info, timeout_s=timeout_s, require_end=require_end)
        shard = Shard(url, info.bucket, info.name, info.version)
        return shard, list(bucket.members(info.name, version=info.version))

    for url in urls:
        split_url(url)
    with ThreadPoolExecutor(LISTED_TOGETHER, "ais-loader index") as pool:
        return SampleTable(pool.map(members_of, urls), select=select, rename=rename)


def expanded(urls: str | Iterable[str]) -> list[str]:
    """Expand URLs as WebDataset does: with braces, joined by `::`, or one by one. Raises InvalidRequest."""
    listed = shardlists.expand_urls(urls) if isinstance(urls, str) else list(urls)
    if not listed:
        raise errors.InvalidRequest("no shards: give at least one URL like ais://bucket/shard.tar")
    return listed
