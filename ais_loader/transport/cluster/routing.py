"""Request routing of one batch: splits the columns of its request into parts, and assigns each entry to a node, by the
map, by trust and by load."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.cluster.substream import Share
from ais_loader.wire.batch_columns import ANSWERING, SHARED, add_entries, carry_over, entry_values
from ais_loader.wire.gather.replica_choice import grouped
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.placement import object_hash

Holders = Callable[[str, Sequence[str]], list[list[bytes]]]
"""Maps a bucket and names to the nodes that may have each of them, best first."""
DIRECT_TO_NODES = 64
"""In a cluster of at most this many nodes, a client assembles every batch itself. Measurements
(`benchmarks/cluster/several_nodes.md`) show that this is faster for any size and number of entries, at the price of a
session with each node."""
DIRECT_FROM_ENTRIES_PER_OWNER = 8
"""In a larger cluster, a client assembles batches with at least this many entries for each owner: fewer are not worth a
session with every node."""
AGAIN = b"again"
"""Marker among the tried nodes: they are being tried for the second time."""


class Columns:
    """The entries of a request, from which requests for any selection are made."""

    def __init__(self, request: pb.BatchRequest) -> None:
        self.count = len(request.name)
        self.transformed = bool(request.transform)
        self.buckets: list[str] = list(request.bucket)
        self._values = {name: list(values) for name, values in entry_values(request).items()}
        self._names: list[str] = self._values.get("name", [])
        self._rest = pb.BatchRequest()
        carry_over(request, self._rest, (*SHARED, *ANSWERING))

    def select(self, positions: Sequence[int]) -> pb.BatchRequest:
        """Return a request for these entries alone, as its entries 0, 1, ..."""
        part = pb.BatchRequest()
        part.CopyFrom(self._rest)
        add_entries(part, self._values, positions)
        return part

    def key(self, position: int) -> int:
        """Return the hash of an entry's object, which is the same for every client."""
        return object_hash(b"", self._names[position])

    def holders(self, positions: Sequence[int], holders: Holders) -> list[list[bytes]]:
        """Return the nodes that may have each of these entries, best first."""
        names, bucket_index = self._names, self._values.get("bucket_index")
        if not self.buckets:
            return [[] for _ in positions]
        if not bucket_index:
            return holders(self.buckets[0], [names[at] for at in positions])
        found: list[list[bytes]] = [[]] * len(positions)
        by_bucket: dict[int, list[int]] = {}
        for k, at in enumerate(positions):
            by_bucket.setdefault(bucket_index[at], []).append(k)
        for bucket, wanted in by_bucket.items():
            of_bucket = holders(self.buckets[bucket], [names[positions[k]] for k in wanted])
            for k, nodes in zip(wanted, of_bucket, strict=True):
                found[k] = nodes
        return found


def assemblers(request: pb.BatchRequest, members: Members, assembly: str, colocation: str) -> list[bytes]:
    """Return the nodes that may assemble a batch, best first; empty if its client does."""
    count, nodes = len(request.name), members.anybody()
    enough = len(nodes) <= DIRECT_TO_NODES or count >= DIRECT_FROM_ENTRIES_PER_OWNER * len(nodes)
    known = [bucket for name in request.bucket if (bucket := members.view.to_read(name)) is not None]
    is_remote = any(bucket.HasField("remote") for bucket in known)
    if assembly == "auto" and count > 1 and members.view.has_coded(request.bucket) and not is_remote:
        # One node asks each holder of fragments once, where each owner would. Batches take turns, as it is much work.
        first = object_hash(b"", request.name[0]) % len(nodes)
        assembly, nodes = "target", nodes[first:] + nodes[:first]
    if not count or assembly == "direct" or (assembly == "auto" and enough):
        return []
    if assembly == "target" and colocation == "none":
        return nodes
    columns, everything = Columns(request), range(count)
    groups, _ = grouped(everything, columns.holders(everything, members.holders), frozenset())
    if assembly == "auto" and (count >= DIRECT_FROM_ENTRIES_PER_OWNER * len(groups) or len(groups) == 1):
        return []
    if colocation != "none":
        nodes.sort(key=lambda node: -len(groups.get(node, ())))
    return nodes


class Routing:
    """Request routing of one batch.

    Args:
        targets: nodes that may assemble the whole batch, best first.
    """

    def __init__(self, members: Members, columns: Columns, targets: Sequence[bytes]) -> None:
        self._members = members
        self._columns = columns
        self._targets = targets

    def name(self, node: bytes) -> str:
        """Return the endpoint of a node, for messages."""
        view = self._members.view
        at = view.position.get(node)
        return node.hex() if at is None else view.nodes[at].endpoint

    @property
    def is_moving(self) -> bool:
        """Whether objects may move between the nodes that are asked."""
        return self._members.view.is_moving(self._columns.buckets)

    def groups(self, share: Share) -> tuple[dict[bytes, list[int]], list[int]]:
        """Group entries by the node that is best asked for them and has not been. Also return those for which no node
        is left."""
        positions = share.positions
        candidates: Sequence[Sequence[bytes]] = self._candidates(positions, direct=share.direct)
        if share.direct and not share.tried:
            candidates = self._members.preferred(
                candidates, lambda at: self._columns.key(positions[at]), self._columns.buckets
            )
        return grouped(positions, candidates, share.tried)

    def has_others(self, share: Share) -> bool:
        """Whether there are nodes that have not been asked."""
        candidates = self._candidates(share.positions, direct=share.direct)
        return bool(grouped(share.positions, candidates, share.tried)[0])

    def once_more(self, share: Share) -> bool:
        """Whether the holders are to be asked a second time. While objects move, an entry that was found nowhere may
        have moved to its owner after the owner was asked, and before its former holder was."""
        if share.missing is None or not self.is_moving or AGAIN in share.tried:
            return False
        share.tried = frozenset({AGAIN})
        return True

    def hedges(self, share: Share, positions: Sequence[int], avoid: frozenset[bytes]) -> dict[bytes, list[int]]:
        """Group the entries of a share that can be requested at once by node. Nodes known to be slow are excluded."""
        candidates = [
            [node for node in nodes if not self._members.is_suspect(node)]
            for nodes in self._candidates(positions, direct=share.direct)
        ]
        return grouped(positions, candidates, avoid)[0]

    def _candidates(self, positions: Sequence[int], *, direct: bool) -> list[list[bytes]]:
        members = self._members
        if not direct:
            left = [node for node in self._targets if node in members.view.position] or members.anybody()
            return [members.by_trust(left)] * len(positions)
        found = self._columns.holders(positions, members.holders)
        return found if all(len(nodes) == 1 for nodes in found) else [members.by_trust(nodes) for nodes in found]
