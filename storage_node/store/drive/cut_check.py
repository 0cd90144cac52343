"""Cut check: verifies that everything in a bucket at the moment of a snapshot's cut has a number up to the cut.

It should, because the version clock is never behind a number that it issued or heard of. The check exists because the
snapshot would silently lack entries with higher numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ais_loader.errors import StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.version_clock import VersionClock


class CutCheck:
    """Created while the bucket's commits are held back. Call `run` or `close` once afterwards, in one thread."""

    def __init__(self, catalogs: Iterable[Catalog], bucket_uuid: bytes, cut: int) -> None:
        """Raises LoaderError."""
        self._cut = cut
        self._scans = [catalog.scan(fmt.OBJECT_PREFIX + bucket_uuid) for catalog in catalogs]
        # The first entry of each scan is read now, which fixes the scan's snapshot.
        self._first = [pair for scan in self._scans for pair in itertools.islice(scan, 1)]

    def run(self, clock: VersionClock) -> None:
        """Compare all entries. Raises StoreFormatError if the snapshot would lack one; the clock is then above it, so
        that the next snapshot succeeds.

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
        """Close the scans."""
        for scan in self._scans:
            scan.close()
