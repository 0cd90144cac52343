"""Plans of erasure coding: which objects form a group, where its fragments go, and what a group needs. Pure functions.

A group is kept by its keeper, the first owner of its manifest. It compares what the owners have of the group's objects,
and what the hosts have of its fragments.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.redundancy import Redundancy
from storage_node.cluster.coding.group import ALIGNED_BYTES, Manifest, Slot, lay_out
from storage_node.cluster.repair.plan import UNKNOWN, Answer, State
from storage_node.context.errors import TooFewCopies
from storage_node.store.drive.drive import Drive
from storage_node.store.format import DENIAL_BIT, CatalogEntry
from storage_node.store.names import CODED_PREFIX, HIDDEN

GROUP_BYTES = 64 << 20
"""Largest group of several objects, which is in memory once. An object that takes more has a group of its own."""
LEAST_FRAGMENT_BYTES = 64 << 10
"""Less for each fragment is left as copies: it would hardly take less space."""
GROUP_OBJECTS = 4096
_DRAWS = 10_000
"""Most names drawn for a fragment."""


class Candidate(NamedTuple):
    """An object that may be coded, and the drive of this node that has it."""

    name: str
    entry: CatalogEntry
    drive: Drive


def may_be_coded(name: str, entry: CatalogEntry, now_ns: int, delay_s: float) -> bool:
    return entry.has_file and not name.startswith(HIDDEN) and now_ns - entry.modified_ns >= delay_s * 1e9


def is_alone(entry: CatalogEntry, data: int) -> bool:
    """Whether an object has a group of its own, and is read in pieces."""
    return entry.size_bytes > data * most_fragment_bytes(data)


def most_fragment_bytes(data: int) -> int:
    """Return the size of the largest fragment of a group of several objects."""
    return GROUP_BYTES // data // ALIGNED_BYTES * ALIGNED_BYTES


class Collector:
    """Collects objects into groups of one redundancy."""

    def __init__(self, redundancy: Redundancy) -> None:
        self._redundancy = redundancy
        self._held: list[Candidate] = []
        self._held_bytes = 0

    def add(self, found: Iterable[Candidate]) -> Iterator[list[Candidate]]:
        """Take objects; yield the groups that are full."""
        for one in found:
            size_bytes = one.entry.size_bytes
            if is_alone(one.entry, self._redundancy.data):
                yield [one]
            elif size_bytes:
                self._held.append(one)
                self._held_bytes += size_bytes
                if len(self._held) >= GROUP_OBJECTS or self._held_bytes >= GROUP_BYTES:
                    yield self._taken()

    def rest(self) -> Iterator[list[Candidate]]:
        """Yield the last group, if coding it saves space."""
        while self._held and self._held_bytes >= self._redundancy.data * LEAST_FRAGMENT_BYTES:
            yield self._taken()

    def _taken(self) -> list[Candidate]:
        data = self._redundancy.data
        offsets, _ = lay_out([one.entry.size_bytes for one in self._held], data, most_fragment_bytes(data))
        group, self._held = self._held[: len(offsets)], self._held[len(offsets) :]
        self._held_bytes = sum(one.entry.size_bytes for one in self._held)
        return group


class FragmentPlace(NamedTuple):
    """Name of a fragment in the companion bucket, and its owner, which is a position in the map."""

    name: str
    node: int


def place_fragments(
    view: ClusterView,
    companion: pb.MapBucket,
    group: bytes,
    indexes: Iterable[int],
    *,
    used: Collection[str] = (),
    names: Sequence[str] = (),
    salt: int = 0,
) -> dict[int, FragmentPlace]:
    """Choose names for fragments such that their owners are on different hosts, none of which is in `used`.

    A name ends with a number, the salt, which is drawn until the name has such an owner. `names`: of all fragments,
    to be kept where they do. `salt`: the first to be drawn. Raises TooFewCopies if there are too few hosts.
    """
    hosts, placed = set(used), dict[int, FragmentPlace]()
    for index in indexes:
        drawn = (fragment_name(group, index, number) for number in range(salt, salt + _DRAWS))
        for name in itertools.chain(names[index : index + 1], drawn):
            node = view.owners(companion, name)[0]
            if view.nodes[node].host not in hosts:
                hosts.add(view.nodes[node].host)
                placed[index] = FragmentPlace(name, node)
                break
        else:
            raise TooFewCopies(f"no host is left for fragment {index} of group {group.hex()}; add hosts")
    return placed


def fragment_name(group: bytes, index: int, salt: int) -> str:
    return f"{group.hex()}/{index}/{salt}"


def group_of_fragment(name: str) -> bytes:
    """Return the group of a fragment. Raises ValueError for another name."""
    return bytes.fromhex(name.partition("/")[0])


def manifest_name(group: bytes) -> str:
    return CODED_PREFIX + group.hex()


def group_of_manifest(name: str) -> bytes:
    return bytes.fromhex(name.removeprefix(CODED_PREFIX))


# -- what a keeper finds


def living(manifest: Manifest, nodes: Mapping[str, Sequence[int]], answers: Mapping[int, Answer]) -> list[Slot] | None:
    """Return the objects that an entry of one of these nodes, by name, has in the group; None if that is not sure."""
    found: list[Slot] = []
    is_sure = True
    for slot in manifest.slots:
        states = [answers.get(node, {}).get(slot.name, UNKNOWN) for node in nodes[slot.name]]
        if any(state is not None and state.group == manifest.group for state in states):
            found.append(slot)
        elif any(state is UNKNOWN for state in states):
            is_sure = False
    return found if is_sure else None


def denied_slots(manifest: Manifest, answers: Mapping[int, Answer]) -> list[Slot]:
    """Return the objects that are denied: their bytes have to leave the fragments."""
    found: list[Slot] = []
    for slot in manifest.slots:
        states = [state for answer in answers.values() if (state := answer.get(slot.name)) is not None]
        dead = [state.version for state in states if state.is_tombstone and state.version.epoch & DENIAL_BIT]
        if max(dead, default=slot.version) > slot.version:  # an owner may not know yet that it is allowed again
            found.append(slot)
    return found


def is_sparse(manifest: Manifest, slots: Sequence[Slot]) -> bool:
    """Whether less than half of what the group was made of is left in it."""
    return 2 * sum(slot.size_bytes for slot in slots) < sum(slot.size_bytes for slot in manifest.slots)


def plain_owners(
    manifest: Manifest, owners: Mapping[str, Sequence[int]], answers: Mapping[int, Answer]
) -> dict[int, list[Slot]]:
    """Return the objects of which an owner has a file in the version that another owner has in the group: a swap that
    did not come to it, or a copy that was made to be read."""
    found: dict[int, list[Slot]] = {}
    for slot in manifest.slots:
        states = {node: answers.get(node, {}).get(slot.name) for node in owners[slot.name]}
        if any(state is not None and state.group == manifest.group for state in states.values()):
            for node, state in states.items():
                if state is not None and _is_file(state) and state.version == slot.version:
                    found.setdefault(node, []).append(slot)
    return found


def _is_file(state: State) -> bool:
    return state is not UNKNOWN and not (state.is_tombstone or state.is_evicted or state.group)


def lost_fragments(
    view: ClusterView, manifest: Manifest, owners: Sequence[int], answers: Mapping[int, Answer]
) -> list[int]:
    """Return the fragments that have to be written again: their owner answers and lacks them, or has them damaged, or
    another fragment is on the same host.

    A node that is silent may have its fragments. They are written again once it is out of the map.
    """
    lost: list[int] = []
    hosts: set[str] = set()
    for index, (name, node) in enumerate(zip(manifest.fragments, owners, strict=True)):
        host = view.nodes[node].host
        if is_lost(name, answers.get(node)) or host in hosts:
            lost.append(index)
        else:
            hosts.add(host)
    return lost


def is_lost(fragment: str, answer: Answer | None) -> bool:
    """Whether the owner of a fragment answers, and lacks it or has it damaged."""
    state = answer.get(fragment) if answer is not None else None
    return answer is not None and (state is None or state is UNKNOWN or state.is_tombstone)
