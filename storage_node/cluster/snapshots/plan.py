"""Convergence planning: the steps of one node until all owners see the same, from versions alone. Pure, without I/O.

Nothing that a cut sees is created after it. What it sees of a name can only become newer, until all owners have the
newest version. A node is done when all owners see at least what it sees itself. Once all nodes are done in one round,
all owners see the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from storage_node.cluster.repair.plan import UNKNOWN, Answer, State


@dataclass(slots=True)
class Unsettled:
    push: dict[int, list[str]] = field(default_factory=dict)
    """Names to send, by the node's position in the map."""
    behind: int = 0
    """Number of names of which this node is an owner and another one sees something newer, which that one sends."""
    unknown: int = 0
    """Number of names for which an owner gave no answer."""

    @property
    def names(self) -> int:
        return len({name for names in self.push.values() for name in names}) + self.behind + self.unknown


@dataclass(slots=True)
class Counted:
    """Objects of which a node is the first owner, so that the counts of all nodes add up."""

    objects: int = 0
    size_bytes: int = 0


def compare_seen(
    names: Sequence[str],
    states: Sequence[State],
    owners: Sequence[Sequence[int]],
    local: int,
    answers: Mapping[int, Answer],
) -> Unsettled:
    """Decide what owners lack.

    Args:
        states: what the cut sees here of these names.
        owners: for each name, positions in the map, best first.
        answers: what the cut sees on the other owners that answered.
    """
    found = Unsettled()
    for name, mine, positions in zip(names, states, owners, strict=True):
        behind = unknown = False
        for node in positions:
            if node == local:
                continue
            theirs = answers.get(node, {}).get(name, UNKNOWN)
            if theirs is UNKNOWN:
                unknown = True
            elif theirs is None:
                # Where nothing is visible, a tombstone has nothing to hide.
                if not mine.is_tombstone:
                    found.push.setdefault(node, []).append(name)
            elif theirs.version < mine.version:
                found.push.setdefault(node, []).append(name)
            elif local in positions:  # leftovers on other nodes do no harm
                behind = behind or theirs.version > mine.version
        found.behind += behind
        found.unknown += unknown
    return found


def sees_as_much(answer: Answer, name: str, mine: State) -> bool:
    """Return whether a node has reported that it sees at least this."""
    theirs = answer.get(name, UNKNOWN)
    if theirs is None:
        return mine.is_tombstone
    return theirs is not UNKNOWN and theirs.version >= mine.version


def count_first(states: Sequence[State], owners: Sequence[Sequence[int]], local: int) -> Counted:
    counted = Counted()
    for state, positions in zip(states, owners, strict=True):
        if positions and positions[0] == local and not state.is_tombstone:
            counted.objects += 1
            counted.size_bytes += state.size_bytes
    return counted


def end_of(ended: int, counter: int, cuts: Sequence[int]) -> int:
    """Return the version number at which a version ends on another node that retains it.

    Args:
        ended: when it ended here; 0 if it has not, although it has there.
        cuts: the cuts of the bucket's snapshots.
    """
    return ended or max([counter, *cuts]) + 1
