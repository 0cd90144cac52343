"""Division of a job: which node processes which source, when the nodes' shares are complete, and what
each of them counts.

A source is processed by its first owner that answers. A node that does not answer does not delay the job, as long as
each object has a replica on another node: the nodes that answer process its sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from ais_loader.errors import LoaderError
from ais_loader.wire.cluster_map import ClusterView, object_hashes, sure_copies
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb


class Division(NamedTuple):
    """A division of the sources among nodes."""

    layout: int = 0
    """See `layout_of`."""
    without: tuple[bytes, ...] = ()
    """Uuids of the nodes that do not answer, sorted."""


def layout_of(view: ClusterView, bucket: cluster_pb.MapBucket) -> int:
    """Return a hash of what determines ownership in the bucket. Map changes that do not affect ownership leave it
    unchanged."""
    nodes = sorted((node.uuid.hex(), node.host, node.weight, node.state) for node in view.nodes)
    text = repr((nodes, bucket.uuid.hex(), bucket.copies, list(bucket.former_copies)))
    return xxhash.xxh3_64_intdigest(text.encode())


def takers(view: ClusterView, bucket: cluster_pb.MapBucket, names: Sequence[str], division: Division) -> list[int]:
    """Return for each name the position of the node that processes it; -1 if no owner answers.

    While nodes join or leave, these are the owners from before the change; objects that have moved away from them are
    found when the change is complete.
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
    """Whether the parts of this division can be complete: no unreachable node may hold the only replica of an object,
    and no objects move."""
    if layout_of(view, bucket) != division.layout or view.former is not None:
        return False
    hosts = {view.nodes[view.position[uuid]].host for uuid in division.without if uuid in view.position}
    return len(hosts) < sure_copies(bucket) or not hosts


def whole(parts: Mapping[bytes, pb.NodeJob], nodes: Sequence[bytes], division: Division) -> pb.JobCounts | None:
    """Return the total of all parts; None until every node that answers has finished its part of this division."""
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
    for field in pb.JobCounts.DESCRIPTOR.fields:
        setattr(total, field.name, getattr(total, field.name) + getattr(more, field.name))


MAX_FAILURES = 10_000
"""Maximum number of stored failures; further ones are only counted."""


class NodeShare:
    """Counts and failures of a node. They are reset at every pass over the sources, which then counts all of the node's
    sources in that division."""

    def __init__(self, node_uuid: bytes) -> None:
        self._node_uuid = node_uuid
        self.division = Division()
        self.finished = False
        self.counts = pb.JobCounts()
        self.failures: list[pb.JobFailure] = []

    def begin(self, division: Division) -> None:
        self.division, self.finished = division, False
        self.counts = pb.JobCounts(busy_s=self.counts.busy_s)
        self.failures = []

    def failed(self, name: str, version: str, error: LoaderError) -> None:
        self.counts.failed += 1
        if len(self.failures) < MAX_FAILURES:
            message = str(error).encode("utf-8", "backslashreplace").decode()
            self.failures.append(
                pb.JobFailure(object=name, version=version, error={"kind": error.kind, "message": message})
            )

    def message(self) -> pb.NodeJob:
        return pb.NodeJob(
            node_uuid=self._node_uuid,
            layout=self.division.layout,
            without=self.division.without,
            finished=self.finished,
            counts=self.counts,
            answers=True,
        )
