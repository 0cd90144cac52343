"""Peer clocks: by how much the wall clocks of other nodes differ from this node's, and whose is wrong.

A node says what its wall clock shows with every answer to a write and to a comparison of copies. Versions are ordered
by these clocks where nodes cannot hear of each other, and one that is far ahead would draw all others after it: so a
node whose clock the others contradict coordinates no writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from storage_node.store.wall_clock import LAST_MS, advice, shown

FORGOTTEN_S = 600.0
"""What a node has said longer ago counts for nothing."""


class Verdict(NamedTuple):
    here: bool
    """Most nodes contradict this one's clock."""
    others: frozenset[bytes]
    """Uuids of the nodes whose clocks differ too much: from that of most nodes, or from this one's where there is no
    majority."""
    is_sure: bool


def judge(offsets_ms: Mapping[bytes, int], most_ms: int) -> Verdict:
    """Whose clock is wrong; pure.

    Args:
        offsets_ms: of other nodes, by uuid, ahead of this one.
        most_ms: by which clocks may differ.
    """
    if all(abs(offset) <= most_ms for offset in offsets_ms.values()):
        return Verdict(False, frozenset(), True)
    every = [0, *offsets_ms.values()]
    # Of several that as many agree with the lowest: the same one for whoever judges. With one of its own for each, two
    # nodes at the two ends of what overlaps would both go on.
    agreeing, lowest = max((sum(abs(one - other) <= most_ms for one in every), -other) for other in every)
    middle = -lowest
    is_sure = 2 * agreeing > len(every)
    middle = middle if is_sure else 0
    others = frozenset(uuid for uuid, offset in offsets_ms.items() if abs(offset - middle) > most_ms)
    return Verdict(abs(middle) > most_ms, others, is_sure)


class PeerClocks:
    """What other nodes' wall clocks showed last. Written by the node's event loop, read from any thread."""

    def __init__(self, wall_ms: Callable[[], int], since_s: Callable[[], float] | None = None) -> None:
        """`since_s`: a clock that nobody sets, and that goes on while the machine sleeps."""
        self._wall_ms = wall_ms
        self._since_s = since_s or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._said: dict[bytes, tuple[int, float]] = {}

    def note(self, uuid: bytes, wall_ms: int) -> None:
        """`wall_ms`: 0 of a node that does not say."""
        if wall_ms:
            self._said[uuid] = min(wall_ms, LAST_MS), self._since_s()

    def offsets_ms(self, members: Container[bytes]) -> dict[bytes, int]:
        """Of those of these nodes that have said it lately."""
        now_s, here_ms = self._since_s(), self._wall_ms()
        return {
            uuid: said_ms + round((now_s - at_s) * 1000) - here_ms
            for uuid, (said_ms, at_s) in list(self._said.items())
            if uuid in members and now_s - at_s <= FORGOTTEN_S
        }

    @property
    def widest_ms(self) -> int:
        """The offset that is furthest from 0, of any node that has said it lately; 0 of none."""
        return max(self.offsets_ms(self._said).values(), key=abs, default=0)

    def describe(self, endpoint: str, offset_ms: int, most_ms: int) -> str:
        """What is to be said and done about a node with a clock so far ahead."""
        here_ms = self._wall_ms()
        there = shown(here_ms + offset_ms)
        return f"the clock of {endpoint} shows {there}, this node's {shown(here_ms)}; {advice(most_ms)}"
