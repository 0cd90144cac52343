"""Kept indexes of objects: read where they are kept, made from the objects' bytes where not, and then kept."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ais_loader.errors import LoaderError, SnapshotReadOnly, StoreReadOnly
from ais_loader.objects.client import Client
from ais_loader.objects.range_table import pin_of, place
from ais_loader.transport.base import PutSpec
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.source import Source
from ais_loader.values.summary import SNAPSHOT_MARK
from ais_loader.wire.line_index import PREFIX, decode_index, encode_index, index_name

_READ_BYTES = 8 << 20
"""Bytes of objects that are requested together to make their indexes."""
_READ_OBJECTS = 1000
_DELETED_AT_ONCE = 5000
log = logging.getLogger(__name__)

T = TypeVar("T")
Piece = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class IndexKind(Generic[T]):
    """A kind of index, as bytes. `decode` returns None for an index of another kind, version or size."""

    encode: Callable[[ObjectInfo, T], bytes]
    decode: Callable[[memoryview, ObjectInfo], T | None]


def bounds_index(magic: bytes) -> IndexKind[npt.NDArray[np.int64]]:
    """Return the kind of indexes of where parts begin and, last, the object's size, shape (parts + 1,)."""
    return IndexKind(
        lambda info, bounds: encode_index(pin_of(info), bounds, magic),
        lambda data, info: decode_index(data, pin_of(info), info.size_bytes, magic),
    )


def kept_indexes(
    client: Client,
    objects: Sequence[ObjectInfo],
    kind: IndexKind[T],
    make: Callable[[Sequence[ObjectInfo]], Iterable[T | BaseException]],
    *,
    timeout_s: float,
) -> list[T]:
    """Return the index of each object. `make` makes those that are not kept, or errors, in the order of their objects.

    Indexes that are kept are read with one request. Those that are made are kept if the client can write, except in
    remote buckets, whose objects are all uploaded.

    Raises the errors of `make` and of `Client.get_batch`.
    """
    buckets = _buckets_with_indexes(client, objects)
    indexes = _kept(client, objects, kind, buckets, timeout_s)
    missing = [at for at, found in enumerate(indexes) if found is None]
    if missing:
        absent = [objects[at] for at in missing]
        made = list(make(absent))
        good = [(info, one) for info, one in zip(absent, made, strict=True) if not isinstance(one, BaseException)]
        _keep(client, good, kind, objects, buckets)  # also beside errors, so that they are not made again
        for at, found in zip(missing, made, strict=True):
            if isinstance(found, BaseException):
                found.add_note(f"raised for {place(objects[at])}")
                raise found
            indexes[at] = found
    return [one for one in indexes if one is not None]


def object_pieces(
    client: Client, objects: Sequence[ObjectInfo], *, timeout_s: float
) -> Iterator[tuple[ObjectInfo, Iterator[Piece]]]:
    """Yield each object with its bytes in pieces, reading a few ranges of several objects with each request.

    Take all pieces of an object before the next one. An empty object has none. Raises the errors of
    `Client.get_batches`.
    """
    requested: deque[list[int]] = deque()

    def requests() -> Iterator[list[Entry]]:
        entries: list[Entry] = []
        owners: list[int] = []
        size = 0
        for number, info in enumerate(objects):
            for start in range(0, info.size_bytes, _READ_BYTES):
                length = min(_READ_BYTES, info.size_bytes - start)
                if entries and (size + length > _READ_BYTES or len(entries) == _READ_OBJECTS):
                    requested.append(owners)
                    yield entries
                    entries, owners, size = [], [], 0
                entries.append(Entry(info.bucket, info.name, None, start, length, pin_of(info)))
                owners.append(number)
                size += length
        if entries:
            requested.append(owners)
            yield entries

    def pieces() -> Iterator[tuple[int, Piece]]:
        for batch in client.get_batches(requests(), timeout_s=timeout_s):
            with batch:
                for number, item in zip(requested.popleft(), batch, strict=True):
                    yield number, np.frombuffer(item.data, np.uint8)

    grouped = itertools.groupby(pieces(), key=lambda piece: piece[0])
    for info in objects:
        own: Iterable[tuple[int, Piece]] = next(grouped)[1] if info.size_bytes else ()
        yield info, (data for _, data in own)


def _kept(
    client: Client, objects: Sequence[ObjectInfo], kind: IndexKind[T], buckets: Sequence[str], timeout_s: float
) -> list[T | None]:
    indexes: list[T | None] = [None] * len(objects)
    wanted = [at for at, info in enumerate(objects) if info.bucket in buckets]
    if wanted:
        entries = [Entry(objects[at].bucket, index_name(objects[at].name)) for at in wanted]
        with client.get_batch(entries, on_error="placeholder", timeout_s=timeout_s) as batch:
            for at, item in zip(wanted, batch, strict=True):
                if item.ok:
                    indexes[at] = kind.decode(item.data, objects[at])
    return indexes


def _buckets_with_indexes(client: Client, objects: Sequence[ObjectInfo]) -> list[str]:
    """Return the buckets of these objects that can have indexes. What is put into a remote one is uploaded."""
    buckets = {info.bucket: info.bucket.partition(SNAPSHOT_MARK)[0] for info in objects}
    return [name for name, live in buckets.items() if client._transport.bucket(live).remote is None]


def _keep(
    client: Client,
    made: Sequence[tuple[ObjectInfo, T]],
    kind: IndexKind[T],
    objects: Sequence[ObjectInfo],
    buckets: Sequence[str],
) -> None:
    """Keep indexes, and remove those of objects that are gone, if the store can be written to.

    `objects`: all objects whose indexes are read. Stale indexes are looked for under their common prefix.
    """
    transport = client._transport
    try:
        for name in buckets:
            own = [(info, found) for info, found in made if info.bucket == name]
            if not own:
                continue
            sources = ((info, Source(kind.encode(info, found))) for info, found in own)
            puts = (
                (PutSpec(bucket=name, name=index_name(info.name), metadata={}, size_bytes=source.size_bytes), source)
                for info, source in sources
            )
            for result in transport.put_many(puts):
                if isinstance(result, LoaderError):
                    raise result
            names = [info.name for info in objects if info.bucket == name]
            _remove_stale(client, name, os.path.commonprefix(names))  # noqa: RUF071 - of texts, not of paths
    except (StoreReadOnly, SnapshotReadOnly) as error:
        log.info("indexes are not kept: %s", error)
    except LoaderError as error:
        log.warning("indexes are not kept, and are made again next time: %s", error)


def _remove_stale(client: Client, bucket: str, prefix: str) -> None:
    """Remove the indexes of objects that do not exist any more."""
    found = client._transport.objects(bucket, prefix=index_name(prefix))
    names = [info.name.removeprefix(PREFIX) for info in found]
    stale = [
        index_name(name)
        for name, is_there in zip(names, client.bucket(bucket).exists_many(names), strict=True)
        if not is_there
    ]
    for first in range(0, len(stale), _DELETED_AT_ONCE):
        client._transport.delete_names(bucket, stale[first : first + _DELETED_AT_ONCE])
