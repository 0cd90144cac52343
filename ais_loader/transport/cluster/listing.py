"""Merged listing of several nodes: every name once, in order, the newest version of it.

No network here: a node's listing is an iterator that may fail with NodeUnavailable.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from ais_loader.entry import ObjectInfo
from ais_loader.errors import (
    BucketNotFound,
    DriveFailed,
    LoaderError,
    NodeUnavailable,
    SilenceTimeout,
    SnapshotNotFound,
)
from ais_loader.transport.retry import Patience


def merged_listing(
    listing_of: Callable[[int], Iterator[ObjectInfo]],
    hosts: Sequence[str],
    *,
    copies: Callable[[], int],
    retry_s: float,
) -> Iterator[ObjectInfo]:
    """Args:
        listing_of: the objects of node k of len(hosts), in the order of their names' UTF-8 bytes.
        hosts: failure domain of each node.
        copies: on how many hosts each object is, asked for whenever one is silent: so many less one may be.

    Raises NodeUnavailable, SilenceTimeout, DriveFailed when more hosts do, BucketNotFound when no node has the bucket.
    """
    silent: dict[str, LoaderError] = {}
    without: dict[int, BucketNotFound] = {}
    tries = _Tries(retry_s)

    def listing(at: int) -> Iterator[ObjectInfo]:
        objects = listing_of(at)
        begun = False
        while True:
            try:
                for info in objects:
                    begun = True
                    yield info
                return
            except (BucketNotFound, NodeUnavailable, SilenceTimeout, DriveFailed) as error:
                if isinstance(error, BucketNotFound):
                    without[at] = error
                    if not isinstance(error, SnapshotNotFound):
                        return
                    if len(without) == len(hosts):
                        raise
                    # A node that has not learned of a bucket yet has nothing of it; of a snapshot it has what it had.
                    error = NodeUnavailable(f"a node has not learned of it yet: {error}")
                if len({*silent, hosts[at]}) < copies():
                    silent[hosts[at]] = error
                    return
                if begun or not isinstance(error, NodeUnavailable):
                    raise
                tries.pause(error)
                objects = listing_of(at)

    found: ObjectInfo | None = None
    for info in heapq.merge(*(listing(at) for at in range(len(hosts))), key=lambda info: info.name.encode()):
        if found is not None and found.name != info.name:
            yield found
            found = None
        if found is None or _newer(info.version, found.version):
            found = info
    if found is not None:
        yield found
    if len(without) == len(hosts):
        raise next(iter(without.values()))


class _Tries(Patience):
    """Shared by the listings of one call: the limit is the call's."""


def _newer(version: str, than: str) -> bool:
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version > than
