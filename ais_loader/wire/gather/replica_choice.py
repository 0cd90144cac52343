"""Replica choice for reads: the first holder is read, unless it has clearly more work than the others.

Reading always the same replica makes the page caches of a cluster add up. If the first holder is clearly behind, the
excess over an equal share is read from other holders. It is always the same objects, chosen by the hash of their names,
so that different readers fill a second page cache with the same ones.

A node's load is what its reader observes: outstanding entries, the recent time per entry, and rejections. In addition,
the node reports its own waiting time, since other readers use it too.

`choose` is pure planning; `NodeLoads` collects its numbers. Shared by clients and by nodes that gather batches.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

import numpy as np

K = TypeVar("K", bound=Hashable)

CLEARLY, SLACK_S = 1.5, 0.02
"""A node is overloaded if it needs this factor and this time longer than another holder."""
_DEFAULT_ENTRY_S = 1e-4
_SAMPLES = 3
"""The time per entry is the median of this many batches, since a batch that had to connect first is no measure."""
_FORGET_S, _FORGET_REPORT_S = 5.0, 1.0
_SUSPICION_S = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a node, as the time that it takes."""

    backlog_s: float = 0.0
    entry_s: float = _DEFAULT_ENTRY_S
    suspected: bool = False
    """Nothing is moved to a suspected node."""


def choose(
    holders: Sequence[Sequence[K]], loads: Mapping[K, Load], key: Callable[[int], int], stay: Collection[K] = ()
) -> Sequence[Sequence[K]]:
    """Return the holders of each entry, n rows, in the order in which to ask them.

    Args:
        holders: for each entry the nodes that have it, in default order.
        loads: the loads of all these nodes.
        key: maps a row to a number that is equal for all readers of that object, such as a hash of its name.
        stay: nodes from and to which nothing is moved.
    """
    load_s, counts = {}, Counter(row[0] for row in holders if row)
    for node in set(chain.from_iterable(holders)):
        load_s[node] = loads[node].backlog_s + counts[node] * loads[node].entry_s
    free = [node for node in load_s if node not in stay]
    targets = [node for node in free if not loads[node].suspected]
    if not targets or max(load_s[node] for node in free) <= _most(min(load_s[node] for node in targets)):
        return holders
    chosen = list(holders)
    rows: dict[K, list[int]] = {node: [] for node in load_s}
    for at, row in enumerate(holders):
        if row:
            rows[row[0]].append(at)
    for busy in sorted(free, key=lambda node: -load_s[node]):
        for other in sorted(targets, key=lambda node: load_s[node]):
            if other == busy or load_s[busy] <= _most(load_s[other]):
                continue
            movable = [at for at in rows[busy] if other in chosen[at]]
            count = int((load_s[busy] - load_s[other]) / (loads[busy].entry_s + loads[other].entry_s))
            if count < len(movable):
                order = np.argsort(np.array([key(at) for at in movable], np.uint64), kind="stable")[:count]
                movable = [movable[k] for k in order.tolist()]
            for at in movable:
                chosen[at] = [other, *(node for node in chosen[at] if node != other)]
            moved = set(movable)
            rows[busy] = [at for at in rows[busy] if at not in moved]
            load_s[busy] -= len(movable) * loads[busy].entry_s
            load_s[other] += len(movable) * loads[other].entry_s
    return chosen


def grouped(
    positions: Sequence[int], candidates: Sequence[Sequence[K]], avoid: Collection[K] = ()
) -> tuple[dict[K, list[int]], list[int]]:
    """Group positions by their first candidate that is not to be avoided. Also return those that have none."""
    groups: dict[K, list[int]] = {}
    nobody: list[int] = []
    for at, nodes in zip(positions, candidates, strict=True):
        for node in nodes:
            if node not in avoid:
                groups.setdefault(node, []).append(at)
                break
        else:
            nobody.append(at)
    return groups, nobody


def _most(other_s: float) -> float:
    return CLEARLY * other_s + SLACK_S


class _Node:
    """The observations of one node."""

    __slots__ = (
        "busy_until_s",
        "measured_at_s",
        "open_entries",
        "reported_at_s",
        "reported_wait_s",
        "samples_s",
        "suspected_until_s",
    )

    def __init__(self) -> None:
        self.open_entries = 0
        self.samples_s: deque[float] = deque(maxlen=_SAMPLES)
        self.measured_at_s = self.reported_at_s = 0.0
        self.busy_until_s = self.suspected_until_s = self.reported_wait_s = 0.0


class NodeLoads(Generic[K]):
    """The loads of nodes as one reader observes them. Thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[K, _Node] = {}
        self._lock = threading.Lock()

    def forget_inherited(self) -> None:
        """Reset a forked child: open requests are the parent's, and one of its threads may hold the lock."""
        self._lock = threading.Lock()
        for node in self._nodes.values():
            node.open_entries = 0

    def requested(self, node: K, entries: int) -> None:
        with self._lock:
            self._node(node).open_entries += entries

    def over(self, node: K, entries: int, answered: int = 0, waited_s: float = 0.0) -> None:
        """Record that entries are no longer awaited; `answered` of them arrived, after `waited_s` in total."""
        now = time.monotonic()
        with self._lock:
            observed = self._node(node)
            observed.open_entries = max(0, observed.open_entries - entries)
            if not answered:
                return
            observed.samples_s.append(waited_s / answered)
            observed.measured_at_s = now

    def rejected(self, node: K, retry_after_s: float) -> None:
        with self._lock:
            self._node(node).busy_until_s = time.monotonic() + retry_after_s

    def report_wait(self, node: K, wait_s: float) -> None:
        """Record a node's report of how long a read waits before it begins."""
        if wait_s or node in self._nodes:
            with self._lock:
                observed = self._node(node)
                observed.reported_wait_s, observed.reported_at_s = wait_s, time.monotonic()

    def suspect(self, node: K) -> None:
        """Suspect a node that has reported that its replicas may be outdated."""
        with self._lock:
            self._node(node).suspected_until_s = time.monotonic() + _SUSPICION_S

    def _node(self, node: K) -> _Node:
        return self._nodes.setdefault(node, _Node())

    def of(self, nodes: Iterable[K]) -> dict[K, Load]:
        """Return the current loads of these nodes."""
        now = time.monotonic()
        with self._lock:
            known = [sample_s for node in self._nodes.values() for sample_s in node.samples_s]
            typical_s = sorted(known)[(len(known) - 1) // 2] if known else _DEFAULT_ENTRY_S
            return {node: self._load(self._nodes.get(node), typical_s, now) for node in nodes}

    @staticmethod
    def _load(observed: _Node | None, typical_s: float, now: float) -> Load:
        if observed is None:
            return Load(0.0, typical_s)
        # An old measurement may no longer hold; the node gradually returns to a typical value.
        samples_s = [*observed.samples_s, *[typical_s] * (_SAMPLES - len(observed.samples_s))]
        measured_s = sorted(samples_s)[_SAMPLES // 2]
        entry_s = typical_s + (measured_s - typical_s) * 0.5 ** ((now - observed.measured_at_s) / _FORGET_S)
        reported_wait_s = observed.reported_wait_s * 0.5 ** ((now - observed.reported_at_s) / _FORGET_REPORT_S)
        backlog_s = observed.open_entries * entry_s + max(0.0, observed.busy_until_s - now) + reported_wait_s
        return Load(backlog_s, max(entry_s, 1e-9), now < observed.suspected_until_s)
