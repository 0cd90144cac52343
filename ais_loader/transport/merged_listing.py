"""The listings of several nodes as one: every name once, in order, the newest version of it.

No network here: a node's listing is an iterator that may fail with NodeUnavailable.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from ais_loader.entry import ObjectInfo
from ais_loader.errors import BucketNotFound, DriveFailed, LoaderError, NodeUnavailable, SilenceTimeout
from ais_loader.transport.patience import Patience


def merged_listing(
    listing_of: Callable[[int], Iterator[ObjectInfo]], hosts: Sequence[str], *, copies: int, retry_s: float
) -> Iterator[ObjectInfo]:
    """Args:
        listing_of: the objects of node k of len(hosts), in the order of their names' UTF-8 bytes.
        hosts: failure domain of each node.
        copies: how many hosts each object is on: so many less one may stay silent.

    Raises NodeUnavailable, SilenceTimeout, DriveFailed when more hosts do, BucketNotFound when no node has the bucket.
    """
    silent: dict[str, LoaderError] = {}
    without: list[BucketNotFound] = []
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
            except BucketNotFound as error:
                without.append(error)
                return
            except (NodeUnavailable, SilenceTimeout, DriveFailed) as error:
                if len({*silent, hosts[at]}) < copies:
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
        raise without[0]


class _Tries(Patience):
    """Shared by the listings of one call: the limit is the call's."""


def _newer(version: str, than: str) -> bool:
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version > than
