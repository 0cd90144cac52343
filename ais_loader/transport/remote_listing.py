"""Listing of a remote bucket: stored and remote objects, merged by name."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator
from operator import itemgetter

from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb

log = logging.getLogger(__name__)


def merged(stored: Iterator[ObjectInfo], remote: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Merge two listings in the order of names. A stored object stands for the remote one of its name."""
    last = None
    for name, _, info in heapq.merge(
        ((info.name, 0, info) for info in stored), ((info.name, 1, info) for info in remote), key=itemgetter(0, 1)
    ):
        if name != last:
            yield info
        last = name


def objects_of(pages: Iterable[remote_pb.ListRemoteResponse], bucket: str) -> Iterator[pb.ObjectInfo]:
    """Iterate over the objects of these pages. Remote names that no object can have are logged."""
    for page in pages:
        if page.skipped:
            shown = ", ".join(map(repr, page.skipped_name))
            log.warning(
                "bucket %r: %s remote names were left out of the listing, as no object here can have them, such as %s",
                bucket,
                f"{page.skipped:,}",
                shown,
            )
        yield from page.object
