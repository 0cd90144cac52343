"""Read leases: a node that others may have given up waiting for knows by its own clock that it must not be read from.

A node reads its copies out only while it holds a lease, which a majority of the map's nodes, itself among them, renews
again and again. A writer that cannot tell a node of a write has other nodes try. Those that cannot either renew that
node's lease no more until it has heard of the write. Once so many withhold it that no majority is left, and what they
had granted before has run out, the node is not read from: the write may be acknowledged.

Every majority that renews a lease later has one of those in it, so whoever holds a lease again has been told. A lease
that lapsed and came back needs no comparison with others for that reason.

No clock is compared with another: a lease counts from the moment at which the node asked for it, what was granted from
the moment at which the answer was given, which is later, and a writer waits for that. Clocks may differ in their rate
by `DRIFT`. They go on while a machine is suspended.

Pure: times are seconds of the caller's own clock, and come with the call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping

DRIFT = 1 / 64
LEAST_NODES = 3
"""Of two nodes neither is a majority: they read out what they have when the other one is away."""
_NODES_OF_THE_BASE = 32


def clock_s() -> float:
    """A clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ms_since(moment_s: float) -> int:
    """Milliseconds since a moment of `clock_s`, rounded up."""
    return max(0, math.ceil((clock_s() - moment_s) * 1000))


def lease_s(base_s: float, nodes: int) -> float:
    """How long a lease is: where many ask many, they ask less often. 0: there are none."""
    return base_s * max(1.0, nodes / _NODES_OF_THE_BASE) if nodes >= LEAST_NODES else 0.0


def majority(nodes: int) -> int:
    return nodes // 2 + 1


class LeaseHeld:
    """A node's own lease, of what others have granted."""

    def __init__(self) -> None:
        self._ends_s: dict[bytes, float] = {}

    def granted(self, by: bytes, asked_s: float, for_s: float) -> None:
        """`asked_s`: when the node that granted it was asked."""
        self._ends_s[by] = max(asked_s + for_s * (1 - DRIFT), self._ends_s.get(by, float("-inf")))

    def until_s(self, others: Collection[bytes]) -> float:
        """When the lease ends, in a map that has these other nodes."""
        needed = majority(len(others) + 1) - 1
        return sorted((self._ends_s.get(node, float("-inf")) for node in others), reverse=True)[needed - 1]


class LeasesGranted:
    """What one node has granted to others."""

    def __init__(self, now_s: float, longest_s: float) -> None:
        """`longest_s`: what an earlier life of the node may have granted a moment ago."""
        self._earlier_until_s = now_s + longest_s
        self._until_s: dict[bytes, float] = {}

    def grant(self, to: bytes, now_s: float, for_s: float) -> None:
        self._until_s[to] = max(now_s + for_s, self._until_s.get(to, now_s))

    def assume(self, now_s: float, for_s: float) -> None:
        """Whoever it is may be read from for so long all the same, by a map that this node goes by no more."""
        self._earlier_until_s = max(self._earlier_until_s, now_s + for_s)

    def left_s(self, to: bytes, now_s: float) -> float:
        """How long a lease that was granted may still be held."""
        return max(0.0, max(self._earlier_until_s, self._until_s.get(to, 0.0)) - now_s)


def over_s(nodes: int, withheld_s: Mapping[bytes, float]) -> float | None:
    """When a node surely holds no lease; None while too few withhold it.

    Args:
        nodes: of the map.
        withheld_s: of each node that renews it no more, when what it had granted has run out.
    """
    needed = nodes - majority(nodes) + 1
    return sorted(withheld_s.values())[needed - 1] if len(withheld_s) >= needed else None
