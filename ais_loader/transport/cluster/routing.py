"""Request routing of one batch: the node to ask for each entry, by the map, by trust and by load."""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader.transport.cluster.columns import Columns, grouped
from ais_loader.transport.cluster.membership import Members
from ais_loader.transport.cluster.substream import Share

AGAIN = b"again"
"""Among the nodes that have been tried: it is the second time that they are."""


class Routing:
    """Of one batch.

    Args:
        targets: nodes that assemble the whole batch, best first.
    """

    def __init__(self, members: Members, columns: Columns, targets: Sequence[bytes]) -> None:
        self._members = members
        self._columns = columns
        self._targets = targets

    def name(self, node: bytes) -> str:
        """Its endpoint, for people."""
        view = self._members.view
        at = view.position.get(node)
        return node.hex() if at is None else view.nodes[at].endpoint

    @property
    def objects_go(self) -> bool:
        """Whether objects may go from one of the nodes that are asked to another."""
        return self._members.view.objects_go(self._columns.buckets)

    def groups(self, share: Share) -> tuple[dict[bytes, list[int]], list[int]]:
        """By node, what each is best asked for, of what it has not been asked for; and what no node is left for."""
        positions = share.positions
        candidates: Sequence[Sequence[bytes]] = self._candidates(positions, direct=share.direct)
        if share.direct and not share.tried:
            candidates = self._members.preferred(
                candidates, lambda at: self._columns.key(positions[at]), self._columns.buckets
            )
            if self._columns.transformed:
                candidates = [self._by_trust(nodes) for nodes in candidates]
        return grouped(positions, candidates, share.tried)

    def has_others(self, share: Share) -> bool:
        """Whether there are nodes that have not been asked."""
        candidates = self._candidates(share.positions, direct=share.direct)
        return bool(grouped(share.positions, candidates, share.tried)[0])

    def once_more(self, share: Share) -> bool:
        """Whether its holders are to be asked for the second time: while objects move, one that was nowhere may have
        come to its owner after that was asked, and gone from where it was before that was."""
        if share.missing is None or not self.objects_go or AGAIN in share.tried:
            return False
        share.tried = frozenset({AGAIN})
        return True

    def hedges(self, share: Share, positions: Sequence[int], avoid: frozenset[bytes]) -> dict[bytes, list[int]]:
        """By node, which of these entries of a share it can be asked for at once: nobody is known to be slower."""
        candidates = [
            [node for node in nodes if not self._members.is_suspect(node)]
            for nodes in self._candidates(positions, direct=share.direct)
        ]
        return grouped(positions, candidates, avoid)[0]

    def _candidates(self, positions: Sequence[int], *, direct: bool) -> list[list[bytes]]:
        members = self._members
        if not direct:
            left = [node for node in self._targets if node in members.view.position] or members.anybody()
            return [self._by_trust(left)] * len(positions)
        found = self._columns.holders(positions, members.holders)
        return found if all(len(nodes) == 1 for nodes in found) else [self._by_trust(nodes) for nodes in found]

    def _by_trust(self, nodes: Sequence[bytes]) -> list[bytes]:
        found = self._members.by_trust(nodes)
        if self._columns.transformed:  # who cannot do that is asked last, and is not believed
            return sorted(found, key=lambda node: node not in self._members.view.transforming)
        return found
