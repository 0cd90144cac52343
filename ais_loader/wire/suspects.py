"""Suspects: nodes that did not answer, as a caller remembers them, each for a while or until it answers.

They keep one dead node from costing every call its time limit. The caller decides how long to remember, and whether to
ask such a node last or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from ais_loader.wire.backoff import Backoff

Node = TypeVar("Node", bound=Hashable)


class _Suspect(NamedTuple):
    since_s: float
    until_s: float
    times: int
    """Number of earlier suspicions since the node last answered."""


class Suspects(Generic[Node]):
    """Suspected nodes. Thread-safe: each step is one look-up or one assignment.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Node, _Suspect] = {}

    def __bool__(self) -> bool:
        """Return whether any node has failed and not answered since."""
        return bool(self._known)

    def failed(self, node: Node, pause: Backoff) -> None:
        """Suspect a node for `pause` from now on, longer each time until it answers."""
        now, before = self._clock(), self._known.get(node)
        since_s, times = (now, 0) if before is None else (before.since_s, before.times + 1)
        self._known[node] = _Suspect(since_s, now + pause.whole_s(times), times)

    def answered(self, node: Node) -> None:
        if self._known:
            self._known.pop(node, None)

    def __contains__(self, node: Node) -> bool:
        known = self._known.get(node)
        return known is not None and self._clock() < known.until_s

    def among(self, nodes: set[Node]) -> set[Node]:
        """Return those of these nodes that are suspected now."""
        return {node for node in self._known.keys() & nodes if node in self}

    def failing_s(self, node: Node) -> float:
        """Return how long the node has been failing since its last answer; 0 if it has not failed."""
        known = self._known.get(node)
        return 0.0 if known is None else self._clock() - known.since_s
