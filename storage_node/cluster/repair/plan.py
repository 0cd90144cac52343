"""Repair planning: what one node does to make copies equal, decided from versions alone. Pure functions, no I/O.

A node goes through what it has, page by page, and asks the other owners of each name what they have of it. What they
lack or have older, it pushes; a copy that it keeps without owning it goes once all owners have it; a tombstone goes
once its grace time is over and no node has anything older. So one node that works is enough to bring a copy back,
whoever lost it, and a node that holds the last copy never lets go of it. Nothing goes on the word of a node that acts
by another map; see `map.lease`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ais_loader.wire.cluster_map import ClusterView, object_hashes
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.map.mutations import take_out
from storage_node.store.format import CatalogEntry, Version


@dataclass(frozen=True, slots=True)
class State:
    """What a node has of one name."""

    version: Version
    is_tombstone: bool
    size_bytes: int = 0


UNKNOWN = State(Version(0, 0), False, -1)
"""Of a node that answers, but whose drive does not."""
Answer = Mapping[str, State | None]
"""What a node has of each name that it was asked for; None: nothing. Names that are not in it: nobody knows."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the names that this node has in a bucket, and who should have them."""

    names: Sequence[str]
    states: Sequence[State]
    owners: Sequence[Sequence[int]]
    """Positions in the map, best first."""
    ripe: Sequence[bool]
    """Tombstones whose grace time is over."""


@dataclass(slots=True)
class Work:
    """What a page asks for. Nodes are positions in the map."""

    push: dict[int, list[str]] = field(default_factory=dict)
    """To these nodes these names."""
    drop: list[tuple[str, State]] = field(default_factory=list)
    """What this node has no business to have, and all owners have."""
    forget: list[tuple[str, State]] = field(default_factory=list)
    """Tombstones that nothing is left of to guard against."""
    older_here: dict[str, tuple[int, State]] = field(default_factory=dict)
    """Names of which this node, an owner, has an older version than another owner."""
    unknown: int = 0
    """Names of which a node that matters said nothing."""

    @property
    def is_clean(self) -> bool:
        return self.nothing_moves and not self.older_here

    @property
    def nothing_moves(self) -> bool:
        """As far as this node knows, what it has is where it belongs; it may not have the newest of what it owns."""
        return not (self.push or self.drop or self.unknown)


def page_of(
    view: ClusterView, bucket: pb.MapBucket, held: Sequence[tuple[str, CatalogEntry]], *, now_ns: int, grace_s: float
) -> Page:
    names = [name for name, _ in held]
    owners = owners_of(view, bucket, names)
    states = [State(record.version, record.is_tombstone, record.size_bytes) for _, record in held]
    ripe = [record.is_tombstone and now_ns - record.modified_ns > grace_s * 1e9 for _, record in held]
    return Page(names, states, owners, ripe)


def questions(page: Page, here: int, nodes: int) -> dict[int, list[str]]:
    """Which names each other node has to be asked for."""
    asked: dict[int, list[str]] = {}
    for name, owners, ripe in zip(page.names, page.owners, page.ripe, strict=True):
        for node in range(nodes) if ripe else owners:
            if node != here:
                asked.setdefault(node, []).append(name)
    return asked


def plan(page: Page, here: int, nodes: int, answers: Mapping[int, Answer], by_this_map: Collection[int]) -> Work:
    """What to do, given what the nodes that answered have.

    Args:
        by_this_map: those that answered by the map by which the page was made.
    """
    work = Work()
    for name, mine, owners, ripe in zip(page.names, page.states, page.owners, page.ripe, strict=True):
        complete, known, newest = True, True, True
        behind: list[int] = []
        for node in owners:
            if node == here:
                continue
            theirs = answers.get(node, {}).get(name, UNKNOWN)
            if theirs is UNKNOWN or node not in by_this_map:
                complete = known = False
            if theirs is UNKNOWN:
                continue
            if theirs is None or theirs.version < mine.version:
                complete = False
                if theirs is not None or not ripe:
                    behind.append(node)
            elif theirs.version > mine.version:
                newest = False
                if here in owners and theirs.version > _version(work.older_here.get(name)):
                    work.older_here[name] = node, theirs
        if not known:
            work.unknown += 1
        for node in behind if newest else ():  # otherwise the one that has a newer one pushes that
            work.push.setdefault(node, []).append(name)
        if here not in owners and complete and owners:
            work.drop.append((name, mine))
        elif (
            ripe
            and name not in work.older_here
            and _nothing_older(
                mine,
                (
                    answers.get(node, {}).get(name, UNKNOWN) if node in by_this_map else UNKNOWN
                    for node in range(nodes)
                    if node != here
                ),
            )
        ):
            work.forget.append((name, mine))
    return work


def _version(found: tuple[int, State] | None) -> Version:
    return found[1].version if found is not None else UNKNOWN.version


def _nothing_older(mine: State, others: Iterable[State | None]) -> bool:
    """Whether every other node has said that it has no object that the tombstone guards against."""
    return all(theirs is None or (theirs is not UNKNOWN and theirs.version >= mine.version) for theirs in others)


@dataclass(slots=True)
class Comparison:
    """What one page of a peer's listing means for this node."""

    fetch: dict[str, State] = field(default_factory=dict)
    """Objects that this node lacks or has older."""
    tombstones: dict[str, State] = field(default_factory=dict)
    """Tombstones likewise."""


def compare(
    theirs: Sequence[tuple[str, State]], mine: Mapping[str, State | None], owned: Collection[str]
) -> Comparison:
    """Args:
    theirs: a page of a peer's listing.
    mine: what this node has of these names; UNKNOWN where its drive fails.
    owned: those of them that this node should have.
    """
    found = Comparison()
    for name, state in theirs:
        here = mine[name]
        if here is UNKNOWN or (here is None and name not in owned):
            continue
        if here is None or here.version < state.version:
            (found.tombstones if state.is_tombstone else found.fetch)[name] = state
    return found


def owners_of(view: ClusterView, bucket: pb.MapBucket, names: Sequence[str]) -> list[list[int]]:
    """Positions in the map of the owners of each name, best first."""
    found: list[list[int]] = view.placement.owners(object_hashes(bucket.uuid, names), bucket.copies).tolist()
    return found


def owned_by(view: ClusterView, bucket: pb.MapBucket, names: Sequence[str], here: int) -> set[str]:
    owners = view.placement.owners(object_hashes(bucket.uuid, names), bucket.copies)
    return {name for name, mine in zip(names, (owners == here).any(axis=1).tolist(), strict=True) if mine}


def finish_changes(version: int) -> Edit:
    """All nodes have gone through what they have under this version of the map, and found nothing to move."""

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        if map_ is None:
            raise ValueError("the nodes of this node's cluster belong to none")
        if map_.version != version:
            return map_  # another change came first: what was clean may not be any more
        left = [node for node in map_.node if node.state == pb.MapNode.LEAVING]
        for node in left:
            take_out(map_, node)
        for node in map_.node:
            node.state = pb.MapNode.ACTIVE
        for bucket in map_.bucket:
            del bucket.former_copies[:]
        return map_

    return edit


def same_owners(before: ClusterView, after: ClusterView) -> bool:
    """Whether every object and snapshot that there was by the one map has the owners that it had, and no others.

    A bucket that is new had no objects before: what it has was put to its owners.
    """
    if before.is_changing or after.is_changing or list(before.map.node) != list(after.map.node):
        return False
    known = {bucket.uuid: bucket for bucket in before.map.bucket}
    return all(known.get(bucket.uuid, bucket) == bucket for bucket in after.map.bucket)


def batches(names: Sequence[str], sizes: Sequence[int], *, most_names: int, most_bytes: int) -> list[list[int]]:
    """Positions in groups that are sent together; one that is too large is a group of its own."""
    groups: list[list[int]] = []
    held_bytes = 0
    for at, size in enumerate(sizes):
        if not groups or len(groups[-1]) >= most_names or held_bytes + size > most_bytes:
            groups.append([])
            held_bytes = 0
        groups[-1].append(at)
        held_bytes += size
    return groups
