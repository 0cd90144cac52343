"""Listing of names alone, in blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from ais_loader.errors import NodeUnavailable
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.names_block import NamesBlock

PAGE_BYTES = 1 << 20
"""Approximate size of the names of a page."""
_NAMES_TOGETHER = 10_000


def names_of_page(page: pb.ListResponse) -> NamesBlock:
    """Return the names in a response to a request with `names_only`. Raises NodeUnavailable if they do not fit their
    lengths."""
    if not page.has_names:  # a node that does not know it
        return NamesBlock.of([message.name.encode() for message in page.object])
    lengths = np.frombuffer(page.name_lengths[: len(page.name_lengths) // 2 * 2], "<u2")
    if len(page.name_lengths) % 2 or int(lengths.sum(dtype=np.int64)) != len(page.names):
        raise NodeUnavailable("a node sent names that do not fit their lengths")
    return NamesBlock(lengths, page.names)


def names_of_objects(objects: Iterable[ObjectInfo]) -> Iterator[NamesBlock]:
    left = iter(objects)
    while group := [info.name.encode() for info in itertools.islice(left, _NAMES_TOGETHER)]:
        yield NamesBlock.of(group)
