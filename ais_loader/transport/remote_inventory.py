"""Inventory reader: reads the inventory of a remote bucket, as objects that any client of the store can read.

Listings read it in place of the remote storage. If it cannot be read, they ask the remote storage as before.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from ais_loader import errors
from ais_loader.transport.base import Transport
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.wire.inventory import (
    PREFIX,
    Block,
    BlockIndex,
    Description,
    Row,
    changed_name,
    current_name,
    lengths_of,
    rows_of,
)
from ais_loader.wire.names_block import NamesBlock
from ais_loader.wire.remote import Remote
from ais_loader.wire.reserved import ETAG_VERSION

_TIMEOUT_S = 60.0
_HEADS_AT_ONCE = 1000
_BYTES_AT_ONCE = 64 << 20
"""Names that are requested together, approximately."""


UNREADABLE = errors.NodeUnavailable, errors.SilenceTimeout, errors.DriveFailed, errors.CorruptObject
"""Errors of an inventory that is there and cannot be read."""
log = logging.getLogger(__name__)


class InventoryReader:
    """The current inventory of a bucket, as it was when it was opened."""

    def __init__(
        self, transport: Transport, bucket: str, remote: Remote, description: Description, index: BlockIndex
    ) -> None:
        self._transport, self._bucket, self._remote = transport, bucket, remote
        self.description = description
        self._index = index
        self._data = f"{PREFIX}{remote.inventory}/{description.data}"

    @classmethod
    def open(cls, transport: Transport, bucket: str, remote: Remote) -> Self | None:
        """Open the inventory of a bucket; return None if there is none.

        Raises CorruptObject for one that cannot be read, NodeUnavailable, and what `Transport.get` raises.
        """
        if not remote.inventory:
            return None
        name = current_name(remote.inventory)
        try:
            content = _read(transport, bucket, name, 0, None)
        except errors.ObjectNotFound:
            return None
        try:
            description, index = Description.parse(content)
        except ValueError as error:
            raise errors.CorruptObject(f"{bucket}{name}: {error}") from None
        return cls(transport, bucket, remote, description, index) if description.place == remote.place else None

    def covers(self, prefix: str) -> bool:
        """Whether the inventory has all objects with this prefix."""
        return prefix.startswith(self.description.prefix)

    # -- names alone

    def names(self, prefix: str) -> Iterator[NamesBlock]:
        """Yield all names with this prefix, in blocks, in order. Raises ObjectNotFound if the inventory is replaced."""
        begin, blocks = prefix.encode(), self._index.blocks_with(prefix.encode())
        stop = blocks.start
        while (first := stop) < blocks.stop:
            while stop < blocks.stop and (stop == first or self._index.names_range(first, stop)[1] < _BYTES_AT_ONCE):
                stop += 1
            start, length = self._index.names_range(first, stop)
            content = self._bytes(start, length)
            for block in range(first, stop):
                at, size_bytes = self._index.names_range(block, block + 1)
                found = self._names_block(self._index.rows(block), content[at - start : at - start + size_bytes])
                if begin and block in (blocks.start, blocks.stop - 1):
                    found = NamesBlock.of([name for name in found.to_list() if name.startswith(begin)])
                yield found

    def _names_block(self, count: int, names: bytes) -> NamesBlock:
        try:
            return NamesBlock(lengths_of(names, count), names[2 * count :])
        except ValueError as error:
            raise errors.CorruptObject(f"{self._bucket}{self._data}: {error}") from None

    # -- whole rows

    def infos(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Yield the objects with this prefix after a name, in the order of names, with what has been put or deleted
        through the store since. Raises ObjectNotFound if the inventory was replaced."""
        changed, again = itertools.tee(self.changed(prefix, start_after))
        unchanged = _without(self._rows(prefix.encode(), start_after.encode()), changed)
        return heapq.merge(unchanged, self.looked_up(again), key=_name)

    def changed(self, prefix: str, start_after: str = "") -> Iterator[str]:
        """Yield the names of objects that were put or deleted through the store since, in the order of names."""
        base = changed_name(self._remote.inventory)
        after = base + start_after if start_after else ""
        found = self._transport.objects(self._bucket, prefix=base + prefix, start_after=after)
        return (info.name.removeprefix(base) for info in found)

    def looked_up(self, names: Iterable[str]) -> Iterator[ObjectInfo]:
        """Yield those of these objects that exist, in their order, as the remote storage has them. Raises
        RemoteUnavailable, RemoteDenied."""
        names = iter(names)
        while group := list(itertools.islice(names, _HEADS_AT_ONCE)):
            for found in self._transport.head_names(self._bucket, group):
                if isinstance(found, ObjectInfo):
                    yield found
                elif not isinstance(found, errors.NotFound):
                    raise found

    def _rows(self, prefix: bytes, after: bytes) -> Iterator[ObjectInfo]:
        for block in self._index.blocks_with(prefix, after):
            names = self._bytes(*self._index.names_range(block, block + 1))
            details = self._bytes(*self._index.details_range(block))
            for row in self._checked(Block(self._index.rows(block), names, details)):
                if row.name > after and row.name.startswith(prefix):
                    version = ETAG_VERSION + row.etag.decode()
                    yield ObjectInfo(self._bucket, row.name.decode(), row.size_bytes, version, 0, row.modified_ns)

    def _checked(self, block: Block) -> list[Row]:
        try:
            return list(rows_of(block))
        except ValueError as error:
            raise errors.CorruptObject(f"{self._bucket}{self._data}: {error}") from None

    def _bytes(self, start: int, length: int) -> bytes:
        content = _read(self._transport, self._bucket, self._data, start, length)
        if len(content) != length:
            raise errors.CorruptObject(f"{self._bucket}{self._data}: {len(content):,} of {length:,} bytes came")
        return content


def readable(
    transport: Transport, bucket: str, remote: Remote, prefix: str, without_data: str = ""
) -> InventoryReader | None:
    """Open the inventory that has all objects with this prefix; return None if there is none, or, with a warning, if it
    cannot be read.

    `without_data`: name of data that were not found, as they have been replaced.
    """
    try:
        found = InventoryReader.open(transport, bucket, remote)
        if found is not None and found.description.data == without_data:
            raise errors.CorruptObject(f"{bucket}{PREFIX}{remote.inventory}/{without_data} is missing")
    except UNREADABLE as error:
        log.warning("bucket %r: its inventory cannot be read, so %s is listed: %s", bucket, remote.url, error)
        return None
    return found if found is not None and found.covers(prefix) else None


def cold_objects(
    transport: Transport,
    bucket: str,
    remote: Remote,
    prefix: str,
    start_after: str,
    listed: Callable[[str], Iterator[ObjectInfo]] | None,
) -> Iterator[ObjectInfo]:
    """List the remote objects of a bucket with this prefix after a name: from the inventory, or by asking the remote
    storage.

    `listed`: asks it for the names after a given one; None if it lists nothing.
    """
    after, tried = start_after, ""
    while (inventory := readable(transport, bucket, remote, prefix, tried)) is not None:
        tried = inventory.description.data
        try:
            for info in inventory.infos(prefix, after):
                yield info
                after = info.name
            return
        except errors.ObjectNotFound:
            continue  # it was replaced: go on with the new one
        except UNREADABLE as error:
            log.warning("bucket %r: its inventory cannot be read, so %s is listed: %s", bucket, remote.url, error)
            break
    if listed is not None:
        yield from listed(after)


def _read(transport: Transport, bucket: str, name: str, start: int, length: int | None) -> bytes:
    part = Entry(bucket, name, None, start, length)
    return b"".join(transport.get(part, verify=length is not None, timeout_s=_TIMEOUT_S))


def _without(infos: Iterable[ObjectInfo], names: Iterator[str]) -> Iterator[ObjectInfo]:
    """Yield the infos but those with these names; both are in the order of names."""
    name = next(names, None)
    for info in infos:
        while name is not None and name < info.name:
            name = next(names, None)
        if name != info.name:
            yield info


def _name(info: ObjectInfo) -> str:
    return info.name
