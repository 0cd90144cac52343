"""Copy shortage: objects that have fewer copies than their bucket asks for, and the nodes that can stand in for owners.

An owner that is full, or whose drive fails, cannot take its copy. Another host, the next one in rendezvous order, keeps
it meanwhile; a pass of repair there sends it home once the owner takes it. Every object is counted by one node: the
best of its owners that has it, or whoever stands in where none does.

Decisions are pure; the register of what is short belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from storage_node.cluster.repair.plan import UNKNOWN, Answer, Page, State

MAX_NAMES = 100_000
"""Of all buckets, that are kept by name. What goes beyond is found again by the next pass."""


def shortages(page: Page, here: int, answers: Mapping[int, Answer]) -> dict[str, int]:
    """How many owners are not known to have each object, of those objects that this node looks after."""
    found: dict[str, int] = {}
    for name, mine, owners in zip(page.names, page.states, page.owners, strict=True):
        known = {node: answers.get(node, {}).get(name, UNKNOWN) for node in owners if node != here}
        if mine.is_tombstone or any(state is not None and state.version > mine.version for state in known.values()):
            continue  # whoever has the newer one looks after it
        having = [node for node in owners if node == here or has(known[node], mine)]
        if here not in owners:
            having.append(here)
        if having[0] == here and (missing := len(owners) - len(having)) > 0:
            found[name] = missing
    return found


def may_be_replaced(page: Page, here: int, answers: Mapping[int, Answer], short: Iterable[str]) -> set[str]:
    """Those of these names that an owner lacks who answers: it is full, or its drive fails. One that is silent may be
    back in a moment, with its copy."""
    rows = {name: at for at, name in enumerate(page.names)}
    found: set[str] = set()
    for name in short:
        for node in page.owners[rows[name]]:
            said = answers.get(node, {})
            if node != here and name in said and not has(said[name], page.states[rows[name]]):
                found.add(name)
    return found


def has(theirs: State | None, mine: State) -> bool:
    """Whether another node has what this one has, or something newer."""
    return theirs is not None and theirs.version >= mine.version


class StandIns:
    """Who is to be asked next to keep copies that owners cannot, round by round.

    Args:
        missing: how many copies each name lacks.
        rankings: of each name one node of each host beyond its owners, best first.
    """

    def __init__(self, missing: Mapping[str, int], rankings: Mapping[str, Sequence[int]], here: int) -> None:
        self.missing = dict(missing)
        self._left = {name: [node for node in ranking if node != here] for name, ranking in rankings.items()}

    def next_nodes(self) -> dict[int, list[str]]:
        """By node, what it is to be asked for now; empty at the end."""
        asked: dict[int, list[str]] = {}
        for name, missing in self.missing.items():
            for node in self._left[name][:missing]:
                asked.setdefault(node, []).append(name)
            del self._left[name][:missing]
        return asked

    def have(self, names: Iterable[str]) -> None:
        """A node that was asked has these."""
        for name in names:
            self.missing[name] -= 1
            if not self.missing[name]:
                del self.missing[name]


class ShortObjects:
    """Objects of this node that are known to have too few copies, by bucket uuid."""

    def __init__(self) -> None:
        self._urgent: dict[bytes, dict[str, None]] = {}
        self._waiting: Counter[bytes] = Counter()
        self._counting: Counter[bytes] = Counter()
        self.noted = asyncio.Event()
        """Set when there is something to mend that was not there before."""

    def note(self, bucket_uuid: bytes, names: Iterable[str]) -> None:
        """To be mended at once, and until it is."""
        known = self._urgent.setdefault(bucket_uuid, {})
        room = MAX_NAMES - sum(map(len, self._urgent.values()))
        for name in names:
            if name not in known and room > 0:
                known[name] = None
                room -= 1
                self.noted.set()
        if not known:
            del self._urgent[bucket_uuid]

    def mended(self, bucket_uuid: bytes, names: Iterable[str]) -> None:
        """They have all their copies, are gone, or another node looks after them."""
        known = self._urgent.get(bucket_uuid)
        if known is not None:
            for name in names:
                known.pop(name, None)
            if not known:
                del self._urgent[bucket_uuid]

    def count(self, bucket_uuid: bytes, names: Iterable[str]) -> None:
        """A pass has found these, which wait for a silent owner."""
        urgent = self._urgent.get(bucket_uuid, {})
        self._counting[bucket_uuid] += sum(name not in urgent for name in names)

    def begin_pass(self) -> None:
        self._counting = Counter()

    def end_pass(self) -> None:
        self._waiting = self._counting

    def urgent(self) -> dict[bytes, list[str]]:
        return {bucket_uuid: list(names) for bucket_uuid, names in self._urgent.items()}

    def counts(self) -> dict[bytes, int]:
        """Objects by bucket, without buckets that have none. May be asked from any thread."""
        found = Counter({bucket_uuid: len(names) for bucket_uuid, names in list(self._urgent.items())})
        found.update(self._waiting)
        return {bucket_uuid: count for bucket_uuid, count in found.items() if count}
