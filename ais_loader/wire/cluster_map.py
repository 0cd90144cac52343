"""Cluster map with host placement: which nodes own an object, and which did before the last change.

Pure functions of the map, computed alike on clients and nodes, so their inputs are part of the wire contract. Placement
is rendezvous hashing in two steps. Hosts, the failure domains, are ranked for an object by the weight of their nodes;
then the nodes of each host are ranked. Copies go to the best hosts, one each. Whole batches are placed at once: each
object costs one hash in Python, the rest is array arithmetic.

    object  xxh3_64(bucket uuid, name)        host  xxh3_64(name of the host)        node  xxh3_64(uuid)
    drawn   splitmix64 finalizer of (object xor host), or of (object xor node)
    score   -weight / ln((drawn >> 12 + 1/2) / 2**52); the highest wins

Sources: see `placement`; the finalizer is that of Steele, Lea and Flood, "Fast splittable pseudorandom number
generators" (2014).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.placement import object_hash
from ais_loader.wire.redundancy import companion_name

K = TypeVar("K")
V = TypeVar("V")
U64: TypeAlias = npt.NDArray[np.uint64]
F64: TypeAlias = npt.NDArray[np.float64]
I32: TypeAlias = npt.NDArray[np.int32]
_FEW_HOSTS = 16
_64_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node that takes part in a placement, by its position in the map."""

    node: int
    host: str
    key: int
    weight: float


class HostPlacement:
    """Ownership of objects among these nodes."""

    def __init__(self, places: Sequence[PlacedNode]) -> None:
        by_host: dict[str, list[PlacedNode]] = {}
        for place in places:
            by_host.setdefault(place.host, []).append(place)
        hosts = sorted(by_host)
        self.hosts = len(hosts)
        self._host_keys: U64 = np.array([xxhash.xxh3_64_intdigest(host.encode()) for host in hosts], np.uint64)
        self._host_weights: F64 = np.array([sum(place.weight for place in by_host[host]) for host in hosts])
        self._members: list[tuple[I32, U64, F64]] = [
            (
                np.array([place.node for place in by_host[host]], np.int32),
                np.array([place.key for place in by_host[host]], np.uint64),
                np.array([place.weight for place in by_host[host]]),
            )
            for host in hosts
        ]
        self._only: I32 = np.array([nodes[0] for nodes, _, _ in self._members], np.int32)
        self._one_each = all(len(nodes) == 1 for nodes, _, _ in self._members)
        self._plain = [
            (key, weight, list(zip(*(column.tolist() for column in members), strict=True)))
            for key, weight, members in zip(
                self._host_keys.tolist(), self._host_weights.tolist(), self._members, strict=True
            )
        ]

    def owners(self, hashes: U64, copies: int) -> I32:
        """Return the positions of the owning nodes, best first: shape (n, min(copies, hosts))."""
        copies = min(copies, self.hosts)
        if copies == 0:
            return np.empty((len(hashes), 0), np.int32)
        scores = _scores(hashes, self._host_keys, self._host_weights)
        if copies == 1:
            hosts = scores.argmax(axis=1)[:, None]
        else:
            hosts = np.argsort(-scores, axis=1, kind="stable")[:, :copies]
        if self._one_each:
            firsts: I32 = self._only[hosts]
            return firsts
        found: I32 = np.empty(hosts.shape, np.int32)
        for host in sorted(set(hosts.ravel().tolist())):  # not np.unique: a fork may hit its lazy import
            nodes, keys, weights = self._members[host]
            rows, columns = np.nonzero(hosts == host)
            found[rows, columns] = nodes[_scores(hashes[rows], keys, weights).argmax(axis=1)]
        return found

    def owners_of_one(self, hash_: int, copies: int) -> list[int]:
        """Return the owners of one object. With few hosts, plain arithmetic is much faster than arrays."""
        if self.hosts > _FEW_HOSTS:
            owners: list[int] = self.owners(np.array([hash_], np.uint64), copies)[0].tolist()
            return owners
        hosts = self._plain
        if copies > 1:
            hosts = sorted(hosts, key=lambda host: _score(hash_, host[0], host[1]), reverse=True)[:copies]
        elif hosts and copies:
            hosts = [max(hosts, key=lambda host: _score(hash_, host[0], host[1]))]
        else:
            return []
        return [
            members[0][0] if len(members) == 1 else max(members, key=lambda node: _score(hash_, node[1], node[2]))[0]
            for _, _, members in hosts
        ]


def object_hashes(bucket_uuid: bytes, names: Sequence[str]) -> U64:
    """Hash names. Names without a UTF-8 form, which no object can have, count as empty."""
    return np.array([_hash(bucket_uuid, name) for name in names], np.uint64)


def _hash(bucket_uuid: bytes, name: str) -> int:
    try:
        return object_hash(bucket_uuid, name)
    except UnicodeEncodeError:
        return object_hash(bucket_uuid, "")


def _scores(hashes: U64, keys: U64, weights: F64) -> F64:
    drawn = mixed(hashes[:, None] ^ keys[None, :])
    scores: F64 = -weights / np.log(((drawn >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    return scores


def mixed(value: U64) -> U64:
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def _score(hash_: int, key: int, weight: float) -> float:
    """Compute the score of one candidate, as `_scores` does for arrays."""
    value = hash_ ^ key
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return -weight / math.log((((value ^ (value >> 31)) >> 12) + 0.5) * 2.0**-52)


class ClusterView:
    """One version of the map. Immutable: do not modify the message that it was made from.

    Raises ValueError for a map that no cluster can have.
    """

    def __init__(self, map_: pb.ClusterMap, before: ClusterView | None = None) -> None:
        """`before`: an earlier version, from which a view of a map that only adds buckets is made in less time."""
        added = added_buckets(before.map, map_) if before is not None else None
        before = before if added is not None else None
        new = list(map_.bucket) if added is None else added
        self.map: pb.ClusterMap = map_
        self.nodes: Sequence[pb.MapNode] = list(map_.node)
        self.version = map_.version
        self.position = {node.uuid: at for at, node in enumerate(self.nodes)}
        self.buckets: dict[str, pb.MapBucket] = {} if before is None else dict(before.buckets)
        self.buckets |= {bucket.name: bucket for bucket in new}
        self.special: list[pb.MapBucket] = [] if before is None else list(before.special)
        self.special += [
            one for one in new if one.snapshot or one.former_copies or one.HasField("remote") or one.HasField("denied")
        ]
        """Buckets that are remote, have snapshots, change their number of copies, or have denied objects."""
        self.copied: dict[bytes, pb.MapBucket] = {} if before is None else dict(before.copied)
        self.copied |= {bucket.uuid: bucket for bucket in new if most_copies(bucket) > 1}
        """Buckets with replicas on more than one node, by uuid."""
        self.pinned = {
            name: pb.MapBucket(
                name=name,
                uuid=bucket.uuid,
                copies=bucket.copies,
                min_copies=bucket.min_copies,
                former_copies=bucket.former_copies,
            )
            for bucket in self.special
            for name in (f"{bucket.name}@{one.name}" for one in bucket.snapshot if not one.maker)
        }
        """Buckets as they were, by bucket@snapshot; read like other buckets, at the same nodes."""
        if len(self.position) != len(self.nodes) or any(len(node.uuid) != 16 for node in self.nodes):
            raise ValueError("every node of a map needs a 16-byte uuid of its own")
        if any(one.cut >> 62 for bucket in self.special for one in bucket.snapshot):
            raise ValueError("a cut of a map's snapshots is a number that no version clock gives")
        if any(not 0 < node.weight < float("inf") for node in self.nodes):
            raise ValueError("every node of a map needs a finite weight above 0")
        places = [
            PlacedNode(at, node.host, xxhash.xxh3_64_intdigest(node.uuid), node.weight)
            for at, node in enumerate(self.nodes)
        ]
        states = [node.state for node in self.nodes]
        self.placement = HostPlacement([place for place in places if states[place.node] != pb.MapNode.LEAVING])
        """Where objects belong."""
        self.former = (
            HostPlacement([place for place in places if states[place.node] != pb.MapNode.JOINING])
            if any(states)
            else None
        )
        """Where objects were before nodes began to join or leave; None if none does."""
        self.is_changing = self.former is not None or any(bucket.former_copies for bucket in self.special)
        """Whether replicas may be in places where they do not belong, or be missing where they do."""

    @functools.cached_property
    def _by_uuid(self) -> dict[bytes, pb.MapBucket]:
        return {bucket.uuid: bucket for bucket in self.buckets.values()}

    def to_read(self, name: str) -> pb.MapBucket | None:
        """Return a bucket or one of its snapshots."""
        return self.buckets.get(name) or self.pinned.get(name)

    def has_coded(self, names: Iterable[str]) -> bool:
        """Return whether objects of one of these buckets or snapshots may be coded."""
        return any((known := self.to_read(name)) and companion_name(known.uuid) in self.buckets for name in names)

    def bucket_with_uuid(self, bucket_uuid: bytes) -> pb.MapBucket | None:
        return self._by_uuid.get(bucket_uuid)

    def holders(self, bucket: pb.MapBucket, names: Sequence[str]) -> list[list[int]]:
        """Return the nodes that readers ask for each name, most likely first: its owners, then its former ones.

        While the number of copies changes, these are the owners by the former number, until all replicas are in their
        places. New owners may have outdated replicas, as they were not told of writes before. The owners by the former
        number were told of all writes.
        """
        return self._owners_now_and_before(bucket, names, _read(bucket))

    def is_moving(self, names: Iterable[str]) -> bool:
        """Return whether objects of one of these buckets or snapshots may move away from where readers look, to a place
        where they look as well."""
        buckets = map(self.to_read, names)
        return self.former is not None or any(known is not None and known.copies < _read(known) for known in buckets)

    def concerned(self, bucket: pb.MapBucket, names: Sequence[str]) -> list[list[int]]:
        """Return the nodes that may have each name by this map or the one before, its owners first."""
        return self._owners_now_and_before(bucket, names, most_copies(bucket))

    def _owners_now_and_before(self, bucket: pb.MapBucket, names: Sequence[str], copies: int) -> list[list[int]]:
        if len(names) == 1:
            hash_ = _hash(bucket.uuid, names[0])
            owners = self.placement.owners_of_one(hash_, copies)
            if self.former is not None:
                owners = list(dict.fromkeys(owners + self.former.owners_of_one(hash_, copies)))
            return [owners]
        hashes = object_hashes(bucket.uuid, names)
        found: list[list[int]] = self.placement.owners(hashes, copies).tolist()
        if self.former is not None:
            before = self.former.owners(hashes, copies).tolist()
            found = [list(dict.fromkeys(now + then)) for now, then in zip(found, before, strict=True)]
        return found

    def owners(self, bucket: pb.MapBucket, name: str) -> list[int]:
        """Return the nodes that should have replicas of an object, best first."""
        return self.placement.owners_of_one(_hash(bucket.uuid, name), bucket.copies)

    def sure_owners(self, bucket: pb.MapBucket, name: str) -> list[int]:
        """Return the owners that have owned the object since all replicas were last in place, as far as the number of
        copies is concerned."""
        return self.placement.owners_of_one(_hash(bucket.uuid, name), sure_copies(bucket))


# The owners by a smaller number of copies are the first ones of those by a larger number.


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Group values by their keys, such as nodes, in the order of the pairs."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def added_buckets(before: pb.ClusterMap, after: pb.ClusterMap) -> list[pb.MapBucket] | None:
    """Return copies of the buckets that a map has behind those of another; None if it lacks or changes one of these.

    Most maps add a bucket. Comparing the serialized lists takes a tenth of the time of comparing their elements.
    """
    first, found = _bucket_bytes(before), _bucket_bytes(after)
    return list(pb.ClusterMap.FromString(found[len(first) :]).bucket) if found.startswith(first) else None


def _bucket_bytes(map_: pb.ClusterMap) -> bytes:
    only = pb.ClusterMap()
    only.CopyFrom(map_)
    for field, _ in map_.ListFields():
        if field.name != "bucket":
            only.ClearField(field.name)
    return only.SerializeToString(deterministic=True)


def most_copies(bucket: pb.MapBucket) -> int:
    """Return the number of hosts, in rank order, that may have replicas accounted for by the map."""
    return max(bucket.copies, *former) if (former := bucket.former_copies) else bucket.copies


def sure_copies(bucket: pb.MapBucket) -> int:
    """Return the number of replicas that each object has, even while the number is being changed."""
    return min([bucket.copies, *bucket.former_copies])


def _read(bucket: pb.MapBucket) -> int:
    return bucket.former_copies[0] if bucket.former_copies else bucket.copies
