"""Line indexes of objects: read where they are kept, made from the objects' bytes where not, and then kept."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ais_loader.errors import LoaderError, SnapshotReadOnly, StoreReadOnly
from ais_loader.file_formats import HEAD_BYTES, UTF_16, format_of, is_text
from ais_loader.objects.client import Client
from ais_loader.objects.range_table import foreign, pin_of
from ais_loader.transport.base import PutSpec
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.snapshots import SNAPSHOT_MARK
from ais_loader.values.source import Source
from ais_loader.wire.line_index import PREFIX, decode_index, encode_index, index_name

_READ_BYTES = 8 << 20
"""Bytes of objects that are requested together to make their indexes."""
_READ_OBJECTS = 1000
_DELETED_AT_ONCE = 5000
_LF, _CR = 10, 13
log = logging.getLogger(__name__)

Bounds = npt.NDArray[np.int64]


def line_bounds(client: Client, objects: Sequence[ObjectInfo], *, timeout_s: float) -> list[Bounds]:
    """Return where the lines of each object begin and, last, its size. Blank lines belong to the line before.

    Indexes that are kept are read with one request. The other objects are read as a whole, and their indexes kept if
    the client can write, except in remote buckets, whose objects are all uploaded.

    Raises InvalidRequest for an object that is something else than text, and the errors of `Client.get_batch`.
    """
    buckets = _buckets_with_indexes(client, objects)
    bounds = _kept(client, objects, buckets, timeout_s)
    missing = [at for at, found in enumerate(bounds) if found is None]
    if missing:
        absent = [objects[at] for at in missing]
        made = list(_made(client, absent, timeout_s))
        _keep(client, list(zip(absent, made, strict=True)), objects, buckets)
        for at, found in zip(missing, made, strict=True):
            bounds[at] = found
    return [one for one in bounds if one is not None]


def _kept(
    client: Client, objects: Sequence[ObjectInfo], buckets: Sequence[str], timeout_s: float
) -> list[Bounds | None]:
    bounds: list[Bounds | None] = [None] * len(objects)
    wanted = [at for at, info in enumerate(objects) if info.bucket in buckets]
    if wanted:
        entries = [Entry(objects[at].bucket, index_name(objects[at].name)) for at in wanted]
        with client.get_batch(entries, on_error="placeholder", timeout_s=timeout_s) as batch:
            for at, item in zip(wanted, batch, strict=True):
                if item.ok:
                    bounds[at] = decode_index(item.data, pin_of(objects[at]), objects[at].size_bytes)
    return bounds


def _buckets_with_indexes(client: Client, objects: Sequence[ObjectInfo]) -> list[str]:
    """Return the buckets of these objects that can have indexes. What is put into a remote one is uploaded."""
    buckets = {info.bucket: info.bucket.partition(SNAPSHOT_MARK)[0] for info in objects}
    return [name for name, live in buckets.items() if client._transport.bucket(live).remote is None]


def _made(client: Client, objects: Sequence[ObjectInfo], timeout_s: float) -> Iterator[Bounds]:
    """Yield the bounds of each object, reading a few ranges of several objects with each request."""
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

    def pieces() -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        for batch in client.get_batches(requests(), timeout_s=timeout_s):
            with batch:
                for number, item in zip(requested.popleft(), batch, strict=True):
                    yield number, np.frombuffer(item.data, np.uint8)

    grouped = itertools.groupby(pieces(), key=lambda piece: piece[0])
    for info in objects:
        if not info.size_bytes:
            yield np.zeros(1, np.int64)
            continue
        _, own = next(grouped)
        first = next(own)[1]
        _require_lines(objects, info, first[:HEAD_BYTES].tobytes())
        yield _bounds_of(itertools.chain([first], (data for _, data in own)), info.size_bytes)


def _require_lines(objects: Sequence[ObjectInfo], info: ObjectInfo, head: bytes) -> None:
    """Raise InvalidRequest for an object that is not text of lines, by its first bytes."""
    found = "UTF-16" if head[:2] in UTF_16 else format_of(head)
    if found is not None and not is_text(head):
        raise foreign(objects, info, found, "lines of text", "*.jsonl")


def _bounds_of(pieces: Iterator[npt.NDArray[np.uint8]], size_bytes: int) -> Bounds:
    """Return the bounds of an object's lines from its bytes. A line of nothing, or a carriage return alone, is blank
    and begins nothing."""
    begins: list[Bounds] = []
    offset = line = before = 0
    for data in pieces:
        ends = np.flatnonzero(data == _LF)
        starts = np.concatenate([np.array([line], np.int64), ends[:-1] + (offset + 1)])[: len(ends)]
        lengths = ends + offset - starts
        last = data[np.maximum(ends - 1, 0)].astype(np.int64)
        if len(ends) and not ends[0]:
            last[0] = before
        is_blank = (lengths == 0) | ((lengths == 1) & (last == _CR))
        begins.append(starts[~is_blank])
        if len(ends):
            line = offset + int(ends[-1]) + 1
        offset += len(data)
        before = int(data[-1])
    left = size_bytes - line
    tail = [line, size_bytes] if left > 1 or (left == 1 and before != _CR) else [size_bytes]
    return np.concatenate([*begins, np.array(tail, np.int64)])


def _keep(
    client: Client,
    made: Sequence[tuple[ObjectInfo, Bounds]],
    objects: Sequence[ObjectInfo],
    buckets: Sequence[str],
) -> None:
    """Keep indexes, and remove those of objects that are gone, if the store can be written to.

    `objects`: all objects whose lines are read. Stale indexes are looked for under their common prefix.
    """
    transport = client._transport
    try:
        for name in buckets:
            own = [(info, found) for info, found in made if info.bucket == name]
            if not own:
                continue
            sources = ((info, Source(encode_index(pin_of(info), found))) for info, found in own)
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
        log.info("indexes of lines are not kept: %s", error)
    except LoaderError as error:
        log.warning("indexes of lines are not kept, and are made again next time: %s", error)


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
