"""RowRun: rows of an inventory in increasing order of names, in an unnamed file on a drive until they are merged."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ais_loader.wire.inventory import Block, Row, encoded, rows_of
from storage_node.store.spooled import Spooled, spool_for
from storage_node.store.store import Store

_HEAD = struct.Struct("<III")
"""Count of rows, and lengths of their names and of their details."""


class RowRun:
    """Belongs to one thread at a time. Raises DriveFull, DriveFailed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._spool: Spooled | None = None

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows, at least one, whose names are increasing and follow those before."""
        if self._spool is None:
            self._spool = spool_for(self._store, "an inventory")
        block = encoded(rows)
        self._spool.write(_HEAD.pack(block.length, len(block.names), len(block.details)) + block.names + block.details)

    def __iter__(self) -> Iterator[Row]:
        if self._spool is None:
            return
        source, at = self._spool.source, 0
        while at < source.size_bytes:
            count, names, details = _HEAD.unpack(source.pread(_HEAD.size, at))
            at += _HEAD.size
            content = source.pread(names + details, at)
            at += names + details
            yield from rows_of(Block(count, content[:names], content[names:]))

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None
