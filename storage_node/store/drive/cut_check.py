"""Cut check: whether all that was in a bucket at the moment of a snapshot's cut has a number up to the cut.

It has, since the version clock is never behind what it has given or heard of. It is looked at all the same: the
snapshot would lack what has a higher number, and nobody would know.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ais_loader.errors import StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.version_clock import VersionClock


class CutCheck:
    """Made while the bucket's commits are held; `run` or `close` once, afterwards, by one thread."""

    def __init__(self, catalogs: Iterable[Catalog], bucket_uuid: bytes, cut: int) -> None:
        """Raises LoaderError."""
        self._cut = cut
        self._scans = [catalog.scan(fmt.OBJECT_PREFIX + bucket_uuid) for catalog in catalogs]
        # What there is now, whenever it is gone through.
        self._first = [pair for scan in self._scans for pair in itertools.islice(scan, 1)]

    def run(self, clock: VersionClock) -> None:
        """Raises StoreFormatError where the snapshot lacks something, with the clock above that: the next one does not.

        Raises LoaderError.
        """
        name, highest = "", self._cut
        try:
            for key, value in itertools.chain(self._first, *self._scans):
                if (counter := fmt.counter_of_value(value)) > highest:
                    name, highest = fmt.name_of_key(key), counter
        finally:
            self.close()
        if highest > self._cut:
            clock.hear(highest)
            raise StoreFormatError(
                f"the snapshot would lack {name!r}, which had counter {highest} when the version clock was only at "
                f"{self._cut}; it is not made. The clock is above that now: make it again"
            )

    def close(self) -> None:
        """Let go of the catalogs."""
        for scan in self._scans:
            scan.close()
