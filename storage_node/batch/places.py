"""Where the entries of a batch are to be asked for: the map's answer, entry by entry, and what is left of it after
failures.

No I/O and no waiting; placing ten thousand entries takes some milliseconds, so it is done on a reader thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from protos import ais_batch_pb2 as pb
from protos.cluster_map import ClusterView
from storage_node.store.batch_table import check_columns

_COLUMNS = ("bucket_index", "name", "member", "start", "length", "version")
NO_NODE = -1
"""Stands for this node where the map does not have it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where an entry of which the beginning has been delivered goes on."""

    offset: int
    checksum: int
    version: str


class Places:
    """For each entry of a request the nodes that are still to be asked for it, next first.

    A copy of this node's own comes before the others, and nodes that are known to fail come last. Raises InvalidRequest
    when the request's columns do not fit together.
    """

    def __init__(
        self, view: ClusterView, node_uuid: bytes, request: pb.BatchRequest, is_failing: Callable[[str], bool]
    ) -> None:
        check_columns(request, len(request.name))
        self.view = view
        self.here = view.position.get(node_uuid, NO_NODE)
        self._request = request
        self.left: list[list[int]] = self._place(range(len(request.name)))
        failing = {at for at, node in enumerate(view.nodes) if at != self.here and is_failing(node.endpoint)}
        if failing:
            for nodes in self.left:
                nodes.sort(key=failing.__contains__)
        self.elsewhere = any(len(nodes) != 1 or nodes[0] != self.here for nodes in self.left)
        """Whether anything may have to be asked of another node."""

    def _place(self, positions: Sequence[int]) -> list[list[int]]:
        request, view = self._request, self.view
        by_bucket: dict[int, list[int]] = {}
        if request.bucket_index:
            for position in positions:
                by_bucket.setdefault(request.bucket_index[position], []).append(position)
        elif positions:
            by_bucket[0] = list(positions)
        placed: list[list[int]] = [[self.here] for _ in positions]  # also for a bucket that no map has
        names = list(request.name)
        for at, members in by_bucket.items():
            bucket = view.buckets.get(request.bucket[at])
            if bucket is None:
                continue
            owners = min(bucket.copies, view.placement.hosts)
            for position, nodes in zip(members, view.holders(bucket, [names[p] for p in members]), strict=True):
                if self.here in nodes[1:owners]:
                    nodes.remove(self.here)
                    nodes.insert(0, self.here)
                if nodes:
                    placed[position] = nodes
        return placed

    def by_node(self, positions: Iterable[int]) -> dict[int, list[int]]:
        """Positions, in order, by the node that is to be asked next."""
        found: dict[int, list[int]] = {}
        for position in sorted(positions):
            found.setdefault(self.left[position][0], []).append(position)
        return found

    def part(
        self, positions: Sequence[int], *, initial_credit_bytes: int, resume: Resume | None = None
    ) -> pb.BatchRequest:
        """The sub-request for these entries; `resume` is for the first of them."""
        request = self._request
        part = pb.BatchRequest(
            ordered=True, local=True, map_version=self.view.version, verify_ranges=request.verify_ranges,
            initial_credit_bytes=initial_credit_bytes, tenant=request.tenant, request_id=request.request_id,
        )  # fmt: skip
        part.bucket.extend(request.bucket)
        for column in _COLUMNS:
            values = getattr(request, column)
            if values:
                getattr(part, column).extend([values[position] for position in positions])
        part.metadata.update(request.metadata)
        if resume is not None:
            part.resume_offset = resume.offset
            part.resume_checksum = resume.checksum
            part.resume_version = resume.version
        return part
