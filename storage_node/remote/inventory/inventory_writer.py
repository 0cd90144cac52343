"""Inventory writer: merges runs of rows to the data of one inventory, in files on a drive."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter

from ais_loader.errors import InvalidRequest
from ais_loader.wire.inventory import ROWS, BlockIndex, Row, encoded
from storage_node.remote.inventory.row_run import RowRun
from storage_node.store.reframe_on_put import Spooled, spool_for
from storage_node.store.store import Store


class InventoryWriter:
    """Data of one inventory. Belongs to one thread at a time. Raises DriveFull, DriveFailed."""

    def __init__(self, store: Store) -> None:
        self._names: Spooled = spool_for(store, "an inventory")
        try:
            self._details: Spooled = spool_for(store, "an inventory")
        except BaseException:
            self._names.close()
            raise
        self.count = 0
        self.content_bytes = 0
        """Sum of the objects' sizes."""
        self.has_etags = True

    @property
    def size_bytes(self) -> int:
        return self._names.size_bytes + self._details.size_bytes

    def write(self, runs: Sequence[RowRun], *, sorted_runs: bool) -> BlockIndex:
        """Write the rows of these runs in the order of names. Returns where the blocks are.

        `sorted_runs`: whether each run follows the one before it. Raises InvalidRequest if a name comes twice.
        """
        rows: Iterator[Row] = (
            itertools.chain.from_iterable(runs) if sorted_runs else heapq.merge(*runs, key=attrgetter("name"))
        )
        names, details, firsts, last = [0], [0], [], b""
        while group := list(itertools.islice(rows, ROWS)):
            for row in group:
                if row.name <= last:
                    raise InvalidRequest(f"the manifest has the name {row.name.decode()!r} twice")
                last = row.name
            block = encoded(group)
            self._names.write(block.names)
            self._details.write(block.details)
            names.append(self._names.size_bytes)
            details.append(self._details.size_bytes)
            firsts.append(group[0].name)
            self.count += block.length
            self.content_bytes += sum(row.size_bytes for row in group)
            self.has_etags &= all(row.etag for row in group)
        return BlockIndex(self.count, names, details, firsts)

    def chunks(self) -> Iterator[bytes]:
        """Iterate over the data."""
        return itertools.chain(self._names.chunks(), self._details.chunks())

    def close(self) -> None:
        self._names.close()
        self._details.close()
