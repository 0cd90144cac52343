"""Range dataset: what datasets of parts of objects have in common, such as Lines, TokenWindows and Records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.range_table import RangeTable, described
from ais_loader.training.datasets import MapDataset, entry_sequence
from ais_loader.training.process_client import ClientOrUrl, ProcessClient
from ais_loader.training.take_samples import Decode
from ais_loader.values.entry import EntryLike, Item, ObjectInfo

Find: TypeAlias = Callable[[Client, list[ObjectInfo]], tuple[RangeTable, Decode]]
"""A function from whole objects to the ranges of all samples in them, and a decoder."""


class RangeDataset(MapDataset):
    """A map-style dataset of parts of objects, in the versions that the objects had when it was made."""

    _keeps_indexes = False
    """Whether `find` keeps what it finds, if the store can be written to."""

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[EntryLike] | Bucket,
        find: Find,
        *,
        bucket: str | None,
        timeout_s: float,
        retry_s: float | None,
        **options: Any,
    ) -> None:
        if "decode" in options:
            raise TypeError(
                f"decode: {type(self).__name__} decodes by itself; pass a function of a sample as transform"
            )
        reader = ProcessClient(client_or_url, retry_s)
        listed = entry_sequence(reader, entries, bucket, False)
        with reader.opened("a" if self._keeps_indexes and reader.is_shared else "r") as client:
            table, decode = find(client, described(client, listed, bucket))
        super().__init__(client_or_url, table, decode, timeout_s=timeout_s, retry_s=retry_s, **options)


class ItemDecoder:
    """A decoder that leaves an item that is not `ok` to be None, and applies `decode` to what is read of others."""

    def __init__(self, decode: Callable[[Any], Any] | None = None) -> None:
        """Raises TypeError."""
        if decode is not None and not callable(decode):
            raise TypeError(f"decode is a {type(decode).__name__}: need a function")
        self._decode = decode

    def __call__(self, item: Any) -> Any:
        if not item.ok:
            return None
        read = self.read(item)
        return read if self._decode is None else self._decode(read)

    def read(self, item: Item) -> Any:
        """Return what `decode` takes of an item that is `ok`."""
        raise NotImplementedError
