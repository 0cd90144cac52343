"""Peer clocks: the offsets between the wall clocks of other nodes and this one's, and which clock is wrong.

A node reports its wall clock with every answer to a write and to a comparison of replicas. Versions are ordered by
these clocks where nodes cannot communicate, and a clock far ahead would pull all others along. A node whose clock the
others contradict therefore coordinates no writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from storage_node.store.drive.version_clock import LAST_MS, advice, shown

FORGOTTEN_S = 600.0
"""Reports older than this are ignored."""


class Verdict(NamedTuple):
    here: bool
    """Most nodes contradict this node's clock."""
    others: frozenset[bytes]
    """Uuids of the nodes whose clocks differ too much: from the majority's, or from this node's if there is no
    majority."""
    is_sure: bool


def judge(offsets_ms: Mapping[bytes, int], most_ms: int) -> Verdict:
    """Decide whose clock is wrong; pure.

    Args:
        offsets_ms: how far other nodes are ahead of this one, by uuid.
        most_ms: the largest tolerated difference.
    """
    if all(abs(offset) <= most_ms for offset in offsets_ms.values()):
        return Verdict(False, frozenset(), True)
    every = [0, *offsets_ms.values()]
    # Several clocks may have the same number of agreeing ones. Taking the lowest gives the same answer on every node.
    # Otherwise, two nodes at both ends of an overlap would both go on.
    agreeing, lowest = max((sum(abs(one - other) <= most_ms for one in every), -other) for other in every)
    middle = -lowest
    is_sure = 2 * agreeing > len(every)
    middle = middle if is_sure else 0
    others = frozenset(uuid for uuid, offset in offsets_ms.items() if abs(offset - middle) > most_ms)
    return Verdict(abs(middle) > most_ms, others, is_sure)


class PeerClocks:
    """The last reported wall clocks of other nodes. Written by the node's event loop, read from any thread."""

    def __init__(self, wall_ms: Callable[[], int], since_s: Callable[[], float] | None = None) -> None:
        """`since_s` is a monotonic clock that continues while the machine is suspended."""
        self._wall_ms = wall_ms
        self._since_s = since_s or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._reports: dict[bytes, tuple[int, float]] = {}

    def note(self, uuid: bytes, wall_ms: int) -> None:
        """Record a report. `wall_ms` is 0 if the node reports no clock."""
        if wall_ms:
            self._reports[uuid] = min(wall_ms, LAST_MS), self._since_s()

    def offsets_ms(self, members: Container[bytes]) -> dict[bytes, int]:
        """Return the offsets of these nodes, if they reported lately."""
        now_s, here_ms = self._since_s(), self._wall_ms()
        return {
            uuid: reported_ms + round((now_s - at_s) * 1000) - here_ms
            for uuid, (reported_ms, at_s) in list(self._reports.items())
            if uuid in members and now_s - at_s <= FORGOTTEN_S
        }

    @property
    def widest_ms(self) -> int:
        """The largest offset by magnitude of any recent report; 0 if there is none."""
        return max(self.offsets_ms(self._reports).values(), key=abs, default=0)

    def describe(self, endpoint: str, offset_ms: int, most_ms: int) -> str:
        """Describe a clock that is too far ahead, and what to do about it."""
        here_ms = self._wall_ms()
        there = shown(here_ms + offset_ms)
        return f"the clock of {endpoint} shows {there}, this node's {shown(here_ms)}; {advice(most_ms)}"
