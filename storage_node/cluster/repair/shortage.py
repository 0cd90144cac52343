"""Copy shortage: objects with fewer replicas than their bucket requires, and the nodes that can stand in for owners.

An owner that is full, or whose drive fails, cannot store its replica. The next host in rendezvous order stores it
meanwhile, and its repair pass sends it to the owner once that accepts it. Each object is counted by one node: the best
owner that has it, or the stand-in if no owner does.

Decisions are pure. The register of short objects belongs to the node's event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from storage_node.cluster.repair.plan import UNKNOWN, Answer, NamePage, State
from storage_node.limits.wakeup import Wakeup

MAX_NAMES = 100_000
"""Most names kept over all buckets. The next pass finds the rest again."""


def shortages(page: NamePage, local: int, answers: Mapping[int, Answer]) -> dict[str, int]:
    """Return how many owners are not known to have each object, for the objects that this node is responsible for."""
    found: dict[str, int] = {}
    for row, (name, mine, owners) in enumerate(zip(page.names, page.states, page.owners, strict=True)):
        if page.is_evictable(row):
            continue
        known = {node: answers.get(node, {}).get(name, UNKNOWN) for node in owners if node != local}
        if mine.is_tombstone or any(state is not None and state.version > mine.version for state in known.values()):
            continue  # the node with the newer version is responsible
        having = [node for node in owners if node == local or has(known[node], mine)]
        if local not in owners:
            having.append(local)
        if having[0] == local and (missing := len(owners) - len(having)) > 0:
            found[name] = missing
    return found


def may_be_replaced(page: NamePage, local: int, answers: Mapping[int, Answer], short: Iterable[str]) -> set[str]:
    """Return those of these names that an answering owner lacks, because it is full or its drive fails. A silent owner
    may be back in a moment, with its replica."""
    rows = {name: at for at, name in enumerate(page.names)}
    found: set[str] = set()
    for name in short:
        for node in page.owners[rows[name]]:
            answer = answers.get(node, {})
            if node != local and name in answer and not has(answer[name], page.states[rows[name]]):
                found.add(name)
    return found


def has(theirs: State | None, mine: State) -> bool:
    """Return whether another node has this node's version or a newer one."""
    return theirs is not None and theirs.version >= mine.version


class StandIns:
    """Chooses, round by round, the nodes that store replicas in place of owners.

    Args:
        missing: the number of replicas that each name lacks.
        rankings: for each name, one node per host beyond its owners, best first.
    """

    def __init__(self, missing: Mapping[str, int], rankings: Mapping[str, Sequence[int]], local: int) -> None:
        self.missing = dict(missing)
        self._left = {name: [node for node in ranking if node != local] for name, ranking in rankings.items()}

    def next_nodes(self) -> dict[int, list[str]]:
        """Return the names to request next, by node; empty at the end."""
        requests: dict[int, list[str]] = {}
        for name, missing in self.missing.items():
            for node in self._left[name][:missing]:
                requests.setdefault(node, []).append(name)
            del self._left[name][:missing]
        return requests

    def have(self, names: Iterable[str]) -> None:
        """Record that a requested node has these names."""
        for name in names:
            self.missing[name] -= 1
            if not self.missing[name]:
                del self.missing[name]


class ShortObjects:
    """Objects of this node that are known to have too few replicas, by bucket uuid."""

    def __init__(self) -> None:
        self._urgent: dict[bytes, dict[str, int]] = {}
        self.notes = 0
        """Number of calls of `note`. An object is kept with that of its last one: a later write may leave it short."""
        self._waiting: Counter[bytes] = Counter()
        self._counting: Counter[bytes] = Counter()
        self.noted = Wakeup()
        """Set when an object is added."""

    def note(self, bucket_uuid: bytes, names: Iterable[str]) -> None:
        """Add objects that are to be repaired at once, with retries."""
        self.notes += 1
        known = self._urgent.setdefault(bucket_uuid, {})
        room = MAX_NAMES - sum(map(len, self._urgent.values()))
        for name in [name for name in names if name in known or (room := room - 1) >= 0]:
            if name not in known:
                self.noted.set()
            known[name] = self.notes
        if not known:
            del self._urgent[bucket_uuid]

    def mended(self, bucket_uuid: bytes, names: Iterable[str], notes: int) -> None:
        """Remove objects that were not short, or another node's to mend, before the notes that follow these many."""
        known = self._urgent.get(bucket_uuid, {})
        for name in [name for name in names if known.get(name, notes + 1) <= notes]:
            del known[name]
        if not known:
            self._urgent.pop(bucket_uuid, None)

    def count(self, bucket_uuid: bytes, names: Iterable[str]) -> None:
        """Count objects that the current pass found waiting for a silent owner."""
        urgent = self._urgent.get(bucket_uuid, {})
        self._counting[bucket_uuid] += sum(name not in urgent for name in names)

    def begin_pass(self) -> None:
        self._counting = Counter()

    def end_pass(self) -> None:
        self._waiting = self._counting

    def urgent(self) -> dict[bytes, list[str]]:
        return {bucket_uuid: list(names) for bucket_uuid, names in self._urgent.items()}

    def counts(self) -> dict[bytes, int]:
        """Return the number of objects by bucket, without buckets that have none. Thread-safe."""
        found = Counter({bucket_uuid: len(names) for bucket_uuid, names in list(self._urgent.items())})
        found.update(self._waiting)
        return {bucket_uuid: count for bucket_uuid, count in found.items() if count}
