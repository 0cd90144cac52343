"""Replica routing: the nodes to ask for each entry of a batch, by the map, and those left after failures.

No I/O and no waiting. Placing ten thousand entries takes some milliseconds, so it runs on a reader thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ais_loader.wire.batch_columns import SHARED, add_entries, carry_over, entry_values
from ais_loader.wire.cluster_map import ClusterView, sure_copies
from ais_loader.wire.gather.reorder import Resume
from ais_loader.wire.gather.replica_choice import Load, NodeLoads, choose, grouped
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.placement import object_hash
from storage_node.batch.resources import BatchResources
from storage_node.store.read.frame_plan import check_columns

NO_NODE = -1
"""Stands for this node if the map does not contain it."""


def routing_of(
    resources: BatchResources, view: ClusterView, request: pb.BatchRequest, *, only_local: bool = False
) -> ReplicaRouting:
    """Return the nodes to ask for each entry of a batch. Raises InvalidRequest."""
    own, is_failing = resources.node.membership.node_uuid, resources.peers.is_failing
    return ReplicaRouting(view, own, request, is_failing, resources.loads, only_local=only_local)


class ReplicaRouting:
    """For each entry of a request, the nodes that are still to be asked for it, in order.

    A replica on this node comes first, then the best holder (see `replica_choice`); nodes known to fail come last.
    Raises InvalidRequest if the request's columns are inconsistent.
    """

    def __init__(
        self,
        view: ClusterView,
        node_uuid: bytes,
        request: pb.BatchRequest,
        is_failing: Callable[[str], bool],
        loads: NodeLoads[str],
        *,
        only_local: bool = False,
    ) -> None:
        """`only_local`: whether no other node is asked."""
        check_columns(request, len(request.name))
        self.view = view
        self._is_failing = is_failing
        self._loads = loads
        self._node_uuid = node_uuid
        self.local = view.position.get(node_uuid, NO_NODE)
        self._request = request
        self._only_local = only_local
        self.left: list[list[int]] = self._place(range(len(request.name)))
        self.elsewhere = any(len(nodes) != 1 or nodes[0] != self.local for nodes in self.left)
        """Whether any entry may have to be requested from another node."""

    def is_failing(self, node: int) -> bool:
        return node != self.local and self._is_failing(self.view.nodes[node].peer_endpoint)

    def move_to(self, view: ClusterView) -> Mapping[int, int]:
        """Place all entries by a newer map, which is used for all further requests.

        Returns the new positions of the nodes; NO_NODE for one that is gone.
        """
        moved = {at: view.position.get(node.uuid, NO_NODE) for at, node in enumerate(self.view.nodes)}
        moved[NO_NODE] = NO_NODE
        if self.local == NO_NODE:
            moved[NO_NODE] = view.position.get(self._node_uuid, NO_NODE)
        self.view, self.local = view, view.position.get(self._node_uuid, NO_NODE)
        self.left[:] = self._place(range(len(self._request.name)))
        return moved

    def restore(self, position: int) -> None:
        """Restore all nodes that may have an entry, so that they are asked again."""
        [self.left[position]] = self._place([position])

    def _place(self, positions: Sequence[int]) -> list[list[int]]:
        request, view = self._request, self.view
        by_bucket: dict[int, list[int]] = {}
        if request.bucket_index:
            for position in positions:
                by_bucket.setdefault(request.bucket_index[position], []).append(position)
        elif positions:
            by_bucket[0] = list(positions)
        placed = {position: [self.local] for position in positions}  # also for a bucket that no map contains
        names = list(request.name)
        if self._only_local:
            return list(placed.values())
        failing = {at for at in range(len(view.nodes)) if self.is_failing(at)}
        for at, members in by_bucket.items():
            bucket = view.to_read(request.bucket[at])
            if bucket is None:
                continue
            owners = min(sure_copies(bucket), view.placement.hosts)
            for position, nodes in zip(members, view.holders(bucket, [names[p] for p in members]), strict=True):
                if self.local in nodes[1:owners]:
                    nodes.remove(self.local)
                    nodes.insert(0, self.local)
                if nodes:
                    # Between two requests, an object may have moved from its earlier holder to its owner. So after all
                    # holders, in any order, the owners are asked again.
                    again = nodes[:owners] if len(nodes) > owners else []
                    placed[position] = sorted(nodes, key=failing.__contains__) + again
        return self._by_load(list(placed), list(placed.values()), failing)

    def _by_load(self, positions: list[int], placed: list[list[int]], failing: set[int]) -> list[list[int]]:
        """Return the same, with less loaded holders first. Entries on this node stay here."""
        nodes = self.view.nodes
        # While objects move, only this order finds them.
        if self.view.is_moving(self._request.bucket) or all(len(holders) < 2 for holders in placed):
            return placed
        known = self._loads.of(node.peer_endpoint for node in nodes)
        loads = {at: known[node.peer_endpoint] for at, node in enumerate(nodes)} | {self.local: Load()}
        for at in failing:
            loads[at] = replace(loads[at], suspected=True)
        names = self._request.name
        chosen = choose(placed, loads, lambda row: object_hash(b"", names[positions[row]]), {self.local})
        return [list(holders) for holders in chosen]

    def by_node(self, positions: Iterable[int]) -> dict[int, list[int]]:
        """Group positions, in order, by the node to ask next."""
        ordered = sorted(positions)
        return grouped(ordered, [self.left[position] for position in ordered])[0]

    def others(self, positions: Sequence[int], node: int) -> dict[int, list[int]]:
        """Group positions by the next node to ask, other than `node` and without nodes known to fail."""
        able = [[other for other in self.left[position] if not self.is_failing(other)] for position in positions]
        return grouped(positions, able, {node})[0]

    def part(
        self, positions: Sequence[int], *, initial_credit_bytes: int, resume: Resume | None = None
    ) -> pb.BatchRequest:
        """Return the sub-request for these entries; `resume` applies to the first of them."""
        part = pb.BatchRequest(
            ordered=True, local=True, map_version=self.view.version, initial_credit_bytes=initial_credit_bytes
        )
        carry_over(self._request, part, SHARED)
        add_entries(part, entry_values(self._request), positions)
        if resume is not None:
            part.resume_offset, part.resume_checksum, part.resume_version = resume
        return part
