"""Read leases: a node that writers may have given up on knows by its own clock that it must not be read from.

The problem: a write is acknowledged although one node could not be told of it. That node may be cut off from the writer
but not from its readers, and would return the old object. So a node serves its replicas only while it holds a lease. A
majority of the map's nodes, itself included, renews it at intervals.

A writer that cannot tell a node of a write asks other nodes to relay the message. Those that cannot reach it either
stop renewing its lease until it was told. Once so many withhold the lease that no majority remains, and their earlier
grants have expired, the node serves nothing. The write may then be acknowledged.

Every majority that renews the lease later includes one of the withholding nodes, so a node that holds a lease again has
been told. For that reason, a lapsed lease that is regained requires no comparison of replicas.

No clocks are compared. The holder counts a lease from the moment of its request. The granter counts it from the moment
of its answer, which is later, and writers wait for the granter's time. Clock rates may differ by `DRIFT`. The clock
continues while a machine is suspended.

If the holder dies, its lease simply expires. If a withholding node dies, its record on the drives keeps the lease
withheld after a restart (`lease_keeper`).

Pure: times are seconds of the caller's clock and are passed as arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

DRIFT = 1 / 64
LEAST_NODES = 3
"""Two nodes have no majority without each other, so they serve their replicas when the other one is down."""
_NODES_OF_THE_BASE = 32


def lease_s(base_s: float, nodes: int) -> float:
    """Return the duration of a lease; 0 means no leases. In a large cluster, leases last longer so that nodes renew
    less often."""
    return base_s * max(1.0, nodes / _NODES_OF_THE_BASE) if nodes >= LEAST_NODES else 0.0


def majority(nodes: int) -> int:
    return nodes // 2 + 1


class LeaseHeld:
    """The lease that this node holds, made of the grants of others."""

    def __init__(self) -> None:
        self._ends_s: dict[bytes, float] = {}

    def granted(self, by: bytes, requested_s: float, for_s: float) -> None:
        """Record a grant. `requested_s` is when the granting node was asked."""
        self._ends_s[by] = max(requested_s + for_s * (1 - DRIFT), self._ends_s.get(by, float("-inf")))

    def until_s(self, others: Collection[bytes]) -> float:
        """Return when the lease ends in a map with these other nodes."""
        needed = majority(len(others) + 1) - 1
        return sorted((self._ends_s.get(node, float("-inf")) for node in others), reverse=True)[needed - 1]


class LeasesGranted:
    """Leases that this node has granted to others."""

    def __init__(self, now_s: float, longest_s: float) -> None:
        """`longest_s`: the longest lease that this node may have granted just before it restarted."""
        self._earlier_until_s = now_s + longest_s
        self._until_s: dict[bytes, float] = {}

    def grant(self, to: bytes, now_s: float, for_s: float) -> None:
        self._until_s[to] = max(now_s + for_s, self._until_s.get(to, now_s))

    def assume(self, now_s: float, for_s: float) -> None:
        """Assume that every node may be read from for this long, by a map that is no longer in force."""
        self._earlier_until_s = max(self._earlier_until_s, now_s + for_s)

    def left_s(self, to: bytes, now_s: float) -> float:
        """Return how many seconds a granted lease may still be held."""
        return max(0.0, max(self._earlier_until_s, self._until_s.get(to, 0.0)) - now_s)


def over_s(nodes: int, withheld_s: Mapping[bytes, float]) -> float | None:
    """Return when a node surely holds no lease; None while too few nodes withhold it.

    Args:
        nodes: the number of nodes in the map.
        withheld_s: for each withholding node, when its last grant expires.
    """
    needed = nodes - majority(nodes) + 1
    return sorted(withheld_s.values())[needed - 1] if len(withheld_s) >= needed else None
