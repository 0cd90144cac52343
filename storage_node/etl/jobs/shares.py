"""Shares of a job: which node takes which source, and when the parts that nodes have done are the whole. Pure.

A source is its first owner's who answers. A node that does not answer is no hindrance as long as each object has a copy
on another one; the nodes that do answer take what would be its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from ais_loader.wire.cluster_map import ClusterView, object_hashes, sure_copies
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb


class Division(NamedTuple):
    """By which the sources are shared out."""

    layout: int = 0
    """See `layout_of`."""
    without: tuple[bytes, ...] = ()
    """Uuids of the nodes that do not answer, sorted."""


def layout_of(view: ClusterView, bucket: cluster_pb.MapBucket) -> int:
    """The same as long as the same nodes own the bucket's objects: other changes of the map are none of a job's."""
    nodes = sorted((node.uuid.hex(), node.host, node.weight, node.state) for node in view.nodes)
    text = repr((nodes, bucket.uuid.hex(), bucket.copies, list(bucket.former_copies)))
    return xxhash.xxh3_64_intdigest(text.encode())


def takers(view: ClusterView, bucket: cluster_pb.MapBucket, names: Sequence[str], division: Division) -> list[int]:
    """Of each name the position of the node that takes it; -1 where no node answers.

    While nodes join or leave these are the owners from before: what has left them is found when the change is over.
    """
    placement = view.former or view.placement
    owners = placement.owners(object_hashes(bucket.uuid, names), placement.hosts)
    down = [view.position[uuid] for uuid in division.without if uuid in view.position]
    answering = ~np.isin(owners, down)
    if not owners.shape[1]:
        return [-1] * len(names)
    first = owners[np.arange(len(owners)), answering.argmax(axis=1)]
    found: list[int] = np.where(answering.any(axis=1), first, -1).tolist()
    return found


def is_complete(view: ClusterView, bucket: cluster_pb.MapBucket, division: Division) -> bool:
    """Whether the parts by this division can be the whole: no node has what no other one has, and nothing moves."""
    if layout_of(view, bucket) != division.layout or view.former is not None:
        return False
    hosts = {view.nodes[view.position[uuid]].host for uuid in division.without if uuid in view.position}
    return len(hosts) < sure_copies(bucket) or not hosts


def whole(parts: Mapping[bytes, pb.NodeJob], nodes: Sequence[bytes], division: Division) -> pb.JobCounts | None:
    """What all nodes have done together, once each that answers has finished its part by this division."""
    total = pb.JobCounts()
    for uuid in nodes:
        if uuid in division.without:
            continue
        part = parts.get(uuid)
        if part is None or not part.finished or Division(part.layout, tuple(part.without)) != division:
            return None
        add(total, part.counts)
    return total


def add(total: pb.JobCounts, more: pb.JobCounts) -> None:
    """In place."""
    for field in pb.JobCounts.DESCRIPTOR.fields:
        setattr(total, field.name, getattr(total, field.name) + getattr(more, field.name))
