"""Replica routing: the nodes to ask for each entry of a batch, by the map, and those left of them after failures.

No I/O and no waiting; placing ten thousand entries takes some milliseconds, so it is done on a reader thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ais_loader.wire.batch_columns import SHARED, add_entries, carry_over, entry_values
from ais_loader.wire.cluster_map import ClusterView, sure_copies
from ais_loader.wire.gather.replica_choice import Load, NodeLoads, choose
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.placement import object_hash
from storage_node.store.read.frame_plan import check_columns

NO_NODE = -1
"""Stands for this node where the map does not have it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where an entry of which the beginning has been delivered goes on."""

    offset: int
    checksum: int
    version: str


class ReplicaRouting:
    """For each entry of a request the nodes that are still to be asked for it, next first.

    A copy of this node's own comes before the others, then the holder that is best to ask (see `copy_choice`); nodes
    that are known to fail come last. Raises InvalidRequest when the request's columns do not fit together.
    """

    def __init__(
        self,
        view: ClusterView,
        node_uuid: bytes,
        request: pb.BatchRequest,
        is_failing: Callable[[str], bool],
        loads: NodeLoads[str],
    ) -> None:
        check_columns(request, len(request.name))
        self.view = view
        self._is_failing = is_failing
        self._loads = loads
        self._node_uuid = node_uuid
        self.here = view.position.get(node_uuid, NO_NODE)
        self._request = request
        self.left: list[list[int]] = self._place(range(len(request.name)))
        self.elsewhere = any(len(nodes) != 1 or nodes[0] != self.here for nodes in self.left)
        """Whether anything may have to be asked of another node."""

    def is_failing(self, node: int) -> bool:
        return node != self.here and self._is_failing(self.view.nodes[node].peer_endpoint)

    def move_to(self, view: ClusterView) -> Mapping[int, int]:
        """Go on with a newer map, by which all entries are placed anew: whoever is asked from now on is asked by it.

        Returns what the nodes' positions have become; NO_NODE for one that is gone.
        """
        moved = {at: view.position.get(node.uuid, NO_NODE) for at, node in enumerate(self.view.nodes)}
        moved[NO_NODE] = NO_NODE
        if self.here == NO_NODE:
            moved[NO_NODE] = view.position.get(self._node_uuid, NO_NODE)
        self.view, self.here = view, view.position.get(self._node_uuid, NO_NODE)
        self.left[:] = self._place(range(len(self._request.name)))
        return moved

    def restore(self, position: int) -> None:
        """Ask all nodes again that may have an entry."""
        [self.left[position]] = self._place([position])

    def _place(self, positions: Sequence[int]) -> list[list[int]]:
        request, view = self._request, self.view
        by_bucket: dict[int, list[int]] = {}
        if request.bucket_index:
            for position in positions:
                by_bucket.setdefault(request.bucket_index[position], []).append(position)
        elif positions:
            by_bucket[0] = list(positions)
        placed = {position: [self.here] for position in positions}  # also for a bucket that no map has
        names = list(request.name)
        failing = {at for at in range(len(view.nodes)) if self.is_failing(at)}
        for at, members in by_bucket.items():
            bucket = view.to_read(request.bucket[at])
            if bucket is None:
                continue
            owners = min(sure_copies(bucket), view.placement.hosts)
            for position, nodes in zip(members, view.holders(bucket, [names[p] for p in members]), strict=True):
                if self.here in nodes[1:owners]:
                    nodes.remove(self.here)
                    nodes.insert(0, self.here)
                if nodes:
                    # Between two questions an object may have come to its owner and gone from where it was before: when
                    # all have been asked, whatever their order, the owners are asked again.
                    again = nodes[:owners] if len(nodes) > owners else []
                    placed[position] = sorted(nodes, key=failing.__contains__) + again
        found = self._by_load(list(placed), list(placed.values()), failing)
        if request.transform:  # who cannot do that is asked last, and is not believed
            able = {at for at, node in enumerate(view.nodes) if node.uuid in view.transforming} | {self.here}
            return [sorted(holders, key=lambda at: at not in able) for holders in found]
        return found

    def _by_load(self, positions: list[int], placed: list[list[int]], failing: set[int]) -> list[list[int]]:
        """The same, with those holders first that have less to do; what this node has itself stays here."""
        nodes = self.view.nodes
        # While objects move, only their order says where they are.
        if self.view.objects_go(self._request.bucket) or all(len(holders) < 2 for holders in placed):
            return placed
        known = self._loads.of(node.peer_endpoint for node in nodes)
        loads = {at: known[node.peer_endpoint] for at, node in enumerate(nodes)} | {self.here: Load()}
        for at in failing:
            loads[at] = replace(loads[at], suspected=True)
        names = self._request.name
        chosen = choose(placed, loads, lambda row: object_hash(b"", names[positions[row]]), {self.here})
        return [list(holders) for holders in chosen]

    def by_node(self, positions: Iterable[int]) -> dict[int, list[int]]:
        """Positions, in order, by the node that is to be asked next."""
        found: dict[int, list[int]] = {}
        for position in sorted(positions):
            found.setdefault(self.left[position][0], []).append(position)
        return found

    def others(self, positions: Sequence[int], node: int) -> dict[int, list[int]]:
        """The same positions by the next node to ask but this one, of those that are not known to fail."""
        found: dict[int, list[int]] = {}
        for position in positions:
            for other in self.left[position]:
                if other != node and not self.is_failing(other):
                    found.setdefault(other, []).append(position)
                    break
        return found

    def part(
        self, positions: Sequence[int], *, initial_credit_bytes: int, resume: Resume | None = None
    ) -> pb.BatchRequest:
        """The sub-request for these entries; `resume` is for the first of them."""
        part = pb.BatchRequest(
            ordered=True, local=True, map_version=self.view.version, initial_credit_bytes=initial_credit_bytes
        )
        carry_over(self._request, part, SHARED)
        add_entries(part, entry_values(self._request), positions)
        if resume is not None:
            part.resume_offset = resume.offset
            part.resume_checksum = resume.checksum
            part.resume_version = resume.version
        return part
