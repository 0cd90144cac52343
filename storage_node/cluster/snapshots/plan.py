"""Convergence planning: what one node does so that all owners see the same, from versions alone. Pure, without I/O.

Nothing that a cut sees is made after it, so what it sees of a name can only become newer, until all owners have the
newest. A node that goes through what it sees itself, and finds that all owners see at least that, is done; once all
nodes are, in one round, all owners see the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from storage_node.cluster.repair.plan import UNKNOWN, Answer, State


@dataclass(slots=True)
class Unsettled:
    push: dict[int, list[str]] = field(default_factory=dict)
    """To these nodes, by their positions in the map, these names."""
    behind: int = 0
    """Names of which this node is an owner and another one sees something newer: it sends that."""
    unknown: int = 0
    """Names of which an owner said nothing."""

    @property
    def names(self) -> int:
        return len({name for names in self.push.values() for name in names}) + self.behind + self.unknown


@dataclass(slots=True)
class Counted:
    """Objects of which a node is the first owner, so that those of all nodes make the sum."""

    objects: int = 0
    size_bytes: int = 0


def compare_seen(
    names: Sequence[str],
    states: Sequence[State],
    owners: Sequence[Sequence[int]],
    here: int,
    answers: Mapping[int, Answer],
) -> Unsettled:
    """Args:
    states: what the cut sees here of these names.
    owners: of each name, positions in the map, best first.
    answers: what it sees on the other owners that answered.
    """
    found = Unsettled()
    for name, mine, positions in zip(names, states, owners, strict=True):
        behind = unknown = False
        for node in positions:
            if node == here:
                continue
            theirs = answers.get(node, {}).get(name, UNKNOWN)
            if theirs is UNKNOWN:
                unknown = True
            elif theirs is None:
                # Where nothing is seen a deletion has nothing to hide.
                if not mine.is_tombstone:
                    found.push.setdefault(node, []).append(name)
            elif theirs.version < mine.version:
                found.push.setdefault(node, []).append(name)
            elif here in positions:  # what another node has left from before is in nobody's way
                behind = behind or theirs.version > mine.version
        found.behind += behind
        found.unknown += unknown
    return found


def sees_as_much(answer: Answer, name: str, mine: State) -> bool:
    """Whether a node has said that it sees at least this."""
    theirs = answer.get(name, UNKNOWN)
    if theirs is None:
        return mine.is_tombstone
    return theirs is not UNKNOWN and theirs.version >= mine.version


def count_first(states: Sequence[State], owners: Sequence[Sequence[int]], here: int) -> Counted:
    counted = Counted()
    for state, positions in zip(states, owners, strict=True):
        if positions and positions[0] == here and not state.is_tombstone:
            counted.objects += 1
            counted.size_bytes += state.size_bytes
    return counted


def end_of(ended: int, counter: int, cuts: Sequence[int]) -> int:
    """The number with which a version is retained on another node.

    Args:
        ended: when it ended here; 0 when it has not, although it has there.
        cuts: of the bucket's snapshots.
    """
    return ended or max([counter, *cuts]) + 1
