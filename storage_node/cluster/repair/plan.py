"""Repair planning: the steps of one node towards equal replicas, decided from versions alone. Pure functions, no I/O.

A node goes through its objects page by page and asks the other owners of each name for their versions. It pushes what
they lack or have in an older version. A replica that it keeps without being an owner is dropped once all owners have
the object. A tombstone is dropped once its grace time is over and no node has anything older. So one working node is
enough to restore a replica, whoever lost it, and the node with the last replica never drops it. No step relies on a
node that acts under another map; see `map.lease`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ais_loader.wire.cluster_map import ClusterView, added_buckets, by_key, object_hashes
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.reserved import REMOTE_ETAG
from storage_node.cluster.consensus.effects import changing
from storage_node.cluster.map.mutations import take_out
from storage_node.store.format import CatalogEntry, Version, is_pending


@dataclass(frozen=True, slots=True)
class State:
    """A node's entry of one name."""

    version: Version
    is_tombstone: bool
    size_bytes: int = 0
    is_evicted: bool = False
    """The node has no entry: it has evicted a copy of a remote object with this version. Older ones are outdated."""
    raw_metadata: bytes = b""
    """Metadata of a tombstone, if the node has told it."""
    writes: bytes = b""
    """Write memory of the entry, if the node has told it."""
    group: bytes = b""
    """Id of the group that the object's bytes are in; empty if the node has them in a file."""


UNKNOWN = State(Version(0, 0), False, -1)
"""The state on a node that answers while its drive does not."""
Answer = Mapping[str, State | None]
"""A node's state of each name that it was asked for; None if it has no entry. Names that are missing are unknown."""


@dataclass(frozen=True, slots=True)
class NamePage:
    """Some of the names that this node has in a bucket, and their owners."""

    names: Sequence[str]
    states: Sequence[State]
    owners: Sequence[Sequence[int]]
    """Positions in the map, best first."""
    ripe: Sequence[bool]
    """Whether each entry is a tombstone whose grace time is over."""
    evictable: Sequence[bool] = ()
    """Whether each object is a copy of a remote one; empty if none is. Repair does not send such a copy to an owner
    that lacks it: the owner may have evicted it, and fetches it on the next read."""

    def is_evictable(self, row: int) -> bool:
        return bool(self.evictable) and self.evictable[row]


@dataclass(slots=True)
class RepairWork:
    """The steps for one page. Nodes are positions in the map."""

    push: dict[int, list[str]] = field(default_factory=dict)
    """Names to send, by node."""
    drop: list[tuple[str, State]] = field(default_factory=list)
    """Entries that this node does not own and all owners have."""
    forget: list[tuple[str, State]] = field(default_factory=list)
    """Tombstones that nothing older remains for."""
    older_local: dict[str, tuple[int, State]] = field(default_factory=dict)
    """Names of which this node, an owner, has an older version than another owner."""
    unknown: int = 0
    """Number of names for which a relevant node gave no answer."""

    @property
    def is_clean(self) -> bool:
        return self.nothing_moves and not self.older_local

    @property
    def nothing_moves(self) -> bool:
        """Whether everything on this node is in its place, as far as it knows. It may still lack the newest version of
        what it owns."""
        return not (self.push or self.drop or self.unknown)


def page_of(
    view: ClusterView, bucket: pb.MapBucket, held: Sequence[tuple[str, CatalogEntry]], *, now_ns: int, grace_s: float
) -> NamePage:
    names = [name for name, _ in held]
    owners = owners_of(view, bucket, names)
    states = [State(entry.version, entry.is_tombstone, entry.size_bytes) for _, entry in held]
    ripe = [_is_final(bucket, entry) and now_ns - entry.modified_ns > grace_s * 1e9 for _, entry in held]
    evictable = [REMOTE_ETAG in entry.metadata for _, entry in held] if bucket.HasField("remote") else []
    return NamePage(names, states, owners, ripe, evictable)


def _is_final(bucket: pb.MapBucket, entry: CatalogEntry) -> bool:
    """Whether it is a tombstone that may be forgotten: not one that is still to be uploaded to remote storage, and no
    denial, except of a fragment: nobody writes another one under its name."""
    is_kept = entry.is_denied and not bucket.coded_of
    return entry.is_tombstone and not is_kept and not is_pending(entry.raw_metadata)


def questions(page: NamePage, local: int, nodes: int) -> dict[int, list[str]]:
    """Return the names that each other node has to be asked for."""
    rows = zip(page.names, page.owners, page.ripe, strict=True)
    asked = ((name, range(nodes) if ripe else owners) for name, owners, ripe in rows)
    return by_key((node, name) for name, of_name in asked for node in of_name if node != local)


def plan(
    page: NamePage, local: int, nodes: int, answers: Mapping[int, Answer], by_this_map: Collection[int]
) -> RepairWork:
    """Decide the steps for a page from the answers of the other nodes.

    Copies of remote objects are not made equal: an owner may have evicted its own, and would get it back in every pass.
    What an owner has evicted is in the remote storage: other nodes need not keep it, nor anything older.

    Args:
        by_this_map: the nodes that answered under the map of the page.
    """
    work = RepairWork()
    for row, (name, mine, owners, ripe) in enumerate(zip(page.names, page.states, page.owners, page.ripe, strict=True)):
        complete, known, newest = True, True, True
        behind: list[int] = []
        evictable, lacking = page.is_evictable(row), 0
        is_remote = False
        for node in owners:
            if node == local:
                continue
            theirs = answers.get(node, {}).get(name, UNKNOWN)
            if theirs is not None and theirs.is_evicted:
                is_remote |= theirs.version >= mine.version and node in by_this_map
                theirs = theirs if theirs.version >= mine.version else None
            if theirs is UNKNOWN or node not in by_this_map:
                complete = known = False
            if theirs is UNKNOWN:
                continue
            if evictable and theirs is None:
                lacking += 1
            elif theirs is None or theirs.version < mine.version:
                complete = False
                if theirs is not None or not ripe:
                    behind.append(node)
            elif theirs.version > mine.version:
                newest = False
                if local in owners and theirs.version > _version(work.older_local.get(name)):
                    work.older_local[name] = node, theirs
        if local not in owners and lacking == len(owners) and owners:
            # One is enough: further ones are made where the object is read.
            complete, behind = False, [owners[0]]
        if not known:
            work.unknown += 1
        for node in behind if newest else ():  # otherwise the node with the newer version pushes that
            work.push.setdefault(node, []).append(name)
        if local not in owners and owners and (complete or is_remote):
            work.drop.append((name, mine))
        elif (
            ripe
            and name not in work.older_local
            and _nothing_older(
                mine,
                (
                    answers.get(node, {}).get(name, UNKNOWN) if node in by_this_map else UNKNOWN
                    for node in range(nodes)
                    if node != local
                ),
            )
        ):
            work.forget.append((name, mine))
    return work


def _version(found: tuple[int, State] | None) -> Version:
    return found[1].version if found is not None else UNKNOWN.version


def _nothing_older(mine: State, others: Iterable[State | None]) -> bool:
    """Return whether every other node has reported no version older than the tombstone."""
    return all(
        theirs is None or theirs.is_evicted or (theirs is not UNKNOWN and theirs.version >= mine.version)
        for theirs in others
    )


def compare(
    theirs: Sequence[tuple[str, State]], mine: Mapping[str, State | None], owned: Collection[str]
) -> Iterator[tuple[str, State]]:
    """Yield what this node lacks, or has in an older version.

    Args:
        theirs: a page of a peer's listing.
        mine: what this node has of these names; UNKNOWN where its drive fails.
        owned: those of them that this node should have.
    """
    for name, state in theirs:
        local = mine[name]
        if local is UNKNOWN or (local is None and (name not in owned or state.is_evicted)):
            continue
        if local is None or local.version < state.version:
            yield name, state


def owners_of(view: ClusterView, bucket: pb.MapBucket, names: Sequence[str]) -> list[list[int]]:
    """Return the positions in the map of the owners of each name, best first."""
    found: list[list[int]] = view.placement.owners(object_hashes(bucket.uuid, names), bucket.copies).tolist()
    return found


def owned_by(view: ClusterView, bucket: pb.MapBucket, names: Sequence[str], local: int) -> set[str]:
    owners = view.placement.owners(object_hashes(bucket.uuid, names), bucket.copies)
    return {name for name, mine in zip(names, (owners == local).any(axis=1).tolist(), strict=True) if mine}


@changing
def finish_changes(map_: pb.ClusterMap, version: int) -> None:
    """Finish the change of the map: under this version, no node has found anything left to move."""
    if map_.version != version:
        return  # another change came first and may require moves
    left = [node for node in map_.node if node.state == pb.MapNode.LEAVING]
    for node in left:
        take_out(map_, node)
    for node in map_.node:
        node.state = pb.MapNode.ACTIVE
    for bucket in map_.bucket:
        del bucket.former_copies[:]


def same_owners(before: ClusterView, after: ClusterView) -> bool:
    """Return whether every object and snapshot has the same owners under both maps.

    A new bucket had no objects before, and what it has now was put to its owners.
    """
    if before.is_changing or after.is_changing or list(before.map.node) != list(after.map.node):
        return False
    if added_buckets(before.map, after.map) is not None:
        return True
    known = {bucket.uuid: bucket for bucket in before.map.bucket}
    return all(_placed(known.get(bucket.uuid, bucket)) == _placed(bucket) for bucket in after.map.bucket)


def _placed(bucket: pb.MapBucket) -> pb.MapBucket:
    """Return a bucket without what says nothing of where its objects are."""
    if bucket.HasField("denied"):
        placed = pb.MapBucket()
        placed.CopyFrom(bucket)
        placed.ClearField("denied")
        return placed
    return bucket


def batches(names: Sequence[str], sizes: Sequence[int], *, most_names: int, most_bytes: int) -> list[list[int]]:
    """Group positions to be sent together; an item that is too large forms a group of its own."""
    groups: list[list[int]] = []
    held_bytes = 0
    for at, size in enumerate(sizes):
        if not groups or len(groups[-1]) >= most_names or held_bytes + size > most_bytes:
            groups.append([])
            held_bytes = 0
        groups[-1].append(at)
        held_bytes += size
    return groups
